"""Prompts to token ids, media and rotary positions, token ids to text; with the caches of prompts and
processed media.

Shape legend: L prompt tokens.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby
from typing import Any, Generic, TypeVar

from jinja2 import TemplateError

from vlrl.policy.encoded import EncodedPrompt, Features
from vlrl.policy.family import Family, base
from vlrl.policy.tool_template import ToolTemplate, probe, results_as_user_turns, strings_of, tools_as_text
from vlrl.services.lazy import nn
from vlrl.types import Media, Prompt, Row

V = TypeVar("V")
MEDIA_TYPES = {"image": 1, "video": 2, "audio": 3}
CACHED_PROMPTS = 4096


@dataclass
class LRUCache(Generic[V]):
    """Least-recently-used cache of total `size`, each value counted by `size_of`. The newest value always
    stays."""

    size: int
    size_of: Callable[[V], int] = lambda value: 1
    used: int = field(default=0, init=False)
    items: OrderedDict[str, V] = field(default_factory=OrderedDict, init=False)

    def get(self, key: str, make: Callable[[], V]) -> V:
        """The value under `key`; `make()` computes it if it is missing."""
        if key in self.items:
            self.items.move_to_end(key)
            return self.items[key]
        value = self.items[key] = make()
        self.used += self.size_of(value)
        while self.used > self.size and len(self.items) > 1:
            _, old = self.items.popitem(last=False)
            self.used -= self.size_of(old)
        return value

    def discard(self, prefix: str) -> None:
        """Remove the values whose keys begin with `prefix`."""
        for key in [key for key in self.items if key.startswith(prefix)]:
            self.used -= self.size_of(self.items.pop(key))

    def clear(self) -> None:
        """Remove all values."""
        self.items.clear()
        self.used = 0


@dataclass(frozen=True)
class DummyImage(Media):
    """A small grey image that a rank without media sends through the vision tower, because the tower's
    collectives need all ranks."""

    side: int = 56
    kind = "image"

    @property
    def key(self) -> str:
        return f"blank-{self.side}"

    def load(self) -> Any:
        from PIL import Image

        return Image.new("RGB", (self.side, self.side), (128, 128, 128))


class PromptEncoder:
    """A processor under a family's rules, with its caches.

    `counters` counts the work done so far: decoded and processed (media).
    """

    def __init__(self, family: Family, processor: Any, counters: Counter[str] | None = None) -> None:
        if family.chat_template:
            processor.chat_template = family.chat_template
        self.family = family
        self.processor = processor
        self.counters: Counter[str] = Counter() if counters is None else counters
        self.tokenizer: Any = getattr(processor, "tokenizer", processor)
        self.placeholders = family.placeholders(processor)
        self.control = control_pattern(
            self.tokenizer, [*self.placeholders.values(), *map(family.embed_token_of, MEDIA_TYPES)]
        )
        end, turn_end = self.tokenizer.eos_token, self.turn_end()
        if turn_end and turn_end != end:  # Gemma 3 ends a document with <eos> and a turn with <end_of_turn>
            self.tokenizer.eos_token = turn_end
        ids = (self.tokenizer.convert_tokens_to_ids(token) for token in (end, turn_end) if token)
        self.stop_ids: tuple[int, ...] = tuple(sorted(set(ids)))
        self._prompts: LRUCache[tuple] = LRUCache(CACHED_PROMPTS)
        self._features: LRUCache[Features] = LRUCache(family.cache_mb << 20, lambda f: f.nbytes)

    @property
    def pad_id(self) -> int:
        return self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else self.eos_id

    @property
    def eos_id(self) -> int:
        return self.tokenizer.eos_token_id

    def turn_end(self) -> str:
        """The special token that the chat template writes after an assistant's turn; "" where it writes none,
        or there is no template."""
        mark = "turn-7c41"
        spoken = [("user", "q"), ("assistant", mark)]
        messages = [
            {"role": role, "content": [{"type": "text", "text": text}] if self.family.is_multimodal else text}
            for role, text in spoken
        ]
        try:
            text = self.processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=False)
        except (
            ValueError,
            TypeError,
            TemplateError,
        ):  # no template, or one that does not write such messages
            return ""
        _, written, rest = text.rpartition(mark)
        found = self.control.match(rest.lstrip()) if written else None
        return found[0] if found and found[0] in self.tokenizer.get_vocab() else ""

    def encode(self, prompt: Prompt, model: nn.Module) -> EncodedPrompt:
        """Token ids, processed media and rotary positions of a prompt. Each distinct medium is decoded and
        processed once while the cache holds it.

        Args: `model` computes the rotary positions (from its config alone, not from its weights).
        Raises: ValueError (with the row's id) if the media do not match the placeholders in the text.
        """
        features = self._features_of(prompt)

        def make() -> tuple:
            ids, types, order = self._tokenize(prompt, features)
            positions, next_position = self.family.positions(
                base(model), ids, types, [features[m.key] for m in order]
            )
            return ids, types, order, positions, next_position

        ids, types, order, positions, next_position = self._prompts.get(prompt.key, make)
        shown = (features[m.key].space for m in (*prompt.images, *prompt.videos))
        spaces = tuple(space for space in shown if space is not None)
        return EncodedPrompt(
            ids, tuple(features[m.key] for m in order), types, positions, next_position, spaces, order
        )

    def _features_of(self, prompt: Prompt) -> dict[str, Features]:
        """The features of a prompt's media by key. What an earlier part of a conversation showed keeps the
        features that it had there."""
        earlier = earlier_part(prompt)
        before = self._features_of(earlier[0]) if earlier is not None else {}
        single_image = len(prompt.images) == 1 or not self.family.multi_image_sensitive
        return {
            media.key: before.get(media.key) or self.features_of(media, single_image)
            for media in prompt.media
        }

    def features_of(self, media: Media, single_image: bool = True) -> Features:
        """The processor's output for one medium, from the cache if it is there. `single_image`: the prompt
        shows no other image."""
        key = media.key if single_image else f"{media.key}/company"

        def make() -> Features:
            self.counters["decoded"] += 1
            self.counters["processed"] += 1
            return replace(self.family.process(self.processor, media, single_image), key=key)

        return self._features.get(key, make)

    def clear_caches(self) -> None:
        """Empty the caches of prompts and media."""
        self._prompts.clear()
        self._features.clear()

    def render(self, prompt: Prompt) -> str:
        """The prompt as text: chat template, media as placeholders, prefix. Special tokens in the messages'
        texts are escaped (see `escape`)."""
        messages: list[Any] = [{**m, "content": self._escaped(m["content"])} for m in prompt.messages]
        options = dict(prompt.options)
        if options.get("tools"):
            options["tools"] = strings_of(options["tools"], self.escape)
        if options.get("tools") and not self.tool_template.schemas:
            messages = tools_as_text(messages, options.pop("tools"), self.tool_template.system)
        if any(m["role"] == "tool" for m in messages) and not self.tool_template.results:
            messages = results_as_user_turns(messages)
        if not self.family.is_multimodal:
            messages = [{**m, "content": text_of(m["content"], prompt)} for m in messages]
        text = self.processor.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **options
        )
        return text + prompt.prefix

    @cached_property
    def tool_template(self) -> ToolTemplate:
        """What the chat template does with tools; what it drops is written by
        `vlrl/policy/tool_template.py`."""
        apply = partial(self.processor.apply_chat_template, tokenize=False, add_generation_prompt=True)
        return probe(apply, self.placeholders.get("image", ""), self.family.is_multimodal)

    def escape(self, text: str) -> str:
        """The text with a space after the first character of every special token in it: it reads the same and
        no part of it is a control token."""
        before = ""
        while text != before:
            before, text = text, self.control.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)
        return text

    def _escaped(self, content: Any) -> Any:
        """A message's content with escaped texts. Text parts that only together hold a special token become
        one part."""
        if isinstance(content, str):
            return self.escape(content)
        parts: list[dict[str, Any]] = []
        for is_text, members in groupby(content, key=lambda part: part["type"] == "text"):
            run = list(members)
            if is_text:
                texts = [self.escape(part["text"]) for part in run]
                joined = "".join(texts)
                run = (
                    [{**run[0], "text": self.escape(joined)}]
                    if self.control.search(joined)
                    else [{**p, "text": t} for p, t in zip(run, texts)]
                )
            parts += run
        return parts

    def special_in(self, row: Row) -> str:
        """The first special token in a row's texts (question, choices, system, messages, target,
        demonstrations), or ""."""
        spoken = [text_parts(message["content"]) for message in row.messages]
        texts = [
            row.question,
            *row.choices,
            row.system,
            row.target,
            *spoken,
            *map(str, row.meta.get("demonstrations", ())),
        ]
        return next((found[0] for text in texts if (found := self.control.search(text))), "")

    def encode_text(self, text: str) -> list[int]:
        """Token ids of a text that is no prompt (a demonstration, a reply): special tokens in it become
        ordinary tokens of their characters."""
        return list(self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))

    def rendered_ids(self, text: str) -> list[int]:
        """Token ids of a rendered prompt, as transformers' `apply_chat_template(tokenize=True)` gives them.

        A tokenizer takes the template's text as it is. A processor puts the tokenizer's first token (BOS)
        before a text that does not begin with it.
        """
        bos = self.tokenizer("").input_ids if self.family.is_multimodal else []
        bos = bos if bos and not text.startswith(self.tokenizer.decode(bos)) else []
        return [*bos, *self.tokenizer(text, add_special_tokens=False).input_ids]

    def unexpanded_ids(self, prompt: Prompt) -> list[int]:
        """The prompt's ids with a single placeholder for each medium, for engines that expand them."""
        earlier = earlier_part(prompt)
        if earlier is None:
            return self.rendered_ids(self.render(prompt))
        before, since, text = earlier
        return [
            *self.unexpanded_ids(before),
            *since,
            *self.tokenizer(text, add_special_tokens=False).input_ids,
        ]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of completion ids, without special tokens."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _tokenize(
        self, prompt: Prompt, features: dict[str, Features]
    ) -> tuple[list[int], list[int], tuple[Media, ...]]:
        """(ids, types, media in the order of their placeholders) of a prompt, every placeholder expanded. Ids
        of earlier turns stay as they are."""
        earlier = earlier_part(prompt)
        if earlier is None:
            return self._tokenize_text(prompt, self.render(prompt), media_by_kind(prompt), features)
        before, since, text = earlier
        ids, types, order = self._tokenize(before, features)
        shown = media_by_kind(before)
        new = {kind: media[len(shown[kind]) :] for kind, media in media_by_kind(prompt).items()}
        more_ids, more_types, more = self._tokenize_text(prompt, text, new, features, shown)
        return [*ids, *since, *more_ids], [*types, *[0] * len(since), *more_types], (*order, *more)

    def _tokenize_text(
        self,
        prompt: Prompt,
        text: str,
        shown: Mapping[str, Sequence[Media]],
        features: dict[str, Features],
        before: Mapping[str, Sequence[Media]] | None = None,
    ) -> tuple[list[int], list[int], tuple[Media, ...]]:
        """`_tokenize` of a rendered text with the media that it shows, by kind; `before`: those that earlier
        turns showed, None for the beginning of a prompt."""
        queues = {kind: list(media) for kind, media in shown.items()}
        numbers = Counter({kind: len(media) for kind, media in (before or {}).items()})
        kind_of = {token: kind for kind, token in self.placeholders.items()}
        pieces = re.split("(" + "|".join(map(re.escape, kind_of)) + ")", text) if kind_of else [text]
        for kind, token in self.placeholders.items():
            if pieces.count(token) != len(queues[kind]):
                raise ValueError(
                    f"row {prompt.row.id!r}: {len(queues[kind])} {kind}s, but {pieces.count(token)} "
                    f"placeholders for them ({token}) in the prompt; "
                    "their numbers must be equal"
                )
        order = [queues[kind_of[piece]].pop(0) for piece in pieces if piece in kind_of]
        remaining = iter(order)
        for place, piece in enumerate(pieces):
            if piece in kind_of:
                medium, kind = features[next(remaining).key], kind_of[piece]
                pieces[place] = self.family.numbered(self.processor, medium, numbers[kind])
                numbers[kind] += 1
        text = "".join(pieces)
        ids = (
            self.rendered_ids(text)
            if before is None
            else list(self.tokenizer(text, add_special_tokens=False).input_ids)
        )
        return ids, self._types(prompt, ids, [features[m.key] for m in order]), tuple(order)

    def _types(self, prompt: Prompt, ids: Sequence[int], shown: Sequence[Features]) -> list[int]:
        """Per token 0 (text) or the number in `MEDIA_TYPES` of the medium whose embedding goes there."""
        embed_ids = {self.tokenizer.convert_tokens_to_ids(self.family.embed_token_of(f.kind)) for f in shown}
        types = [MEDIA_TYPES[f.kind] for f in shown for _ in range(f.num_embeds)]
        if sum(i in embed_ids for i in ids) != len(types):
            raise ValueError(
                f"row {prompt.row.id!r}: the prompt's text holds tokens that stand for media; remove them "
                "from the text"
            )
        remaining = iter(types)
        return [next(remaining) if i in embed_ids else 0 for i in ids]


def root_of(prompt: Prompt) -> Prompt:
    """The prompt that the conversation began with."""
    while prompt.continues is not None:
        prompt = prompt.continues[0]
    return prompt


def earlier_part(prompt: Prompt) -> tuple[Prompt, tuple[int, ...], str] | None:
    """`prompt.continues`, its prompt with the media that `prompt` has in their places; None where media were
    taken away."""
    if prompt.continues is None:
        return None
    before, since, text = prompt.continues
    images, videos = prompt.images[: len(before.images)], prompt.videos[: len(before.videos)]
    audios = prompt.audios[: len(before.audios)]
    shown = (images, videos, audios)
    held = (before.images, before.videos, before.audios)
    if any(len(now) < len(then) for now, then in zip(shown, held)):
        return None
    if shown != held:
        before = replace(before, images=images, videos=videos, audios=audios)
    return before, since, text


def media_by_kind(prompt: Prompt) -> dict[str, tuple[Media, ...]]:
    """The media of a prompt, each kind in the order of its placeholders."""
    return {"image": prompt.images, "video": prompt.videos, "audio": prompt.audios}


def control_pattern(tokenizer: Any, placeholders: Iterable[str]) -> re.Pattern[str]:
    """Matches every special token of a tokenizer and every placeholder for media; nothing where there is
    none.

    Added tokens that decoding keeps (<think>) are text. A token of one character, or of blanks alone, cannot
    be told from text.
    """
    added = [str(token) for token in getattr(tokenizer, "added_tokens_decoder", {}).values() if token.special]
    tokens = {
        token
        for token in (*added, *getattr(tokenizer, "all_special_tokens", ()), *placeholders)
        if len(token.strip()) > 1
    }
    return re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or r"(?!)")


def text_parts(content: Any) -> str:
    """The texts of a message's content, joined."""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def text_of(content: Any, prompt: Prompt) -> str:
    """A message's content as one string. Raises ValueError if it holds media."""
    if isinstance(content, str):
        return content
    if any(part["type"] != "text" for part in content):
        raise ValueError(
            f"row {prompt.row.id!r}: the prompt shows media, and the policy reads text alone; use a vision "
            "family"
        )
    return "".join(part["text"] for part in content)
