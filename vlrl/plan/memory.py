"""Memory of a rank by kind, in bytes, and its highest point over the phases of a step.

Shape legend: R rows, L tokens of a row, N scored completion tokens, V vocabulary, H hidden size, C tokens of
a chunk of logits.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.plan.blocks import FLOAT, Width, checkpoint_per_token, saved_per_token
from vlrl.plan.layouts import ShardingLayout, StateBytes, state_bytes
from vlrl.plan.shape import ModelShape

LOGGED_NUMBERS = 1 << 22  # as in vlrl.trainer.step.loss_inputs, which a test compares


@dataclass(frozen=True)
class MicroBatch:
    """The longest micro-batch of a rank: `rows` rows of `length` tokens, `scored` completion tokens,
    `patches` rows of the vision tower, which give `media_tokens`; `masked`: rows hold several completions, so
    that a dense mask is needed; `sequence` ranks hold a slice of each row."""

    rows: int
    length: int
    scored: int
    patches: int = 0
    media_tokens: int = 0
    masked: bool = True
    patches_of_largest: int = 0  # of the largest medium: towers attend within one
    saved: int = 0  # numbers of a tower of convolutions, and with checkpointing
    saved_inputs: int = 0
    sequence: int = 1

    @property
    def tokens(self) -> int:
        """Tokens with their padding."""
        return self.rows * self.length

    @property
    def own_tokens(self) -> int:
        """Tokens of a rank's slices."""
        return self.rows * -(-self.length // self.sequence)

    @property
    def own_scored(self) -> int:
        """Completion tokens that a rank scores."""
        return -(-self.scored // self.sequence)


@dataclass(frozen=True)
class Activations:
    """Bytes that live between the forward and the backward pass of a micro-batch; `logits` and
    `head_backward` are the head's workspaces, `recomputed` a layer in full, where checkpointing recomputes
    it."""

    language: float
    vision: float
    masks: float
    ends: float
    cast_weights: float
    logits: float
    head_backward: float
    recomputed: float

    @property
    def kept(self) -> float:
        """All but the workspaces."""
        return self.language + self.vision + self.masks + self.ends + self.cast_weights

    @property
    def total(self) -> float:
        """The highest point of a micro-batch."""
        return self.kept + max(self.logits, self.head_backward, self.recomputed)


def layers_bytes(
    width: Width, layers: int, tokens: int, size: int, checkpointing: bool, rank: int = 0
) -> float:
    """Bytes that `layers` layers save for `tokens` tokens; with checkpointing, their inputs alone."""
    return (
        layers
        * tokens
        * (checkpoint_per_token(width, size) if checkpointing else saved_per_token(width, size, rank))
    )


def mask_bytes(micro: MicroBatch, numbers: int, size: int) -> float:
    """Bytes of dense masks, R L^2: one byte once, and `numbers` masks in the products' type."""
    return micro.rows * micro.length**2 * (1.0 + size * numbers) if micro.masked else 0.0


def recomputed_bytes(shape: ModelShape, micro: MicroBatch) -> float:
    """One layer in full, with the gradients of its MLP (3 I numbers) and its mask: the most that
    checkpointing recomputes at a time."""
    text = saved_per_token(shape.text, shape.size, shape.rank) + 3 * shape.text.inner * shape.size
    mask = micro.rows * micro.length**2 * float(shape.size) if micro.masked else 0.0
    tower = (
        saved_per_token(shape.tower, shape.size) * micro.patches
        if shape.tower and shape.trained_by_part.get("vision")
        else 0.0
    )
    return max(text * micro.own_tokens + mask, tower)


def logits_bytes(scored: int, chunk: int, vocabulary: int, size: int, logged: bool = True) -> float:
    """Bytes of the head's forward pass for a chunk of C = min(chunk, N) tokens: logits in float32 (4 C V),
    and beside them their 16-bit form or the four tensors of an entropy that is logged, which is computed for
    `LOGGED_NUMBERS` logits at a time."""
    numbers = min(chunk, scored) * vocabulary
    entropy = 4.0 * FLOAT * min(numbers, LOGGED_NUMBERS) if logged else 0.0
    return FLOAT * numbers + max(entropy, 0.0 if size == FLOAT else float(size * numbers))


def head_backward_bytes(scored: int, chunk: int, vocabulary: int, size: int, head: int) -> float:
    """Bytes of the head's backward pass: logits and their gradient in float32 (8 C V); then, without the
    logits, the gradient in the products' type and the new gradient of the head's `head` numbers (0: it is
    frozen) in that type and in float32."""
    numbers = min(chunk, scored) * vocabulary
    if size == FLOAT:
        return FLOAT * (numbers + max(numbers, head))
    return max(2.0 * FLOAT * numbers, size * numbers + max(FLOAT * numbers, (FLOAT + size) * head))


def tower_bytes(shape: ModelShape, micro: MicroBatch, checkpointing: bool) -> float:
    """Bytes of the vision tower and its projector; 0 if nothing in them is trained, because then nothing
    needs a gradient."""
    if not micro.media_tokens or not (
        shape.trained_by_part.get("vision") or shape.trained_by_part.get("projector")
    ):
        return 0.0
    if shape.tower:
        tower = layers_bytes(shape.tower, shape.tower_layers, micro.patches, shape.size, checkpointing)
    else:
        tower = float(shape.size * (micro.saved_inputs if checkpointing else micro.saved))
    merged = 3 * shape.tower_merge * (shape.tower or shape.text).hidden + shape.text.hidden
    trained = tower if shape.trained_by_part.get("vision") else 0.0
    return trained + micro.media_tokens * merged * shape.size


def cast_bytes(shape: ModelShape, keeps_casts: bool) -> float:
    """Bytes of autocast's copies of trained matrices: all of them, or the largest alone where a layer's copy
    ends with its product; 0 in float32."""
    if shape.size == FLOAT:
        return 0.0
    return float(
        shape.size * (shape.matmul_trained if keeps_casts else min(shape.largest, shape.matmul_trained))
    )


def activations(
    shape: ModelShape,
    micro: MicroBatch,
    checkpointing: bool,
    chunk: int,
    logged: bool = True,
    keeps_casts: bool = True,
) -> Activations:
    """The activations of a micro-batch.

    `ends`: the last layer's output and its norm (float32), the scored rows (float32 and in the products'
    type), embeddings with media (float32). `cast_weights`: autocast's copy of all trained matrices (see
    `cast_bytes`), also where weights are shared over ranks. Where ranks share rows, each has its slices, but
    whole rows of embeddings with media, of masks and in the vision tower.
    """
    tokens, scored, hidden = micro.own_tokens, micro.own_scored, shape.text.hidden
    ends = FLOAT * hidden * (2 * tokens + (micro.tokens if micro.media_tokens else 0))
    ends += scored * hidden * (FLOAT + (0 if shape.size == FLOAT else shape.size))
    trained_language = bool(shape.trained_by_part.get("language")) or bool(
        shape.trained_by_part.get("vision")
    )
    language = (
        layers_bytes(shape.text, shape.layers, tokens, shape.size, checkpointing, shape.rank)
        if trained_language
        else 0.0
    )
    return Activations(
        language=language,
        vision=tower_bytes(shape, micro, checkpointing),
        masks=mask_bytes(micro, 0 if checkpointing else shape.layers, shape.size),
        ends=float(ends),
        cast_weights=cast_bytes(shape, keeps_casts),
        logits=logits_bytes(scored, chunk, shape.vocabulary, shape.size, logged),
        head_backward=head_backward_bytes(scored, chunk, shape.vocabulary, shape.size, shape.head_trained),
        recomputed=recomputed_bytes(shape, micro) if checkpointing else 0.0,
    )


@dataclass(frozen=True)
class Memory:
    """Bytes of a rank by kind; `peak` is the highest sum of those that live at the same time, `when` the
    phase in which it is reached."""

    state: StateBytes
    reference: float
    activations: Activations
    kv_cache: float
    engine: float
    step_workspace: float
    peak: float
    when: str


def highest(
    state: StateBytes,
    reference: float,
    acts: Activations,
    *,
    micro_batches: int,
    kv_cache: float,
    engine: float,
    engine_sleeps: bool,
    step_workspace: float,
) -> Memory:
    """The peak over sampling, a micro-batch and the optimizer step.

    A micro-batch begins with gradients only if it is not the first of its optimizer step; the gradients of
    the first grow while its activations shrink, so the larger of the two counts. `kv_cache` is of engine
    `hf`, which samples with the trainer's weights; `engine` are the bytes that a vLLM engine reserves on the
    same device (0 while it sleeps).
    """
    held = state.weights + state.optimizer + state.buffers + reference
    resident = 0.0 if engine_sleeps else engine
    gradients = state.gradients if micro_batches > 1 else 0.0
    moments = {
        "sampling": held + max(engine, kv_cache + acts.cast_weights),
        "micro-batch": held + resident + max(gradients + acts.total, state.gradients),
        "optimizer step": held + resident + state.gradients + step_workspace,
    }
    when = max(moments, key=lambda name: moments[name])
    return Memory(state, reference, acts, kv_cache, engine, step_workspace, moments[when], when)


def step_bytes(layout: ShardingLayout, ranks: int, trained: int, largest: int, on_gpu: bool) -> float:
    """Temporaries of AdamW's step: on a GPU one number per trained number of the rank (its multi-tensor
    form), on a CPU two of the largest matrix. DeepSpeed flattens a rank's gradients first, and its share is a
    single matrix."""
    share = trained / ranks if layout.states_shared and ranks > 1 else float(trained)
    if layout.master_copy:
        return FLOAT * share * (2 if layout.name != "zero3" else 1) + (0 if on_gpu else FLOAT * share)
    return FLOAT * share if on_gpu else 2.0 * FLOAT * min(largest, share)


def rank_memory(
    shape: ModelShape,
    micro: MicroBatch,
    layout: ShardingLayout,
    ranks: int,
    checkpointing: bool,
    chunk: int,
    *,
    optimizer: str,
    micro_batches: int,
    reference: bool = False,
    logged: bool = True,
    kv_cache: float = 0.0,
    engine: float = 0.0,
    engine_sleeps: bool = False,
    on_gpu: bool = True,
) -> Memory:
    """The memory of one rank of a run. `micro_batches` per optimizer step; `reference`: a copy of the weights
    is kept (none with an adapter)."""
    state = state_bytes(
        layout, ranks, shape.trained, shape.trained_bytes, shape.frozen_bytes, optimizer, shape.text.weights
    )
    return highest(
        state,
        shape.reference_bytes if reference else 0.0,
        activations(shape, micro, checkpointing, chunk, logged, layout.keeps_casts),
        micro_batches=micro_batches,
        kv_cache=kv_cache,
        engine=engine,
        engine_sleeps=engine_sleeps,
        step_workspace=step_bytes(layout, ranks, shape.trained, shape.largest, on_gpu),
    )
