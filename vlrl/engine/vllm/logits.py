"""Logits processors that vLLM's worker imports by name: ids that may never be sampled; bans, temperature
schedules and callables of a request.

Both processors run before vLLM's own temperature, top-k, top-p and min-p. This module imports vLLM at the
top, which takes seconds: nothing else imports it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor, LogitsProcessor

from vlrl.engine.vllm.prompts import FORBIDDEN, KEY


class ForbiddenIds(LogitsProcessor):
    """Gives the ids of `additional_config["vlrl_forbidden"]`, a list of [first, one after the last],
    probability zero in every row."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        runs = (vllm_config.additional_config or {}).get(FORBIDDEN, [])
        self.ids = torch.tensor(
            [i for first, end in runs for i in range(first, end)], dtype=torch.long, device=device
        )

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        """No effect: the ids are the same for every batch."""

    def apply(self, logits: Tensor) -> Tensor:
        return logits.index_fill_(-1, self.ids, float("-inf")) if len(self.ids) else logits


class PerRequest(AdapterLogitsProcessor):
    """Applies `extra_args["vlrl"]`: {"bad_ids": [...], "temperature": [[position, value], ...], "prefix":
    given ids, "processors": [...]}."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        settings = (params.extra_args or {}).get(KEY)
        return RequestProcessor(settings) if settings else None


class RequestProcessor:
    """The logits processor of one request."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.bad_ids = list(settings.get("bad_ids", ()))
        self.schedule = settings.get("temperature")
        self.prefix = list(settings.get("prefix", ()))
        self.processors = settings.get("processors", ())

    def __call__(self, output_ids: list[int], logits: Tensor) -> Tensor:
        if self.bad_ids:
            logits[self.bad_ids] = float("-inf")
        for processor in self.processors:
            logits = processor([*self.prefix, *output_ids], logits)
        if self.schedule:
            position = len(self.prefix) + len(output_ids)
            values = [v for start, v in self.schedule if position >= start] or [self.schedule[0][1]]
            if values[-1] > 0:
                return logits / values[-1]
            best = logits.argmax()
            logits = torch.full_like(logits, float("-inf"))
            logits[best] = 0.0
        return logits
