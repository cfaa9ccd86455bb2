"""Clone the right, push away the wrong in proportion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.advantage.grpo import GroupRelative
from vlrl.methods.advantage.rloo import RLOO
from vlrl.registry import register
from vlrl.types import Group


@register("oreal")
@dataclass(frozen=True)
class OREAL(GroupRelative):
    """A_i = `positive` RLOO_i N / N+ for right rollouts, `negative` RLOO_i N / N- for wrong ones; N, N+, N- count the trained tokens of the step.

    With surrogate `reinforce` and reduction `token_mean` the first is behaviour cloning, the second policy gradient on failures, each a mean over its
    own tokens. `one_each` trains only on the first right and the first wrong rollout of a group (the loss mask of the others is emptied); the
    baseline sees all.
    Paper: Lyu et al. 2025, arXiv:2502.06781, eq. 7-8; positive 1.0, negative 0.5, RLOO as factor of both and one rollout of each kind as in the
    released code.  Deviates: of each kind the first rollout is taken, there one at random, which is the same for independent samples.
    Edge: groups that are all right or all wrong have no signal.
    """

    positive: float = 1.0
    negative: float = 0.5
    one_each: bool = True
    threshold: float = 0.5

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        tokens = {True: 0, False: 0}
        kept: list[list[bool | None]] = []
        for group in groups:
            right = [r > self.threshold for r in group.rewards]
            chosen = {right.index(kind) for kind in (True, False) if kind in right} if self.one_each else set(range(len(right)))
            kept.append([kind if i in chosen else None for i, kind in enumerate(right)])
            for i, rollout in enumerate(group):
                if i in chosen:
                    tokens[right[i]] += len(rollout) if rollout.loss_mask is None else sum(rollout.loss_mask)
                else:
                    rollout.loss_mask = [False] * len(rollout)
        factor = {kind: coef * sum(tokens.values()) / max(tokens[kind], 1) for kind, coef in ((True, self.positive), (False, self.negative))}
        return [
            [0.0 if kind is None else factor[kind] * a for kind, a in zip(kinds, row, strict=True)]
            for kinds, row in zip(kept, RLOO()(groups), strict=True)
        ]
