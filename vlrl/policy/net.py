"""The module that distributed engines wrap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from vlrl.policy.encoded import Features
from vlrl.policy.family import Family, forbid
from vlrl.policy.forward import needs_logits_graph, score_by_weight, score_tokens
from vlrl.policy.packing import Layout
from vlrl.policy.tower import MediaEncoder

if TYPE_CHECKING:
    from vlrl.plugins.stages import AuxTensor


class Net(nn.Module):
    """The module that distributed engines wrap: a model and its family's forward. Every collective of a step
    is inside its forward and backward.

    `forbidden_ids` have probability 0 (see `Params`). `media` runs the vision tower, and keeps its outputs
    while it is frozen.
    """

    def __init__(
        self,
        model: nn.Module,
        family: Family,
        forbidden_ids: Sequence[int] = (),
        media: MediaEncoder | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.family = family
        self.forbidden_ids = tuple(forbidden_ids)
        self.media = MediaEncoder(family) if media is None else media
        self._no_split_modules = getattr(model, "_no_split_modules", None)  # FSDP shards at these modules
        self._tied_weights_keys = None

    def forward(
        self,
        layout: Layout,
        ids_N: Tensor,
        temperature_N: Tensor,
        features: Sequence[Features],
        shown: Sequence[int],
        aux_tensors: Sequence[AuxTensor] = (),
        dummies: Sequence[Features] = (),
    ) -> dict[str, Tensor]:
        """{"logp": (N,), aux tensor name: (N,) or (N, K)} of the completion tokens `ids_N`.

        Args: `features` are the distinct media; `shown` indexes them in the order of the rows' placeholders.
        `dummies` are media that go through the vision tower with weight 0, because all ranks must take part
        in the tower's collectives.
        """
        with self.family.autocast(ids_N.device):
            return self._forward(layout, ids_N, temperature_N, features, shown, aux_tensors, dummies)

    def _forward(
        self,
        layout: Layout,
        ids_N: Tensor,
        temperature_N: Tensor,
        features: Sequence[Features],
        shown: Sequence[int],
        aux_tensors: Sequence[AuxTensor],
        dummies: Sequence[Features],
    ) -> dict[str, Tensor]:
        family = self.family
        embeds = self.media(self.model, [*features, *dummies])
        kinds = [features[i].kind for i in shown]
        shown_embeds = [embeds[i] for i in shown]
        how = family.attention(self.model, layout)
        hidden_RLH, _ = family.hidden(
            self.model, layout.ids_RL, layout.positions, embeds=shown_embeds, kinds=kinds, **how
        )
        hidden_NH = hidden_RLH.flatten(0, 1)[layout.source_N]
        weight_VH = family.head_weight(self.model)
        if weight_VH is not None and len(ids_N) and not any(needs_logits_graph(aux) for aux in aux_tensors):
            out = score_by_weight(
                weight_VH, hidden_NH, ids_N, temperature_N, aux_tensors, self.forbidden_ids, family.chunk
            )
        else:
            out = score_tokens(self._logits, hidden_NH, ids_N, temperature_N, aux_tensors, family.chunk)
        for dummy in embeds[len(features) :]:
            out["logp"] = out["logp"] + 0.0 * dummy.embeds_NH.sum()
        return out

    def _logits(self, hidden_NH: Tensor) -> Tensor:
        return forbid(self.family.logits(self.model, hidden_NH), self.forbidden_ids)
