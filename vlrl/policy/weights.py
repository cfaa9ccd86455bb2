"""The policy's weights: loaded or made, adapted, spread over ranks and whole again, remembered as a reference, saved."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from vlrl.policy import adapters
from vlrl.policy.encoder import Encoder
from vlrl.policy.family import Family
from vlrl.policy.net import Net
from vlrl.policy.precision import Mixed, cast, settle
from vlrl.policy.sharding import filled, full_state, is_fsdp, is_main, is_sharded, plain_construction, plain_copy, release, whole

if TYPE_CHECKING:
    from typing_extensions import Self


class Weights(Encoder, Mixed):
    """A model of a `Family`. `net` is what an accelerator prepares: put what it returns into `wrapped`."""

    def __init__(self, family: Family, device: torch.device | str = "cpu", seed: int = 0) -> None:
        source, made_with = adapters.base_of(family)
        seed = seed if made_with is None else made_with
        with plain_construction():
            if source.model:
                model, processor = source.load()
            else:
                assert source.tiny is not None
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(source.tiny.seed + seed)
                    model, processor = source.build(source.tiny)
        super().__init__(family, processor)
        family.adopt(model)
        self.device = torch.device(device)
        self.version = 0
        self.held_whole = False
        self.wrapped: nn.Module | None = None
        self._reference: nn.Module | None = None
        if not family.quantize:
            cast(model.to(self.device), family.stored)
        if self.device.type == "cpu" and source.model:
            for tensor in (*model.parameters(), *model.buffers()):  # off the mapped file: other alignments give other last bits
                tensor.data = tensor.data.clone()
        if family.checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.packed = family.layout == "packed" and family.packs
        if family.layout == "packed" and not family.packs:
            warnings.warn(f"policy: {family.name!r} cannot pack completions; the padded layout is used", stacklevel=2)
        made_here = (Path(source.model) / "trainer").is_dir()  # a checkpoint of a run, which is not kept for ever
        self.base_origin = None if source.model and made_here else adapters.describe(source, seed)  # None: not to be had elsewhere
        if source is not family:
            model = adapters.load(model, family.model)
        self.net = Net(model.eval(), family)

    @property
    def model(self) -> Any:
        """The transformers model, PEFT-wrapped if it is."""
        return self.net.model

    @model.setter
    def model(self, model: nn.Module) -> None:
        self.net.model = model

    def unwrap(self, accelerator: Any) -> None:
        """Take the model back from a distributed engine (a collective), so that it can be wrapped anew. What FSDP has spread stays spread."""
        if self.wrapped is not None and not is_fsdp(self.wrapped):
            release(accelerator, self.wrapped)
            self.wrapped = None

    @contextmanager
    def gather_params(self) -> Iterator[None]:
        """All weights on every rank, for sampling and for passes without gradient that not all ranks make. A collective where weights are spread."""
        if self.held_whole or not is_sharded(self.wrapped):
            with self.computing():  # outermost: weights are cast once for all forwards in it
                yield
            return
        assert self.wrapped is not None
        spread = self.net
        if is_fsdp(self.wrapped):  # its hooks would gather and free in every forward: a plain copy stands in
            self.net = Net(plain_copy(self.wrapped, self.model, self.family.kernel), self.family)
        with nullcontext() if is_fsdp(self.wrapped) else whole(self.wrapped), self.computing():
            self.held_whole = True
            try:
                yield
            finally:
                self.held_whole = False
                self.net = spread

    # --- adapters -------------------------------------------------------------------------------------------------------------------

    def add_adapter(self, options: Mapping[str, Any], parts: tuple[str, ...], targets: str) -> None:
        """Put a LoRA adapter on the model and freeze everything else; an adapter that is there already is gone on with."""
        if hasattr(self.model, "disable_adapter"):
            return
        if self.version:
            self.base_origin = None
        self.model = adapters.attach(self.model, options, parts, targets)

    @staticmethod
    def part_of(name: str) -> str:
        """The part of the model that a parameter belongs to: "vision", "projector" or "language"."""
        return adapters.part_of(name)

    # --- the reference --------------------------------------------------------------------------------------------------------------

    def keep_reference(self, renew: bool = False) -> None:
        """Remember the policy as it is now, unless it is remembered already (or `renew`). An adapter needs no copy: it can be switched off."""
        if hasattr(self.model, "disable_adapter") or (self._reference is not None and not renew):
            return
        if is_sharded(self.wrapped):  # spread weights cannot be copied as they are
            with self.gather_params():
                state = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
                self._reference = filled(self.model, state, self.family.kernel)
        else:
            self._reference = copy.deepcopy(self.model)
        self._reference.eval().requires_grad_(False)
        if self.family.masters and self.dtype != torch.float32:
            settle(self._reference, self.dtype)

    def reference_state(self) -> dict[str, Any]:
        """The reference's weights, for a restart; nothing where there is none of its own."""
        return {} if self._reference is None else {"weights": self._reference.state_dict()}

    def load_reference(self, state: Mapping[str, Any]) -> None:
        """Undo `reference_state`."""
        if state:
            assert self._reference is not None, "keep_reference() comes first"
            self._reference.load_state_dict(state["weights"])

    @contextmanager
    def reference(self) -> Iterator[Self]:
        """This policy with the reference's weights, for forward passes without gradient."""
        if self._reference is None:
            if not hasattr(self.model, "disable_adapter"):
                raise RuntimeError("no reference was kept: call keep_reference() before training")
            with self.model.disable_adapter():
                yield self
            return
        other = copy.copy(self)  # caches and counters are shared
        other.net, other.wrapped = Net(self._reference, self.family), None
        yield other

    # --- keeping it -----------------------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """A plain transformers folder: model (an adapter merged, and kept apart too) and processor.

        A collective where weights are spread (the main process writes).
        """
        state = None
        if is_sharded(self.wrapped):
            assert self.wrapped is not None
            state = {name.removeprefix("model."): value for name, value in full_state(self.wrapped).items()}
        if not is_main():
            return
        if hasattr(self.model, "disable_adapter"):
            adapters.write(self, self.model if state is None else filled(self.model, state, self.family.kernel), Path(folder))
        else:
            self.model.save_pretrained(folder, **({"state_dict": state} if state is not None else {}))
        self.processor.save_pretrained(folder)
