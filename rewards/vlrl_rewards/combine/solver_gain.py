"""What a text is worth to a frozen model: its accuracy with the text, less that without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from vlrl.plugins.contexts import StageContext
from vlrl.plugins.registry import ConfigError, build, register
from vlrl.plugins.stages import Engine, State, transient
from vlrl.types import Group, Prompt, Request, Rollout, Row, Sampling
from vlrl_rewards.combine.nested import OverReward, number
from vlrl_rewards.parsing import last_answer, strip_thinking


@dataclass
class SolverState(State):
    """`engine` is the solver's; `gained` and `asked` count for the log."""

    engine: Any = transient()
    gained: float = 0.0
    asked: int = 0


@register("solver_gain")
@dataclass(frozen=True, kw_only=True)
class SolverGain(OverReward):
    """Downstream reward: r = mean over `samples` of 1[the frozen solver's answer to `ask` is correct], less
    the same for `bare`, where that is set.

    `ask` and `bare` may use {text} (what the policy wrote, without its thoughts), {question} and the texts
    of `row.meta`. The reward `of` decides what is correct, by `row.meta[gold]`, or the row's answer.
    Papers: GeoCaption-RLVR, arXiv:2509.15217 (a solver reads the caption alone); RefCritic,
    arXiv:2507.15024 (a policy rewrites a solution by the critique); A2D (a reasoner is given
    sub-questions). Edge: a row without a key that the prompt needs is paid 0 and the solver is not asked.
    Range: [0, 1], from -1 with `bare`.

    Attributes:
        engine: The solver's engine, with weights of its own: {name: openai, url: ..., model: ...}.
        temperature, max_tokens: Of the solver's answers. 0 with one sample is greedy.
        part: Of what the policy wrote, the solver sees its "answer", or the whole "text" without thoughts.
        when: Pays only rows whose answer is this text ("": all), such as critiques of wrong solutions.
    """

    state_class = SolverState
    decides: ClassVar[bool] = False
    needs_gold: ClassVar[bool] = False
    engine: Mapping[str, Any] = field(default_factory=dict)
    ask: str = "{question}\n{text}"
    bare: str = ""
    gold: str = ""
    samples: int = 1
    temperature: float = 0.0
    max_tokens: int = 64
    when: str = ""
    part: Literal["answer", "text"] = "answer"

    def __post_init__(self) -> None:
        super().__post_init__()
        if "{text}" not in self.ask or "{text}" in self.bare or self.samples < 1:
            raise ValueError(
                f"ask={self.ask!r} must hold {{text}} and bare={self.bare!r} must not; "
                f"samples={self.samples} "
                "must be at least 1"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if not self.engine:
            raise ConfigError(
                f"rewards: {self.name!r}: engine is not set; name the frozen solver, for instance "
                f"{{name: openai, url: "
                "http://host:8000/v1, model: name}"
            )
        self.state.engine = build(Engine, self.engine, f"rewards: {self.name!r}: engine")
        self.state.engine.setup(run)

    def __call__(self, rollout: Rollout) -> float:
        return self.score_group(Group(rollout.prompt, [rollout]))[0]

    def score_group(self, group: Group) -> list[float]:
        if self.when and str(group.row.answer) != self.when:
            return [0.0] * len(group)
        texts = [self.written(rollout.text) for rollout in group]
        asked = [self.filled(self.ask, group.row, text) for text in texts]
        bare = self.filled(self.bare, group.row, "") if self.bare else None
        if any(prompt is None for prompt in asked) or (self.bare and bare is None):
            return [0.0] * len(group)
        prompts = [*(str(prompt) for prompt in asked), *([bare] if bare else [])]
        shares = self.accuracies(prompts, group.row)
        base = shares[-1] if bare else 0.0
        self.state.asked += len(group)
        self.state.gained += sum(share - base for share in shares[: len(group)])
        return [share - base for share in shares[: len(group)]]

    def written(self, text: str) -> str:
        """What the solver sees of a response."""
        return last_answer(text) if self.part == "answer" else strip_thinking(text)

    def filled(self, form: str, row: Row, text: str) -> str | None:
        """A prompt of the solver; None where the row lacks one of its texts."""
        try:
            return form.format(**{**row.meta, "question": row.question, "text": text})
        except KeyError:
            return None

    def accuracies(self, prompts: Sequence[str], row: Row) -> list[float]:
        """The share of correct answers to each prompt. Raises RuntimeError before `setup`, KeyError for a row
        without `gold`."""
        if self.state.engine is None:
            raise RuntimeError(f"reward {self.name!r} asks a solver, which is opened by setup(run)")
        gold = row.meta[self.gold] if self.gold else row.answer
        sampling = Sampling(temperature=self.temperature, max_tokens=self.max_tokens)
        requests = [
            Request(
                self.solver_prompt(
                    replace(row, id=f"{row.id}/solver", question=text, answer=gold, target="")
                ),
                sampling,
                n=self.samples,
                tag=place,
            )
            for place, text in enumerate(prompts)
        ]
        found: list[list[float]] = [[] for _ in prompts]
        for completion in self.state.engine.generate(requests):
            prompt = completion.request.prompt
            answer = Rollout(prompt, list(completion.ids), completion.text)
            correct = self.inner.correct(answer, number(self.inner, answer))
            found[completion.request.tag].append(float(correct))
        return [sum(values) / len(values) for values in found]

    def solver_prompt(self, row: Row) -> Prompt:
        """The solver's prompt of a row with its question, without pictures: it sees the text alone."""
        return Prompt(replace(row, images=(), videos=()), ({"role": "user", "content": row.question},))

    def metrics(self) -> dict[str, float | tuple[float, float]]:
        return {"solver/gain": (self.state.gained, float(self.state.asked))}
