"""Prompts to tokens, media and positions; ids to text: everything that the processor does.

Shape legend: L prompt tokens.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vlrl.policy.encoded import LRU, Encoded, Features
from vlrl.policy.family import Family, base
from vlrl.types import CoordinateSpace, Media, Prompt

KINDS = {"image": 1, "video": 2}


class Encoder:
    """A processor under a family's rules, with its caches.

    `counters` says what was done so far: decoded, processed (media), patches (rows through the vision tower), head_rows (logit rows), tokens.
    """

    model: Any

    def __init__(self, family: Family, processor: Any) -> None:
        family.bound(processor)
        if family.chat_template:
            processor.chat_template = family.chat_template
        self.family = family
        self.processor = processor
        self.counters: Counter[str] = Counter()
        self.tokenizer: Any = getattr(processor, "tokenizer", processor)
        self.placeholders = family.placeholders(processor)
        self.forbidden_ids: tuple[int, ...] = tuple(sorted(family.forbidden(processor)))
        self._texts: LRU[tuple] = LRU(4096)
        self._features: LRU[Features] = LRU(family.cache_mb << 20, lambda f: f.nbytes)

    @property
    def pad_id(self) -> int:
        return self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else self.eos_id

    @property
    def eos_id(self) -> int:
        return self.tokenizer.eos_token_id

    def encode(self, prompt: Prompt) -> Encoded:
        """Tokens, processed media and rotary positions of a prompt; each distinct medium is decoded and processed once while the cache holds it.

        Raises ValueError (with the row's id) if the media do not fit the markers in the text.
        """
        alone = len(prompt.images) == 1 or not self.family.minds_company
        features = {media.key: self._look_up(media, alone) for media in (*prompt.images, *prompt.videos)}

        def make() -> tuple:
            ids, types, order = self._tokens(prompt, features)
            positions, next_position = self.family.positions(base(self.model), ids, types, [features[m.key] for m in order])
            return ids, types, order, positions, next_position

        ids, types, order, positions, next_position = self._texts.get(prompt.key, make)
        spaces = tuple(features[m.key].space for m in (*prompt.images, *prompt.videos))
        return Encoded(ids, tuple(features[m.key] for m in order), types, positions, next_position, spaces, order)

    def forget(self) -> None:
        """Empty the caches."""
        self._texts.clear()
        self._features.clear()

    def spaces(self, prompt: Prompt) -> tuple[CoordinateSpace, ...]:
        """What coordinates mean, one per picture, then one per video."""
        return self.encode(prompt).spaces

    def render(self, prompt: Prompt) -> str:
        """The prompt as text: chat template, media as placeholders, prefix."""
        messages = [{**m, "content": m["content"] if self.family.sees else flat(m["content"], prompt)} for m in prompt.messages]
        text = self.processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **prompt.options)
        return text + prompt.prefix

    def _look_up(self, media: Media, alone: bool = True) -> Features:
        key = media.key if alone else f"{media.key}/company"

        def make() -> Features:
            self.counters["decoded"] += 1
            self.counters["processed"] += 1
            return replace(self.family.process(self.processor, media, alone), key=key)

        return self._features.get(key, make)

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
        order = [queues[kind_of[piece]].pop(0) for piece in pieces if piece in kind_of]
        waiting = iter(order)
        text = "".join(features[next(waiting).key].text if piece in kind_of else piece for piece in pieces)
        lead = self.tokenizer("").input_ids
        lead = lead if lead and not text.startswith(self.tokenizer.decode(lead)) else []
        ids = [*lead, *self.tokenizer(text, add_special_tokens=False).input_ids]
        return ids, self._types(prompt, ids, [features[m.key] for m in order]), tuple(order)

    def _types(self, prompt: Prompt, ids: Sequence[int], shown: Sequence[Features]) -> list[int]:
        """Per token 0 (text), 1 (a slot of a picture) or 2 (of a video)."""
        slots = {self.tokenizer.convert_tokens_to_ids(self.family.slot(f.kind)) for f in shown}
        kinds = [KINDS[f.kind] for f in shown for _ in range(f.slots)]
        if sum(i in slots for i in ids) != len(kinds):
            raise ValueError(f"row {prompt.row.id!r}: the prompt's text holds tokens that stand for media")
        waiting = iter(kinds)
        return [next(waiting) if i in slots else 0 for i in ids]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of completion ids, special tokens left out."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)


def flat(content: Any, prompt: Prompt) -> str:
    """A message's content as one string; raises ValueError where it holds media."""
    if isinstance(content, str):
        return content
    if any(part["type"] != "text" for part in content):
        raise ValueError(f"row {prompt.row.id!r}: the prompt shows media, and the policy reads text alone; use a vision family")
    return "".join(part["text"] for part in content)
