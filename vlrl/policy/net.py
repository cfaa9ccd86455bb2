"""The part of the policy that distributed engines wrap: one forward from token rows and media to log-probs.

Shape legend: R rows, L tokens of a row, H hidden size, N scored completion tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from vlrl.policy.encoded import Features
from vlrl.policy.family import DTYPES, Family
from vlrl.policy.logprobs import score_tokens
from vlrl.policy.packing import Layout
from vlrl.policy.precision import computing

if TYPE_CHECKING:
    from vlrl.stages import AuxTensor


class Net(nn.Module):
    """A model and how its family runs it, as one module: every collective of a step happens inside its forward and backward."""

    def __init__(self, model: nn.Module, family: Family) -> None:
        super().__init__()
        self.model = model
        self.family = family
        self._no_split_modules = getattr(model, "_no_split_modules", None)  # where FSDP cuts
        self._tied_weights_keys = None

    def forward(self, layout: Layout, ids_N: Tensor, temperature_N: Tensor, features: Sequence[Features], shown: Sequence[int],
                fields: Sequence[AuxTensor] = (), spare: Sequence[Features] = ()) -> dict[str, Tensor]:  # fmt: skip
        """{"logp": (N,), ...}. `features` are the distinct media, `shown` says which of them stands where, in row order.

        `spare` media go through the vision tower and count for nothing: all ranks must take part in its collectives.
        """
        with computing(ids_N.device, DTYPES[self.family.dtype]):
            return self._forward(layout, ids_N, temperature_N, features, shown, fields, spare)

    def _forward(self, layout: Layout, ids_N: Tensor, temperature_N: Tensor, features: Sequence[Features], shown: Sequence[int],
                 fields: Sequence[AuxTensor], spare: Sequence[Features]) -> dict[str, Tensor]:  # fmt: skip
        family = self.family
        seen = family.look(self.model, [*features, *spare]) if features or spare else []
        kinds = [features[i].kind for i in shown]
        masks = family.masks(self.model, layout)
        hidden_RLH, _ = family.hidden(self.model, layout.ids_RL, layout.positions, masks, [seen[i] for i in shown], kinds)
        hidden_NH = hidden_RLH.flatten(0, 1)[layout.source_N]
        out = score_tokens(lambda hidden: family.logits(self.model, hidden), hidden_NH, ids_N, temperature_N, fields, family.chunk)
        for extra in seen[len(features) :]:
            out["logp"] = out["logp"] + 0.0 * extra.embeds_NH.sum()
        return out
