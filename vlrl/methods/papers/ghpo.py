"""GHPO: where all rollouts of a prompt fail, new ones are sampled with a growing part of a solution as a
hint. Also Guide-GRPO's variant.

GHPO (`train_on` "hinted") trains on the samples as samples of the hinted prompt; Guide (`train_on` "plain")
leaves the hint out of the update. Papers: Liu et al. 2025 (GHPO), arXiv:2507.10628, with released code; Nath
et al. 2025 (Guide), arXiv:2506.13923.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from vlrl.methods.common.correctness import success_rate
from vlrl.methods.common.demonstrations import check_demonstrations, demonstrations
from vlrl.methods.common.prompts import with_text, within_limit
from vlrl.methods.core.rollout import Independent
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.contexts import SamplingContext, StageContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import StepCounts
from vlrl.types import Group, Prompt, Row

HINT_SHARE: Annotation[float] = Annotation(
    "ghpo.hint_share",
    float,
    hint="rollout: {name: ghpo}",
    doc="share of the demonstration that the rollout's prompt contained",
)


@register("ghpo")
@dataclass(frozen=True)
class Ghpo(Independent):
    """GHPO's difficulty-aware guidance: where all n rollouts of a prompt fail, n rollouts of the hinted
    prompt replace them.

    This is repeated for each of `shares`, until a rollout is correct. Paper: "hinted", shares 1/4, 1/2, 3/4:
    Liu et al. 2025 (GHPO), arXiv:2507.10628, checked against _generate_and_score_completions of
    ghpo_trainer.py; "plain": Nath et al. 2025 (Guide), arXiv:2506.13923, whose code was not found. Deviates:
    the words of `text` are ours. Edge: the rollouts of the last hint stay also where none is correct. Rows
    without a demonstration, and hints that make a prompt longer than `max_prompt_tokens`, leave the group as
    it is. HINT_SHARE is the share that a rollout's prompt contained.

    Attributes:
        text: The hint, appended to the question, with the first round(share * characters) of the row's first
            demonstration at {reference}, or with all of `row.meta[key]` where the row has it.
        train_on: "hinted": the rollouts are samples of the hinted prompt. "plain": log-probs and the update
            leave the hint out (source "guided"); their `logp` is that under the hint, for policy_loss
            `luffy.policy_shaping` with behaviour "recorded".
    """

    state_class = StepCounts
    shares: tuple[float, ...] = (0.25, 0.5, 0.75)
    train_on: Literal["hinted", "plain"] = "hinted"
    text: str = "\nA solution begins: {reference}"
    key: str = ""
    provides = (HINT_SHARE,)

    def __post_init__(self) -> None:
        if (
            not self.shares
            or not all(0 < share <= 1 for share in self.shares)
            or "{reference}" not in self.text
        ):
            raise ValueError(
                f"shares={self.shares} must be numbers in (0, 1], and text={self.text!r} must contain "
                f"{{reference}}"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        check_demonstrations(run, self.name, self.key)

    def reference(self, row: Row, share: float) -> str:
        """The part of the row's solution that the hint shows; "" for a row without one."""
        if self.key and row.meta.get(self.key):
            return str(row.meta[self.key])
        solution = next(iter(demonstrations(row)), "")
        return solution[: round(share * len(solution))]

    def hinted(self, prompt: Prompt, share: float, run: StageContext) -> Prompt | None:
        """The prompt with the hint; None where the row has no solution or the hinted prompt is too long."""
        reference = self.reference(prompt.row, share)
        hinted = with_text(prompt, self.text.replace("{reference}", reference)) if reference else prompt
        if hinted is prompt or not within_limit(hinted, run):
            return None
        return replace(hinted, train=prompt.for_training) if self.train_on == "plain" else hinted

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        run.score(groups)
        failed = [group for group in groups if len(group) and not success_rate(group.rollouts)]
        self.state.add(groups=sum(len(group) > 0 for group in groups), failed=len(failed))
        for share in self.shares:
            pairs = [
                (group, hinted)
                for group in failed
                if (hinted := self.hinted(group.prompt, share, run)) is not None
            ]
            drawn = self.draw([(hinted, len(group), ()) for group, hinted in pairs], run)
            for (group, _), rollouts in zip(pairs, drawn):
                for rollout in rollouts:
                    HINT_SHARE.set(rollout, float(share))
                    rollout.source = "guided" if self.train_on == "plain" else rollout.source
                group.rollouts = rollouts
            run.score([group for group, _ in pairs])
            solved = [group for group, _ in pairs if success_rate(group.rollouts)]
            self.state.add(solved=len(solved))
            failed = [group for group in failed if not any(group is other for other in solved)]
        return groups

    def metrics(self) -> dict[str, tuple[float, float]]:
        """The share of the step's groups that failed, and the share of the failed ones that a hint solved."""
        share = self.state.share
        return {"hint/failed": share("failed", "groups"), "hint/helped": share("solved", "failed")}
