"""The policy: an encoder (processor), weights, and a forward pass that scores completions.

Shape legend: B completions, T longest completion, N scored completion tokens, K numbers per token.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlrl.plugins.registry import build
from vlrl.plugins.views import TokenValuesView
from vlrl.policy import adapters
from vlrl.policy.encoded import EncodedPrompt, Features, MediaEmbeds
from vlrl.policy.encoder import DummyImage, PromptEncoder, root_of
from vlrl.policy.family import Family, base, linear_cost
from vlrl.policy.forward import dedupe, forbid, gather_from_BT, scatter_to_BT
from vlrl.policy.packing import Layout, build_layout, packing_is_cheaper, trees_of
from vlrl.policy.params import Params
from vlrl.policy.routing import install, replay_of, routing_of
from vlrl.policy.sequence_group import joint_group
from vlrl.policy.sequence_parallel import install as install_slices
from vlrl.policy.sequence_parallel import padded, verify_same
from vlrl.policy.sharding import world_size
from vlrl.policy.tree_attention import attention_arguments, is_installed
from vlrl.services.delegation import Of
from vlrl.services.lazy import Tensor, nn, torch
from vlrl.types import CoordinateSpace, Prompt, Rollout, TokenBatch

if TYPE_CHECKING:
    from vlrl.plugins.views import AuxTensorView


class Policy:
    """A model of a `Family` that encodes prompts and scores completions.

    `encoder` is the processor with its caches, `params` the weights. `version` counts the updates so far.
    `packed`: a group is run as one sequence. Trainers use `params` directly (wrapping, precision); the
    methods here are what everyone else needs.
    """

    def __init__(self, family: Family, device: torch.device | str = "cpu", seed: int = 0) -> None:
        self.family = family
        self.device = torch.device(device)
        self.params, processor = Params.load(family, self.device, seed)
        self.encoder = PromptEncoder(family, processor, self.params.media.counters)
        self.version = 0
        self.runs_slices = False
        self.packed = family.layout == "packed" and family.supports_packing
        if family.layout == "packed" and not family.supports_packing:
            warnings.warn(
                f"policy: {family.name!r} cannot pack completions; the padded layout is used", stacklevel=2
            )

    # --- the encoder ----------------------------------------------------------------------------------------

    processor: Of[Any] = Of("encoder")
    tokenizer: Of[Any] = Of("encoder")
    pad_id: Of[int] = Of("encoder")
    eos_id: Of[int] = Of("encoder")  # the token that ends the policy's turn
    stop_ids: Of[tuple[int, ...]] = Of("encoder")  # that, and the end of a document
    # the work done so far: decoded and processed (media), those of `MediaEncoder`, head_rows (logit rows),
    # tokens
    counters: Of[Counter[str]] = Of("encoder")
    render: Of[Callable[[Prompt], str]] = Of("encoder")
    encode_text: Of[Callable[[str], list[int]]] = Of("encoder")
    decode: Of[Callable[[Sequence[int]], str]] = Of("encoder")

    def encode(self, prompt: Prompt) -> EncodedPrompt:
        """Token ids, processed media and rotary positions of a prompt. Raises ValueError if its media do not
        match the placeholders in its text."""
        return self.encoder.encode(prompt, self.model)

    def spaces(self, prompt: Prompt) -> tuple[CoordinateSpace, ...]:
        """The coordinate space of each image, then of each video."""
        return self.encode(prompt).spaces

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., H) -> (..., V): the logits that tokens are drawn from, -inf at `forbidden_ids`."""
        return forbid(self.family.logits(self.model, hidden), self.forbidden_ids)

    def encode_media(self, features: Sequence[Features]) -> list[MediaEmbeds]:
        """The vision tower's output for each of `features`; each distinct medium goes through the tower once
        (`MediaEncoder`)."""
        unique = {f.key: f for f in features}
        with self.autocast():
            embeds = dict(zip(unique, self.params.media(self.model, list(unique.values()))))
        return [embeds[f.key] for f in features]

    def advance(self, version: int | None = None) -> None:
        """Count an update of the weights, or go on from a checkpoint's `version`."""
        self.version = self.version + 1 if version is None else version

    def clear_caches(self) -> None:
        """Empty the caches of prompts, media and their embeddings."""
        self.encoder.clear_caches()
        self.params.media.clear()

    # --- the weights ----------------------------------------------------------------------------------------

    model: Of[Any] = Of("params")  # the transformers model, inside its PEFT wrapper if it has an adapter
    forbidden_ids: Of[tuple[int, ...]] = Of("params")
    has_adapter: Of[bool] = Of("params")
    autocast: Of[Callable[[], AbstractContextManager]] = Of("params")
    gather_params: Of[Callable[[], AbstractContextManager[None]]] = Of("params")

    def add_adapter(self, options: Mapping[str, Any], parts: tuple[str, ...], targets: str) -> None:
        """Put a LoRA adapter on the linear layers of `parts` whose names match `targets`, and freeze
        everything else."""
        self.params.add_adapter(options, parts, targets, base_is_trained=self.version > 0)

    @staticmethod
    def part_of(name: str) -> str:
        """The part of the model that a parameter belongs to: "vision", "projector" or "language"."""
        return adapters.part_of(name)

    @property
    def has_dropout(self) -> bool:
        """Whether a forward pass with gradient drops activations at random, so that its log-probs are not
        those of one without gradient."""
        names = (
            "p",
            "dropout",
            "attention_dropout",
            "activation_dropout",
            "hidden_dropout",
        )  # of nn.Dropout, and of transformers' layers
        shares = [vars(module).get(name) for module in self.model.modules() for name in names]
        return any(isinstance(share, float) and share > 0 for share in shares)

    def read_routers(self, what: str) -> None:
        """Let the routers of a mixture of experts be read in forward passes. Raises ConfigError, about the
        setting `what`, for a model without routers of that kind."""
        install(self.model, what)

    def allow_slices(self, size: int) -> None:
        """Let forwards inside of `sequence_parallel.joint` run in slices over a group of `size` ranks. Raises
        ConfigError for a model that cannot."""
        install_slices(self.model, self.family, size)
        self.runs_slices = True

    def keep_reference(self, renew: bool = False) -> None:
        """Copy the weights as they are now as the KL reference, unless there is one already (or `renew`)."""
        self.params.keep_reference(renew)

    def reference_state(self) -> dict[str, Any]:
        """The reference's weights, for a restart; empty if there is no separate copy."""
        return {} if self.params.reference is None else {"weights": self.params.reference.state_dict()}

    def load_reference(self, state: Mapping[str, Any]) -> None:
        """Undo `reference_state`."""
        if state:
            assert self.params.reference is not None, "keep_reference() comes first"
            self.params.reference.load_state_dict(state["weights"])

    @contextmanager
    def reference(self) -> Iterator[Policy]:
        """This policy with the reference's weights, for forward passes without gradient."""
        if self.params.reference is not None:
            yield self.with_model(self.params.reference)
            return
        with self.params.disable_adapter():
            yield self

    def with_model(self, model: nn.Module) -> Policy:
        """A view that runs another model of the same architecture; encoder, caches and counters are
        shared."""
        other = copy.copy(self)
        other.params = self.params.with_model(model)
        return other

    def load_other(self, model: str, seed: int, spec: Mapping[str, Any] | None = None) -> Policy:
        """Another policy on the same device: of the same family with the weights of `model`, or as `spec`
        says, a config as in slot `policy`."""
        family = build(Family, spec, "policy") if spec else replace(self.family, model=model)
        return Policy(family, device=self.device, seed=seed)

    def save(self, folder: str | Path) -> None:
        """Write a transformers folder: model (an adapter merged, and also saved separately) and processor.

        A collective if weights are sharded (the main process writes).
        """
        self.params.save(folder, self.processor)

    # --- the forward pass -----------------------------------------------------------------------------------

    def forward(self, batch: TokenBatch, aux_tensors: Sequence[AuxTensorView] = ()) -> dict[str, Tensor]:
        """{"logp": (B, T), aux tensor name: (B, T) or (B, T, K)}, temperature-scaled, float32, zero where
        `loss_mask_BT` is False.

        Honours the autograd mode. Raises ValueError for a completion that holds a forbidden id.
        """
        self._refuse_forbidden(batch)
        given = {aux.name: aux.token_values(batch) for aux in aux_tensors if isinstance(aux, TokenValuesView)}
        prompts = [self.encode(prompt) for prompt in batch.prompts]
        scored_BT = (batch.loss_mask_BT & batch.mask_BT).cpu()
        lengths = batch.mask_BT.sum(-1).tolist()
        ids = [row[:n] for row, n in zip(batch.ids_BT.tolist(), lengths)]
        scored = [row.nonzero()[:, 0].tolist() for row in scored_BT]
        prompt_B = batch.prompt_B.tolist()
        roots = [root_of(prompt).key for prompt in batch.prompts]
        packed = self.packed and (
            self._rows_share_no_pairs or self._packing_is_cheaper(prompts, prompt_B, ids, roots)
        )
        fill = self.eos_id if self.family.fills_with_eos else self.pad_id
        layout = build_layout(prompts, prompt_B, ids, scored, batch.ids_BT.shape[1], fill, packed, roots).to(
            self.device
        )
        group = joint_group() if self.runs_slices else None
        if group is not None:
            layout = padded(layout, group, fill)
            verify_same(layout, group)
        shown = layout.media
        unique = list({f.key: f for f in shown}.values())
        index = {f.key: i for i, f in enumerate(unique)}
        collective = self.params.forward_is_collective
        dummies = (
            [self.encoder.features_of(DummyImage())]
            if self.family.is_multimodal and collective and world_size() > 1
            else []
        )
        ids_N, temperature_N = (
            x.to(self.device).flatten()[layout.target_N] for x in (batch.ids_BT, batch.temperature_BT.float())
        )
        source_N, ids_N, temperature_N, copies_N = dedupe(layout.source_N, ids_N, temperature_N)
        self.counters["head_rows"] += len(ids_N)
        self.counters["tokens"] += layout.ids_RL.numel()
        self._set_training_mode(torch.is_grad_enabled())
        net = self.params.wrapped if collective else self.params.net
        assert net is not None
        out = net(
            replace(layout, source_N=source_N),
            ids_N,
            temperature_N,
            unique,
            [index[f.key] for f in shown],
            tuple(aux_tensors),
            dummies,
            replay_of(layout, [routing_of(r, prompts[p]) for r, p in zip(batch.rollouts, prompt_B)]),
            {name: gather_from_BT(value, layout.target_N, copies_N) for name, value in given.items()},
            group,
            collective,
        )
        values = out if copies_N is None else {name: value[copies_N] for name, value in out.items()}
        return {
            name: scatter_to_BT(value, layout.target_N, batch.ids_BT.shape) for name, value in values.items()
        }

    def attention(self, layout: Layout) -> dict[str, Any]:
        """The arguments of `Family.hidden` for rows of this layout, whole in one forward."""
        return attention_arguments(self.family, self.model, layout)

    def row_tokens(self, rollouts: Sequence[Rollout]) -> int:
        """The number of tokens that these rollouts, packed, add to a batch: what they share counts once."""
        prompts = list(
            {rollout.prompt.for_training.key: rollout.prompt.for_training for rollout in rollouts}.values()
        )
        places = {prompt.key: p for p, prompt in enumerate(prompts)}
        prompt_B = [places[rollout.prompt.for_training.key] for rollout in rollouts]
        _, rows = trees_of(
            [self.encode(p) for p in prompts],
            prompt_B,
            [r.ids for r in rollouts],
            True,
            [root_of(p).key for p in prompts],
        )
        return sum(row.length for row in rows)

    @property
    def _rows_share_no_pairs(self) -> bool:
        """Whether a packed row computes no attention between its completions, so that packing is never
        dearer."""
        return self.family.attn == "flex" or is_installed(self.model)

    def _packing_is_cheaper(
        self,
        prompts: Sequence[EncodedPrompt],
        prompt_B: Sequence[int],
        ids: Sequence[Sequence[int]],
        roots: list[str],
    ) -> bool:
        sequences, rows = trees_of(prompts, prompt_B, ids, True, roots)
        linear = linear_cost(base(self.model).config.get_text_config())
        return packing_is_cheaper(
            [row.length for row in rows], [sequence.shape[1] for sequence in sequences], linear
        )

    def _set_training_mode(self, training: bool) -> None:
        if self.model.training != training:
            self.model.train(training)

    def _refuse_forbidden(self, batch: TokenBatch) -> None:
        bad = (
            torch.isin(batch.ids_BT.cpu(), torch.tensor(self.forbidden_ids, dtype=torch.long))
            & batch.mask_BT.cpu()
        )
        if bad.any():
            b, t = bad.nonzero()[0].tolist()
            number = int(batch.ids_BT[b, t])
            token = (
                self.tokenizer.convert_ids_to_tokens(number)
                if number in self.tokenizer.get_vocab().values()
                else None
            )
            told = (
                f"id {number}, which is no token of the tokenizer"
                if token is None
                else f"{token!r}, a placeholder for media"
            )
            raise ValueError(
                f"row {batch.rollouts[b].row.id!r}: completion token {t} is {told}; completions may not "
                "hold it"
            )
