"""Completions of one tokenizer as a model with another one reads them: spans of the same text, and tokens
that both have.

Source: TRL's GOLD (huggingface/trl 0048aad6, trl/experimental/gold/gold_trainer.py: spans where both sides
reach the same boundary, the probability of a span by the chain rule, tokens matched by their text).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from vlrl.functional import shared_spans
from vlrl.plugins.views import TokenizerView

BROKEN = "\N{REPLACEMENT CHARACTER}"  # what a decoder writes for a part of a character


class UnalignedError(ValueError):
    """A completion that another tokenizer cannot read: its text changes on the way."""


class Encoder(Protocol):
    """What writes and reads texts as tokens (a policy, or a served teacher's tokenizer)."""

    @property
    def tokenizer(self) -> TokenizerView: ...
    @property
    def stop_ids(self) -> Sequence[int]: ...
    def encode_text(self, text: str) -> list[int]: ...


def token_ends(tokenizer: TokenizerView, ids: Sequence[int]) -> list[int | None]:
    """Per token the characters of the text up to its end; None where it ends within a character.

    A few tokens are decoded at a time, with those before them, so that spaces at the beginning of a token
    stay.
    """
    ends: list[int | None] = []
    total, first, done = 0, 0, 0
    for place in range(len(ids)):
        known = tokenizer.decode(ids[first:done])
        text = tokenizer.decode(ids[first : place + 1])
        if text.endswith(BROKEN):
            ends.append(None)
            continue
        total += len(text) - len(known)
        first, done = done, place + 1
        ends.append(total)
    return ends


@dataclass(frozen=True)
class Aligned:
    """A completion in the other tokenizer's ids, and its spans: places in the student's and in the other
    tokens."""

    ids: list[int]
    spans: list[tuple[range, range]]


@dataclass(frozen=True)
class Aligner:
    """Student's completions as another encoder reads them.

    Attributes:
        student: The policy.
        other: The other encoder.
    """

    student: Encoder
    other: Encoder

    def __call__(self, ids: Sequence[int]) -> Aligned:
        """Ids and spans of a completion; a token that ends the turn is one span with the other's. Raises
        UnalignedError where the other tokenizer does not give the text back."""
        ended = bool(ids) and ids[-1] in self.student.stop_ids
        body = list(ids[: len(ids) - ended])
        text = self.student.tokenizer.decode(body)
        read = self.other.encode_text(text)
        if self.other.tokenizer.decode(read) != text:
            raise UnalignedError("the teacher's tokenizer does not give the completion's text back")
        spans = shared_spans(token_ends(self.student.tokenizer, body), token_ends(self.other.tokenizer, read))
        if ended and self.other.stop_ids:
            spans.append((range(len(body), len(body) + 1), range(len(read), len(read) + 1)))
            read = [*read, self.other.stop_ids[0]]
        return Aligned(read, spans)

    @cached_property
    def student_ids(self) -> dict[int, int]:
        """Student's ids by the other's, of tokens with the same text, and of the ends of a turn."""
        own = {_plain(token): number for token, number in self.student.tokenizer.get_vocab().items()}
        found = {
            number: own[_plain(token)]
            for token, number in self.other.tokenizer.get_vocab().items()
            if _plain(token) in own
        }
        ends = zip(self.other.stop_ids[:1], self.student.stop_ids[:1])
        return {**found, **dict(ends)}


def _plain(token: str) -> str:
    """A token's text in one writing: sentencepiece's mark of a space as that of byte-level tokenizers."""
    return token.replace("\u2581", "\u0120")
