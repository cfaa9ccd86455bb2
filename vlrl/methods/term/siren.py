"""Entropy anchored where it began, at the tokens that matter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from vlrl.methods._groups import top_share
from vlrl.registry import register
from vlrl.stages import Term
from vlrl.types import LossInputs, PerToken

if TYPE_CHECKING:
    from vlrl.run import Run


def mean_over_ranks(run: Run | None, total: float, count: float) -> float:
    """total / count, each summed over all processes."""
    if run is not None and run.accelerator is not None and run.accelerator.num_processes > 1:
        total, count = run.accelerator.reduce(torch.tensor([total, count], dtype=torch.float64, device=run.accelerator.device), "sum").tolist()
    return total / max(count, 1.0)


@register("siren")
@dataclass(frozen=True, kw_only=True)
class Siren(Term):
    """(mean_t H_t - anchor)^2 per rollout, over its `share` of tokens of highest nucleus entropy H (nats; field `nucleus_entropy`).

    `anchor` 0 takes the mean over the first step, that is, the policy's entropy before training; until then there is no loss.
    Paper: Jiang et al. 2025, arXiv:2509.25133, sec. 4.2-4.3.  Deviates: the squared form is vlrl's reading; the mean is each rollout's, so that
    the split into micro-batches does not matter. The loss is per sequence.
    """

    coef: float = 0.005
    share: float = 0.2
    anchor: float = 0.0
    needs = ("nucleus_entropy",)
    state: dict[str, float] = field(init=False, default_factory=lambda: {"total": 0.0, "count": 0.0}, repr=False, compare=False)
    run: Any = field(init=False, default=None, repr=False, compare=False)

    def setup(self, run: Run) -> None:
        object.__setattr__(self, "run", run)

    def __call__(self, x: LossInputs) -> PerToken:
        peaks_BT = top_share(x["nucleus_entropy"], x.mask_BT, x.group_B, self.share, "rollout").to(x.logp_BT)
        mean_B = (x["nucleus_entropy"] * peaks_BT).sum(-1) / peaks_BT.sum(-1).clamp(min=1)
        anchor = self.anchor or self.state.get("anchor")
        if anchor is None:
            self.state["total"] += mean_B.sum().item()
            self.state["count"] += len(mean_B)
            return PerToken(mean_B * 0.0, {"peak_entropy": mean_B.detach()})
        return PerToken((mean_B - anchor).square(), {"peak_entropy": mean_B.detach()})

    def metrics(self) -> dict[str, float]:
        if not self.anchor and "anchor" not in self.state:  # called once per step on every rank
            anchor = mean_over_ranks(self.run, self.state["total"], self.state["count"])
            if anchor > 0:
                self.state["anchor"] = anchor
        return {"siren/anchor": self.anchor or self.state.get("anchor", 0.0)}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state.clear()
        self.state.update(state)
