"""RLP: a thought before the next words of a text, paid by how much likelier it makes them than a slow copy
of the policy finds them without a thought.

    rlp       reward shaping: r = mean_j [log p_theta(x_j | x_<t, c, x_<j) - log p_phi(x_j | x_<t, x_<j)]
    rlp.ema   callback: phi <- decay phi + (1 - decay) theta after every step

Paper: Hatamizadeh et al. 2025 (RLP), arXiv:2510.01265, eq. 3 (information gain), sec. 3.2 (EMA baseline,
group-relative advantages, clipped loss on thought tokens, no gradient through the reward). No released code
was opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.functional.exact import mean
from vlrl.methods.core.callback import ReferenceEMA
from vlrl.methods.papers.rlpr import reasoning
from vlrl.plugins.contexts import PhaseContext, StageContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import RewardShaping
from vlrl.services.lazy import torch
from vlrl.types import Group, RowError


def logp(model: Any, prompt: Sequence[int], ids: Sequence[int]) -> list[float]:
    """Log-probs (nats) of `ids` after `prompt` under a causal model, at temperature 1."""
    given = torch.tensor([[*prompt, *ids]], device=model.device)
    with torch.no_grad():
        logits_TV = model(input_ids=given).logits[0, len(prompt) - 1 : -1].float()
    return torch.log_softmax(logits_TV, -1)[range(len(ids)), list(ids)].tolist()


@register("rlp")
@dataclass(frozen=True)
class Rlp(RewardShaping):
    """RLP's information gain: the total reward is the mean log-prob of the text's next tokens (`row.answer`)
    after the rollout's thought, less that under the moving average of the policy without a thought.

    The thought is what the rollout wrote up to its last `opening`, and all of its tokens up to there are
    trained (`rlp` leaves the rest out of the loss). Paper: arXiv:2510.01265, eq. 3. Deviates: one position of
    each text per row, chosen by the source; a horizon of the row's answer. Edge: a rollout without `opening`
    gets the group's smallest gain, at most 0; rows with pictures are a RowError. Nats per token.
    """

    opening: str = "<answer>"

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        run.policy.keep_reference()

    def __call__(self, group: Group) -> list[float]:
        policy = self.run.policy
        if group.prompt.images or group.prompt.videos:
            raise RowError(f"row {group.row.id!r}: 'rlp' scores texts without pictures")
        following = policy.encode_text(str(group.row.answer))
        prompt, bare = list(policy.encode(group.prompt).ids), policy.encode_text(self.opening)
        with policy.reference() as slow:
            without = mean(logp(slow.model, [*prompt, *bare], following))
        gains: list[float | None] = []
        for rollout in group:
            thought = reasoning(rollout.ids, policy, self.opening)
            gains.append(
                None
                if thought is None
                else mean(logp(policy.model, [*prompt, *thought], following)) - without
            )
            if thought is not None:
                rollout.leave_out([place < len(thought) for place in range(len(rollout.ids))])
        lowest = min([0.0, *(gain for gain in gains if gain is not None)])
        return [lowest if gain is None else gain for gain in gains]


@register("rlp.ema")
@dataclass(frozen=True)
class RlpEma(ReferenceEMA):
    """RLP's slow copy: as `reference_ema`, for the reference that the shaping `rlp` reads.

    Paper: arXiv:2510.01265, sec. 3.2: decay 0.999.
    """

    decay: float = 0.999

    def check(self, phase: PhaseContext) -> None:
        """Nothing to refuse: `rlp` reads the reference."""
