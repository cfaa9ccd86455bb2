"""Attention of packed groups on a CPU without a dense mask: cost grows with the sum of the completions' lengths, not with its square.

A row holds a prompt and G completions, each of which attends to the prompt and to itself (`vlrl.policy.packing`). Completions attend to the prompt in
one call and to themselves in one call each; two partial results o_1, o_2 with log-sum-exps l_1, l_2 of their scores merge exactly:

    l = log(e^{l_1} + e^{l_2}),    o = e^{l_1 - l} o_1 + e^{l_2 - l} o_2

The backward pass of a part needs l and o of the whole row only, because softmax(s)_j = e^{s_j - l} and its gradient is p_j (dp_j - sum_h do_h o_h)
(Dao et al. 2022, arXiv:2205.14135, sec. 3.1 and app. B.4). Kernels are those behind torch's scaled_dot_product_attention on a CPU, whose mask of
G completions of T tokens would have (P + G T)^2 entries per layer.

With a sliding window, queries are taken in blocks of one window, whose keys are those of the block and of the window before it: a band, the same
small mask for every block.

Shape legend: R rows, L tokens of a row, H query heads, J key-value heads, D head size, P prompt tokens, T tokens of a completion, B queries of a
block, S tokens of a prompt with one completion, K keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from vlrl.policy.packing import Layout, dense_mask, image_runs

ATTENTION_NAME = "vlrl_branches"
LEAST_ROW = 384  # tokens of a row: below, one call with a dense mask takes less time than several calls


@dataclass(frozen=True)
class Span:
    """Tokens [start, end) of a row, one completion."""

    start: int
    end: int


@dataclass(frozen=True)
class Branches:
    """The completions in packed rows: per row the prompt's length and the completions' spans. `bidirectional_images`: see `mask_mod`."""

    prompt_R: tuple[int, ...]
    spans_R: tuple[tuple[Span, ...], ...]
    layout: Layout
    bidirectional_images: bool = False

    @classmethod
    def of(cls, layout: Layout, bidirectional_images: bool = False) -> Branches:
        """The branches of packed rows."""
        prompts, spans = [], []
        for segment_L in layout.segment_RL.cpu():
            ids, counts = segment_L.unique_consecutive(return_counts=True)
            ends = counts.cumsum(0)
            pieces = [(int(i), Span(int(end - n), int(end))) for i, n, end in zip(ids, counts, ends)]
            prompts.append(next((span.end for i, span in pieces if i == 0), 0))
            spans.append(tuple(span for i, span in pieces if i > 0))
        return cls(tuple(prompts), tuple(spans), layout, bidirectional_images)

    @cached_property
    def _prompt_masks(self) -> dict[tuple[int, int | None], Tensor | None]:
        return {}

    def prompt_mask(self, row: int, window: int | None) -> Tensor | None:
        """(1, 1, P, P) of a row's prompt where causal attention is not enough, else None. Kept for the next layer."""
        size = self.prompt_R[row]
        if window is not None and window >= size:
            window = None
        if (row, window) not in self._prompt_masks:
            part = slice(row, row + 1), slice(0, size)
            images_RL = image_runs(self.layout.types_RL[part]) if self.bidirectional_images else None
            plain = window is None and (images_RL is None or not bool(images_RL.any()))
            mask = None if plain else dense_mask(self.layout.order_RL[part], self.layout.segment_RL[part], window, images_RL)
            self._prompt_masks[row, window] = mask
        return self._prompt_masks[row, window]


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    scaling: float | None = None,
    branches: Branches | None = None,
    sliding_window: int | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls by name: packed rows with `branches`, everything else by its own "sdpa".

    Shapes: query (R, H, L, D), key and value (R, J, L, D), result (R, L, H, D).
    """
    if branches is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, sliding_window=sliding_window, **more)
    wanted = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else query.dtype
    query, key, value = (x.to(wanted) for x in (query, key, value))
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    rows = []
    for r, (prompt, spans) in enumerate(zip(branches.prompt_R, branches.spans_R)):
        q, k, v = (x[r : r + 1] for x in (query, key, value))
        if sliding_window is None or sliding_window >= max((prompt + s.end - s.start for s in spans), default=0):
            rows.append(_Merged.apply(q, k, v, prompt, spans, branches.prompt_mask(r, sliding_window), scaling))
        else:
            rows.append(_windowed(q, k, v, prompt, spans, branches.prompt_mask(r, sliding_window), scaling, sliding_window))
    return torch.cat(rows), None


def _repeated(x_1JKD: Tensor, times: int) -> Tensor:
    """Key-value heads repeated for their query heads: (1, H, K, D)."""
    return x_1JKD if times == 1 else x_1JKD.repeat_interleave(times, dim=1)


def _parts(prompt: int, spans: tuple[Span, ...], mask: Tensor | None) -> Iterator[tuple[slice, slice, bool, Tensor | None]]:
    """(queries, keys, causal, mask) of each call: the prompt, all completions to the prompt, each completion to itself."""
    whole = slice(0, prompt)
    yield whole, whole, mask is None, mask
    if spans:
        yield slice(spans[0].start, spans[-1].end), whole, False, None
    for span in spans:
        own = slice(span.start, span.end)
        yield own, own, True, None


class _Merged(torch.autograd.Function):
    """Attention of one packed row without a window, (1, L, H, D); zeros where the row is padding."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, prompt: int, spans: tuple[Span, ...], mask: Tensor | None, scaling: float
    ) -> Tensor:
        _, heads, length, size = query.shape
        keys, values = (_repeated(x, heads // x.shape[1]) for x in (key, value))
        out_1LHD = query.new_zeros(1, length, heads, size)
        out = out_1LHD.transpose(1, 2)
        lse_1HL = query.new_zeros(1, length, heads, dtype=torch.float32).transpose(1, 2)
        for part, (q, k, causal, part_mask) in enumerate(_parts(prompt, spans, mask)):
            new, new_lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                query[:, :, q], keys[:, :, k], values[:, :, k], 0.0, causal, attn_mask=_additive(part_mask, query), scale=scaling
            )
            if part < 2:
                out[:, :, q], lse_1HL[:, :, q] = new, new_lse
                continue
            before = lse_1HL[:, :, q]
            weight = torch.sigmoid(new_lse - before)[..., None]  # e^{l_2 - l}
            out[:, :, q].lerp_(new, weight.to(new.dtype))
            lse_1HL[:, :, q] = torch.logaddexp(before, new_lse)
        ctx.save_for_backward(query, key, value, out_1LHD, lse_1HL)
        ctx.how = prompt, spans, mask, scaling
        return out_1LHD

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out_1LHD, lse_1HL = ctx.saved_tensors
        prompt, spans, mask, scaling = ctx.how
        grad, out = grads[0].transpose(1, 2), out_1LHD.transpose(1, 2)
        heads, j = query.shape[1], key.shape[1]
        keys, values = (_repeated(x, heads // j) for x in (key, value))
        grad_query, grad_keys, grad_values = (torch.zeros_like(query), torch.zeros_like(keys), torch.zeros_like(values))
        for q, k, causal, part_mask in _parts(prompt, spans, mask):
            dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                grad[:, :, q], query[:, :, q], keys[:, :, k], values[:, :, k], out[:, :, q], lse_1HL[:, :, q], 0.0, causal,
                attn_mask=_additive(part_mask, query), scale=scaling,
            )  # fmt: skip
            grad_query[:, :, q] += dq
            grad_keys[:, :, k] += dk
            grad_values[:, :, k] += dv
        grad_key, grad_value = (x if heads == j else x.unflatten(1, (j, -1)).sum(2) for x in (grad_keys, grad_values))
        return grad_query, grad_key, grad_value, None, None, None, None


def _additive(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """A bool mask as numbers to add to scores."""
    return None if mask is None else torch.zeros(mask.shape, dtype=like.dtype).masked_fill_(~mask, float("-inf"))


def _windowed(
    query: Tensor, key: Tensor, value: Tensor, prompt: int, spans: tuple[Span, ...], mask: Tensor | None, scaling: float, window: int
) -> Tensor:
    """Attention of one packed row with a sliding window, (1, L, H, D)."""
    attend = torch.nn.functional.scaled_dot_product_attention
    times = query.shape[1] // key.shape[1]
    keys, values = _repeated(key, times), _repeated(value, times)
    shared = slice(0, prompt)
    pieces = [attend(query[:, :, shared], keys[:, :, shared], values[:, :, shared], mask, is_causal=mask is None, scale=scaling)]
    for span in spans:
        first = max(0, prompt - window + 1)  # the oldest key of the completion's first token
        own_K, own_V = (torch.cat([x[:, :, first:prompt], x[:, :, span.start : span.end]], dim=2) for x in (keys, values))
        for begin in range(span.start, span.end, window):
            end = min(begin + window, span.end)
            place = torch.arange(begin, end)[:, None] - span.start + prompt - first  # of the queries among the keys
            low, high = max(0, int(place[0]) - window + 1), int(place[-1]) + 1
            other = torch.arange(low, high)
            band = (other <= place) & (other > place - window)
            pieces.append(attend(query[:, :, begin:end], own_K[:, :, low:high], own_V[:, :, low:high], band, scale=scaling))
    done = torch.cat(pieces, dim=2)
    padding = query.shape[2] - done.shape[2]
    return torch.nn.functional.pad(done, (0, 0, 0, padding)).transpose(1, 2)


def install(model: Any) -> bool:
    """Let the language model of a transformers model attend through `attention`. False where it cannot: the model is no "sdpa" model, does not call
    attention by name, or its attention caps scores, drops weights or compresses keys."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    text = model.config.get_text_config()
    other = any(getattr(text, name, None) for name in ("attn_logit_softcapping", "attention_dropout", "kv_lora_rank"))
    if text._attn_implementation != "sdpa" or not model._supports_attention_backend or other:
        return False
    AttentionInterface.register(ATTENTION_NAME, attention)
    AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
    text._attn_implementation = ATTENTION_NAME
    return True
