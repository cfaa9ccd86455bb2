"""Groups to token batches, and how a step's groups are split into optimizer steps and micro-batches.

Shapes: B rollouts (whole groups, in order), T the longest completion of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from vlrl.stages import Denominators
from vlrl.types import Group, Prompt, TokenBatch


@dataclass(frozen=True)
class MiniBatch:
    """One optimizer step: its micro-batches and the totals of the whole of it, over all ranks."""

    micros: list[list[Group]]
    loss_denominators: Denominators


def make_batch(groups: Sequence[Group], pad_id: int, device: torch.device | str = "cpu") -> TokenBatch:
    """Pad the completions of whole groups to one rectangle. Raises ValueError for an empty completion or batch."""
    groups = list(groups)
    rollouts = [rollout for group in groups for rollout in group]
    if not rollouts:
        raise ValueError("a batch needs at least one rollout")
    longest = max(len(rollout) for rollout in rollouts)
    ids_BT = torch.full((len(rollouts), longest), pad_id, dtype=torch.long)
    mask_BT = torch.zeros(len(rollouts), longest, dtype=torch.bool)
    loss_mask_BT = torch.zeros(len(rollouts), longest, dtype=torch.bool)
    temperature_BT = torch.ones(len(rollouts), longest)
    prompts: list[Prompt] = []
    where: dict[str, int] = {}
    index_B = []
    for b, rollout in enumerate(rollouts):
        n = len(rollout)
        if n == 0:
            raise ValueError(f"row {rollout.row.id!r}: a rollout has no tokens; engines end every completion with at least one")
        ids_BT[b, :n] = torch.tensor(rollout.ids)
        mask_BT[b, :n] = True
        loss_mask_BT[b, :n] = True if rollout.loss_mask is None else torch.tensor(rollout.loss_mask)
        temperature_BT[b, :n] = torch.as_tensor(rollout.temperature, dtype=torch.float32)
        prompt = rollout.prompt.for_training
        if prompt.key not in where:
            where[prompt.key] = len(prompts)
            prompts.append(prompt)
        index_B.append(where[prompt.key])
    tensors = [tensor.to(device) for tensor in (torch.tensor(index_B), ids_BT, mask_BT, loss_mask_BT, temperature_BT)]
    return TokenBatch(groups, prompts, *tensors)


def per_token(rollouts: Sequence, values: Callable[..., Sequence[float] | None], like_BT: torch.Tensor, default_BT: torch.Tensor) -> torch.Tensor:
    """Lists of floats, one per rollout and token, as a (B, T) tensor; where there is none, the row of `default_BT`."""
    out_BT = default_BT.detach().clone().to(like_BT.device, torch.float32)
    for b, rollout in enumerate(rollouts):
        row = values(rollout)
        if row is not None and len(row):
            out_BT[b, : len(row)] = torch.tensor(row, dtype=torch.float32, device=out_BT.device)
    return out_BT


def trained_tokens(group: Group) -> int:
    """Tokens of a group that the loss reads."""
    return sum(len(r) if r.loss_mask is None else sum(r.loss_mask) for r in group)


def denominators_of(groups: Sequence[Group]) -> tuple[float, float, float]:
    """(tokens, sequences, groups) that the loss reads."""
    return float(sum(map(trained_tokens, groups))), float(sum(map(len, groups))), float(len(groups))


def split_micros(groups: Sequence[Group], micro_tokens: int, cost: Callable[[Group], int]) -> list[list[Group]]:
    """Whole groups into micro-batches of at most `micro_tokens` (a single larger group stands alone), longest first."""
    micros: list[list[Group]] = []
    room = 0
    for group in sorted(groups, key=cost, reverse=True):
        need = cost(group)
        if not micros or need > room:
            micros.append([])
            room = micro_tokens
        micros[-1].append(group)
        room -= need
    return micros


def split_minis(groups: Sequence[Group], minibatches: int, order: Sequence[int]) -> Iterator[list[Group]]:
    """Groups in the given order, as `minibatches` parts of nearly equal size (empty parts are left out)."""
    shuffled = [groups[i] for i in order]
    bounds = [round(k * len(shuffled) / minibatches) for k in range(minibatches + 1)]
    for start, end in zip(bounds, bounds[1:]):
        if end > start:
            yield shuffled[start:end]
