"""Conan: reinforcement learning over identification of frames, reasoning and retrieval in a video.

    conan               reward shaping: format + outcome + (identification + retrieval, for right answers)
    conan.difficulty    select: rows by their evidence difficulty index
    conan.template      prompt template: a chat without the row's video, which the environment shows
    conan.video_clips   environment: frames of a video on demand, in rounds

Paper: Ouyang et al. 2025 (Conan), arXiv:2510.20470; checked against OuyangKun10/Conan at b4805ae8:
ms-swift/examples/train/grpo/plugin/plugin.py, ms-swift/training_scripts/Conan-AIR-RLVR.sh and
Conan-SFT-Stage1.sh to Stage3.sh. The release copies and extends ms-swift.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from vlrl.methods.core.prompt_template import Chat
from vlrl.methods.core.select import SelectedRows
from vlrl.methods.core.turn_advantage import episodes_of
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.episodes import (
    ACTIONS,
    ONE_REWARD_PER_CONVERSATION,
    PICTURE_REPLIES,
    TURN_PARTS,
    Action,
    Episode,
    Observation,
    Picture,
)
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Environment, RewardShaping, Select
from vlrl.plugins.tool_calls import last_tagged
from vlrl.types import Clip, Group, Prompt, Rollout, Row, RowError

TAGS = ("score", "think", "clip", "answer")
EVIDENCE = 4  # least rating
MAX_TURN = 20_000  # characters of a turn that are read


def well_formed(turn: str) -> bool:
    """Whether a turn has each of the four tags once, in order and not within each other, and does one thing:
    asks for clips, or answers."""
    turn = turn[:MAX_TURN]
    if any(turn.count(f"<{tag}>") != 1 or turn.count(f"</{tag}>") != 1 for tag in TAGS):
        return False
    places = [turn.index(mark) for tag in TAGS for mark in (f"<{tag}>", f"</{tag}>")]
    clip, answer = (
        turn[turn.index(f"<{tag}>") + len(tag) + 2 : turn.index(f"</{tag}>")] for tag in ("clip", "answer")
    )
    return places == sorted(places) and bool(clip.strip()) != bool(answer.strip())


@register("conan")
@dataclass(frozen=True)
class Conan(RewardShaping):
    """Conan's joint reward, in place of the total, with outcome R_o:

        R = R_fmt + R_o + R_ide + R_ret    if R_o > 0
            R_fmt + R_o                    otherwise

    R_fmt is `form` if the last turn is well formed (`well_formed`), else 0. R_ide is the mean over rounds of
    the overlap of rated and true evidence, R_ret that over requests of the share of unseen evidence that they
    found, both by environment `conan.video_clips`; R_ret = R_ide for an answer without a request, as in the
    release, so that it is not better to ask.
    Paper: arXiv:2510.20470, eq. 1 to 4. Edge: a video without ratings has R_ide = R_ret = 0. All rollouts of
    a conversation get the reward of the last one, which has the answer. Range: 0 to 2 + `form` + R_o.
    """

    form: float = 0.5
    requires = (ACTIONS, TURN_PARTS)
    provides = (ONE_REWARD_PER_CONVERSATION,)

    def __call__(self, group: Group) -> list[float]:
        values = {
            id(rollout): self.value(episode[-1]) for episode in episodes_of(group) for rollout in episode
        }
        return [values[id(rollout)] for rollout in group]

    def value(self, rollout: Rollout) -> float:
        """The reward of one rollout."""
        parts, outcome = TURN_PARTS[rollout], float(rollout.outcome or 0.0)
        actions = ACTIONS[rollout]
        total = outcome + self.form * (bool(actions) and well_formed(actions[-1]))
        if outcome <= 0:
            return total
        found = parts.get("identified", 0.0) / max(parts.get("identified_rounds", 0.0), 1.0)
        asked = parts.get("retrieved_rounds", 0.0)
        return total + found + (parts.get("retrieved", 0.0) / asked if asked else found)


def evidence_difficulty(scores: Sequence[int]) -> float:
    """EDI = (1 - m / N) Var(x): N frames, m of them evidence (rated 4 or more), at the places x in [0, 1]; 0
    without evidence.

    >>> evidence_difficulty([5, 1, 1, 1, 5])
    0.15
    """
    places = [place / max(len(scores) - 1, 1) for place, score in enumerate(scores) if score >= EVIDENCE]
    return float((1 - len(places) / len(scores)) * np.var(places)) if places else 0.0


@register("conan.difficulty")
@dataclass(frozen=True)
class ConanDifficulty(Select):
    """Conan's sampling by evidence difficulty: rows whose place in the order of their EDI is in [`low`,
    `high`), as a share of all rows.

        EDI = (1 - m / N) Var(x)     m of N frames are evidence, at the places x in [0, 1]

    `rounds` above 0 keeps rows whose demonstration (`meta["turns"]`) has at most so many turns. The cold
    start takes easy rows, reinforcement learning hard ones. Paper: arXiv:2510.20470, sec. 2.3 (60,000 rows
    with the lower EDI, 31,000 with the higher). Ours: places in [0, 1] where the paper has times. Edge: rows
    without `meta["frame_scores"]` are refused; ties keep their order.
    """

    low: float = 0.0
    high: float = 1.0
    rounds: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= 1 or self.rounds < 0:
            raise ValueError(
                f"low={self.low} and high={self.high} must be 0 <= low < high <= 1, and "
                f"rounds={self.rounds} not negative"
            )

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        values, kept = [], []
        for row in rows:
            if not row.meta.get("frame_scores"):
                raise ConfigError(
                    f"select: {self.name!r} reads meta['frame_scores'], which row {row.id!r} does not have"
                )
            values.append(evidence_difficulty(row.meta["frame_scores"]))
            kept.append(not self.rounds or len(row.meta.get("turns") or ()) <= self.rounds)
        order = sorted(range(len(rows)), key=lambda number: values[number])
        chosen = order[round(self.low * len(rows)) : round(self.high * len(rows))]
        return SelectedRows(rows, sorted(number for number in chosen if kept[number]))


@register("conan.template")
@dataclass(frozen=True)
class ConanTemplate(Chat):
    """A chat (`chat`) without the row's video: environment `conan.video_clips` shows its frames.

    Released code: Conan-Eval/prompt_temp.py, whose words are not copied. Edge: a <video> marker in the
    question is dropped.
    """

    def __call__(self, row: Row) -> Prompt:
        question = re.sub(r"<video>\n?", "", row.question)
        return replace(super().__call__(replace(row, videos=(), question=question)), row=row)

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        if phase.environment is None:
            raise ConfigError(
                f"prompt_template: {self.name!r} leaves out videos for an environment to show; add "
                f"environment: {{name: conan.video_clips}}"
            )


# --- the environment ----------------------------------------------------------------------------------------


_TIME = r"(\d{1,2}):(\d{2}):(\d{2})"
_SPAN = re.compile(rf"{_TIME}(?:\s*-\s*{_TIME})?")
_RATED = re.compile(rf"{_TIME}(?:\s*-\s*{_TIME})?\s*:\s*([1-5])(?!\d)")
EVIDENCE, CONTEXT = 4, 3  # least ratings
MAX_TURN = 20_000  # characters of a turn that are read
MAX_CLIPS = 64

Ratings = Mapping[int, int]  # frame -> 1 to 5


def seconds(hours: str, minutes: str, rest: str) -> int:
    """A time of day as seconds."""
    return int(hours) * 3600 + int(minutes) * 60 + int(rest)


def clock(second: float) -> str:
    """hh:mm:ss.

    >>> clock(3725)
    '01:02:05'
    """
    whole = int(second)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def spread(numbers: Sequence[int], count: int) -> list[int]:
    """`count` of the numbers, evenly spaced with the first and the last one; all where there are no more.

    >>> spread([4, 5, 6, 7, 8], 3)
    [4, 6, 8]
    """
    if len(numbers) <= count:
        return list(numbers)
    return (
        [numbers[round(i * (len(numbers) - 1) / (count - 1))] for i in range(count)]
        if count > 1
        else [numbers[0]]
    )


def identification(rated: Ratings, gold: Ratings, shown: Sequence[int]) -> float | None:
    """How well the frames that were just shown are rated: the overlap (intersection over union) of rated and
    true evidence.

    Evidence is what is rated 4 or more; where none is there or none was found, evidence and context together
    (3 or more) count. None where neither side has any: a round of distractors that were taken for such says
    nothing.
    """
    for least in (EVIDENCE, CONTEXT):
        true, said = ({frame for frame in shown if rates.get(frame, 1) >= least} for rates in (gold, rated))
        if true and said:
            return len(true & said) / len(true | said)
    return None if not true and not said else 0.0


def retrieval(new: Sequence[int], gold: Ratings, seen: Sequence[int], most: int) -> float:
    """Share of the evidence not yet seen, at most `most` frames of it, that is among the new frames; of
    evidence and context where that is none."""
    for least in (EVIDENCE, CONTEXT):
        left = {frame for frame, rate in gold.items() if rate >= least and frame not in seen}
        hit = left & set(new)
        if hit:
            return len(hit) / min(len(left), most)
    return 0.0


@register("conan.video_clips")
@dataclass(frozen=True, kw_only=True)
class ConanVideoClips(Environment):
    """Conan's rounds over a video: rate the frames that are shown, think, then ask for clips or answer.

        <score>00:00:04: 3, 00:00:08-00:00:12: 5</score><think>...</think>
        <clip>00:00:05-00:00:07</clip><answer></answer>

    The prompt has no video (`conan.template`). A turn without a clip that shows something new ends the
    episode. Parts: `identified` and `retrieved`, sums over `identified_rounds` and `retrieved_rounds`
    (`identification`, `retrieval`). Paper: Ouyang et al. 2025 (Conan), arXiv:2510.20470, sec. 2.2 and 3.2;
    OuyangKun10/Conan at b4805ae8: ms-swift/examples/train/grpo/plugin/{video_clip_scheduler,plugin}.py,
    Conan-Eval/prompt_temp.py. Deviates: times stand behind the frames; the paper's random frames, which the
    release has no tag for; a round without ratings rates all frames as distractors (there it is left out).
    Edge: a turn that asks for clips and answers gets the clips.

    Attributes:
        first: Frames shown at first, evenly spaced (or those of `row.meta["shown"]`).
        more: New frames of clips at most: one of each, the others in proportion to the frames not yet seen;
            `<clip>random</clip>` gets so many random ones.
        show: "text" tells what is on the frames (`row.meta["descriptions"]`), "both" tells and shows.
            Evidence: `row.meta["frame_scores"]`, 4 or more evidence, 3 context, less a distractor.
    """

    stops: ClassVar[tuple[str, ...]] = ("</answer>",)
    first: int = 16
    more: int = 8
    show: Literal["frames", "text", "both"] = "frames"

    def __post_init__(self) -> None:
        if self.first < 1 or self.more < 1:
            raise ValueError(f"first={self.first} and more={self.more} must be at least 1")

    @property
    def provides(self) -> Sequence[Capability]:
        return () if self.show == "text" else (PICTURE_REPLIES,)

    def episode(self) -> Episode:
        return VideoEpisode(self)


class VideoEpisode(Episode):
    """One video: its frames, what was shown in which round, and the true ratings."""

    def __init__(self, settings: ConanVideoClips) -> None:
        self.settings = settings

    def reset(self, row: Row, seed: int) -> Observation:
        if not row.videos:
            raise RowError(
                f"row {row.id!r} has no video, which environment 'video_clips' shows frame by frame"
            )
        clip: Any = row.videos[0].load()
        self.clip: Clip = clip
        rates = row.meta.get("frame_scores") or []
        if len(rates) not in (0, len(clip)) or not all(isinstance(rate, int) for rate in rates):
            raise RowError(
                f"row {row.id!r}: meta['frame_scores'] has {len(rates)} entries for {len(clip)} frames; "
                "one whole number each is needed"
            )
        self.gold: Ratings = dict(enumerate(rates))
        self.told = list(row.meta.get("descriptions") or [])
        if self.settings.show != "frames" and len(self.told) != len(clip):
            raise RowError(
                f"row {row.id!r}: show: {self.settings.show} needs meta['descriptions'], one text per "
                f"frame; there are {len(self.told)}"
            )
        self.rng = random.Random(f"video_clips/{row.id}/{seed}")
        self.new = spread(range(len(clip)), self.settings.first)
        if row.meta.get("shown"):
            self.new = sorted({int(frame) for frame in row.meta["shown"] if 0 <= int(frame) < len(clip)})
        self.seen: set[int] = set(self.new)
        return self.shown("Frames", {})

    def step(self, action: Action) -> Observation:
        text = action.text[:MAX_TURN]
        parts: dict[str, float] = {}
        if self.gold:
            found = identification(self.ratings(last_tagged(text, "score") or ""), self.gold, self.new)
            parts |= {} if found is None else {"identified": found, "identified_rounds": 1.0}
        asked = self.asked((last_tagged(text, "clip") or "").strip())
        if not asked:
            return Observation(
                done=True, parts=parts, invalid=not (last_tagged(text, "answer") or "").strip()
            )
        if self.gold:
            parts |= {
                "retrieved": retrieval(asked, self.gold, sorted(self.seen), self.settings.more),
                "retrieved_rounds": 1.0,
            }
        self.new = asked
        self.seen |= set(asked)
        return self.shown("New frames", parts)

    def frame_at(self, second: float) -> int:
        """The frame shown at a time, the last one behind the end."""
        return min(max(round(second * self.clip.fps), 0), len(self.clip) - 1)

    def ratings(self, text: str) -> Ratings:
        """The ratings of a turn, of frames that were just shown; the last one counts."""
        rated: dict[int, int] = {}
        for found in list(_RATED.finditer(text))[:MAX_CLIPS]:
            start = self.frame_at(seconds(*found.group(1, 2, 3)))
            end = self.frame_at(seconds(*found.group(4, 5, 6))) if found[4] else start
            rated |= {frame: int(found[7]) for frame in self.new if start <= frame <= end}
        return rated

    def asked(self, text: str) -> list[int]:
        """The new frames that a clip asks for, in order; [] where it asks for none."""
        if text.casefold() == "random":
            left = [frame for frame in range(len(self.clip)) if frame not in self.seen]
            return sorted(self.rng.sample(left, min(self.settings.more, len(left))))
        clips = []
        for found in list(_SPAN.finditer(text))[:MAX_CLIPS]:
            start = seconds(*found.group(1, 2, 3))
            end = seconds(*found.group(4, 5, 6)) if found[4] else start
            left = [
                frame
                for frame in range(self.frame_at(start), self.frame_at(end) + 1)
                if frame not in self.seen
            ]
            clips += [left] if start <= end and left else []
        chosen = {
            frame
            for left, count in zip(clips, shares([len(left) for left in clips], self.settings.more))
            for frame in spread(left, count)
        }
        return spread(sorted(chosen), self.settings.more)

    def shown(self, what: str, parts: Mapping[str, float]) -> Observation:
        """The frames of this round."""
        times = [clock(frame / self.clip.fps) for frame in self.new]
        text = f"{what}, in this order: {', '.join(times)}."
        if self.settings.show != "frames":
            text = "\n".join(
                [
                    f"{what}:",
                    *(f"{time}: {self.told[frame]}" for time, frame in zip(times, self.new, strict=True)),
                ]
            )
        media = (
            ()
            if self.settings.show == "text"
            else tuple(Picture.of(self.clip.frames_THWC[frame]) for frame in self.new)
        )
        return Observation(text, media, parts=parts, calls=int(bool(parts)))


def shares(sizes: Sequence[int], total: int) -> list[int]:
    """One each, and what is left of `total` in proportion to the sizes (rounded down, the rest to the
    largest).

    >>> shares([6, 2], 8)
    [6, 2]
    """
    rest = max(total - len(sizes), 0)
    counts = [rest * size // sum(sizes) for size in sizes]
    largest = sorted(range(len(sizes)), key=lambda place: -sizes[place])
    for turn in range(rest - sum(counts) if sizes else 0):
        counts[largest[turn % len(sizes)]] += 1
    return [1 + count for count in counts]
