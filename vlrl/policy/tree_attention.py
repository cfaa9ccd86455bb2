"""Attention of packed groups on a CPU without a dense mask: cost grows with the sum of the completions'
lengths, not with its square.

A node's tokens (`vlrl.policy.packing`) attend to themselves in one call, and all tokens below a node attend
to it in one call; partial results o_1, o_2 with log-sum-exps l_1, l_2 of their scores merge exactly:

    l = log(e^{l_1} + e^{l_2}),    o = e^{l_1 - l} o_1 + e^{l_2 - l} o_2

The backward pass of a part needs l and o of the whole row only (Dao et al. 2022, arXiv:2205.14135, sec. 3.1
and app. B.4). Kernels are those behind torch's scaled_dot_product_attention. With a sliding window, queries
are taken in blocks of one window, whose keys are in the block and the window before it.

Shape legend:
    R rows, L tokens of a row, H query heads, J key-value heads, D head size,
    Q queries of a node or a block, K keys
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from vlrl.policy.family import Family, base, no_mask
from vlrl.policy.packing import Layout, Node, image_runs
from vlrl.policy.recurrent import States, is_recurrent

ATTENTION_NAME = "vlrl_tree"
MIN_ROW = 384  # tokens of a row: below, one call with a dense mask takes less time than several calls


def configure_attention(family: Family, model: Any, device: torch.device) -> None:
    """Set FlexAttention on the language model if `family.attn` asks for it (transformers refuses it for whole
    models whose vision towers do not support it), and the attention of this module on a CPU."""
    if family.attn == "flex":
        model.config.get_text_config()._attn_implementation = "flex_attention"
        return
    packs = family.layout == "packed" and family.supports_packing
    if packs and family.attn == "sdpa" and device.type == "cpu":
        install(model)


def is_installed(model: nn.Module) -> bool:
    """Whether packed rows of the model need no dense mask: it attends through `attention`."""
    return base(model).config.get_text_config()._attn_implementation == ATTENTION_NAME


def attention_arguments(family: Family, model: nn.Module, layout: Layout) -> dict[str, Any]:
    """The arguments of `Family.hidden` that say which tokens attend to which: a mask, or the trees of long
    rows; and the trees of recurrent layers."""
    recurrent = {}
    if layout.is_tree and is_recurrent(base(model).config.get_text_config()):
        recurrent["seq_idx"] = States(layout.nodes_R, layout.ids_RL.shape)
    if layout.is_tree and layout.ids_RL.shape[1] >= MIN_ROW and is_installed(model):
        trees = RowTrees(layout, family.bidirectional_images)
        return {"mask": no_mask(model), "trees": trees, **recurrent}
    return {"mask": family.masks(model, layout), **recurrent}


@dataclass(frozen=True)
class RowTrees:
    """The nodes of packed rows. `bidirectional_images`: see `mask_mod`."""

    layout: Layout
    bidirectional_images: bool = False

    @cached_property
    def images_RL(self) -> Tensor | None:
        """`image_runs` of the rows; None where no image attends in both directions."""
        runs_RL = image_runs(self.layout.types_RL) if self.bidirectional_images else None
        return runs_RL if runs_RL is not None and bool(runs_RL.any()) else None

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return int(self.layout.order_RL.max()) + 1

    @cached_property
    def _cache(self) -> dict[Any, Any]:
        return {}

    def own_masks(self, row: int) -> tuple[Tensor | None, ...]:
        """Of each node of a row, (1, 1, Q, Q) of its tokens to themselves where causal attention is not
        enough. Kept for the next layer."""
        if row not in self._cache:
            self._cache[row] = tuple(
                self._own_mask(row, slice(node.start, node.end)) for node in self.layout.nodes_R[row]
            )
        return self._cache[row]

    def _own_mask(self, row: int, own: slice) -> Tensor | None:
        if self.images_RL is None or not bool(self.images_RL[row, own].any()):
            return None
        images_Q = self.images_RL[row, own]
        place = torch.arange(len(images_Q))
        return ((place <= place[:, None]) | ((images_Q == images_Q[:, None]) & (images_Q > 0)))[None, None]

    def bands(self, row: int, window: int) -> list[tuple[slice, Tensor, Tensor]]:
        """(queries, places of their keys (K,), mask (Q, K)) of each call with a sliding window. Kept for the
        next layer."""
        if (row, window) not in self._cache:
            self._cache[row, window] = list(self._bands(row, window))
        return self._cache[row, window]

    def _bands(self, row: int, window: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
        order_L, nodes = self.layout.order_RL[row], self.layout.nodes_R[row]
        images_L = None if self.images_RL is None else self.images_RL[row]
        for node in nodes:
            above = [
                place
                for other in nodes
                if other.end <= node.start < other.subtree_end
                for place in range(other.start, other.end)
            ]
            own = torch.arange(node.start, node.end)
            whole = images_L is not None and bool(
                images_L[own].any()
            )  # an image is as long as it is: one block
            for begin in range(node.start, node.end, len(own) if whole else window):
                end = node.end if whole else min(begin + window, node.end)
                first = max(node.start, begin - window + 1)  # the oldest key in the node
                earlier = above[len(above) - min(len(above), max(window - 1 - (begin - node.start), 0)) :]
                keys = torch.cat([torch.tensor(earlier, dtype=torch.long), torch.arange(first, end)])
                distance = order_L[begin:end, None] - order_L[keys]
                mask = (distance >= 0) & (distance < window)
                if images_L is not None:
                    mask = mask | ((images_L[begin:end, None] == images_L[keys]) & (images_L[keys] > 0))
                yield slice(begin, end), keys, mask


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    scaling: float | None = None,
    trees: RowTrees | None = None,
    sliding_window: int | None = None,
    sequence: Any = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls by name: packed rows with `trees`, everything else by
    its own "sdpa"; slices of rows by `Slices.attend` of `sequence`.

    Shapes: query (R, H, L, D), key and value (R, J, L, D), result (R, L, H, D).
    """
    if sequence is not None:
        attended: tuple[Tensor, None] = sequence.attend(
            attention, module, query, key, value, scaling=scaling, sliding_window=sliding_window, **more
        )
        return attended
    if trees is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(
            module, query, key, value, mask, scaling=scaling, sliding_window=sliding_window, **more
        )
    wanted = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else query.dtype
    query, key, value = (x.to(wanted) for x in (query, key, value))
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    rows = []
    for r, nodes in enumerate(trees.layout.nodes_R):
        q, k, v = (x[r : r + 1] for x in (query, key, value))
        if sliding_window is None or sliding_window >= trees.longest:
            rows.append(_Merged.apply(q, k, v, nodes, trees.own_masks(r), scaling))
        else:
            rows.append(_windowed(q, k, v, trees.bands(r, sliding_window), scaling))
    return torch.cat(rows), None


def _repeated(x_1JKD: Tensor, times: int) -> Tensor:
    """Key-value heads repeated for their query heads: (1, H, K, D)."""
    return x_1JKD if times == 1 else x_1JKD.repeat_interleave(times, dim=1)


def _parts(
    nodes: Sequence[Node], masks: Sequence[Tensor | None]
) -> Iterator[tuple[slice, slice, bool, Tensor | None]]:
    """(queries, keys, causal, mask) of each call: of every node, its tokens to themselves and all tokens
    below it to it."""
    for node, mask in zip(nodes, masks):
        own = slice(node.start, node.end)
        if node.end > node.start:
            yield own, own, mask is None, mask
            if node.subtree_end > node.end:
                yield slice(node.end, node.subtree_end), own, False, None


class _Merged(torch.autograd.Function):
    """Attention of one packed row without a window, (1, L, H, D); zeros where the row is padding."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        nodes: tuple[Node, ...],
        masks: tuple[Tensor | None, ...],
        scaling: float,
    ) -> Tensor:
        _, heads, length, size = query.shape
        keys, values = (_repeated(x, heads // x.shape[1]) for x in (key, value))
        out_1LHD = query.new_zeros(1, length, heads, size)
        out = out_1LHD.transpose(1, 2)
        lse_1HL = query.new_full((1, length, heads), float("-inf"), dtype=torch.float32).transpose(1, 2)
        for part, (q, k, causal, mask) in enumerate(_parts(nodes, masks)):
            new, new_lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                query[:, :, q],
                keys[:, :, k],
                values[:, :, k],
                0.0,
                causal,
                attn_mask=_additive(mask, query),
                scale=scaling,
            )
            if part < 2:  # the root's: the first that these queries see
                out[:, :, q], lse_1HL[:, :, q] = new, new_lse
                continue
            before = lse_1HL[:, :, q]
            weight = torch.sigmoid(new_lse - before)[..., None]  # e^{l_2 - l}
            out[:, :, q].lerp_(new, weight.to(new.dtype))
            lse_1HL[:, :, q] = torch.logaddexp(before, new_lse)
        ctx.save_for_backward(query, key, value, out_1LHD, lse_1HL)
        ctx.how = nodes, masks, scaling
        return out_1LHD

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out_1LHD, lse_1HL = ctx.saved_tensors
        nodes, masks, scaling = ctx.how
        grad, out = grads[0].transpose(1, 2), out_1LHD.transpose(1, 2)
        heads, j = query.shape[1], key.shape[1]
        keys, values = (_repeated(x, heads // j) for x in (key, value))
        grad_query, grad_keys, grad_values = (
            torch.zeros_like(query),
            torch.zeros_like(keys),
            torch.zeros_like(values),
        )
        for q, k, causal, mask in _parts(nodes, masks):
            dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                grad[:, :, q], query[:, :, q], keys[:, :, k], values[:, :, k], out[:, :, q], lse_1HL[:, :, q],
                0.0, causal,
                attn_mask=_additive(mask, query), scale=scaling,
            )  # fmt: skip
            grad_query[:, :, q] += dq
            grad_keys[:, :, k] += dk
            grad_values[:, :, k] += dv
        grad_key, grad_value = (
            x if heads == j else x.unflatten(1, (j, -1)).sum(2) for x in (grad_keys, grad_values)
        )
        return grad_query, grad_key, grad_value, None, None, None


def _additive(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """A bool mask as numbers to add to scores."""
    return (
        None if mask is None else torch.zeros(mask.shape, dtype=like.dtype).masked_fill_(~mask, float("-inf"))
    )


def _windowed(
    query: Tensor, key: Tensor, value: Tensor, bands: Sequence[tuple[slice, Tensor, Tensor]], scaling: float
) -> Tensor:
    """Attention of one packed row with a sliding window, (1, L, H, D)."""
    attend = torch.nn.functional.scaled_dot_product_attention
    times = query.shape[1] // key.shape[1]
    keys, values = _repeated(key, times), _repeated(value, times)
    pieces = [
        attend(query[:, :, own], keys[:, :, places], values[:, :, places], mask, scale=scaling)
        for own, places, mask in bands
    ]
    done = torch.cat(pieces, dim=2)
    padding = query.shape[2] - done.shape[2]
    return torch.nn.functional.pad(done, (0, 0, 0, padding)).transpose(1, 2)


def install(model: Any) -> bool:
    """Let the language model of a transformers model attend through `attention`. False where it cannot: the
    model is no "sdpa" model, does not call attention by name, or its attention caps scores, drops weights or
    compresses keys."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    text = model.config.get_text_config()
    other = any(
        getattr(text, name, None) for name in ("attn_logit_softcapping", "attention_dropout", "kv_lora_rank")
    )
    if text._attn_implementation != "sdpa" or not model._supports_attention_backend or other:
        return False
    AttentionInterface.register(ATTENTION_NAME, attention)
    AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
    text._attn_implementation = ATTENTION_NAME
    return True
