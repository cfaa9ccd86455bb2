"""Format rewards: blocks in tags, thinking or not, tags counted, one box, blocks of self-search."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Literal

from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward
from vlrl.types import Rollout
from vlrl_rewards.parsing import boxes_in, visible

_THINK_TAG = re.compile(r"</?\s*think\s*>", re.IGNORECASE)
_SEARCH_TAG = re.compile(r"<(/?)(think|search|information|answer)>")
_SEARCH_ORDER = re.compile(r"(?:(?:think )?search information )*think answer ")
_GRADED_ORDER = re.compile(r"think (?:think |search information )*answer ")


def has_content(text: str) -> bool:
    """Whether a text has a letter or a digit."""
    return any(char.isalnum() for char in text)


@register("tag_format")
@dataclass(frozen=True, kw_only=True)
class TagFormat(Reward):
    """Tag format reward: blocks in the given order and nothing else.

        r = 1[text = <think>...</think><answer>...</answer>]

    Each tag occurs once, and no block is empty, except those of `may_be_empty` (TON's empty thought,
    arXiv:2505.16854, which scores like a full one). Paper: DeepSeek-R1 (format reward), arXiv:2501.12948,
    sec. 2.2.2. `tags` names the blocks in order. Only white space may stand between blocks. Edge: a repeated
    tag, an empty block, text before, between or after the blocks: 0.
    """

    reads_answer: ClassVar[bool] = False
    tags: tuple[str, ...] = ("think", "answer")
    may_be_empty: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not set(self.may_be_empty) <= set(self.tags):
            raise ValueError(f"may_be_empty: {list(self.may_be_empty)} must be among tags={list(self.tags)}")

    @property
    def form_marks(self) -> tuple[str, ...]:
        return tuple(f"<{tag}>" for tag in self.tags)

    def __call__(self, rollout: Rollout) -> float:
        return float(self.follows(rollout.text))

    def follows(self, text: str) -> bool:
        """Whether a text has the format."""
        rest = text.strip()
        for tag in self.tags:
            opening, closing = f"<{tag}>", f"</{tag}>"
            if not rest.startswith(opening) or not text.count(opening) == text.count(closing) == 1:
                return False
            body, closed, rest = rest[len(opening) :].partition(closing)
            rest = rest.lstrip()
            if not closed or not (tag in self.may_be_empty or has_content(body)):
                return False
        return not rest


@register("think_format")
@dataclass(frozen=True, kw_only=True)
class ThinkFormat(Reward):
    """Format of responses with or without thinking.

        r = 1[the text has the format of `mode`]

    "think": `<think>`, thought, `</think>`, then an answer, each tag once. "no_think": an answer without
    thinking (no tag, or one empty block). "row": the mode that `row.meta["think"]` (true or false) requests.
    Paper: No-Thinking-RL and Thinking-RL, arXiv:2503.16188. Edge: an answer without a letter or digit, or an
    open block: 0.
    """

    reads_answer: ClassVar[bool] = False
    mode: Literal["think", "no_think", "row"] = "think"

    @property
    def form_marks(self) -> tuple[str, ...]:
        return ("<think>",) if self.mode == "think" else ()

    def __call__(self, rollout: Rollout) -> float:
        thinks = self.mode == "think" or (self.mode == "row" and bool(rollout.row.meta.get("think", True)))
        text = rollout.text.strip()
        tags = [tag.lower().replace(" ", "") for tag in _THINK_TAG.findall(text)]
        head, _, tail = text.partition("</think>")
        if not tags:
            return float(not thinks and has_content(text))
        if tags != ["<think>", "</think>"] or not head.startswith("<think>") or not has_content(tail):
            return 0.0
        return float(has_content(head.removeprefix("<think>")) == thinks)


@register("tag_count")
@dataclass(frozen=True, kw_only=True)
class TagCount(Reward):
    """Tag count reward.

        r = correct tags / tags

    A tag (opening and closing counted separately) is correct if it occurs exactly once, in order, around
    content.
    Paper: Open-R1 (tag count reward), after arXiv:2501.12948. Deviations: a tag out of order, or around an
    empty
    block, does not count: four tags without content score 0.
    """

    reads_answer: ClassVar[bool] = False
    tags: tuple[str, ...] = ("think", "answer")

    @property
    def form_marks(self) -> tuple[str, ...]:
        return tuple(f"<{tag}>" for tag in self.tags)

    def __call__(self, rollout: Rollout) -> float:
        kept, after = 0, 0
        for tag in self.tags:
            opening, closing = f"<{tag}>", f"</{tag}>"
            start = rollout.text.find(opening, after) if rollout.text.count(opening) == 1 else -1
            end = rollout.text.find(closing, max(start, after)) if rollout.text.count(closing) == 1 else -1
            inside = (
                rollout.text[start + len(opening) : end]
                if start >= 0 and end >= 0
                else rollout.text[start + len(opening) :]
                if start >= 0
                else ""
            )
            if start >= 0 and has_content(inside):
                kept, after = kept + 1, start
            if end >= 0 and has_content(rollout.text[after:end]) and (start < 0 or has_content(inside)):
                kept, after = kept + 1, end
        return kept / (2 * len(self.tags)) if self.tags else 0.0


@register("form")
@dataclass(frozen=True, kw_only=True)
class Form(Reward):
    """Format reward of a release's regular expression, as parts that must occur in order.

        r = 1[part 1, part 2, ... occur one after the other]

    For `part1.*?part2.*?part3` with dot matching newlines, as `re.search` finds it; with `whole` the first
    part starts the text and the last ends it, as in `re.fullmatch` (white space around the text counts).
    Each text of `once` must occur exactly once. Each part is a regular expression for a short stretch,
    searched behind the one before, so that the time is linear in the text. Source: the format
    rewards of VLM-R1, Video-R1 and Visual-RFT (arXiv:2504.07615).
    Raises ValueError for a part that is no regular expression, and for none.
    """

    reads_answer: ClassVar[bool] = False
    parts: tuple[str, ...] = ("<think>", r"</think>\s*<answer>", "</answer>")
    whole: bool = False
    once: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("form: parts is empty; name at least one regular expression")
        for part in self.parts:
            try:
                re.compile(part)
            except re.error as error:
                raise ValueError(f"form: the part {part!r} is no regular expression: {error}") from None

    @property
    def form_marks(self) -> tuple[str, ...]:
        return tuple(re.findall(r"<[a-z_]+>", "".join(self.parts)))

    def __call__(self, rollout: Rollout) -> float:
        text, at = rollout.text, 0
        if any(text.count(word) != 1 for word in self.once):
            return 0.0
        for i, part in enumerate(self.parts):
            last = self.whole and i == len(self.parts) - 1
            pattern = re.compile(rf"(?:{part})\Z" if last else part)
            found = pattern.match(text) if self.whole and i == 0 else pattern.search(text, at)
            if not found:
                return 0.0
            at = found.end()
        return 1.0


@register("boxed_format")
@dataclass(frozen=True, kw_only=True)
class BoxedFormat(Reward):
    r"""Boxed answer format.

        r = 1[exactly one \boxed{...} with content outside the thinking]

    Paper: SimpleRL-Zoo, arXiv:2503.18892 (boxed answers). Edge: `\boxed{}` and `\boxed{...}` without a letter
    or digit score 0.
    """

    reads_answer: ClassVar[bool] = False

    @property
    def form_marks(self) -> tuple[str, ...]:
        return ("\\boxed",)

    def __call__(self, rollout: Rollout) -> float:
        text = visible(rollout.text)
        found = boxes_in(text)
        return float(len(found) == 1 and has_content(text[found[0][2] : found[0][3]]))


def only_tags(text: str) -> bool:
    """Whether all that stands in angle brackets, from a "<" to the next ">", is a tag of SSRL's form."""
    at = text.find("<")
    while at >= 0:
        end = text.find(">", at)
        if end < 0:
            return True
        if end > at + 1 and not _SEARCH_TAG.fullmatch(text[at : end + 1]):
            return False
        at = text.find("<", at + 1 if end == at + 1 else end)
    return True


@register("search_format")
@dataclass(frozen=True, kw_only=True)
class SearchFormat(Reward):
    """Format of structured self-search (SSRL).

        r = 1[text = (<think>? <search> <information>)* <think> <answer>, each block closed and not empty]
        r = min(1, t / 2) min(t, s + 1) / max(t, s + 1)   (with `graded`: t thoughts, s searches)

    Only white space may stand between blocks; a search needs no thought before it. More than `most` searches:
    0. `graded` is the released rule: the text begins with a thought and ends with the answer, every search is
    one line with its information behind it, and more than `most` + 1 thoughts, or anything else in angle
    brackets, earn 0. Paper: SSRL, arXiv:2508.10874. Deviates: rewards/DEVIATIONS.md. The gold answer is not
    read. Range [0, 1].
    """

    reads_answer: ClassVar[bool] = False
    most: int = 10
    graded: bool = False

    def __call__(self, rollout: Rollout) -> float:
        text = rollout.text.strip()[:200_000]
        marks = list(_SEARCH_TAG.finditer(text))
        pairs = list(zip(marks[::2], marks[1::2], strict=False))
        if not marks or len(marks) % 2 or any(a[1] or not b[1] or a[2] != b[2] for a, b in pairs):
            return 0.0
        blocks = [text[a.end() : b.start()] for a, b in pairs]
        between = [text[b.end() : a.start()] for (_, b), (a, _) in zip(pairs, pairs[1:], strict=False)]
        outside = [text[: marks[0].start()], *between, text[marks[-1].end() :]]
        kinds = [a[2] for a, _ in pairs]
        filled = all(any(char.isalnum() for char in block) for block in blocks)
        if self.graded:
            searches_fit = all("\n" not in block for kind, block in zip(kinds, blocks) if kind == "search")
            framed = not outside[0].strip() and not outside[-1].strip()
            known = searches_fit and framed and only_tags(text)
            return self._grade(kinds) if filled and known else 0.0
        well_made = filled and not any(part.strip() for part in outside)
        return float(
            well_made
            and kinds.count("search") <= self.most
            and _SEARCH_ORDER.fullmatch(" ".join(kinds) + " ") is not None
        )

    def _grade(self, kinds: list[str]) -> float:
        """The released score of a sequence of blocks."""
        if _GRADED_ORDER.fullmatch(" ".join(kinds) + " ") is None:
            return 0.0
        thoughts, turns = kinds.count("think"), kinds.count("search") + 1
        return (
            min(1.0, thoughts / 2) * min(thoughts, turns) / max(thoughts, turns)
            if thoughts <= self.most + 1
            else 0.0
        )
