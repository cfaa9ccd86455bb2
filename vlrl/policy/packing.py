"""A batch of completions as rows of tokens: packed (each prompt once, its completions after it) or padded (a prompt per completion).

    row:      p p p p | a a a | b b | c c c c | pad       a, b, c attend to p and to themselves
    position: 0 1 2 3 | 4 5 6 | 4 5 | 4 5 6 7 | 0

The last token of a completion predicts nothing, so it is not in the row.

Shape legend: B completions, T longest completion, R rows, L tokens of a row, A rotary axes, N scored completion tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vlrl.policy.encoded import Encoded


@dataclass(frozen=True)
class Layout:
    """Rows of tokens, and where the scored completion tokens are in them."""

    ids_RL: Tensor
    positions: Tensor  # (R, L) or (A, R, L)
    order_RL: Tensor  # place in its own sequence: a completion's tokens go on counting where the prompt ends
    segment_RL: Tensor  # 0 prompt, k >= 1 the row's k-th completion, -1 padding
    types_RL: Tensor  # 0 text, 1 picture, 2 video
    source_N: Tensor  # index into the R * L hidden states: the one that predicts the token
    target_N: Tensor  # index into the B * T completion tokens
    rows: tuple[int, ...]  # the prompt of each row

    @property
    def branches(self) -> bool:
        """Whether some row holds several completions, so that plain causal attention is not enough."""
        return bool((self.segment_RL > 1).any())

    def to(self, device: torch.device | str) -> Layout:
        moved = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in vars(self).items()}
        return Layout(**moved)


def lay_out(prompts: Sequence[Encoded], prompt_B: Sequence[int], ids: Sequence[Sequence[int]], scored: Sequence[Sequence[int]], width: int,
            pad_id: int, packed: bool) -> Layout:  # fmt: skip
    """Rows for completions `ids[b]` of prompts `prompt_B[b]`. `scored[b]` are the places of the tokens whose log-prob is wanted; `width` is T."""
    members: list[list[int]] = [[] for _ in prompts]
    for b, p in enumerate(prompt_B):
        members[p].append(b)
    rows = [(p, group) for p, group in enumerate(members) if group] if packed else [(p, [b]) for b, p in enumerate(prompt_B)]
    length = max(len(prompts[p]) + sum(len(ids[b]) - 1 for b in group) for p, group in rows)
    axes = prompts[0].positions.shape[:-1]
    shape = (len(rows), length)
    ids_RL, types_RL = torch.full(shape, pad_id), torch.zeros(shape, dtype=torch.long)
    order_RL, segment_RL = torch.zeros(shape, dtype=torch.long), torch.full(shape, -1)
    positions = torch.zeros(*axes, *shape, dtype=torch.long)
    source, target = [], []
    for r, (p, group) in enumerate(rows):
        prompt, at = prompts[p], len(prompts[p])
        ids_RL[r, :at], types_RL[r, :at] = torch.tensor(prompt.ids), torch.tensor(prompt.types)
        order_RL[r, :at], segment_RL[r, :at], positions[..., r, :at] = torch.arange(at), 0, prompt.positions
        for k, b in enumerate(group, start=1):
            n = len(ids[b]) - 1
            ids_RL[r, at : at + n] = torch.tensor(ids[b][:n], dtype=torch.long)
            order_RL[r, at : at + n] = torch.arange(n) + len(prompt)
            segment_RL[r, at : at + n] = k
            positions[..., r, at : at + n] = torch.arange(n) + prompt.next_position
            for t in scored[b]:
                source.append(r * length + (at + t - 1 if t else len(prompt) - 1))
                target.append(b * width + t)
            at += n
    long = torch.long
    return Layout(ids_RL, positions, order_RL, segment_RL, types_RL, torch.tensor(source, dtype=long), torch.tensor(target, dtype=long),
                  tuple(p for p, _ in rows))  # fmt: skip


def packing_pays(prompts: Sequence[int], prompt_B: Sequence[int], lengths_B: Sequence[int], linear: float) -> bool:
    """Whether packed rows cost less than padded ones, where attention is dense: a packed row's mask makes every token meet every other.

    `prompts` are lengths; `linear` is what a token costs in the layers' products, counted in pairs of tokens that meet in attention.
    """
    rows = [n + sum(length - 1 for p, length in zip(prompt_B, lengths_B) if p == i) for i, n in enumerate(prompts) if i in set(prompt_B)]
    packed, padded = max(rows), max(prompts[p] + length - 1 for p, length in zip(prompt_B, lengths_B))
    tokens_packed, tokens_padded = len(rows) * packed, len(prompt_B) * padded
    if tokens_padded > 2 * tokens_packed:  # a micro-batch is measured in packed tokens
        return True
    return tokens_packed * (linear + packed) <= tokens_padded * (linear + padded / 2)  # plain causal attention leaves half of the pairs out


def pictures(types_RL: Tensor) -> Tensor:
    """(R, L): 1, 2, ... for the tokens of the first, second, ... run of picture tokens of a row; 0 for text."""
    inside = types_RL > 0
    before = torch.nn.functional.pad(inside, (1, 0))[:, :-1]
    return (inside & ~before).long().cumsum(-1) * inside


def rule(order_RL: Tensor, segment_RL: Tensor, window: int | None = None, picture_RL: Tensor | None = None) -> Callable[..., Tensor]:
    """(row, head, query, key) -> may the query see the key? A token sees the prompt and its own completion, up to itself.

    `window` limits how far back (in its own sequence); `picture_RL` lets the tokens of one picture see each other in both directions.
    Padding sees the prompt, so that no softmax is empty. The form is FlexAttention's `mask_mod`; indices may be tensors that broadcast.
    """

    def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        asking, asked = segment_RL[row, query], segment_RL[row, key]
        see = (key <= query) & ((asked == 0) | (asked == asking))
        if window is not None:
            see = see & ((order_RL[row, query] - order_RL[row, key] < window) | (asking < 0))
        if picture_RL is not None:
            see = see | ((picture_RL[row, query] == picture_RL[row, key]) & (picture_RL[row, query] > 0))
        return see

    return sees


def may_attend(order_RL: Tensor, segment_RL: Tensor, window: int | None = None, picture_RL: Tensor | None = None) -> Tensor:
    """`rule` as a dense (R, 1, L, L) bool mask."""
    rows, length = order_RL.shape
    row, place = torch.arange(rows, device=order_RL.device), torch.arange(length, device=order_RL.device)
    sees = rule(order_RL, segment_RL, window, picture_RL)
    return sees(row[:, None, None], place[:1], place[None, :, None], place[None, None, :])[:, None]


def block_mask(order_RL: Tensor, segment_RL: Tensor, window: int | None = None, picture_RL: Tensor | None = None) -> Any:
    """`rule` as FlexAttention's block mask: blocks that no query may see cost nothing."""
    from torch.nn.attention.flex_attention import create_block_mask

    rows, length = order_RL.shape
    return create_block_mask(rule(order_RL, segment_RL, window, picture_RL), rows, None, length, length, device=order_RL.device)
