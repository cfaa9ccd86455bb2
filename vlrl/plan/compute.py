"""FLOPs, seconds and cost of a step, as pure functions. A product of an (a, b) and a (b, c) matrix is 2 a b c
FLOPs.

Shape legend: P prompt tokens, T completion tokens, G completions of a prompt, A total width of the attention
heads, V vocabulary, H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.plan.blocks import Width


def packed_pairs(prompt: int, completion: int, group: int, dense: bool) -> float:
    """Attention pairs of a packed group: all pairs of its row under a dense mask, P^2 / 2 + G (P T + T^2 / 2)
    with block masks.

    Example: P = 4, T = 2, G = 3: dense 10^2 = 100, blocks 8 + 3 (8 + 2) = 38.
    """
    if dense:
        return float((prompt + group * completion) ** 2)
    return prompt**2 / 2 + group * (prompt * completion + completion**2 / 2)


def forward_flops(width: Width, layers: int, tokens: float, pairs: float) -> float:
    """FLOPs of the layers' forward pass: 2 x weights x tokens + 4 A x pairs, per layer (scores and weighted
    values)."""
    return layers * (2.0 * width.weights * tokens + 4.0 * width.queries * pairs)


def passes(trained: bool, beneath: bool, checkpointing: bool) -> int:
    """How many forward passes the training of a part costs: 1 forward, 1 for the gradient of its input
    (needed if something `beneath` it, or an adapter in it, is trained), 1 for that of its weights (if
    `trained`), and 1 if it is recomputed. A part without gradient costs 1."""
    if not trained and not beneath:
        return 1
    return 1 + 1 + (1 if trained else 0) + (1 if checkpointing else 0)


@dataclass(frozen=True)
class StepFlops:
    """FLOPs of a step of the whole run: sampling's prefill and decoding, the passes before the loss,
    training."""

    prefill: float
    decode: float
    scoring: float
    training: float

    @property
    def total(self) -> float:
        """Their sum."""
        return self.prefill + self.decode + self.scoring + self.training


def decode_seconds(
    *,
    sequences: float,
    mean: float,
    longest: float,
    most_at_a_time: float,
    weights: float,
    kv_per_sequence: float,
    flops_per_token: float,
    bandwidth: float,
    flops: float,
) -> float:
    """Seconds to decode `sequences` completions on one device with continuous batching.

    There are max(longest, sequences x mean / most_at_a_time) decoding steps; each reads the weights and the
    keys and values of the sequences that run (bytes over bytes/s), and computes their products; the slower of
    the two counts.
    Example: 100 sequences of 50 tokens, at most 50 at a time, longest 80: 100 steps with 50 sequences each.
    """
    if sequences <= 0:
        return 0.0
    steps = max(longest, sequences * mean / max(1.0, most_at_a_time))
    running = sequences * mean / steps
    reading = (weights + running * kv_per_sequence) / bandwidth
    computing = running * flops_per_token / flops
    return steps * max(reading, computing)


def ring_seconds(size: float, ranks: int, bandwidth: float, rounds: int = 1) -> float:
    """Seconds of `rounds` ring all-gathers or reduce-scatters of `size` bytes: (R - 1) / R of them pass each
    link. An all-reduce is two rounds.

    Example: 8e9 bytes, 4 ranks, 6e9 bytes/s: 1 second a round.
    """
    return rounds * size * (ranks - 1) / ranks / bandwidth if ranks > 1 else 0.0


def rounds_of(layout: str, micro_batches: int) -> int:
    """Ring rounds over the float32 weights in an optimizer step: DDP and ZeRO-1 all-reduce once (2), ZeRO-2
    reduce-scatters per micro-batch and gathers once, ZeRO-3 and FSDP2 gather twice and reduce-scatter once
    per micro-batch."""
    return {"single": 0, "ddp": 2, "zero1": 2, "zero2": micro_batches + 1}.get(layout, 3 * micro_batches)


def cost(seconds_per_step: float, devices: int, price_per_hour: float, steps: int = 1000) -> float:
    """Price of `steps` steps on `devices` devices. Example: 36 s, 8 devices, 2.5 an hour: 1000 steps take 10
    hours and cost 200."""
    return seconds_per_step * steps / 3600 * devices * price_per_hour
