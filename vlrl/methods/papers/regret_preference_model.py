"""Preferences by regret: a response is preferred where it departs less from what would have been best, in
place of where its rewards add up to more.

    regret_preference_model                  loss term: pairs by their regret, which trains the policy itself
    regret_preference_model.partial_return   loss term: pairs by their sum of rewards, for comparison

Paper: Knox et al. 2024, arXiv:2206.02231.

Shapes: B rollouts, T completion tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from vlrl.methods.core.reward_model import RATING, REWARD_HEAD
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import LossTerm
from vlrl.services.lazy import Tensor, nn, torch
from vlrl.types import LossInputs, UnreducedLoss


def preference_loss(x: LossInputs, worth_B: Tensor, name: str) -> UnreducedLoss:
    """-log sigma(worth_w - worth_l), the mean over the pairs of each group with different ratings; every
    rollout carries its group's mean. Logs the mean margin and the share of pairs that are ranked right."""
    ratings = [RATING.get(rollout, 0.0) for rollout in x.batch.rollouts]
    groups = x.group_B.tolist()
    loss_B, margins = worth_B * 0.0, []
    for group in sorted(set(groups)):
        places = [place for place, own in enumerate(groups) if own == group]
        pairs = [
            (a, b) if ratings[a] > ratings[b] else (b, a)
            for a, b in combinations(places, 2)
            if ratings[a] != ratings[b]
        ]
        if not pairs:
            continue
        gaps = torch.stack([worth_B[best] - worth_B[worst] for best, worst in pairs])
        at = torch.tensor(places, device=worth_B.device)
        loss_B = loss_B.index_add(0, at, -nn.functional.logsigmoid(gaps).mean().expand(len(places)))
        margins += list(gaps.detach())
    if not margins:
        return UnreducedLoss(loss_B, {})
    told = torch.stack(margins)
    return UnreducedLoss(loss_B, {f"{name}/margin": told, f"{name}/ranked_right": (told > 0).float()})


@register("regret_preference_model")
@dataclass(frozen=True, kw_only=True)
class RegretPreferenceModel(LossTerm):
    """Preferences by regret: L = -log sigma(regret(l) - regret(w)) over the pairs (w, l) of a group.

        regret(y) = -sum_t gamma^t A*(y_t),  A*(y_t) = alpha [log pi(y_t) - log ref(y_t)]

    The paper's P(y1 > y2) = sigma(regret(y2) - regret(y1)) (eq. 5-6), where regret is minus the sum of
    optimal advantages. Texts are deterministic, so the advantage of the optimal policy of a KL-regularised
    reward is its log-ratio, and the policy that fits the preferences is that policy (Hejna et al. 2024,
    arXiv:2310.13639, eq. 2-5): no reward is learned first. Paper: Knox et al. 2024, arXiv:2206.02231; there
    rewards of small worlds are learned, with regrets from their solution. Edge: a group without two ratings
    adds 0. With gamma 1 it is DPO's loss on given responses. Shapes: (B,).
    """

    alpha: float = 0.1
    gamma: float = 1.0
    needs = ("ref_logp",)
    requires = (RATING,)

    def __post_init__(self) -> None:
        if self.alpha <= 0 or not 0 < self.gamma <= 1:
            raise ConfigError(
                f"loss_terms: {self.name!r}: alpha={self.alpha} must be above 0, gamma={self.gamma} above 0 "
                "and at most 1"
            )

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        ratio_BT = torch.where(x.mask_BT > 0, x.logp_BT - x["ref_logp"], 0.0)
        place_T = torch.arange(ratio_BT.shape[1], device=ratio_BT.device)
        regret_B = -(self.alpha * self.gamma**place_T * ratio_BT).sum(-1)
        return preference_loss(x, -regret_B, "regret")


@register("regret_preference_model.partial_return")
@dataclass(frozen=True, kw_only=True)
class RegretPreferenceModelPartialReturn(LossTerm):
    """Preferences by partial return: L = -log sigma(return(w) - return(l)), return(y) = sum_t gamma^t r_t.

    r_t is the reward head's value at token t. The model that regret is compared with; a reward that it finds
    may be shifted for each token, which then pays or punishes length. Paper: Christiano et al. 2017,
    arXiv:1706.03741, eq. 1; Knox et al. 2024, arXiv:2206.02231, eq. 2. Edge: as above. Shapes: (B,).
    """

    gamma: float = 1.0
    needs = ("reward_score",)
    requires = (RATING, REWARD_HEAD)

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        score_BT = torch.where(x.mask_BT > 0, x["reward_score"], 0.0)
        place_T = torch.arange(score_BT.shape[1], device=score_BT.device)
        return preference_loss(x, (self.gamma**place_T * score_BT).sum(-1), "partial_return")
