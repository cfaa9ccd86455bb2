"""Semantic soft bootstrapping: the policy sees a right and a common wrong answer of its own, explains, and
learns its verified explanation without them.

Paper: SSB, arXiv:2512.05105; purbeshmitra/semantic-soft-bootstrapping at f1533823, logit_gen.py (num_trials
4, top_k 50, temperature 0.8; one right rollout and one of the most common wrong answer; kept if its answer
is right) and ssb_train.py (LoRA 32, TEMP 2.0, KD_WEIGHT 1.0, LR 2e-4, 3 epochs)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vlrl.methods.common.prompts import neutralised, with_text, within_limit
from vlrl.methods.core.metric import answer_of
from vlrl.methods.core.rollout import Independent
from vlrl.plugins.contexts import SamplingContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import StepCounts
from vlrl.types import Group, Prompt


@register("ssb")
@dataclass(frozen=True)
class Ssb(Independent):
    """SSB's self-distillation: of a prompt with right and wrong rollouts, one right one and one with the most
    common wrong answer are shown to the policy, which explains the solution `tries` times.

    Groups hold the explanations whose answer is right, with the plain prompt to train on; for loss term
    `nll`. Paper: arXiv:2512.05105. Deviates: the teacher's tokens are drawn from its distribution and learned
    by cross-entropy, whose expectation is the release's cross-entropy with the teacher's logits at
    temperature 1 (there stored logits at temperature 2); it is the policy of the step, not of the start; the
    words are ours. Edge: a prompt without both gives an empty group. Logs the explanations and the share that
    is kept.

    Attributes:
        pattern: Reads answers, to find the most common wrong one.
    """

    state_class = StepCounts
    tries: int = 1
    show: str = (
        "\n\nTwo solutions were given. One is right:\n{right}\n\nOne is wrong, in a common "
        "way:\n{wrong}\n\nSolve the "
        "problem from the beginning, explain each step so that nobody makes that mistake, and give "
        "the answer."
    )
    pattern: str = r"<answer>(.*?)</answer>"

    def __post_init__(self) -> None:
        if self.tries < 1 or "{right}" not in self.show or "{wrong}" not in self.show:
            raise ValueError(f"tries={self.tries} must be at least 1, and show hold {{right}} and {{wrong}}")

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        run.score(groups)
        hinted = {
            place: shown
            for place, group in enumerate(groups)
            if (shown := self.hinted(group)) is not None and within_limit(shown, run)
        }
        explained = super().__call__(list(hinted.values()), [self.tries] * len(hinted), run)
        run.score(explained)
        out = [Group(prompt, []) for prompt in prompts]
        for place, group in zip(hinted, explained, strict=True):
            right = [rollout for rollout in group if rollout.correct]
            for rollout in right:
                rollout.source = "teacher"
            out[place].rollouts = right
            self.state.add(explained=len(group), kept=len(right))
        return out

    def hinted(self, group: Group) -> Prompt | None:
        """The prompt with a right and the most common wrong solution, trained without them; None for a group
        without both."""
        right = [rollout for rollout in group if rollout.correct]
        wrong = [rollout for rollout in group if not rollout.correct]
        if not right or not wrong:
            return None
        answers = [answer_of(rollout.text, self.pattern) for rollout in wrong]
        common = Counter(answers).most_common(1)[0][0]
        shown = {"right": right[0].text, "wrong": wrong[answers.index(common)].text}
        text = self.show
        for word, solution in shown.items():
            text = text.replace(f"{{{word}}}", neutralised(solution))
        return replace(with_text(group.prompt, text), train=group.prompt)

    def metrics(self) -> dict[str, tuple[float, float]]:
        return {**self.state.totals("ssb", "explained"), "ssb/kept": self.state.share("kept", "explained")}
