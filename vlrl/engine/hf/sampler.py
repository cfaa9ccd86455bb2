"""Logits to tokens: one vectorised draw for sequences with different sampling settings, from counter-based
random numbers.

Shape legend: R sequences, V vocabulary, K the largest number of top log-probs asked for, or blocks of ids, B
ids of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from vlrl.services.lazy import Tensor, nn, torch
from vlrl.types import Sampling

BLOCK = 256  # ids whose mass is summed before the cumulative sum


def uniforms(seed: int, index: int, count: int, start: int = 0) -> np.ndarray:
    """Numbers `start` .. `start + count - 1` of random stream (seed, index): float64 in [0, 1), shape
    (count,). Philox, keyed by (seed, index).

    Sample i of a request with seed s draws its p-th token with number p of stream (s, i). It thus depends on
    seed and index alone, not on the batch, nor on the order in which sequences finish.
    """
    bits = np.random.Philox(key=[seed % 2**64, index % 2**64])
    return np.random.Generator(bits).random(start + count)[start:]


class SampledSequence(Protocol):
    """What the sampler reads of a sequence: its settings, the ids of its completion so far, the ids that end
    it."""

    ids: list[int]
    stop_ids: frozenset[int]
    processors: tuple[Any, ...]

    @property
    def sampling(self) -> Sampling: ...


@dataclass(frozen=True)
class Draw:
    """`ids_R` and their log-probs (nats) under the distribution they were drawn from; each sequence's top
    log-probs (empty if not asked for)."""

    ids_R: Tensor
    logp_R: Tensor
    top_logprobs: list[dict[int, float]] | None


class Sampler:
    """The settings of R sequences as tensors, made once per composition of the batch and used at every step.

    Order of operations: bans and processors, temperature, top-k, top-p, min-p (each on the renormalised
    result of the one before); then the token is the inverse of the cumulative distribution, in vocabulary
    order, at the sequence's uniform number. Temperature 0 takes the most likely token and returns its
    log-prob at temperature 1.
    """

    def __init__(self, sequences: Sequence[SampledSequence], device: torch.device) -> None:
        self.sequences = sequences
        settings = [sequence.sampling for sequence in sequences]

        def column(values: list) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device).unsqueeze(-1)

        self.device = device
        self.scheduled = any(not isinstance(s.temperature, (int, float)) for s in settings)
        self._set_temperatures()
        self.top_k_R1 = column([float(s.top_k) or float("inf") for s in settings])
        self.top_p_R1 = column([s.top_p for s in settings])
        self.min_p_R1 = column([s.min_p for s in settings])
        self.filtered = [r for r, s in enumerate(settings) if s.top_k > 0 or s.top_p < 1 or s.min_p > 0]
        self.banned = [(r, s) for r, s in enumerate(settings) if s.bad_ids or s.min_tokens]
        self.processed = [r for r, sequence in enumerate(sequences) if sequence.processors]
        self.top_count = max((s.top_logprobs for s in settings), default=0)
        self.greedy = any((self.temperature_R1 == 0).flatten().tolist()) or self.scheduled

    def __call__(self, logits_RV: Tensor, u_R: Tensor) -> Draw:
        """One token for every sequence. `u_R` are float64 in [0, 1). A logit of -inf is a token that is never
        drawn; banned ones are set to it.

        The logits' memory is used for the probabilities on a CPU.
        """
        scores_RV = self.scores(logits_RV)
        best_R1 = scores_RV.argmax(-1, keepdim=True) if self.greedy else None
        top = scores_RV.topk(min(self.top_count, scores_RV.shape[-1]), dim=-1) if self.top_count else None
        highest_R1 = scores_RV.amax(-1, keepdim=True) if top is not None else None
        probs_RV = torch.softmax(scores_RV, -1, out=scores_RV if scores_RV.device.type == "cpu" else None)
        ids_R1 = inverse_cdf(probs_RV, u_R)
        if best_R1 is not None:
            ids_R1 = torch.where(self.temperature_R1 == 0, best_R1, ids_R1)
        logp_R = probs_RV.gather(-1, ids_R1).log().squeeze(-1)
        if top is None or highest_R1 is None:
            return Draw(ids_R1.squeeze(-1), logp_R, None)
        total_R1 = highest_R1 - probs_RV.amax(-1, keepdim=True).log()  # the log-sum-exp of the scores
        return Draw(ids_R1.squeeze(-1), logp_R, self._top_logprobs(top.values - total_R1, top.indices))

    def scores(self, logits_RV: Tensor) -> Tensor:
        """(R, V) float32 whose softmax is the distribution that the token is drawn from; -inf where it is
        0."""
        logits_RV = logits_RV.float()
        for r, sampling in self.banned:
            banned = set(sampling.bad_ids)
            if len(self.sequences[r].ids) < sampling.min_tokens:
                banned |= self.sequences[r].stop_ids
            logits_RV[r, sorted(banned)] = float("-inf")
        for r in self.processed:
            for processor in self.sequences[r].processors:
                logits_RV[r] = processor(self.sequences[r].ids, logits_RV[r])
        if self.scheduled:
            self._set_temperatures()
        if not self.unscaled:
            logits_RV = logits_RV.div_(self.scale_R1)
        if self.filtered:
            index = torch.tensor(self.filtered, device=self.device)
            logits_RV[index] = self._filter(logits_RV[index].log_softmax(-1), index)
        return logits_RV

    def _set_temperatures(self) -> None:
        """The temperatures of the sequences' next tokens; `scale_R1` is 1 where a sequence takes the most
        likely token."""
        values = [sequence.sampling.temperature_at(len(sequence.ids)) for sequence in self.sequences]
        self.unscaled = all(value in (0, 1) for value in values)
        self.temperature_R1 = torch.tensor(values, dtype=torch.float32, device=self.device).unsqueeze(-1)
        self.scale_R1 = torch.where(self.temperature_R1 == 0, 1.0, self.temperature_R1)

    def _filter(self, logp_RV: Tensor, index: Tensor) -> Tensor:
        """Top-k, then top-p on the rest, then min-p relative to the most likely token."""
        sorted_RV, order_RV = logp_RV.sort(dim=-1, descending=True, stable=True)
        rank_V = torch.arange(sorted_RV.shape[-1], device=self.device)
        keep_RV = rank_V < self.top_k_R1[index]
        probs_RV = torch.where(keep_RV, sorted_RV, float("-inf")).softmax(-1)
        before_RV = probs_RV.double().cumsum(-1) - probs_RV
        top_p_R1 = self.top_p_R1[index]
        keep_RV &= (before_RV < top_p_R1) | (top_p_R1 >= 1)
        keep_RV &= probs_RV >= self.min_p_R1[index] * probs_RV[:, :1]
        keep_RV[:, 0] = True
        mask_RV = torch.zeros_like(keep_RV).scatter_(-1, order_RV, keep_RV)
        return torch.where(mask_RV, logp_RV, float("-inf")).log_softmax(-1)

    def _top_logprobs(self, values_RK: Tensor, ids_RK: Tensor) -> list[dict[int, float]]:
        out = []
        for sequence, values, ids in zip(self.sequences, values_RK.tolist(), ids_RK.tolist()):
            wanted = sequence.sampling.top_logprobs
            out.append({i: v for i, v in zip(ids[:wanted], values[:wanted]) if v > float("-inf")})
        return out


def inverse_cdf(mass_RV: Tensor, u_R: Tensor) -> Tensor:
    """(R, 1) ids: the first whose cumulative share of the row's mass, in vocabulary order, exceeds `u_R`.

    Sums over blocks of `BLOCK` ids are float32 and cumulated in float64, then the ids of the chosen block
    are: each probability is exact to float32, without a float64 tensor of the vocabulary. Edge: an id without
    mass is never drawn, also where rounding puts the target beyond the last one.
    """
    width = mass_RV.shape[1]
    whole = width // BLOCK * BLOCK
    sums_RK = mass_RV[:, :whole].unflatten(1, (-1, BLOCK)).sum(-1)
    if whole < width:
        sums_RK = torch.cat([sums_RK, mass_RV[:, whole:].sum(-1, keepdim=True)], dim=-1)
    cdf_RK = sums_RK.double().cumsum(-1)
    target_R1 = u_R.to(cdf_RK).unsqueeze(-1) * cdf_RK[:, -1:]
    block_R1 = _first_beyond(cdf_RK, target_R1)
    before_R1 = nn.functional.pad(cdf_RK, (1, 0)).gather(-1, block_R1)
    ids_RB = block_R1 * BLOCK + torch.arange(BLOCK, device=mass_RV.device)
    inner_RB = mass_RV.gather(-1, ids_RB.clamp(max=width - 1)).double() * (ids_RB < width)
    return block_R1 * BLOCK + _first_beyond(inner_RB.cumsum(-1), target_R1 - before_R1)


def _first_beyond(cdf_RK: Tensor, target_R1: Tensor) -> Tensor:
    """The first index at which `cdf_RK` exceeds the target, at most the first at which it reaches its last
    value."""
    return torch.minimum(
        torch.searchsorted(cdf_RK, target_R1, right=True),
        torch.searchsorted(cdf_RK, cdf_RK[:, -1:].contiguous()),
    )
