"""How often k tries hold a right one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.registry import ConfigError, register
from vlrl.types import Group

from ._judged import Judged, mean


def pass_at_k(n: int, c: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k): the chance that k of n samples, drawn without return, hold one of the c right ones."""
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


@register("pass_at_k")
@dataclass(frozen=True, kw_only=True)
class PassAtK(Judged):
    """mean over groups of 1 - C(n - c, k) / C(n, k), with c right among n rollouts, for every k of `ks` up to n.

    Logs "1" (which is mean@n), "2", ..., "n" and "unsolved", the share of groups with c = 0. `both`: a second slot that must reach `threshold` too
    (its score of the chain of thought, for instance), which gives CoT-Pass@K and "given_answer", the share of right answers for which it does.
    Paper: Chen et al. 2021, arXiv:2107.03374, eq. 1; as the boundary of what RL can reach: arXiv:2504.13837; with `both`: arXiv:2506.14245.
    Edge: a k larger than a group leaves that group out; a k larger than all groups gives no number. Without `ks`: powers of two, and n.
    """

    ks: tuple[int, ...] = ()
    both: str = ""

    def __post_init__(self) -> None:
        if any(k < 1 for k in self.ks):
            raise ConfigError(f"ks: {self.ks} must be 1 or more")

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        judged = [members for members in self.judged(groups) if not self.both or all(self.both in r.rewards for r, _ in members)]
        if not judged:
            return {}
        counts = [(len(members), sum(right and self._also(rollout) for rollout, right in members)) for members in judged]
        largest = max(n for n, _ in counts)
        ks = self.ks or sorted({*(2**i for i in range(largest.bit_length())), largest})
        out = {str(k): mean([pass_at_k(n, c, k) for n, c in counts if n >= k]) for k in ks if k <= largest}
        out["unsolved"] = mean([float(c == 0) for _, c in counts])
        right = [rollout for members in judged for rollout, good in members if good]
        if self.both and right:
            out["given_answer"] = mean([float(self._also(rollout)) for rollout in right])
        return out

    def _also(self, rollout: object) -> bool:
        return not self.both or rollout.rewards[self.both] >= self.threshold - 1e-9  # type: ignore[attr-defined]
