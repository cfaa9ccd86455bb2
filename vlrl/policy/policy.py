"""The policy: a model and its processor. Scores completions.

Shape legend: B completions, T longest completion, N scored completion tokens, K numbers per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vlrl.policy.encoded import Features, Seen
from vlrl.policy.family import base, linear_cost
from vlrl.policy.packing import lay_out, packing_pays
from vlrl.policy.sharding import is_sharded, world_size
from vlrl.policy.spare import BLANKS
from vlrl.policy.weights import Weights
from vlrl.types import TokenBatch

if TYPE_CHECKING:
    from vlrl.stages import AuxTensor


class Policy(Weights):
    """A model of a `Family` that encodes prompts, scores completions and keeps its weights."""

    def look(self, features: Sequence[Features]) -> list[Seen]:
        """The vision tower's output for each of `features`; each distinct picture goes through it once."""
        unique = {f.key: f for f in features}
        self._count_patches(unique.values())
        with self.computing():
            seen = dict(zip(unique, self.family.look(self.model, list(unique.values())))) if unique else {}
        return [seen[f.key] for f in features]

    def forward(self, batch: TokenBatch, fields: Sequence[AuxTensor] = ()) -> dict[str, Tensor]:
        """{"logp": (B, T), field: (B, T) or (B, T, K)}, temperature-scaled float32, zero where `loss_mask_BT` is False.

        Honours the autograd mode. Raises ValueError for a completion that holds a media placeholder.
        """
        self._refuse_placeholders(batch)
        prompts = [self.encode(prompt) for prompt in batch.prompts]
        scored_BT = (batch.loss_mask_BT & batch.mask_BT).cpu()
        lengths = batch.mask_BT.sum(-1).tolist()
        ids = [row[:n] for row, n in zip(batch.ids_BT.tolist(), lengths)]
        scored = [row.nonzero()[:, 0].tolist() for row in scored_BT]
        places = batch.prompt_B.tolist()
        packed = self.packed and (self.family.attn == "flex" or self._packing_pays([len(p) for p in prompts], places, lengths))
        layout = lay_out(prompts, places, ids, scored, batch.ids_BT.shape[1], self.pad_id, packed).to(self.device)
        shown = [f for p in layout.rows for f in prompts[p].features]
        unique = list({f.key: f for f in shown}.values())
        index = {f.key: i for i, f in enumerate(unique)}
        together = self._crosses_ranks()
        spare = [self._look_up(blank) for blank in BLANKS] if self.family.sees and together and world_size() > 1 else []
        ids_N = batch.ids_BT.to(self.device).flatten()[layout.target_N]
        temperature_N = batch.temperature_BT.to(self.device).flatten()[layout.target_N].float()
        self._count_patches(unique)
        self.counters["head_rows"] += len(ids_N)
        self.counters["tokens"] += layout.ids_RL.numel()
        self._mode(torch.is_grad_enabled())
        net = self.wrapped if together else self.net
        assert net is not None
        out = net(layout, ids_N, temperature_N, unique, [index[f.key] for f in shown], tuple(fields), spare)
        return {name: self._spread(value, layout.target_N, batch.ids_BT.shape) for name, value in out.items()}

    def _packing_pays(self, prompts: list[int], prompt_B: list[int], lengths_B: list[int]) -> bool:
        return packing_pays(prompts, prompt_B, lengths_B, linear_cost(base(self.model).config.get_text_config()))

    def _spread(self, value: Tensor, target_N: Tensor, shape: torch.Size) -> Tensor:
        """(N, ...) to (B, T, ...), zero where nothing was scored."""
        flat_BT = value.new_zeros(shape.numel(), *value.shape[1:])
        return flat_BT.index_copy(0, target_N, value).view(*shape, *value.shape[1:])

    def _mode(self, training: bool) -> None:
        if self.model.training != training:
            self.model.train(training)

    def _refuse_placeholders(self, batch: TokenBatch) -> None:
        bad = torch.isin(batch.ids_BT.cpu(), torch.tensor(self.forbidden_ids, dtype=torch.long)) & batch.mask_BT.cpu()
        if bad.any():
            b, t = bad.nonzero()[0].tolist()
            token = self.tokenizer.convert_ids_to_tokens(int(batch.ids_BT[b, t]))
            raise ValueError(f"row {batch.rollouts[b].row.id!r}: completion token {t} is {token!r}, which stands for media and may not be written")

    def _count_patches(self, features: Any) -> None:
        self.counters["patches"] += sum(len(next(iter(f.tensors.values()))) for f in features)

    def _crosses_ranks(self) -> bool:
        """Whether gradients or weights cross ranks in the next forward: then it goes through the wrapped module."""
        return self.wrapped is not None and not self.held_whole and (torch.is_grad_enabled() or is_sharded(self.wrapped))
