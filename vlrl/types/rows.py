"""What a data set has: one example, and many of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from vlrl.types.media import Media

# {"role": "user", "content": [{"type": "text", "text": ...} | {"type": "image"}]}; also "video", "audio"
Message = Mapping[str, Any]


class RowError(ValueError):
    """A record that makes no usable row: no answer, a wrong type, a medium that is missing."""


@dataclass(frozen=True)
class Row:
    """One training or evaluation example.

    `question` may hold `<image>`, `<video>` and `<audio>` markers, in the order of `images`, `videos` and
    `audios`; without markers the media come first. `answer` is the gold answer in the form its reward reads
    (boxes are [x1, y1, x2, y2] in ORIGINAL pixels of the picture). `target` is a full demonstration (what an
    expert would write), for cold starts and replay; it may be empty.
    `rewards` names the reward slots that score this row; empty means: all that apply to its `task`.
    """

    id: str
    question: str
    answer: Any = None
    images: tuple[Media, ...] = ()
    videos: tuple[Media, ...] = ()
    choices: tuple[str, ...] = ()
    task: str = "default"
    target: str = ""
    system: str = ""
    messages: tuple[Message, ...] = ()  # a whole conversation, for rows that are more than one question
    rewards: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    audios: tuple[Media, ...] = ()
    origin: str = field(default="", compare=False)  # where it is stored, file:line, for messages

    @property
    def media(self) -> tuple[Media, ...]:
        return self.images + self.videos + self.audios


class RowView(Sequence[Row]):
    """Rows that are made when they are asked for: a subclass says how many (`__len__`) and which (`at`, from
    0)."""

    @abstractmethod
    def at(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            return [self.at(i) for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return self.at(index % len(self))
