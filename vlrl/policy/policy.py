"""The policy: a model and its processor. Encodes prompts, scores completions, saves itself.

Shape legend: B completions, T longest completion, N scored completion tokens, K numbers per token.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vlrl.policy.encoded import LRU, Encoded, Features, Seen
from vlrl.policy.family import DTYPES, Family, base
from vlrl.policy.net import Net
from vlrl.policy.packing import lay_out
from vlrl.types import Media, Prompt, Space, TokenBatch

if TYPE_CHECKING:
    from vlrl.stages import Field


class Policy:
    """A model of a `Family`. `net` is what an accelerator prepares: put what it returns into `wrapped`.

    `counters` says what was done so far: decoded, processed (media), patches (rows through the vision tower), head_rows (logit rows), tokens.
    """

    def __init__(self, family: Family, device: torch.device | str = "cpu", seed: int = 0) -> None:
        self.family = family
        self.device = torch.device(device)
        self.version = 0
        self.counters: Counter[str] = Counter()
        self.spare_vision = False  # True: batches without media still run the vision tower (its collectives need every rank)
        self.wrapped: nn.Module | None = None
        self._reference: nn.Module | None = None
        if family.model:
            model, self.processor = family.load()
        else:
            assert family.tiny is not None
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(family.tiny.seed + seed)
                model, self.processor = family.build(family.tiny)
        family.bound(self.processor)
        if family.chat_template:
            self.processor.chat_template = family.chat_template
        model.to(device=self.device, dtype=DTYPES[family.dtype])
        if family.checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.packed = family.layout == "packed" and family.packs
        if family.layout == "packed" and not family.packs:
            warnings.warn(f"policy: {family.name!r} cannot pack completions; the padded layout is used", stacklevel=2)
        self.net = Net(model.eval(), family)
        self.tokenizer: Any = getattr(self.processor, "tokenizer", self.processor)
        self.placeholders = family.placeholders(self.processor)
        self.forbidden_ids: tuple[int, ...] = tuple(sorted(family.forbidden(self.processor)))
        self._texts: LRU[tuple] = LRU(4096)
        self._features: LRU[Features] = LRU(family.cache_mb << 20, lambda f: f.nbytes)

    @property
    def model(self) -> Any:
        """The transformers model, PEFT-wrapped if it is."""
        return self.net.model

    @model.setter
    def model(self, model: nn.Module) -> None:
        self.net.model = model

    @property
    def pad_id(self) -> int:
        return self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else self.eos_id

    @property
    def eos_id(self) -> int:
        return self.tokenizer.eos_token_id

    # --- prompts --------------------------------------------------------------------------------------------------------------------

    def encode(self, prompt: Prompt) -> Encoded:
        """Tokens, processed media and rotary positions of a prompt; each distinct medium is decoded and processed once while the cache holds it.

        Raises ValueError (with the row's id) if the media do not fit the markers in the text.
        """
        features = {media.key: self._features.get(media.key, lambda media=media: self._process(media)) for media in (*prompt.images, *prompt.videos)}

        def make() -> tuple:
            ids, types, order = self._tokens(prompt, features)
            positions, next_position = self.family.positions(base(self.model), ids, types, [features[m.key] for m in order])
            return ids, types, order, positions, next_position

        ids, types, order, positions, next_position = self._texts.get(prompt.key, make)
        spaces = tuple(features[m.key].space for m in (*prompt.images, *prompt.videos))
        return Encoded(ids, tuple(features[m.key] for m in order), types, positions, next_position, spaces, order)

    def spaces(self, prompt: Prompt) -> tuple[Space, ...]:
        """What coordinates mean, one per picture, then one per video."""
        return self.encode(prompt).spaces

    def render(self, prompt: Prompt) -> str:
        """The prompt as text: chat template, media as placeholders, prefix."""
        messages = [{**m, "content": m["content"] if self.family.sees else flat(m["content"], prompt)} for m in prompt.messages]
        text = self.processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **prompt.options)
        return text + prompt.prefix

    def _process(self, media: Media) -> Features:
        self.counters["decoded"] += 1
        self.counters["processed"] += 1
        return self.family.process(self.processor, media)

    def _tokens(self, prompt: Prompt, features: dict[str, Features]) -> tuple[list[int], list[int], tuple[Media, ...]]:
        text = self.render(prompt)
        queues = {"image": list(prompt.images), "video": list(prompt.videos)}
        kind_of = {token: kind for kind, token in self.placeholders.items()}
        pieces = re.split("(" + "|".join(map(re.escape, kind_of)) + ")", text) if kind_of else [text]
        for kind, token in self.placeholders.items():
            if pieces.count(token) != len(queues[kind]):
                raise ValueError(
                    f"row {prompt.row.id!r}: {len(queues[kind])} {kind}s, but {pieces.count(token)} places for them ({token}) in the prompt"
                )
        ids: list[int] = []
        types: list[int] = []
        order: list[Media] = []
        lead = self.tokenizer("").input_ids
        if lead and not text.startswith(self.tokenizer.decode(lead)):
            ids, types = list(lead), [0] * len(lead)
        for piece in pieces:
            if piece in kind_of:
                order.append(queues[kind_of[piece]].pop(0))
                new = features[order[-1].key]
                ids += new.ids
                types += self.family.types(self.processor, new)
            elif piece:
                new_ids = self.tokenizer(piece, add_special_tokens=False).input_ids
                ids += new_ids
                types += [0] * len(new_ids)
        return ids, types, tuple(order)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of completion ids, special tokens left out."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

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
        spare = self._spare() if self.spare_vision and self.family.sees else []
        ids_N = batch.ids_BT.to(self.device).flatten()[layout.target_N]
        temperature_N = batch.temperature_BT.to(self.device).flatten()[layout.target_N].float()
        self._count_patches(unique)
        self.counters["head_rows"] += len(ids_N)
        self.counters["tokens"] += layout.ids_RL.numel()
        self._mode(torch.is_grad_enabled())
        net = self.wrapped or self.net
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

    def _spare(self) -> list[Features]:
        from vlrl.policy.spare import BLANKS

        return [self._features.get(blank.key, lambda blank=blank: self.family.process(self.processor, blank)) for blank in BLANKS]

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
        """A plain transformers folder: model and processor."""
        self.model.save_pretrained(folder)
        self.processor.save_pretrained(folder)


def flat(content: Any, prompt: Prompt) -> str:
    """A message's content as one string; raises ValueError where it holds media."""
    if isinstance(content, str):
        return content
    if any(part["type"] != "text" for part in content):
        raise ValueError(f"row {prompt.row.id!r}: the prompt shows media, and the policy reads text alone; use a vision family")
    return "".join(part["text"] for part in content)
