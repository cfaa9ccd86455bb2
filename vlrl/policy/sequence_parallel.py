"""Sequence parallelism: the ranks of a group hold a slice each of the same rows.

A layer computes its slice, L / P tokens of each row. Before attention an exchange among the ranks gives each
whole rows with a share of the heads, and one after it gives the slices back. Where P does not divide the
heads, the last places repeat a head whose output is dropped. Scored hidden states are dealt evenly, and their
log-probs gathered: every rank knows the whole loss, its gradient is that of its slice, and the sum over ranks
is that of one rank.

Paper: Jacobs et al. 2023 (DeepSpeed-Ulysses), arXiv:2309.14509, sec. 3. Differs: heads need not divide.

Shape legend:
    P ranks of a group, R rows, L tokens of a row, H query heads, J key-value heads, D head size,
    N scored completion tokens, S scored tokens of a rank, M numbers for a rank, K numbers per token
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import torch
import torch.distributed as torch_dist
from torch import Tensor, nn

from vlrl.plugins.registry import ConfigError
from vlrl.policy.family import Family, base, no_mask
from vlrl.policy.packing import Layout, block_mask
from vlrl.policy.sequence_group import SequenceGroup
from vlrl.policy.tree_attention import RowTrees, is_installed

ATTENTION_NAME = "vlrl_sequence"  # of models whose attention is not `vlrl_tree`
DECODER_TENSORS = {"input_ids": 1, "inputs_embeds": 1, "position_ids": -1, "per_layer_inputs": 1}


# --- the exchange -------------------------------------------------------------------------------------------


class _Exchange(torch.autograd.Function):
    """Part p of `sent` goes to rank p, what rank p sent becomes part p of the result; `counts` are the sizes
    of parts in rows, (sent, received). The gradient goes the way back."""

    @staticmethod
    def forward(ctx: Any, sent: Tensor, group: SequenceGroup, counts: tuple[list[int], list[int]]) -> Tensor:
        ctx.group, ctx.counts = group, counts
        return _exchange(sent, group, counts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        sent, received = ctx.counts
        return _exchange(grads[0], ctx.group, (received, sent)), None, None


def _exchange(sent: Tensor, group: SequenceGroup, counts: tuple[list[int], list[int]]) -> Tensor:
    here, there = counts
    received = sent.new_empty(sum(there), *sent.shape[1:])
    torch_dist.all_to_all_single(received, sent.contiguous(), there, here, group=group.process_group)
    return received


class _GatherEqual(torch.autograd.Function):
    """(S, K) of every rank to (P S, K). All ranks compute the same loss from it, so the gradient of a rank's
    own rows is complete: it is taken as it is, not summed over ranks."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, group: SequenceGroup) -> Tensor:
        ctx.own = slice(group.rank * len(own), (group.rank + 1) * len(own))
        parts = [torch.empty_like(own) for _ in range(group.size)]
        torch_dist.all_gather(parts, own.contiguous(), group=group.process_group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0][ctx.own], None


# --- heads --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeadShares:
    """Which heads go to which rank: `query` lists P times as many as a rank gets, `key` too. `expand`: of
    each rank, the key-value head of each of its query heads; None where they are groups of equal size."""

    query: tuple[int, ...]
    key: tuple[int, ...]
    expand: tuple[tuple[int, ...], ...] | None


@lru_cache(maxsize=64)
def head_shares(heads: int, key_heads: int, size: int) -> HeadShares:
    """The shares of `size` ranks.

    >>> head_shares(4, 2, 2)
    HeadShares(query=(0, 1, 2, 3), key=(0, 1), expand=None)
    >>> head_shares(3, 1, 2)
    HeadShares(query=(0, 1, 2, 2), key=(0, 0), expand=None)
    """
    each, per_key = -(-heads // size), heads // key_heads
    query = [[min(rank * each + i, heads - 1) for i in range(each)] for rank in range(size)]
    read = [[h // per_key for h in share] for share in query]
    distinct = [sorted(set(keys)) for keys in read]
    most = max(map(len, distinct))
    padded = [keys + [keys[-1]] * (most - len(keys)) for keys in distinct]
    expand = tuple(tuple(keys.index(k) for k in wanted) for keys, wanted in zip(padded, read))
    groups = tuple(i * most // each for i in range(each))
    even = each % most == 0 and all(own == groups for own in expand)
    flat = [tuple(h for share in shares for h in share) for shares in (query, padded)]
    return HeadShares(flat[0], flat[1], None if even else expand)


def _to_heads(tensors: Sequence[Tensor], shares: HeadShares, group: SequenceGroup) -> list[Tensor]:
    """Query, key and value of a slice (R, H or J, L / P, D), to whole rows with this rank's heads, in one
    exchange."""
    size, sent, shapes = group.size, [], []
    for x, heads in zip(tensors, (shares.query, shares.key, shares.key)):
        if heads != tuple(range(x.shape[1])):
            x = x.index_select(1, torch.tensor(heads, device=x.device))
        parts = x.unflatten(1, (size, -1)).transpose(0, 1)  # (P, R, heads of a rank, L / P, D)
        shapes.append(parts.shape[1:])
        sent.append(parts.reshape(size, -1))
    received = _Exchange.apply(torch.cat(sent, 1), group, ([1] * size, [1] * size))
    out = [
        part.view(size, *shape).permute(1, 2, 0, 3, 4).flatten(2, 3)
        for part, shape in zip(received.split([one.shape[1] for one in sent], 1), shapes)
    ]
    if shares.expand is not None:
        own = torch.tensor(shares.expand[group.rank], device=received.device)
        out[1:] = [x.index_select(1, own) for x in out[1:]]
    return out


def _to_tokens(out_RLHD: Tensor, heads: int, group: SequenceGroup) -> Tensor:
    """Whole rows with this rank's heads, to its slice with all `heads`: (R, L / P, H, D)."""
    size = group.size
    parts = out_RLHD.unflatten(1, (size, -1)).transpose(0, 1)  # (P, R, L / P, heads of a rank, D)
    received = _Exchange.apply(parts.reshape(size, -1), group, ([1] * size, [1] * size))
    whole = received.view(parts.shape).permute(1, 2, 0, 3, 4).flatten(2, 3)
    return whole[:, :, :heads]


# --- attention ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slices:
    """The slices of one forward's rows. `masks`: of whole rows, by kind of layer; None where `trees` says who
    sees whom."""

    group: SequenceGroup
    layout: Layout
    masks: Mapping[str, Any] | None
    trees: RowTrees | None

    @cached_property
    def own(self) -> slice:
        """The places of this rank's tokens in a row."""
        length = self.layout.ids_RL.shape[1] // self.group.size
        return slice(self.group.rank * length, (self.group.rank + 1) * length)

    def rows_of(self, whole_N: Tensor) -> Tensor:
        """(R L, ...) of all tokens, to those of this rank."""
        return whole_N.unflatten(0, self.layout.ids_RL.shape)[:, self.own].flatten(0, 1)

    def attend(
        self,
        inner: Callable[..., tuple[Tensor, Any]],
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sliding_window: int | None = None,
        **more: Any,
    ) -> tuple[Tensor, None]:
        """Attention of a slice through `inner`, an attention function over whole rows.

        Shapes: query (R, H, L / P, D), key and value (R, J, L / P, D), result (R, L / P, H, D).
        """
        device = query.device.type
        if torch.is_autocast_enabled(device):  # before the exchange, so that half as many bytes are sent
            query, key, value = (x.to(torch.get_autocast_dtype(device)) for x in (query, key, value))
        shares = head_shares(query.shape[1], key.shape[1], self.group.size)
        whole = _to_heads((query, key, value), shares, self.group)
        mask = None
        if self.masks is not None:
            mask = self.masks["full_attention" if sliding_window is None else "sliding_attention"]
        else:
            more["trees"] = self.trees
        out_RLHD, _ = inner(module, *whole, mask, sliding_window=sliding_window, **more)
        return _to_tokens(out_RLHD, query.shape[1], self.group), None


def _sdpa(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float | None = None, **_: Any
) -> tuple[Tensor, None]:
    """torch's attention of whole rows, causal without a mask: (R, L, H, D)."""
    run = torch.nn.functional.scaled_dot_product_attention
    same = query.shape[1] == key.shape[1]
    out = run(query, key, value, mask, is_causal=mask is None, scale=scaling, enable_gqa=not same)
    return out.transpose(1, 2), None


def _attention(plain: Callable[..., Any], whole: Callable[..., Any]) -> Callable[..., Any]:
    """transformers' attention function `plain`, and over slices `whole`."""

    def attention(
        module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, sequence: Any = None, **more: Any
    ) -> tuple[Tensor, Any]:
        if sequence is None:
            return plain(module, query, key, value, mask, **more)
        return sequence.attend(whole, module, query, key, value, **more)

    return attention


def install(model: Any, family: Family, size: int) -> None:
    """Let the language model of a transformers model run over slices; once is enough. Raises ConfigError for
    a model that cannot."""
    from transformers import AttentionInterface
    from transformers.integrations.flex_attention import flex_attention_forward
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

    text = base(model).config.get_text_config()
    heads, kinds = text.num_attention_heads, set(getattr(text, "layer_types", None) or ())
    other = kinds - {"full_attention", "sliding_attention"}
    capped = [
        n for n in ("attn_logit_softcapping", "attention_dropout", "kv_lora_rank") if getattr(text, n, 0)
    ]
    shared = getattr(text, "num_kv_shared_layers", 0)
    reason = family.slices_problem
    if not reason and other:
        reason = f"{text.model_type!r} has {', '.join(sorted(other))} layers, which need all earlier tokens"
    if not reason and (capped or shared or not base(model)._supports_attention_backend):
        what = (
            capped[0] if capped else "layers that read the keys of others" if shared else "an own attention"
        )
        reason = f"{text.model_type!r} has {what}"
    if not reason and heads < size:
        reason = f"{text.model_type!r} has {heads} attention heads, fewer than ranks of a group"
    if reason:
        raise ConfigError(f"sequence_parallel: {size} is not possible: {reason}; set sequence_parallel: 1")
    inner = text._attn_implementation
    if is_installed(model) or inner.startswith(ATTENTION_NAME):
        return
    flex = inner == "flex_attention"
    name = f"{ATTENTION_NAME}_{inner}"
    plain = flex_attention_forward if flex else sdpa_attention_forward
    AttentionInterface.register(name, _attention(plain, flex_attention_forward if flex else _sdpa))
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[inner])
    text._attn_implementation = name


# --- one forward --------------------------------------------------------------------------------------------


def padded(layout: Layout, group: SequenceGroup, pad_id: int) -> Layout:
    """The layout with rows that are a multiple of P tokens long; scored tokens keep their places."""
    length = layout.ids_RL.shape[1]
    more = -length % group.size
    if not more:
        return layout

    def pad(x: Tensor, value: int = 0) -> Tensor:
        return nn.functional.pad(x, (0, more), value=value)

    ends_RL = pad(torch.where(layout.subtree_end_RL == length, length + more, layout.subtree_end_RL))
    return replace(
        layout,
        ids_RL=pad(layout.ids_RL, pad_id),
        positions=pad(layout.positions),
        order_RL=pad(layout.order_RL),
        subtree_end_RL=ends_RL,
        types_RL=pad(layout.types_RL),
        source_N=layout.source_N + layout.source_N // length * more,
    )


def slices_of(family: Family, model: nn.Module, layout: Layout, group: SequenceGroup) -> Slices:
    """The slices of a padded layout, and who sees whom in its whole rows."""
    name = base(model).config.get_text_config()._attn_implementation
    if is_installed(model):
        return Slices(group, layout, None, RowTrees(layout, family.bidirectional_images))
    if not name.startswith(ATTENTION_NAME):  # it would attend within a slice, without an error
        raise RuntimeError(f"sequence_parallel: the model attends by {name!r}, which knows no slices")
    masks = family.masks(model, layout)
    masks = dict(masks) if isinstance(masks, Mapping) else {"full_attention": masks}
    if family.attn == "flex" and masks["full_attention"] is None:  # it is not causal by itself
        masks["full_attention"] = block_mask(layout.order_RL, layout.subtree_end_RL)
    return Slices(group, layout, masks, None)


def hidden_slices(
    family: Family, model: nn.Module, slices: Slices, embeds: Any, kinds: Sequence[str], **options: Any
) -> Tensor:
    """The last hidden states of this rank's tokens, (R, L / P, hidden size). Media are merged into whole rows
    before the language model gets its slice of them."""
    decoder: nn.Module = base(model).get_decoder()

    def cut(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args, _cut(kwargs, slices)

    handle = decoder.register_forward_pre_hook(cut, with_kwargs=True, prepend=True)
    layout = slices.layout
    options |= {"mask": no_mask(model), "sequence": slices}
    try:
        hidden, _ = family.hidden(
            model, layout.ids_RL, layout.positions, embeds=embeds, kinds=kinds, **options
        )
    finally:
        handle.remove()
    return hidden


def _cut(kwargs: Mapping[str, Any], slices: Slices) -> dict[str, Any]:
    """The arguments of a language model, for the tokens of this rank."""
    out, shape = dict(kwargs), slices.layout.ids_RL.shape
    for name, dim in DECODER_TENSORS.items():
        if isinstance(out.get(name), Tensor):
            out[name] = out[name].narrow(dim, slices.own.start, slices.own.stop - slices.own.start)
    seen_RL = out.get("visual_pos_masks")
    if seen_RL is not None:  # DeepStack: rows of media tokens, in the order of the tokens
        own_RL = torch.zeros(shape, dtype=torch.bool, device=seen_RL.device)
        own_RL[:, slices.own] = True
        kept = own_RL[seen_RL]
        out["visual_pos_masks"] = seen_RL[:, slices.own]
        out["deepstack_visual_embeds"] = [x[kept] for x in out["deepstack_visual_embeds"]]
    return out


@dataclass(frozen=True)
class ScoredShare:
    """The scored tokens dealt to the ranks in equal parts of S: `order_N` are their numbers by the rank that
    holds their hidden states, the last one repeated until all parts are full."""

    group: SequenceGroup
    order: Tensor
    places: Tensor  # of this rank's scored hidden states, in its slice
    counts: tuple[list[int], list[int]]  # hidden states sent to and received from each rank
    count: int

    @classmethod
    def of(cls, slices: Slices, source_N: Tensor) -> ScoredShare:
        """The shares of tokens that are predicted from the hidden states `source_N` of whole rows."""
        group, length = slices.group, slices.layout.ids_RL.shape[1]
        each, count = length // group.size, len(source_N)
        owner_N = source_N % length // each
        order = owner_N.argsort(stable=True)
        order = torch.cat([order, order[-1:].expand(-count % group.size)])
        share = torch.arange(len(order), device=order.device) // max(1, len(order) // group.size)
        owner = owner_N[order]
        pairs = torch.bincount(owner * group.size + share, minlength=group.size**2)
        table = pairs.view(group.size, group.size).tolist()
        sent, received = table[group.rank], [row[group.rank] for row in table]
        mine = source_N[order[owner == group.rank]]
        return cls(group, order, mine // length * each + mine % each, (sent, received), count)

    def hidden(self, hidden_RLH: Tensor) -> Tensor:
        """(S, hidden size): the hidden states that this rank scores."""
        own = hidden_RLH.flatten(0, 1)[self.places]
        return _Exchange.apply(own, self.group, self.counts) if self.count else own

    def take(self, values_N: Tensor) -> Tensor:
        """Of numbers of all scored tokens, those of this rank's share."""
        return values_N[self.order.chunk(self.group.size)[self.group.rank]] if self.count else values_N

    def gather(self, out: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The values of all ranks' shares, in the order of the scored tokens."""
        if not self.count:
            return dict(out)
        columns = {name: value.unsqueeze(-1) if value.dim() == 1 else value for name, value in out.items()}
        whole = _GatherEqual.apply(torch.cat([x.float() for x in columns.values()], -1), self.group)
        back = torch.empty_like(self.order[: self.count])
        back[self.order[: self.count]] = torch.arange(self.count, device=back.device)
        parts = whole[back].split([x.shape[-1] for x in columns.values()], -1)
        return {
            name: part[:, 0] if out[name].dim() == 1 else part for name, part in zip(out, parts, strict=True)
        }


def verify_same(layout: Layout, group: SequenceGroup) -> None:
    """Raise RuntimeError where the ranks of a group are about to run different rows."""
    parts = (layout.ids_RL, layout.positions, layout.subtree_end_RL, layout.source_N)
    sums = [zlib.crc32(x.cpu().contiguous().numpy().tobytes()) for x in parts]
    own = torch.tensor([*layout.ids_RL.shape, *sums], device=layout.ids_RL.device)
    seen = [torch.empty_like(own) for _ in range(group.size)]
    torch_dist.all_gather(seen, own, group=group.process_group)
    if any(not torch.equal(own, other) for other in seen):
        shapes = [tuple(other[:2].tolist()) for other in seen]
        raise RuntimeError(
            f"sequence_parallel: the {group.size} ranks of a group were given different rows, of {shapes} "
            "(rows, tokens): a plug-in draws other random numbers on each rank; set sequence_parallel: 1"
        )
