"""G2RPO-A: some rollouts of a prompt continue from the first tokens of a demonstration; the guidance length
adapts to the accuracy.

Paper: Guo et al. 2025 (G2RPO-A), arXiv:2508.13023, with released code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vlrl.methods.common.correctness import success_rate
from vlrl.methods.common.demonstrations import GIVEN_TOKENS, check_demonstrations, demonstrations
from vlrl.methods.core.rollout import Independent
from vlrl.plugins.contexts import SamplingContext, StageContext, StepContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import State
from vlrl.types import Group, Prompt


def adapted_length(length: int, accuracy: float, previous_accuracy: float, max_length: int) -> int:
    """L' = int(L previous_accuracy / accuracy), clamped to [1, max_length]; L where one of them is 0 or they
    are equal."""
    if accuracy <= 0 or previous_accuracy <= 0 or accuracy == previous_accuracy:
        return length
    return max(min(int(length * previous_accuracy / accuracy), max_length), 1)


@dataclass
class G2rpoAState(State):
    """`length` is the guidance length L in tokens, `accuracies` those of the current cycle of three steps,
    `steps` the steps so far."""

    length: int
    accuracies: list[float] = field(default_factory=list)
    steps: int = 0


@register("g2rpo_a")
@dataclass(frozen=True)
class G2rpoA(Independent):
    """G2RPO-A's guided rollouts: `guided` of a prompt's n rollouts continue from the first L tokens of the
    row's demonstration (source "guided").

        every third step: L <- int(L (mean accuracy of the two steps before) / (accuracy of this step)),
        clamped to [1, max_length]

    Accuracy is the share of correct rollouts in a step, guided ones included, over all ranks. Given tokens
    come on top of `max_tokens`; GIVEN_TOKENS is their number. Paper: Guo et al. 2025 (G2RPO-A),
    arXiv:2508.13023; checked against _compute_new_guidance_length and _prepare_inputs of g2rpoa_trainer.py: 2
    of 12 guided, first and largest length 3072, no division by zero. Deviates: a demonstration shorter than L
    is given whole, without padding. Edge: a row without a demonstration, and a prompt with a single rollout,
    are not guided; one rollout never is.

    Attributes:
        adaptive: false keeps L = `length`.
        train_given: The given tokens are trained on like the policy's own, as in the release; false masks
            them.
    """

    guided: int = 2
    length: int = 3072
    max_length: int = 3072
    adaptive: bool = True
    train_given: bool = True
    provides = (GIVEN_TOKENS,)

    def __post_init__(self) -> None:
        if self.guided < 1 or not 1 <= self.length <= self.max_length:
            raise ValueError(
                f"guided={self.guided} must be at least 1, and 1 <= length={self.length} <= "
                f"max_length={self.max_length}"
            )

    def init_state(self) -> G2rpoAState:
        return G2rpoAState(length=self.length)

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        check_demonstrations(run, self.name)

    def given(self, prompt: Prompt, run: StageContext) -> tuple[int, ...]:
        """The first L tokens of the row's demonstration, without the text that the prompt's prefix already
        has."""
        text = next(iter(demonstrations(prompt.row)), "").removeprefix(prompt.prefix)
        return tuple(run.policy.encode_text(text)[: self.state.length])

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        given = [self.given(prompt, run) for prompt in prompts]
        guided = [
            min(self.guided, max(count - 1, 0)) if ids else 0
            for count, ids in zip(counts, given, strict=True)
        ]
        wanted = [(prompt, n, ids) for prompt, n, ids in zip(prompts, guided, given)]
        wanted += [(prompt, count - n, ()) for prompt, count, n in zip(prompts, counts, guided)]
        drawn = self.draw(wanted, run)
        groups = []
        for i, prompt in enumerate(prompts):
            for rollout in drawn[i]:
                rollout.source = "guided"
                GIVEN_TOKENS.set(rollout, len(given[i]))
                rollout.loss_mask = (
                    None if self.train_given else [t >= len(given[i]) for t in range(len(rollout))]
                )
            groups.append(Group(prompt, [*drawn[i], *drawn[len(prompts) + i]]))
        return groups

    def end_step(self, run: StepContext) -> None:
        rollouts = [rollout for group in run.sampled_groups for rollout in group]
        if not self.adaptive or not rollouts:
            return
        accuracy, state = success_rate(rollouts), self.state
        place = state.steps % 3
        if place == 2:
            state.length = adapted_length(state.length, accuracy, sum(state.accuracies) / 2, self.max_length)
        state.accuracies = [accuracy] if place == 0 else [*state.accuracies, accuracy]
        state.steps += 1

    def metrics(self) -> dict[str, float]:
        """The guidance length of the next step, in tokens."""
        return {"guided/length": float(self.state.length)}
