"""The policy: a model and its processor. Scores completions, keeps a reference of itself, saves itself.

Shape legend: B completions, T longest completion, N scored completion tokens, K numbers per token.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vlrl.policy import adapters
from vlrl.policy.encoded import Features, Seen
from vlrl.policy.encoder import Encoder
from vlrl.policy.family import DTYPES, Family
from vlrl.policy.net import Net
from vlrl.policy.packing import lay_out
from vlrl.policy.sharding import full_state, is_fsdp, is_main, is_sharded, release, whole, world_size
from vlrl.policy.spare import BLANKS
from vlrl.types import TokenBatch

if TYPE_CHECKING:
    from vlrl.stages import Field


class Policy(Encoder):
    """A model of a `Family`. `net` is what an accelerator prepares: put what it returns into `wrapped`."""

    def __init__(self, family: Family, device: torch.device | str = "cpu", seed: int = 0) -> None:
        source, made_with = adapters.base_of(family)
        seed = seed if made_with is None else made_with
        if source.model:
            model, processor = source.load()
        else:
            assert source.tiny is not None
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(source.tiny.seed + seed)
                model, processor = source.build(source.tiny)
        super().__init__(family, processor)
        self.device = torch.device(device)
        self.version = 0
        self.held_whole = False
        self.wrapped: nn.Module | None = None
        self._reference: nn.Module | None = None
        if not family.quantize:
            model.to(device=self.device, dtype=DTYPES[family.dtype])
        if self.device.type == "cpu" and source.model:
            for tensor in (*model.parameters(), *model.buffers()):  # off the mapped file: other alignments give other last bits
                tensor.data = tensor.data.clone()
        if family.checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.packed = family.layout == "packed" and family.packs
        if family.layout == "packed" and not family.packs:
            warnings.warn(f"policy: {family.name!r} cannot pack completions; the padded layout is used", stacklevel=2)
        self.base_origin = adapters.describe(source, seed)  # None once the base is not what was loaded
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

    # --- scoring --------------------------------------------------------------------------------------------------------------------

    def look(self, features: Sequence[Features]) -> list[Seen]:
        """The vision tower's output for each of `features`; each distinct picture goes through it once."""
        unique = {f.key: f for f in features}
        self._count_patches(unique.values())
        seen = dict(zip(unique, self.family.look(self.model, list(unique.values())))) if unique else {}
        return [seen[f.key] for f in features]

    def forward(self, batch: TokenBatch, fields: Sequence[Field] = ()) -> dict[str, Tensor]:
        """{"logp": (B, T), field: (B, T) or (B, T, K)}, temperature-scaled float32, zero where `loss_mask_BT` is False.

        Honours the autograd mode. Raises ValueError for a completion that holds a media placeholder.
        """
        self._refuse_placeholders(batch)
        prompts = [self.encode(prompt) for prompt in batch.prompts]
        scored_BT = (batch.loss_mask_BT & batch.mask_BT).cpu()
        lengths = batch.mask_BT.sum(-1).tolist()
        ids = [row[:n] for row, n in zip(batch.ids_BT.tolist(), lengths)]
        scored = [row.nonzero()[:, 0].tolist() for row in scored_BT]
        layout = lay_out(prompts, batch.prompt_B.tolist(), ids, scored, batch.ids_BT.shape[1], self.pad_id, self.packed).to(self.device)
        shown = [f for p in layout.rows for f in prompts[p].features]
        unique = list({f.key: f for f in shown}.values())
        index = {f.key: i for i, f in enumerate(unique)}
        net = self._module()
        spare = [self._look_up(blank) for blank in BLANKS] if self.family.sees and net is not self.net and world_size() > 1 else []
        ids_N = batch.ids_BT.to(self.device).flatten()[layout.target_N]
        temperature_N = batch.temperature_BT.to(self.device).flatten()[layout.target_N].float()
        self._count_patches(unique)
        self.counters["head_rows"] += len(ids_N)
        self.counters["tokens"] += layout.ids_RL.numel()
        self._mode(torch.is_grad_enabled())
        out = net(layout, ids_N, temperature_N, unique, [index[f.key] for f in shown], tuple(fields), spare)
        return {name: self._spread(value, layout.target_N, batch.ids_BT.shape) for name, value in out.items()}

    def _spread(self, value: Tensor, target_N: Tensor, shape: torch.Size) -> Tensor:
        """(N, ...) to (B, T, ...), zero where nothing was scored."""
        flat_BT = value.new_zeros(shape.numel(), *value.shape[1:])
        return flat_BT.index_copy(0, target_N, value).view(*shape, *value.shape[1:])

    def _mode(self, training: bool) -> None:
        if self.model.training != training:
            self.model.train(training)

    def _refuse_placeholders(self, batch: TokenBatch) -> None:
        bad = torch.isin(batch.ids_BT.cpu(), torch.tensor(self.forbidden_ids, dtype=torch.long)) & batch.mask_BT.cpu()
        if bad.any():
            b, t = bad.nonzero()[0].tolist()
            token = self.tokenizer.convert_ids_to_tokens(int(batch.ids_BT[b, t]))
            raise ValueError(f"row {batch.rollouts[b].row.id!r}: completion token {t} is {token!r}, which stands for media and may not be written")

    def _count_patches(self, features: Any) -> None:
        self.counters["patches"] += sum(len(next(iter(f.tensors.values()))) for f in features)

    def _module(self) -> nn.Module:
        """What runs a forward: the wrapped module where gradients or weights cross ranks, else the plain one."""
        if self.wrapped is None or self.held_whole or not (torch.is_grad_enabled() or is_sharded(self.wrapped)):
            return self.net
        return self.wrapped

    def unwrap(self, accelerator: Any) -> None:
        """Take the model back from a distributed engine (a collective), so that it can be wrapped anew. What FSDP has spread stays spread."""
        if self.wrapped is not None and not is_fsdp(self.wrapped):
            release(accelerator, self.wrapped)
            self.wrapped = None

    @contextmanager
    def whole(self) -> Iterator[None]:
        """All weights on every rank, for sampling and for passes without gradient that not all ranks make. A collective where weights are spread."""
        if self.held_whole or not is_sharded(self.wrapped):
            yield
            return
        assert self.wrapped is not None
        with whole(self.wrapped):
            self.held_whole = True
            try:
                yield
            finally:
                self.held_whole = False

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
        if not hasattr(self.model, "disable_adapter") and (self._reference is None or renew):
            self._reference = copy.deepcopy(self.model).eval().requires_grad_(False)

    @contextmanager
    def reference(self) -> Iterator[Policy]:
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
        if hasattr(self.model, "disable_adapter") and state is None:
            adapters.write(self, Path(folder))
        else:
            self.model.save_pretrained(folder, **({"state_dict": state} if state is not None else {}))
        self.processor.save_pretrained(folder)
