"""ViLPRM: a vision-language process reward model, trained on the values of steps that a search finds, which
picks the best of several responses.

    vilbench.search   rollout strategy: the values of the steps of the policy's rollouts, by completing them
    vilbench          prompt sampler of the training phase: rows with valued steps
    vilbench.valued   rollout strategy: a row's valued steps, for loss term step_labels
    vilbench.select   rollout strategy: best of N by the trained head

Paper: Tu et al. 2025 (ViLBench), arXiv:2503.20271.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from vlrl.methods.common.step_scores import steps_of
from vlrl.methods.core.prompt_sampler import Shuffle
from vlrl.methods.core.reward_model import REWARD_HEAD, STEP_LABELS, GivenSteps, RewardScore
from vlrl.methods.core.rollout import Independent
from vlrl.plugins.contexts import SamplingContext, StageContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import StepCounts
from vlrl.services.lazy import torch
from vlrl.types import Group, Prompt, Rollout, Row

KEY = "vilbench"  # in a row's memory: [{"steps": texts, "values": numbers, "correct": bool}, ...]


@register("vilbench.search")
@dataclass(frozen=True)
class VilbenchSearch(Independent):
    """ViLReward's search: the value of each step of a rollout is the share of correct responses among those
    that go on from it.

        v_k = (1[correct] + correct ones of n continuations of steps 1 .. k) / (1 + n),  n `completions`

    The last step has v = 1[correct]. Rollouts of a prompt with equal steps share what was found (a tree).
    At most `keep` valued rollouts of a row are kept in the run's memory, half of them correct where there
    are such. Paper: Tu et al. 2025 (ViLBench), arXiv:2503.20271, sec. 4.1 (MCTS of five nodes a step).
    Deviates: plain completion of each prefix in place of MCTS, whose rules were not found. Edge: a rollout
    of one step gives its outcome alone.
    """

    state_class = StepCounts
    delimiter: str = "\n"
    completions: int = 4
    keep: int = 2

    def __post_init__(self) -> None:
        if self.completions < 0 or self.keep < 1 or not self.delimiter:
            raise ValueError(
                f"completions={self.completions} must not be negative, keep={self.keep} at least 1, and "
                f"delimiter={self.delimiter!r} not empty"
            )

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        run.score(groups)
        tally: dict[tuple[int, tuple[str, ...]], list[float]] = {}  # by group and steps so far
        wanted: dict[tuple[int, tuple[str, ...]], tuple[Prompt, int, tuple[int, ...]]] = {}
        split = {id(r): steps_of(r, run.policy, self.delimiter) for group in groups for r in group}
        for place, group in enumerate(groups):
            for rollout in group:
                texts = tuple(text for _, text in split[id(rollout)])
                for k, (end, _) in enumerate(split[id(rollout)], 1):
                    tally.setdefault((place, texts[:k]), []).append(float(rollout.correct))
                    if k < len(texts) and self.completions:
                        prefix = tuple(rollout.ids[:end])
                        wanted.setdefault((place, texts[:k]), (group.prompt, self.completions, prefix))
        drawn = self.draw(list(wanted.values()), run)
        ends = [Group(prompt, list(own)) for (prompt, _, _), own in zip(wanted.values(), drawn, strict=True)]
        run.score(ends)
        for key, group in zip(wanted, ends, strict=True):
            tally[key] += [float(rollout.correct) for rollout in group]
        for place, group in enumerate(groups):
            self.remember(
                run, group, {key[1]: found for key, found in tally.items() if key[0] == place}, split
            )
        return groups

    def remember(
        self,
        run: SamplingContext,
        group: Group,
        tally: Mapping[tuple[str, ...], Sequence[float]],
        split: Mapping[int, Sequence[tuple[int, str]]],
    ) -> None:
        """Keep the valued rollouts of a group."""
        found: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
        for rollout in group:
            texts = tuple(text for _, text in split[id(rollout)])
            values = [math.fsum(tally[texts[:k]]) / len(tally[texts[:k]]) for k in range(1, len(texts) + 1)]
            if texts and not rollout.truncated:
                entry = {"steps": list(texts), "values": values, "correct": rollout.correct}
                found[rollout.correct].append(entry)
                self.state.add(steps=len(values), soft=sum(0 < value < 1 for value in values))
        half = math.ceil(self.keep / 2)
        kept = [*found[True][:half], *found[False][: self.keep - min(half, len(found[True]))]]
        if kept:
            run.history.setdefault(group.row.id, {})[KEY] = kept

    def metrics(self) -> dict[str, tuple[float, float]]:
        return {"vilbench/soft": self.state.share("soft", "steps")}


@register("vilbench")
@dataclass(frozen=True)
class Vilbench(Shuffle):
    """ViLPRM's sampler of the training phase: as `shuffle`, over the rows that rollout `vilbench.search` kept
    valued steps for.

    Paper: Tu et al. 2025 (ViLBench), arXiv:2503.20271, sec. 4.2. Edge: raises ConfigError where there are
    none.
    """

    def __call__(self, n: int) -> list[Row]:
        if not any(KEY in memory for memory in self.run.history.values()):
            raise ConfigError(
                "prompt_sampler: 'vilbench' found no valued steps; give an earlier phase rollout: {name: "
                "vilbench.search} and enough steps"
            )
        return super().__call__(n)

    def usable_row(self, position: int) -> Row | None:
        row = super().usable_row(position)
        return row if row is not None and KEY in self.run.history.get(row.id, {}) else None


@register("vilbench.valued")
@dataclass(frozen=True)
class VilbenchValued(GivenSteps):
    """ViLPRM's training data: each valued rollout of a row with `mark` behind each step, labelled with the
    steps' values.

    Paper: Tu et al. 2025 (ViLBench), arXiv:2503.20271, sec. 4.2. Edge: a row without valued steps gives an
    empty group, which is replaced. `Rollout.correct` is the outcome of what was valued.
    """

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        return [
            Group(prompt, [self.valued(prompt, entry, run) for entry in self.entries(prompt, run)])
            for prompt in prompts
        ]

    def entries(self, prompt: Prompt, run: StageContext) -> list[dict[str, Any]]:
        """What the search kept of a row."""
        return list(run.history.get(prompt.row.id, {}).get(KEY, ()))

    def valued(self, prompt: Prompt, entry: Mapping[str, Any], run: StageContext) -> Rollout:
        """The rollout of valued steps, under the row's own prompt."""
        meta = {**prompt.row.meta, "steps": entry["steps"], "step_labels": entry["values"]}
        made = self.rollout(replace(prompt, row=replace(prompt.row, meta=meta)), run)
        made.prompt = prompt
        return made


@register("vilbench.select")
@dataclass(frozen=True)
class VilbenchSelect(Independent):
    """Best of N by a process reward model: of the sampled rollouts of a prompt the one with the best steps.

        score = reduce_k sigma(s_k),  reduce: mean, min, last or product

    s_k is what the policy's reward head says behind step k, with the pictures of the prompt. The others are
    set aside (`Group.untrained`). Paper: Tu et al. 2025 (ViLBench), arXiv:2503.20271, sec. 3.1 (mean over
    steps). Edge: a rollout without text has score 0. Logs the score of the best.
    """

    state_class = StepCounts
    delimiter: str = "\n"
    mark: str = "\n"
    reduce: Literal["mean", "min", "last", "product"] = "mean"
    requires = (REWARD_HEAD,)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        for group in groups:
            if len(group) > 1:
                scores = self.scores(group, run)
                best = max(range(len(group)), key=lambda place: scores[place])
                self.state.add(prompts=1, score=scores[best])
                group.untrained += [r for place, r in enumerate(group) if place != best]
                group.rollouts = [group.rollouts[best]]
        return groups

    def scores(self, group: Group, run: SamplingContext) -> list[float]:
        """The score of each rollout of a group."""
        given, marked = GivenSteps(mark=self.mark), []
        for place, rollout in enumerate(group):
            steps = [text for _, text in steps_of(rollout, run.policy, self.delimiter)]
            if steps:
                meta = {"steps": steps, "step_labels": [1.0] * len(steps)}
                row = replace(group.row, meta=meta)
                marked.append((place, given.rollout(replace(group.prompt, row=row), run)))
        found = [0.0] * len(group)
        if not marked:
            return found
        score = RewardScore()
        score.setup(run)
        part = Group(group.prompt, [rollout for _, rollout in marked])
        with torch.no_grad():
            score_BT = run.policy.forward(run.batch([part]), [score])[score.name]
        for (place, rollout), score_T in zip(marked, score_BT, strict=True):
            right = [float(torch.sigmoid(score_T[end])) for end, _ in STEP_LABELS[rollout]]
            found[place] = self.reduced(right)
        return found

    def reduced(self, right: Sequence[float]) -> float:
        """One number from the probabilities of the steps."""
        if self.reduce == "mean":
            return math.fsum(right) / len(right)
        if self.reduce == "product":
            return math.prod(right)
        return right[-1] if self.reduce == "last" else min(right)

    def metrics(self) -> dict[str, tuple[float, float]]:
        return {"vilbench/score": self.state.share("score", "prompts")}
