"""Logits to tokens: one vectorised draw for rows that each have settings of their own.

Shape legend: R rows, V vocabulary, K the most alternatives asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from vlrl.types import Sampling


class Sampled(Protocol):
    """What the sampler reads of a row: its settings, the ids of its completion so far, the ids that would end it."""

    sampling: Sampling
    ids: list[int]
    ends: frozenset[int]
    processors: tuple


@dataclass(frozen=True)
class Draw:
    """`ids_R` and their log-probs (nats) under the distribution they were drawn from; for each row its alternatives (empty where not asked)."""

    ids_R: Tensor
    logp_R: Tensor
    top: list[dict[int, float]] | None


class Sampler:
    """Settings of R rows as tensors, made once per composition of the batch and used at every step.

    Order of operations: bans and processors, temperature, top-k, top-p, min-p (each on what the one before left, renormalised); then the token is
    the inverse of the cumulative distribution, in vocabulary order, at the row's uniform number. Temperature 0 takes the most likely token, and
    books its log-prob at temperature 1.
    """

    def __init__(self, rows: Sequence[Sampled], forbidden: Sequence[int], device: torch.device):
        self.rows = rows
        settings = [row.sampling for row in rows]

        def column(values: list) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device).unsqueeze(-1)

        self.device = device
        self.forbidden = torch.tensor(list(forbidden), dtype=torch.long, device=device)
        self.scheduled = any(not isinstance(s.temperature, (int, float)) for s in settings)
        self.temperature_R1 = column([s.temperature_at(len(row.ids)) for s, row in zip(settings, rows)])
        self.top_k_R1 = column([float(s.top_k) or float("inf") for s in settings])
        self.top_p_R1 = column([s.top_p for s in settings])
        self.min_p_R1 = column([s.min_p for s in settings])
        self.filtered = [r for r, s in enumerate(settings) if s.top_k > 0 or s.top_p < 1 or s.min_p > 0]
        self.ragged_bans = [(r, s) for r, s in enumerate(settings) if s.bad_ids or s.min_tokens]
        self.processed = [r for r, row in enumerate(rows) if row.processors]
        self.alternatives = max((s.top_logprobs for s in settings), default=0)
        self.greedy = any((self.temperature_R1 == 0).flatten().tolist()) or self.scheduled

    def __call__(self, logits_RV: Tensor, u_R: Tensor) -> Draw:
        """One token for every row. `u_R` are float64 in [0, 1)."""
        logp_RV = self.distribution(logits_RV)
        cdf_RV = logp_RV.double().exp_().cumsum(-1)
        target_R1 = (u_R.to(cdf_RV).unsqueeze(-1)) * cdf_RV[:, -1:]
        ids_R1 = torch.searchsorted(cdf_RV, target_R1, right=True)
        ids_R1 = torch.minimum(ids_R1, torch.searchsorted(cdf_RV, cdf_RV[:, -1:].contiguous()))  # rounding at the very end
        if self.greedy:
            ids_R1 = torch.where(self.temperature_R1 == 0, logp_RV.argmax(-1, keepdim=True), ids_R1)
        logp_R = logp_RV.gather(-1, ids_R1).squeeze(-1)
        return Draw(ids_R1.squeeze(-1), logp_R, self._alternatives(logp_RV))

    def distribution(self, logits_RV: Tensor) -> Tensor:
        """(R, V) float32 log-probs of the distribution that is drawn from."""
        logits_RV = logits_RV.float()
        if len(self.forbidden):
            logits_RV = logits_RV.index_fill(-1, self.forbidden, float("-inf"))
        for r, sampling in self.ragged_bans:
            banned = set(sampling.bad_ids)
            if len(self.rows[r].ids) < sampling.min_tokens:
                banned |= self.rows[r].ends
            logits_RV[r, sorted(banned)] = float("-inf")
        for r in self.processed:
            for processor in self.rows[r].processors:
                logits_RV[r] = processor(self.rows[r].ids, logits_RV[r])
        if self.scheduled:
            values = [row.sampling.temperature_at(len(row.ids)) for row in self.rows]
            self.temperature_R1 = torch.tensor(values, dtype=torch.float32, device=self.device).unsqueeze(-1)
        scale_R1 = torch.where(self.temperature_R1 == 0, 1.0, self.temperature_R1)
        logp_RV = (logits_RV / scale_R1).log_softmax(-1)
        if self.filtered:
            index = torch.tensor(self.filtered, device=self.device)
            logp_RV[index] = self._filter(logp_RV[index], index)
        return logp_RV

    def _filter(self, logp_RV: Tensor, index: Tensor) -> Tensor:
        """Top-k, then top-p on what is left, then min-p relative to the most likely token."""
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

    def _alternatives(self, logp_RV: Tensor) -> list[dict[int, float]] | None:
        if not self.alternatives:
            return None
        values_RK, ids_RK = logp_RV.topk(min(self.alternatives, logp_RV.shape[-1]), dim=-1)
        out = []
        for row, values, ids in zip(self.rows, values_RK.tolist(), ids_RK.tolist()):
            wanted = row.sampling.top_logprobs
            out.append({i: v for i, v in zip(ids[:wanted], values[:wanted]) if v > float("-inf")})
        return out
