"""How ranks share weights, gradients and optimizer states: what each rank keeps and what its engine allocates
besides, in bytes.

With n trained numbers, m frozen bytes, R ranks (ZeRO, arXiv:1910.02054, sec. 5; bytes as in
docs/distributed.md):

            weights          gradients   AdamW       engine's own
    single  4 n + m          4 n         8 n
    ddp     4 n + m          8 n         8 n         (gradients and the reducer's buckets)
    zero1   4 n + m          4 n         12 n / R    reduce bucket
    zero2   4 n + m          4 n / R     12 n / R    reduce bucket
    zero3   (4 n + m) / R    4 n / R     12 n / R    reduce bucket, gathered weights
    fsdp2   (4 n + m) / R    4 n / R     8 n / R     two gathered layers

DeepSpeed's optimizer keeps a float32 copy of its share (the 4 of 12). With fewer than 4 bytes in a weight,
its own size counts. Autocast's copies of trained matrices (2 n) live from a layer's forward pass to its
backward pass, whole on every rank, under all layouts but ZeRO-3, which casts again
(deepspeed/runtime/zero/linear.py). Counted in the autograd graph of `benchmarks/plan.py`'s cases: all 10.4 MB
of copies in `full_bf16` and `fsdp2_bf16`, none in `zero3_bf16`.
"""

from __future__ import annotations

from dataclasses import dataclass

REDUCE_BUCKET = 500_000_000  # numbers: DeepSpeed's default `reduce_bucket_size`, allocated whole
MAX_LIVE = 1_000_000_000  # numbers: DeepSpeed's default `stage3_max_live_parameters`
OPTIMIZER_BYTES = {
    "adamw": 8,
    "adamw_8bit": 2,
    "paged_adamw": 8,
    "paged_adamw_8bit": 2,
    "sgd": 0,
}  # per trained number


@dataclass(frozen=True)
class Layout:
    """A way of sharing over ranks. The fields say whether weights, gradients and states are divided, and what
    the engine adds."""

    name: str
    weights_shared: bool = False
    gradients_shared: bool = False
    states_shared: bool = False
    gradient_copies: int = 1
    master_copy: bool = False
    reduce_bucket: int = 0  # numbers in float32
    max_live: int = 0  # numbers in float32 that are gathered at a time
    keeps_casts: bool = True  # autocast's copies of the weights live until the backward pass


LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("single"),
        Layout("ddp", gradient_copies=2),
        Layout("zero1", states_shared=True, master_copy=True, reduce_bucket=REDUCE_BUCKET),
        Layout(
            "zero2", states_shared=True, gradients_shared=True, master_copy=True, reduce_bucket=REDUCE_BUCKET
        ),
        Layout(
            "zero3",
            True,
            True,
            True,
            master_copy=True,
            reduce_bucket=REDUCE_BUCKET,
            max_live=MAX_LIVE,
            keeps_casts=False,
        ),
        Layout("fsdp2", True, True, True),
    )
}


@dataclass(frozen=True)
class StateBytes:
    """Bytes that a rank holds between micro-batches."""

    weights: float
    gradients: float
    optimizer: float
    buffers: float

    @property
    def total(self) -> float:
        """Their sum."""
        return self.weights + self.gradients + self.optimizer + self.buffers


def state_bytes(
    layout: Layout,
    ranks: int,
    trained: int,
    trained_bytes: float,
    frozen_bytes: float,
    optimizer: str,
    layer: int = 0,
) -> StateBytes:
    """What a rank holds under a layout. `trained` counts numbers, `layer` those of the largest layer (FSDP2
    gathers two at a time).

    Example: 10 trained numbers in float32, 20 frozen bytes, 2 ranks, AdamW, zero3 without buckets: weights
    (40 + 20) / 2 = 30, gradients 20, optimizer (8 + 4) * 10 / 2 = 60 bytes.
    """
    share = ranks if ranks > 1 else 1
    weights = (trained_bytes + frozen_bytes) / (share if layout.weights_shared else 1)
    gradients = layout.gradient_copies * trained_bytes / (share if layout.gradients_shared else 1)
    states = (
        (OPTIMIZER_BYTES[optimizer] + (4 if layout.master_copy else 0))
        * trained
        / (share if layout.states_shared else 1)
    )
    buffers = 4.0 * layout.reduce_bucket
    if layout.max_live:
        buffers += min(trained_bytes + frozen_bytes, 4.0 * layout.max_live)
    elif layout.weights_shared:
        buffers += min(trained_bytes + frozen_bytes, 2 * 4.0 * layer)
    return StateBytes(weights, gradients, states, buffers)
