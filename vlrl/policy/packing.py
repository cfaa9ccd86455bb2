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

from vlrl.policy.encoded import EncodedPrompt


@dataclass(frozen=True)
class Layout:
    """Rows of tokens, and the places of the scored completion tokens in them."""

    ids_RL: Tensor
    positions: Tensor  # (R, L) or (A, R, L)
    order_RL: Tensor  # index in the token's own sequence: a completion's first token has index len(prompt)
    segment_RL: Tensor  # 0 prompt, k >= 1 the row's k-th completion, -1 padding
    types_RL: Tensor  # 0 text, 1 image, 2 video
    source_N: Tensor  # index into the R * L hidden states: the one that predicts the token
    target_N: Tensor  # index into the B * T completion tokens
    prompt_of_row: tuple[int, ...]

    @property
    def has_branches(self) -> bool:
        """Whether a row holds several completions, so that it needs more than a causal attention mask."""
        return bool((self.segment_RL > 1).any())

    def to(self, device: torch.device | str) -> Layout:
        moved: dict[str, Any] = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in vars(self).items()}
        return Layout(**moved)


def build_layout(
    prompts: Sequence[EncodedPrompt],
    prompt_B: Sequence[int],
    ids: Sequence[Sequence[int]],
    scored: Sequence[Sequence[int]],
    width: int,
    pad_id: int,
    packed: bool,
) -> Layout:
    """Rows for completions `ids[b]` of prompts `prompt_B[b]`.

    Args: `scored[b]` are the positions of the completion tokens whose log-probs are wanted; `width` is T; `packed` puts all completions of a
    prompt into one row, otherwise each completion has a row of its own.
    """
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
    source_N, target_N = (torch.tensor(places, dtype=torch.long) for places in (source, target))
    return Layout(ids_RL, positions, order_RL, segment_RL, types_RL, source_N, target_N, tuple(p for p, _ in rows))


def packing_is_cheaper(prompts: Sequence[int], prompt_B: Sequence[int], lengths_B: Sequence[int], linear: float) -> bool:
    """Whether packed rows cost less than padded ones under dense attention, where the mask of a packed row computes all pairs of its tokens.

    Args: `prompts` are lengths in tokens; `linear` is the cost of a token in the layers' matrix products, in units of one attention pair.
    """
    rows = [n + sum(length - 1 for p, length in zip(prompt_B, lengths_B) if p == i) for i, n in enumerate(prompts) if i in set(prompt_B)]
    packed, padded = max(rows), max(prompts[p] + length - 1 for p, length in zip(prompt_B, lengths_B))
    tokens_packed, tokens_padded = len(rows) * packed, len(prompt_B) * padded
    if tokens_padded > 2 * tokens_packed:  # micro-batch sizes are measured in packed tokens
        return True
    return tokens_packed * (linear + packed) <= tokens_padded * (linear + padded / 2)  # causal attention computes half of the pairs


def image_runs(types_RL: Tensor) -> Tensor:
    """(R, L): 1, 2, ... for the tokens of the first, second, ... run of media tokens in a row; 0 for text."""
    inside = types_RL > 0
    before = torch.nn.functional.pad(inside, (1, 0))[:, :-1]
    return (inside & ~before).long().cumsum(-1) * inside


def mask_mod(order_RL: Tensor, segment_RL: Tensor, window: int | None = None, image_RL: Tensor | None = None) -> Callable[..., Tensor]:
    """FlexAttention's `mask_mod`, (row, head, query, key) -> bool: a token attends to the prompt and to its own completion, up to itself.

    Args: `window` limits the distance (in the token's own sequence); `image_RL` (see `image_runs`) lets the tokens of one image attend to each
    other in both directions. Padding attends to the prompt, so that no softmax is empty. Indices may be tensors that broadcast.
    """

    def attends(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        query_segment, key_segment = segment_RL[row, query], segment_RL[row, key]
        allowed = (key <= query) & ((key_segment == 0) | (key_segment == query_segment))
        if window is not None:
            allowed = allowed & ((order_RL[row, query] - order_RL[row, key] < window) | (query_segment < 0))
        if image_RL is not None:
            allowed = allowed | ((image_RL[row, query] == image_RL[row, key]) & (image_RL[row, query] > 0))
        return allowed

    return attends


def dense_mask(order_RL: Tensor, segment_RL: Tensor, window: int | None = None, image_RL: Tensor | None = None) -> Tensor:
    """`mask_mod` as a dense (R, 1, L, L) bool mask."""
    rows, length = order_RL.shape
    row, place = torch.arange(rows, device=order_RL.device), torch.arange(length, device=order_RL.device)
    attends = mask_mod(order_RL, segment_RL, window, image_RL)
    return attends(row[:, None, None], place[:1], place[None, :, None], place[None, None, :])[:, None]


def block_mask(order_RL: Tensor, segment_RL: Tensor, window: int | None = None, image_RL: Tensor | None = None) -> Any:
    """`mask_mod` as FlexAttention's block mask: blocks that are masked out entirely are not computed."""
    from torch.nn.attention.flex_attention import create_block_mask

    rows, length = order_RL.shape
    return create_block_mask(mask_mod(order_RL, segment_RL, window, image_RL), rows, None, length, length, device=order_RL.device)
