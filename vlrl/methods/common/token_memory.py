"""Numbers per token of rollouts that come again, under weights that stay the same: a replayed rollout, a
demonstration, an accepted draft."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

if TYPE_CHECKING:
    from torch import Tensor

    from vlrl.plugins.contexts import SamplingContext
    from vlrl.types import Rollout, TokenBatch


class TokenMemory:
    """Remembers one number per token of each rollout, of the last `capacity` tokens that it was asked for
    (float32, 4 bytes each).

    A rollout is known by its prompt, token ids, loss mask and temperatures. The numbers are forgotten when
    the weights of `model` change: another module, or one of its frozen parameters written in place. Edge:
    weights that are sharded over processes are not remembered for, since their forward pass is a collective
    that all ranks must make. `hits` counts rollouts.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.hits = 0
        self._known: OrderedDict[bytes, array[float]] = OrderedDict()
        self._tokens = 0
        self._model: Callable[[], Any] = lambda: None
        self._written = -1

    def __call__(
        self, run: SamplingContext, model: Any, batch: TokenBatch, compute: Callable[[TokenBatch], Tensor]
    ) -> Tensor:
        """(B, T): `compute(batch)`, where only groups with a rollout that is not known are computed; zero
        beyond a rollout's last token."""
        if not self.capacity or run.state_sharded:
            return compute(batch)
        self._forget_if_changed(model)
        keys = keys_of(batch)
        found = {key: self._known[key] for key in keys if key in self._known}
        key = iter(keys)
        missing = [
            group for group in batch.groups if not all([next(key) in found for _ in group])
        ]  # a list: every key is taken
        self.hits += sum(key in found for key in keys)
        if len(missing) == len(batch.groups):
            values_BT = compute(batch)
            self._store(batch, values_BT, found)
            return values_BT
        if missing:
            part = run.batch(missing)
            self._store(part, compute(part), found)
        values_BT = batch.temperature_BT.new_zeros(batch.ids_BT.shape)
        for b, one in enumerate(keys):
            values_BT[b, : len(found[one])] = values_BT.new_tensor(found[one])
            if one in self._known:
                self._known.move_to_end(one)
        return values_BT

    def _store(self, batch: TokenBatch, values_BT: Tensor, found: dict[bytes, array[float]]) -> None:
        for key, rollout, row in zip(keys_of(batch), batch.rollouts, values_BT.detach().float().cpu()):
            if key not in self._known:
                self._known[key] = array("f", row[: len(rollout)].tolist())
                self._tokens += len(rollout)
            found[key] = self._known[key]
        while self._tokens > self.capacity:
            self._tokens -= len(self._known.popitem(last=False)[1])

    def _forget_if_changed(self, model: Any) -> None:
        written = sum(p._version for p in model.parameters() if not p.requires_grad)
        if self._model() is not model or self._written != written:
            self._known.clear()
            self._tokens, self._model, self._written = 0, ref(model), written


def check_capacity(tokens: int) -> None:
    """Raise ValueError for a negative number of tokens to remember."""
    if tokens < 0:
        raise ValueError(f"remember is {tokens}; it must be 0 (none) or a number of tokens")


def keys_of(batch: TokenBatch) -> list[bytes]:
    """A key for each rollout of the batch."""
    rows = batch.temperature_BT.tolist()
    return [key_of(rollout, row[: len(rollout)]) for rollout, row in zip(batch.rollouts, rows)]


def key_of(rollout: Rollout, temperatures: Sequence[float]) -> bytes:
    """A hash of everything that the log-probs of a rollout's tokens depend on, besides weights."""
    parts = (
        rollout.prompt.for_training.key,
        list(rollout.ids),
        rollout.loss_mask and list(map(bool, rollout.loss_mask)),
        temperatures,
    )
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()
