"""The chat prompt template: system prompt, worked examples, pictures at the question's markers, answer
format, start of the answer.

`STYLES` are the answer formats by name: the instruction after the question, and how the assistant's turn
starts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from vlrl.plugins.registry import ConfigError, register, suggest
from vlrl.plugins.stages import PromptTemplate
from vlrl.types import Message, Prompt, Row


class Style(NamedTuple):
    """`instruction` follows the question; `prefix` starts the answer; `chat_template` replaces the family's
    own (for base models)."""

    instruction: str = ""
    prefix: str = ""
    chat_template: str = ""


# Base models were trained without chat markup. The vision spans are written as the Qwen families expect them.
BASE = (
    "{% for m in messages %}{{ '' if loop.first else '\n' }}{{ {'user': 'User: ', 'assistant': 'Assistant: "
    "'}.get(m['role'], '') }}"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}"
    "{% if c['type'] in ['image', 'video'] %}<|vision_start|><|{{ c['type'] }}_pad|><|vision_end|>{% else "
    "%}{{ c['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '\nAssistant: ' }}{% endif %}"
)

STYLES = {
    "plain": Style(),
    "answer": Style("Give the final answer inside <answer> </answer> tags."),
    "think": Style(
        "First reason inside <think> </think> tags, then give the final answer inside <answer> </answer> "
        "tags."
    ),
    "think_open": Style(
        (
            "First reason inside <think> </think> tags, then give the final answer inside <answer> "
            "</answer> "
            "tags."
        ),
        "<think>\n",
    ),
    "no_think": Style("Answer at once, without any reasoning, inside <answer> </answer> tags."),
    "boxed": Style("Reason step by step, and put the final answer in \\boxed{}."),
    "json": Style('Reply with one JSON object of the form {"answer": ...} and nothing else.'),
    "base": Style("Give the final answer inside <answer> </answer> tags.", "", BASE),
}


MARKER = re.compile(r"<(image|video|audio)>")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def content_of(text: str) -> list[dict[str, Any]]:
    """Text with `<image>`, `<video>` and `<audio>` markers -> chat content. Spaces and newlines stay."""
    parts = MARKER.split(text)  # text, kind, text, kind, ..., text
    items = [{"type": part} if i % 2 else {"type": "text", "text": part} for i, part in enumerate(parts)]
    return [item for item in items if item.get("text") != ""]


def count_media(messages: Sequence[Message], kind: str) -> int:
    """How many items of a kind the messages refer to."""
    return sum(
        item["type"] == kind
        for message in messages
        if not isinstance(message["content"], str)
        for item in message["content"]
    )


@register("chat")
@dataclass(frozen=True)
class Chat(PromptTemplate):
    """A row as a chat: [system] + shots + [media + template(question, choices, instruction)]; the assistant's
    turn starts with `prefix`.

    vlrl original. A row with `messages` keeps its conversation; choices and instruction are appended to its
    last user turn. Edge: as many markers as media, or none (media come first); anything else is refused with
    the row's id.

    Attributes:
        style: An answer format (plain, answer, think, think_open, no_think, boxed, json, base); `instruction`
            and `prefix` replace its parts. A record whose prompt is written out to the start of the answer
            brings its own prefix (`meta.opening`), which `prefix` replaces too.
        template: May use {question}, {choices} and {instruction}; by default each is on a line of its own,
            where not empty.
        shots: Worked text examples ({question, answer}).
        options: Arguments of the family's chat template.
        tasks: Overrides any of these for single tasks, by `Row.task`.
    """

    style: str = "plain"
    system: str = ""
    template: str = ""
    instruction: str | None = None
    prefix: str | None = None
    choice: str = "{letter}. {text}"
    shots: tuple[dict[str, str], ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.style not in STYLES:
            raise ConfigError(f"prompt_template.style: no style {self.style!r}.{suggest(self.style, STYLES)}")
        known = set(self.__dataclass_fields__) - {"tasks"}
        for task, changes in self.tasks.items():
            for name in changes:
                if name not in known:
                    raise ConfigError(
                        f"prompt_template.tasks.{task}.{name}: unknown field.{suggest(name, known)}"
                    )
            replace(self, tasks={}, **changes)
        for shot in self.shots:
            if set(shot) != {"question", "answer"}:
                raise ConfigError(
                    f"prompt_template.shots: a shot has the keys question and answer, got {sorted(shot)}"
                )

    def __call__(self, row: Row) -> Prompt:
        if row.task in self.tasks:
            return replace(self, tasks={}, **self.tasks[row.task])(row)
        style = STYLES[self.style]
        messages = self._system(row) + self._shots() + self._question(row)
        for kind, media in (("image", row.images), ("video", row.videos), ("audio", row.audios)):
            if count_media(messages, kind) != len(media):
                raise ValueError(
                    f"row {row.id!r}: {count_media(messages, kind)} <{kind}> markers for {len(media)} "
                    f"{kind}s; "
                    f"write one marker per {kind}, in order, or none at all"
                )
        options = dict(self.options) | ({"chat_template": style.chat_template} if style.chat_template else {})
        opening = str(row.meta.get("opening", "")) or style.prefix
        prefix = opening if self.prefix is None else self.prefix
        return Prompt(
            row, tuple(messages), row.images, row.videos, prefix, options=options, audios=row.audios
        )

    def _system(self, row: Row) -> list[Message]:
        text = row.system or self.system
        has_system = row.messages and row.messages[0]["role"] == "system"
        return [{"role": "system", "content": text}] if text and not has_system else []

    def _shots(self) -> list[Message]:
        turns = (
            (role, shot[key])
            for shot in self.shots
            for role, key in (("user", "question"), ("assistant", "answer"))
        )
        return [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in turns]

    def _question(self, row: Row) -> list[Message]:
        if not row.messages:
            return [
                {"role": "user", "content": self._with_media(content_of(self._text(row, row.question)), row)}
            ]
        messages = [
            dict(m, content=content_of(m["content"]) if isinstance(m["content"], str) else list(m["content"]))
            for m in row.messages
        ]
        last = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=-1)
        if last < 0:
            raise ValueError(f"row {row.id!r}: its messages have no user turn")
        text = self._text(row, "")  # choices and instruction
        if text:
            messages[last]["content"] = [*messages[last]["content"], {"type": "text", "text": "\n" + text}]
        if not any(count_media(messages, kind) for kind in ("image", "video", "audio")):
            first = next(i for i, m in enumerate(messages) if m["role"] == "user")
            messages[first]["content"] = self._with_media(messages[first]["content"], row)
        return list(messages)

    def _with_media(self, content: list[dict[str, Any]], row: Row) -> list[dict[str, Any]]:
        kinds = {item["type"] for item in content}
        row_media = (("image", row.images), ("video", row.videos), ("audio", row.audios))
        return [*({"type": kind} for kind, media in row_media if kind not in kinds for _ in media), *content]

    def _text(self, row: Row, question: str) -> str:
        letters = zip(LETTERS, row.choices)
        parts = {
            "question": question,
            "choices": "\n".join(
                self.choice.replace("{letter}", letter).replace("{text}", text) for letter, text in letters
            ),
            "instruction": STYLES[self.style].instruction if self.instruction is None else self.instruction,
        }
        if not self.template:
            return "\n".join(part for part in parts.values() if part)
        return re.sub(r"\{(question|choices|instruction)\}", lambda match: parts[match[1]], self.template)
