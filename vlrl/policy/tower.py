"""The vision tower's outputs, kept where the tower is frozen: each medium then goes through it once in a run.

Rollouts, training passes, the KL reference, later steps and epochs read the same tensors, so that sampling
and training see equal bits.
"""

from __future__ import annotations

import copy
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from vlrl.policy.adapters import part_of
from vlrl.policy.encoded import Features, MediaEmbeds
from vlrl.policy.encoder import LRUCache
from vlrl.policy.family import Family, base
from vlrl.services.lazy import Tensor, nn, torch

TIMM = "TimmWrapperModel"  # transformers' class of towers that are no list of layers


def tower_arguments(config: Any) -> Any:
    """A copy of the arguments of timm's tower in a model's config, None for other towers: timm takes entries
    out of those that it is given, and puts modules in."""
    return copy.deepcopy(getattr(getattr(config, "vision_config", None), "model_args", None))


def keep_tower_arguments(model: Any, arguments: Any) -> None:
    """Put `tower_arguments` back into the config of a model that was built from it."""
    if arguments is not None:
        model.config.vision_config.model_args = arguments


class FrozenWeights:
    """The weights that features were computed with: the parameters themselves, where their numbers are, and
    how often they were changed in place."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = [weakref.ref(p) for p in parameters]
        self.state = state_of(parameters)

    @property
    def is_alive(self) -> bool:
        """Whether all parameters still exist."""
        return all(parameter() is not None for parameter in self.parameters)

    def holds(self, parameters: Sequence[Tensor]) -> bool:
        """Whether its parameters are these objects. Addresses alone do not tell: other weights may stand
        where those of a deleted model stood."""
        return len(parameters) == len(self.parameters) and all(
            ref() is p for ref, p in zip(self.parameters, parameters)
        )


def state_of(parameters: Sequence[Tensor]) -> list[tuple[int, int, torch.dtype]]:
    """Address, number of changes in place, and type of each parameter."""
    return [(p.data_ptr(), p._version, p.dtype) for p in parameters]


class MediaEncoder:
    """The vision tower and projector of a family's models, with a least-recently-used cache of
    `family.embeds_mb` MiB in the host's memory.

    Cached: embeddings where tower and projector are frozen; the projector's inputs where the projector is
    trained (`freeze: [vision]`). Nothing where the tower is trained, sharded (all ranks must then run it
    together), has an adapter, or its config names a dropout. Weights that change in place or are replaced
    count as another tower. A cached medium is encoded alone, so that its features do not depend on what is
    encoded beside it, nor on where a run was resumed; otherwise media are encoded together. Key: the tower
    and `Features.key` (content of the medium).

    Attributes:
        counters: "patches" and "media_encoded", rows and media that went through the tower; "media_reused",
            media that were in the cache.
    """

    def __init__(self, family: Family) -> None:
        self.family = family
        self.counters: Counter[str] = Counter()
        self.cache: LRUCache[tuple[Tensor, ...]] = LRUCache(
            family.embeds_mb << 20, lambda kept: sum(x.numel() * x.element_size() for x in kept)
        )
        self._towers: dict[int, FrozenWeights] = {}
        self._count = 0

    def __call__(self, model: nn.Module, features: Sequence[Features]) -> list[MediaEmbeds]:
        """The embeddings of each of `features`, which are distinct; honours the autograd mode."""
        frozen = frozen_parts(model) if features and self.family.embeds_mb else {}
        if "vision" not in frozen:
            self._count_media(features)
            return self.family.encode_media(model, features) if features else []
        if "projector" in frozen:
            tower = self._number_of([*frozen["vision"], *frozen["projector"]])
            return [self._embeds(model, f"{tower}/{medium.key}", medium) for medium in features]
        tower = self._number_of(frozen["vision"])
        return [
            (self._projected if self._is_projected(medium) else self._embeds)(
                model, f"{tower}/{medium.key}", medium
            )
            for medium in features
        ]

    def clear(self) -> None:
        """Empty the cache."""
        self.cache.clear()
        self._towers.clear()

    def _is_projected(self, medium: Features) -> bool:
        """Whether a medium passes the projector: a sound's tower may end in its projection, all of it
        frozen."""
        return medium.kind != "audio" or self.family.projects_sounds

    def _embeds(self, model: nn.Module, key: str, medium: Features) -> MediaEmbeds:
        def encode() -> tuple[Tensor, ...]:
            (embeds,) = self.family.encode_media(model, [medium])
            return embeds.embeds_NH, *embeds.deep

        first, *deep = self._lookup(model, key, medium, encode)
        return MediaEmbeds(first, tuple(deep))

    def _projected(self, model: nn.Module, key: str, medium: Features) -> MediaEmbeds:
        def encode() -> tuple[Tensor, ...]:
            with projector_inputs(model) as inputs:
                self.family.encode_media(model, [medium])
            return tuple(inputs)

        with without_tower(model, self._lookup(model, key, medium, encode)):
            return self.family.encode_media(model, [medium])[0]

    def _lookup(self, model: nn.Module, key: str, medium: Features, encode: Any) -> tuple[Tensor, ...]:
        """The tensors under `key`, on the model's device; `encode()` computes them if they are missing."""
        device, known = next(model.parameters()).device, key in self.cache.items
        self.counters["media_reused"] += known

        def make() -> tuple[Tensor, ...]:
            self._count_media([medium])
            with torch.no_grad():
                return tuple(x.to("cpu") for x in encode())

        return tuple(x.to(device) for x in self.cache.get(key, make))

    def _count_media(self, features: Sequence[Features]) -> None:
        self.counters["patches"] += sum(len(next(iter(f.tensors.values()))) for f in features)
        self.counters["media_encoded"] += len(features)

    def _number_of(self, parameters: Sequence[Tensor]) -> int:
        """The number of the tower with these weights. Entries of towers that are gone, or have changed, are
        dropped."""
        held = next((n for n, tower in self._towers.items() if tower.holds(parameters)), None)
        if held is not None and self._towers[held].state == state_of(parameters):
            return held
        for gone in [n for n, tower in self._towers.items() if n == held or not tower.is_alive]:
            del self._towers[gone]
            self.cache.discard(f"{gone}/")
        self._count += 1
        self._towers[self._count] = FrozenWeights(parameters)
        return self._count


def frozen_parts(model: nn.Module) -> dict[str, list[Tensor]]:
    """The parameters of "vision" and "projector", as far as the features that they give stay the same while
    they are not touched."""
    parts: dict[str, list[tuple[str, Tensor]]] = {"vision": [], "projector": []}
    for name, parameter in model.named_parameters():
        if (part := part_of(name)) in parts:
            parts[part].append((name, parameter))
    if has_dropout(model):
        return {}
    return {
        part: [p for _, p in named]
        for part, named in parts.items()
        if named
        and not any(
            p.requires_grad or "lora_" in name or hasattr(p, "ds_id") or hasattr(p, "device_mesh")
            for name, p in named
        )
    }


def has_dropout(model: nn.Module) -> bool:
    """Whether the config of one of the model's towers names a dropout above 0, of activations, attention or
    whole layers."""
    config = base(model).config
    towers = [getattr(config, name, None) for name in ("vision_config", "audio_config")]
    return any(
        "drop" in name and isinstance(value, (int, float)) and value > 0
        for settings in ([tower for tower in towers if tower is not None] or [config])
        for name, value in vars(settings).items()
    )


def outermost(model: nn.Module, part: str, in_lists: bool) -> list[nn.Module]:
    """The outermost modules of a part of the model; `in_lists`: its layers, the outermost modules that stand
    in a `ModuleList`."""
    found: dict[str, nn.Module] = {}
    lists = {name for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in found)
        if (
            part_of(name) == part
            and name not in lists
            and not inside
            and (not in_lists or name.rpartition(".")[0] in lists)
        ):
            found[name] = module
    return list(found.values())


@contextmanager
def projector_inputs(model: nn.Module) -> Iterator[list[Tensor]]:
    """Inside, the list collects what the projector's modules are called with, in order."""
    inputs: list[Tensor] = []

    def collect(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        inputs.append(next(iter((*args, *kwargs.values()))))

    hooks = [
        m.register_forward_pre_hook(collect, with_kwargs=True)
        for m in outermost(model, "projector", in_lists=False)
    ]
    try:
        yield inputs
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def without_tower(model: nn.Module, inputs: Sequence[Tensor]) -> Iterator[None]:
    """Inside, the tower's layers pass on what they get, and the projector's modules are called with `inputs`,
    in order."""
    remaining = iter(inputs)

    def replace(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        if args:
            return (next(remaining), *args[1:]), kwargs
        return args, kwargs | {next(iter(kwargs)): next(remaining)}

    hooks = [
        m.register_forward_pre_hook(replace, with_kwargs=True)
        for m in outermost(model, "projector", in_lists=False)
    ]
    layers = outermost(model, "vision", in_lists=True)
    convolutions = [m for m in outermost(model, "vision", in_lists=False) if type(m).__name__ == TIMM]
    for layer in layers:
        layer.__dict__["forward"] = pass_on
    for tower in convolutions:
        tower.__dict__["forward"] = partial(blank_of, inputs[0])
    try:
        yield
    finally:
        for module in (*layers, *convolutions):
            del module.__dict__["forward"]
        for hook in hooks:
            hook.remove()


def blank_of(input_BNC: Tensor, **_: Any) -> Any:
    """What a tower of convolutions gives, (B, C, N) in its shape alone, where the projector's input is
    known."""
    from transformers.modeling_outputs import BaseModelOutputWithPooling

    shape: Any = torch.zeros_like(input_BNC.transpose(1, 2))
    return BaseModelOutputWithPooling(last_hidden_state=shape)


def pass_on(hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
    """A layer that changes nothing."""
    return hidden_states
