"""Loss aggregations: how the losses of tokens become one number.

token_mean      every token counts the same (DAPO)
token_sum       the sum over tokens, without a divisor
sequence_mean   every rollout counts the same (GRPO)
prompt_mean     every prompt counts the same, and every token within it (TRL's bnpo, a group a device)
constant        a divisor that does not depend on lengths (Dr.GRPO)

Rollouts without trained tokens count nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl import functional
from vlrl.methods.core.sampling import completion_limit
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import LossAggregation
from vlrl.services.lazy import Tensor
from vlrl.types import Denominators, LossInputs


@register("token_mean")
@dataclass(frozen=True)
class TokenMean(LossAggregation):
    """DAPO's token-level loss: the sum over all tokens of the step / their number.

    Paper: Yu et al. 2025 (DAPO), arXiv:2503.14476, eq. 12 and sec. 3.3.
    """

    def weights(self, x: LossInputs, loss_denominators: Denominators) -> Tensor:
        return functional.aggregation_weights(x.mask_BT, "token_mean", tokens=loss_denominators.tokens)


@register("token_sum")
@dataclass(frozen=True)
class TokenSum(LossAggregation):
    """The sum over all tokens of the step: the size of the gradient grows with tokens and rollouts.

    vlrl original in form; as loss_agg_mode "token-sum" of verl-project/verl 1dda039b (agg_loss in
    verl/trainer/ppo/core_algos.py).
    """

    def weights(self, x: LossInputs, loss_denominators: Denominators) -> Tensor:
        return functional.aggregation_weights(x.mask_BT, "token_sum")


@register("sequence_mean")
@dataclass(frozen=True)
class SequenceMean(LossAggregation):
    """GRPO's mean over rollouts of the mean over a rollout's tokens. Tokens of long rollouts count less:
    GRPO's length bias.

    Paper: Shao et al. 2024, arXiv:2402.03300, eq. 3.
    """

    def weights(self, x: LossInputs, loss_denominators: Denominators) -> Tensor:
        return functional.aggregation_weights(
            x.mask_BT, "sequence_mean", sequences=loss_denominators.sequences
        )


@register("prompt_mean")
@dataclass(frozen=True)
class PromptMean(LossAggregation):
    """The mean over prompts of the mean over all tokens of a prompt's rollouts: 1 / (tokens of the prompt *
    prompts) a token.

    Paper: Khatri et al. 2025 (ScaleRL), arXiv:2510.13786, sec. 3.2. TRL's loss_type "bnpo" is this where a
    device's batch is one group (huggingface/trl @ 23a635ed, grpo_trainer.py:932, the token mean of the batch,
    averaged over devices and accumulation steps).
    """

    def weights(self, x: LossInputs, loss_denominators: Denominators) -> Tensor:
        return functional.aggregation_weights(
            x.mask_BT, "prompt_mean", prompts=loss_denominators.groups, group_B=x.group_B
        )


@register("constant")
@dataclass(frozen=True)
class Constant(LossAggregation):
    """Dr.GRPO's aggregation, unbiased in length: the sum over all tokens / (rollouts * length).

    `length` is a constant number of tokens; 0 takes the longest completion that may be sampled. 1 sums a
    rollout's tokens. Paper: Liu et al. 2025 (Dr.GRPO), arXiv:2503.20783, sec. 3.2 and listing 1 (MAX_TOKENS).
    """

    length: int = 0

    def check(self, phase: PhaseContext) -> None:
        self.divisor(phase)

    def divisor(self, run: PhaseContext) -> int:
        """`length`, or the longest completion, in tokens. Raises ConfigError if that is not known."""
        return completion_limit(run, self.length, "loss_aggregation.length")

    def weights(self, x: LossInputs, loss_denominators: Denominators) -> Tensor:
        length = self.length or self.divisor(self.run)
        return functional.aggregation_weights(
            x.mask_BT, "constant", sequences=loss_denominators.sequences, length=length
        )
