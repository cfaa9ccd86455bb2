"""A model on a task: the task's rows, its prompts, and answers that its rewards have scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vlrl.config import load
from vlrl.eval.model import policy_spec
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.plan import Plan
from vlrl.trainer.session import Session
from vlrl.trainer.views import StepView
from vlrl.types import Group, Prompt, Request, Row


class ProbedModel:
    """One model, opened on the rows of a config.

    Args:
        words: Configs and overrides, as of `vlrl train`: a task, a model, `engine.name=vllm`.
        model: A run's folder, a model folder or a hub id in place of the config's model.
        rows: The most rows that are asked: held-out ones, or training rows where there are none.
    """

    def __init__(self, words: Sequence[str], model: str = "", rows: int = 100) -> None:
        files = [word for word in words if "=" not in word]
        config = load(["base/rl", *files], [word for word in words if "=" in word])
        if model:
            config.tree["policy"] = policy_spec(model)
        self.name = model or str((config.tree.get("policy") or {}).get("model") or files[-1])
        self.session = Session(Plan.of(config))
        self.session.use(len(self.session.phases) - 1)
        phase = self.session.current
        read = [*phase.rows("heldout").values()] or [*phase.rows("train").values()]
        self.rows: list[Row] = [row for source in read for row in source][:rows]
        self.view: Any = None

    def __enter__(self) -> ProbedModel:
        self.session.open()
        self.session.enter(self.session.phase_index)
        self.session.engine.sync(self.session.policy)
        self.view = StepView.between_steps(self.session)
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()

    def prompt(self, row: Row, question: str = "") -> Prompt:
        """The prompt of a row, with another question where one is given."""
        return self.session.current.prompt_template(replace(row, question=question) if question else row)

    def ask(
        self, prompts: Sequence[Prompt], n: int = 1, temperature: float = 0.0, max_tokens: int = 0
    ) -> list[Group]:
        """`n` completions of each prompt, in order, scored by the rewards that apply to its row."""
        groups = self.write(prompts, n, temperature, max_tokens)
        self.view.score(groups)
        return groups

    def write(
        self, prompts: Sequence[Prompt], n: int = 1, temperature: float = 0.0, max_tokens: int = 0
    ) -> list[Group]:
        """`ask` without scores: of what no reward of the task is for, such as a verdict."""
        phase = self.session.current
        requests = []
        for place, prompt in enumerate(prompts):
            sampling = replace(phase.sampling(prompt, 0), temperature=temperature)
            sampling = replace(sampling, max_tokens=max_tokens) if max_tokens else sampling
            requests.append(Request(prompt, sampling, n=n, seed=self.session.seed, tag=place))
        groups = [Group(prompt, [], id=str(place)) for place, prompt in enumerate(prompts)]
        found = sorted(self.session.engine.generate(requests), key=lambda one: one.index)
        for completion in found:
            groups[completion.request.tag].rollouts.append(self.view.make_rollout(completion))
        return groups

    def text_ids(self, row: Row) -> list[int]:
        """The token ids of a row's prompt. Raises ConfigError for a row with pictures: what reads hidden
        states reads text."""
        prompt = self.prompt(row)
        if prompt.media:
            raise ConfigError(
                f"probe: row {row.id!r} has pictures or videos; this probe reads hidden states of "
                f"text alone, "
                "give a task of text such as tasks/lab_arithmetic"
            )
        return list(self.session.policy.encode(prompt).ids)


def accuracy(groups: Sequence[Group]) -> float:
    """The share of correct rollouts; 0 without any."""
    answered = [rollout.correct for group in groups for rollout in group]
    return sum(answered) / len(answered) if answered else 0.0
