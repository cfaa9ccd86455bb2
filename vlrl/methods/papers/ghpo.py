"""Prompts that nobody solves are asked again, with more and more of a solution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Literal

from vlrl.methods.common.sampling_rounds import accuracy, fits, with_text
from vlrl.methods.core.rollout import Independent
from vlrl.methods.papers.luffy import LOOKED_AT, demonstrations
from vlrl.registry import ConfigError, register
from vlrl.types import Group, Prompt, Row

if TYPE_CHECKING:
    from vlrl.context import RunContext


def check_demonstrations(run: RunContext, name: str, key: str = "") -> None:
    """Refuse data in whose first rows there is no solution to give hints from."""
    rows = (row for source in run.rows.values() for row in islice(source, LOOKED_AT))
    if not any(demonstrations(row) or (key and row.meta.get(key)) for row in rows):
        raise ConfigError(
            f"strategy {name!r} gives parts of a solution as hints, and none of the first rows has a `target` or a list `meta.demonstrations`; "
            "fill one, or use strategy 'independent'"
        )


@register("ghpo")
@dataclass(frozen=True)
class Ghpo(Independent):
    """Where all n rollouts of a prompt fail, n others that saw a hint take their place; again for each of `shares`, until one is right.

    The hint is `text`, put behind the question, with the first round(share * characters) of the row's first demonstration at {reference}, or,
    where the row has it, all of `row.meta[key]`. `train_on` "hinted": they are samples of the hinted prompt; "plain": log-probs and the update
    leave the hint out (source "guided"; their `logp` is that under the hint, for surrogate `mixed_policy` with behaviour "recorded").
    Paper: "hinted", shares 1/4, 1/2, 3/4: Liu et al. 2025 (GHPO), arXiv:2507.10628, checked against _generate_and_score_completions of
    ghpo_trainer.py; "plain": Nath et al. 2025 (Guide), arXiv:2506.13923, whose code was not found. Deviates: the words of `text` are ours.
    Right means a reward above `threshold` (of `slot`, or the total). The last hint stays also where it does not help. Edge: rows without a solution,
    and hints that make a prompt longer than `max_prompt_tokens`, leave the group as it is. `info["hint"]` is the share that a rollout saw.
    """

    shares: tuple[float, ...] = (0.25, 0.5, 0.75)
    train_on: Literal["hinted", "plain"] = "hinted"
    text: str = "\nA solution begins: {reference}"
    key: str = ""
    slot: str = ""
    threshold: float = 0.5
    counted: dict[str, float] = field(init=False, default_factory=lambda: {"groups": 0.0, "failed": 0.0, "helped": 0.0}, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.shares or not all(0 < share <= 1 for share in self.shares) or "{reference}" not in self.text:
            raise ValueError(f"shares={self.shares} must be numbers in (0, 1], and text={self.text!r} hold {{reference}}")

    def setup(self, run: RunContext) -> None:
        check_demonstrations(run, self.name, self.key)

    def reference(self, row: Row, share: float) -> str:
        """What is given away of a row's solution; "" where it has none."""
        if self.key and row.meta.get(self.key):
            return str(row.meta[self.key])
        solution = next(iter(demonstrations(row)), "")
        return solution[: round(share * len(solution))]

    def hinted(self, prompt: Prompt, share: float, run: RunContext) -> Prompt | None:
        """The prompt with the hint, or None where there is none to give."""
        begun = self.reference(prompt.row, share)
        made = with_text(prompt, self.text.replace("{reference}", begun)) if begun else prompt
        if made is prompt or not fits(made, run):
            return None
        return replace(made, train=prompt.for_training) if self.train_on == "plain" else made

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        run.score(groups)
        failed = [group for group in groups if len(group) and not accuracy(group.rollouts, self.threshold, self.slot)]
        self.counted["groups"] += sum(len(group) > 0 for group in groups)
        self.counted["failed"] += len(failed)
        for share in self.shares:
            pairs = [(group, prompt) for group in failed if (prompt := self.hinted(group.prompt, share, run)) is not None]
            drawn = self.draw([(prompt, len(group), ()) for group, prompt in pairs], run)
            for (group, _), rollouts in zip(pairs, drawn):
                for rollout in rollouts:
                    rollout.info["hint"] = share
                    rollout.source = "guided" if self.train_on == "plain" else rollout.source
                group.rollouts = rollouts
            run.score([group for group, _ in pairs])
            helped = [group for group, _ in pairs if accuracy(group.rollouts, self.threshold, self.slot)]
            self.counted["helped"] += len(helped)
            failed = [group for group in failed if not any(group is other for other in helped)]
        return groups

    def metrics(self) -> dict[str, tuple[float, float]]:
        """The share of this step's groups that failed, and of these the share that a hint helped."""
        groups, failed, helped = (self.counted[name] for name in ("groups", "failed", "helped"))
        self.counted.update(groups=0.0, failed=0.0, helped=0.0)
        return {"hint/failed": (failed, groups), "hint/helped": (helped, failed)}
