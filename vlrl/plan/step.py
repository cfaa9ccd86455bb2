"""FLOPs and seconds of a step of a config on given devices, with the engine on the trainer's devices or on
its own."""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.plan.compute import (
    StepFlops,
    decode_seconds,
    forward_flops,
    packed_pairs,
    passes,
    ring_seconds,
    rounds_of,
)
from vlrl.plan.gpus import GPU
from vlrl.plan.shape import ModelShape
from vlrl.plan.workload import Workload, micro_batches, packs


@dataclass(frozen=True)
class Speed:
    """Stated shares of the peaks: `training` and `prefill` of the FLOP/s, `decoding` of the memory's
    bandwidth. `network` is bytes/s of a GPU to other machines, `machine` the GPUs of a machine."""

    training: float = 0.40
    prefill: float = 0.50
    decoding: float = 0.60
    network: float = 50e9
    machine: int = 8


@dataclass(frozen=True)
class StepSeconds:
    """Seconds of a step's parts. `communication` is not overlapped with computing here; `sync` moves the
    weights to the engines."""

    sampling: float
    scoring: float
    training: float
    communication: float
    sync: float

    @property
    def total(self) -> float:
        """One part after the other."""
        return self.sampling + self.trainer

    @property
    def trainer(self) -> float:
        """All but sampling."""
        return self.scoring + self.training + self.communication + self.sync


def group_forward(shape: ModelShape, work: Workload) -> tuple[float, float, float]:
    """FLOPs of one forward pass of a group of mean length: (language layers, head, vision tower)."""
    completion = max(1, round(work.completion))
    packed = packs(shape, work, work.prompt, completion)
    if packed:
        tokens, pairs = work.group_tokens, packed_pairs(work.prompt, completion, work.group, work.dense)
    else:
        tokens = float(work.group * (work.prompt + completion))
        pairs = work.group * (work.prompt + completion) ** 2 / 2
    language = forward_flops(shape.text, shape.layers, tokens, pairs)
    head = 2.0 * shape.parts["head"] * work.group * work.completion
    return language, head, tower_forward(shape, work)


def tower_forward(shape: ModelShape, work: Workload) -> float:
    """FLOPs of the vision tower for a prompt's pictures. All of its attention counts as full, also where some
    layers attend within windows."""
    if not work.pictures:
        return 0.0
    patches = work.pictures * work.picture.patches
    projector = 2.0 * shape.parts.get("projector", 0) * work.media_tokens
    layers = (
        forward_flops(shape.tower, shape.tower_layers, patches, float(patches * work.picture.largest))
        if shape.tower
        else work.pictures * work.picture.flops
    )
    return layers + projector


def step_flops(shape: ModelShape, work: Workload, checkpointing: bool) -> StepFlops:
    """FLOPs of a step of the whole run."""
    language, head, tower = group_forward(shape, work)
    vision = bool(shape.trained_by_part.get("vision"))
    adapter = shape.rank > 0
    trained_language = bool(shape.trained_by_part.get("language"))
    training = (
        language * passes(trained_language and not adapter, trained_language or vision, checkpointing)
        + head * passes(shape.head_trained > 0, True, False)
        + tower * passes(vision, False, checkpointing)
    )
    before = (1 if work.old_logp else 0) + (1 if work.reference else 0)
    prefill = forward_flops(shape.text, shape.layers, work.prompt, work.prompt**2 / 2) + tower
    per_token = (
        forward_flops(shape.text, shape.layers, 1.0, work.prompt + work.completion / 2)
        + 2.0 * shape.parts["head"]
    )
    return StepFlops(
        prefill=work.prompts * prefill,
        decode=work.prompts * work.group * work.completion * per_token,
        scoring=before * work.prompts * (language + head + tower),
        training=work.epochs * work.prompts * training,
    )


def sampling_seconds(
    shape: ModelShape, work: Workload, gpu: GPU, devices: int, kv_bytes: float, speed: Speed, flops: StepFlops
) -> float:
    """Seconds of sampling on `devices` engines of one GPU each with `kv_bytes` for keys and values: prefill,
    then decoding."""
    sequences = work.prompts * work.group / devices
    own = shape.kv_per_token * work.completion
    with_prompt = (
        own + shape.kv_per_token * work.prompt / work.group
    )  # a prompt's keys and values are shared by its group
    per_token = flops.decode / max(1.0, work.prompts * work.group * work.completion)
    decoding = decode_seconds(
        sequences=sequences, mean=work.completion, longest=float(work.max_completion),
        most_at_a_time=kv_bytes / with_prompt,
        weights=float((shape.matmul + shape.parts["head"]) * shape.size),
        kv_per_sequence=shape.kv_per_token * (work.prompt + work.completion / 2),
        flops_per_token=per_token, bandwidth=gpu.bandwidth * speed.decoding, flops=gpu.flops * speed.prefill,
    )  # fmt: skip
    return flops.prefill / devices / (gpu.flops * speed.prefill) + decoding


def link_between(gpu: GPU, ranks: int, speed: Speed) -> float:
    """Bytes/s of the slowest link of a ring over `ranks` GPUs: inside a machine, or between machines."""
    return gpu.link if ranks <= speed.machine else min(gpu.link, speed.network)


def exchanged_bytes(shape: ModelShape, work: Workload, ranks: int) -> float:
    """Bytes that a rank sends in the forwards and backwards of its groups where P ranks share a row: queries,
    keys, values and outputs of its slice, but for its own share of them, three times with recomputation."""
    each = 2.0 * (shape.text.queries + shape.text.keys) * shape.size * shape.layers
    tokens = work.prompts * work.group_tokens / ranks
    return 3 * tokens * each * (work.sequence - 1) / work.sequence


def trainer_seconds(
    shape: ModelShape, work: Workload, gpu: GPU, ranks: int, layout: str, speed: Speed, flops: StepFlops
) -> dict[str, float]:
    """Seconds of the passes before the loss, of training, of communication and of the weights' way to the
    engines."""
    # a group is trained on one rank, or on those that share its row
    rate = gpu.flops * speed.training * min(ranks, work.prompts * work.sequence)
    link = link_between(gpu, ranks, speed)
    per_update = ring_seconds(shape.trained_bytes, ranks, link, rounds_of(layout, micro_batches(work, ranks)))
    if layout in ("zero3", "fsdp2"):  # frozen weights are gathered too, once for each of the two passes
        per_update += ring_seconds(shape.frozen_bytes, ranks, link, 2 * micro_batches(work, ranks))
    exchanged = exchanged_bytes(shape, work, ranks) * work.epochs / link
    return {
        "scoring": flops.scoring / rate,
        "training": flops.training / rate,
        "communication": per_update * work.num_minibatches * work.epochs + exchanged,
        "sync": shape.parameters * shape.size / link,
    }
