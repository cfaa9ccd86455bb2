"""A scripted policy: writes right, wrong and malformed answers without a model's skill, so that every part of
a config has something to act on."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from vlrl.engine.hf.sampler import uniforms
from vlrl.plugins.registry import build, register
from vlrl.plugins.stages import Engine, State, transient
from vlrl.services.delegation import Of
from vlrl.types import Completion, Prompt, Request, Row

if TYPE_CHECKING:
    from vlrl.plugins.contexts import StageContext
    from vlrl.plugins.views import PolicyView

_TAG = re.compile(r"<([a-z_]+)>")
_CLOSING = re.compile(r"</[a-z_]+>")
_GIVEN = re.compile(r"<([a-z_]+)>[^<]{30,}</\1>")  # tags that hold a text of the question, such as a context
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_LAST_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?=\D*$)")
_BLOCK = re.compile(r"<([a-z_]+)>(.*?)</\1>", re.DOTALL)
_SEEN = re.compile(r"\{seen:([^}]+)\}")  # in `lines`: what the pattern finds last in prompt and conversation
_WORDS = (
    "so",
    "then",
    "wait",
    "let",
    "me",
    "see",
    "that",
    "is",
    "check",
    "it",
    "and",
    "now",
    "first",
    "we",
    "get",
    "3",
    "7",
    "12",
)
MEDIA_TAGS = ("image", "video")


@dataclass
class ScriptedState(State):
    """`version` counts syncs; `scorer` is the engine that computes log-probs; `answers` are gold answers seen
    per task, for wrong answers."""

    version: int = 0
    scorer: Any = transient()
    answers: dict[str, list[str]] = transient(factory=dict)


@register("scripted")
@dataclass(frozen=True)
class Scripted(Engine):
    r"""Completions by a script: right with a probability of its own for each row, of varied length and form.
    vlrl original.

        p(row) = clip(skill + spread (u(row) - 1/2) + gain version + hint h, 0.02, 0.98), u(row) uniform in
        [0, 1), a function of the row's id

    h is the share of the row's demonstration, from its beginning, that the prompt or the given tokens show.
    The form follows the prompt: the tags of its prefix, then those that it names, in their order; `\boxed{}`
    where it asks for that; else the row's demonstration (`target`), else the bare answer. A wrong answer is
    the right one with its numbers or its letter changed, or the answer of another row. A completion with
    given tokens goes on behind them (`continued`). The same seed gives the same completions.

    Attributes:
        form: With probability 1 - `form` the tags are left out.
        words: Smallest and largest number of words of a thought; more with probability `long`, so that some
            completions are cut at `max_tokens`.
        lines: Maps a string that a prompt contains to completions, of which one is drawn instead; the first
            match counts. Replaced in them: "{answer}", "{wrong}", "{target}" (the demonstration), "{near}"
            (the right answer with its last number changed), and "{seen:PATTERN}" by the last match of a
            regular expression's first group in prompt and conversation.
        scored: Log-probs (nats) are the policy's own at temperature 1; false: 0.
    """

    state_class = ScriptedState
    skill: float = 0.5
    spread: float = 0.8
    gain: float = 0.0
    hint: float = 0.0
    form: float = 0.85
    words: tuple[int, int] = (1, 6)
    long: float = 0.1
    scored: bool = True
    lines: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.skill <= 1 or not 0 <= self.form <= 1 or not 0 <= self.long <= 1:
            raise ValueError(
                f"skill={self.skill}, form={self.form} and long={self.long} are probabilities, between 0 "
                "and 1"
            )
        if not 0 <= self.words[0] <= self.words[1]:
            raise ValueError(f"words={self.words}: expected a least and a greatest number, like [1, 6]")
        if not all(self.lines.values()):
            raise ValueError("lines: at least one completion is needed for every key")

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if self.scored:
            self.state.scorer = build(Engine, {"name": "hf", "conversation_tokens": 0}, "engine")
            self.state.scorer.setup(run)

    version: ClassVar[Of[int]] = Of("state")

    def sync(self, policy: PolicyView) -> None:
        self.state.version += 1
        if self.state.scorer is not None:
            self.state.scorer.sync(policy)

    def close(self) -> None:
        if self.state.scorer is not None:
            self.state.scorer.close()

    def score(self, prompt: Prompt, ids: Sequence[int]) -> list[float]:
        """Log-probs (nats) of `ids` under the policy at temperature 1; zeros with `scored: false`."""
        return self.score_all([(prompt, ids)])[0]

    def score_all(self, pairs: Sequence[tuple[Prompt, Sequence[int]]]) -> list[list[float]]:
        if self.state.scorer is None:
            return [[0.0] * len(ids) for _, ids in pairs]
        return self.state.scorer.score_all(pairs)

    def generate(self, requests: Sequence[Request]) -> Iterator[Completion]:
        drafts = [
            (request, index, *self._draft(request, index))
            for request in requests
            for index in range(request.n)
        ]
        values = self.score_all([(request.prompt, ids) for request, _, _, ids, _ in drafts])
        for (request, index, text, ids, finish), logp in zip(drafts, values, strict=True):
            top = (
                [{token: value} for token, value in zip(ids, logp)] if request.sampling.top_logprobs else None
            )
            yield Completion(request, index, list(ids), logp, text, finish, self.version, top)

    def _draft(self, request: Request, index: int) -> tuple[str, tuple[int, ...], Literal["stop", "length"]]:
        draws = cycle(uniforms(request.seed + zlib.crc32(request.prompt.row.id.encode()), index, 64))
        written = self._respond(
            request.prompt, self.run.policy.decode(request.prefix_ids) if request.prefix_ids else "", draws
        )
        for stop in request.sampling.stop:
            head, found, _ = written.partition(stop)
            written = head + found
        ids = (
            *request.prefix_ids,
            *self.run.policy.encode_text(written),
            self.run.policy.tokenizer.eos_token_id,
        )
        limit = request.sampling.max_tokens
        finish: Literal["stop", "length"] = "length" if len(ids) > limit else "stop"
        ids = ids[:limit]
        return self.run.policy.decode(ids), ids, finish

    def _respond(self, prompt: Prompt, begun: str, draws: Iterator[float]) -> str:
        return continued(self._whole(prompt, begun, draws), prompt.prefix + begun)

    def _whole(self, prompt: Prompt, begun: str, draws: Iterator[float]) -> str:
        """A whole response, with what is given of it."""
        row = prompt.row
        asked = prompt.text
        right = next(draws) < self._skill(row, asked + prompt.prefix + begun)
        formed = next(draws) < self.form
        gold, wrong = gold_text(row), self._wrong(row, draws)
        for key, lines in self.lines.items():
            if key in asked:
                line = lines[int(next(draws) * len(lines))]
                near = (
                    _LAST_NUMBER.sub(lambda match: _other_number(match[0], next(draws)), gold)
                    if _LAST_NUMBER.search(gold)
                    else wrong
                )
                line = _SEEN.sub(lambda match: last_seen(match[1], asked + begun), line)
                return (
                    line.replace("{answer}", gold)
                    .replace("{wrong}", wrong)
                    .replace("{near}", near)
                    .replace("{target}", row.target)
                )
        answer = gold if right else wrong
        count = self.words[0] + int(next(draws) * (self.words[1] - self.words[0] + 1))
        if next(draws) < self.long:
            count += 40
        thought = " ".join(_WORDS[int(next(draws) * len(_WORDS))] for _ in range(min(count, 12)))
        thought = " ".join([thought] * (1 + count // 12)) if count > 12 else thought
        return self._formed(prompt, asked, answer, thought) if formed else f"{thought} {answer}".strip()

    def _formed(self, prompt: Prompt, asked: str, answer: str, thought: str) -> str:
        given = {f"</{tag}>" for tag in (*MEDIA_TAGS, *_GIVEN.findall(prompt.row.question))}
        closed = given | set(_CLOSING.findall(prompt.prefix))
        hint = shown_part(prompt.row, asked)
        if ">" in hint[:-1]:  # the tags of a hint are not the form that is asked for
            asked = asked.replace(hint, "")
        tags = [
            tag for tag in dict.fromkeys(_TAG.findall(prompt.prefix + asked)) if f"</{tag}>" not in closed
        ]
        if not tags and "\\boxed" in asked:
            return f"{thought} \\boxed{{{answer}}}".strip()
        if not tags and prompt.row.target:
            tags = list(dict.fromkeys(_TAG.findall(prompt.row.target)))
        if not tags:
            return answer
        last = "answer" if "answer" in tags else tags[-1]
        body = {tag: answer if tag == last else thought or "so" for tag in tags}
        return "".join(f"<{tag}>{_confidence(tag, body[tag])}</{tag}>" for tag in tags)

    def _skill(self, row: Row, shown: str) -> float:
        u = float(
            np.random.Philox(key=[int.from_bytes(row.id.encode()[-8:], "big"), 7]).random_raw(1)[0] / 2**64
        )
        return min(
            max(
                self.skill
                + self.spread * (u - 0.5)
                + self.gain * self.version
                + self.hint * shown_share(row, shown),
                0.02,
            ),
            0.98,
        )

    def _wrong(self, row: Row, draws: Iterator[float]) -> str:
        gold = gold_text(row)
        others = self.state.answers.setdefault(row.task, [])
        if gold not in others:
            others.append(gold)
        if _NUMBER.search(gold):
            return _NUMBER.sub(lambda match: _other_number(match[0], next(draws)), gold)
        if re.fullmatch(r"[A-Z]", gold):
            letters = "ABCDEFGH"[: max(len(row.choices), 4)]
            return letters[(letters.find(gold) + 1 + int(next(draws) * (len(letters) - 1))) % len(letters)]
        different = [other for other in others if other != gold]
        return different[int(next(draws) * len(different))] if different else gold[::-1] + "?"


def last_seen(pattern: str, text: str) -> str:
    """The first group of the last match of a regular expression in a text; "nothing" without a match."""
    return next((match[1] for match in reversed(list(re.finditer(pattern, text)))), "nothing")


def shown_part(row: Row, text: str) -> str:
    """The longest beginning of the row's demonstration that stands in `text`."""
    return next((row.target[:n] for n in range(len(row.target), 0, -1) if row.target[:n] in text), "")


def shown_share(row: Row, text: str) -> float:
    """Share of the characters of the row's demonstration, from its first on, that stand in `text`; 0 without
    a demonstration."""
    return len(shown_part(row, text)) / max(len(row.target), 1)


def continued(text: str, given: str) -> str:
    """What is left to write of a response when `given` stands before it.

    Blocks <tag> ... </tag> that `given` has closed are left out; of a block that it has begun, the opening
    tag and the begun text are left out. Text that begins with all of `given` loses that.
    """
    text = text.removeprefix(given.strip()).lstrip() if given else text
    for tag in dict.fromkeys(_TAG.findall(given)):
        closing, pattern = f"</{tag}>", f"<{tag}>(.*?)</{tag}>"
        text = (
            re.sub(pattern, "", text, count=given.count(closing), flags=re.DOTALL)
            if closing in given
            else text
        )
        begun, block = given.rpartition(f"<{tag}>")[2], re.search(pattern, text, re.DOTALL)
        if block is not None and closing not in begun:
            text = text[: block.start()] + f"{block[1].removeprefix(begun)}{closing}" + text[block.end() :]
    return text


def gold_text(row: Row) -> str:
    """The gold answer as the demonstration writes it.

    What stands in its last answer tags, else in the tags that it ends with; a demonstration without tags
    where the answer is structured, or where it is a fenced program (its tests are the answer); else the
    answer as text.
    """
    blocks: dict[str, str] = dict(_BLOCK.findall(row.target))
    last = next((tag for tag in reversed(blocks) if row.target.rstrip().endswith(f"</{tag}>")), "")
    if "answer" in blocks or last:
        return blocks.get("answer", blocks.get(last, "")).strip()
    if isinstance(row.answer, (list, tuple)) and all(isinstance(a, int) for a in row.answer):
        return " ".join(map(str, row.answer))
    structured = isinstance(row.answer, (dict, list, tuple)) and row.target and not blocks
    program = row.target.lstrip().startswith("```")
    return row.target if structured or program else str(row.answer)


def _other_number(text: str, u: float) -> str:
    """Another number of the same kind, between 10% and 60% away from it (at least 1); "07" stays two digits
    long."""
    value = float(text)
    other = value + max(abs(value) * (0.1 + 0.5 * u), 1.0) * (1 if u > 0.3 else -1)
    if "." in text:
        return f"{other:.3g}"
    digits = text.lstrip("-")
    number = round(abs(other) if value >= 0 else other) if round(other) != round(value) else round(value) + 1
    width = len(digits) if len(digits) > 1 and digits[0] == "0" else 0
    return f"{'-' if number < 0 else ''}{abs(number):0{width}d}"


def _confidence(tag: str, text: str) -> str:
    """Numbers where a tag asks for a number."""
    return (
        str(round((len(text) * 37 % 100) / 100, 2)) if tag in ("confidence", "conf", "probability") else text
    )
