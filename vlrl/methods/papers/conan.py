"""Conan: reinforcement learning over identification of frames, reasoning and retrieval in a video. The rounds
are environment `video_clips`.

    conan             reward shaping: format + outcome + (identification + retrieval, for right answers)
    conan.difficulty  select: rows by their evidence difficulty index
    conan.template    prompt template: a chat without the row's video, which the environment shows

Paper: Ouyang et al. 2025 (Conan), arXiv:2510.20470; checked against OuyangKun10/Conan at b4805ae8:
ms-swift/examples/train/grpo/plugin/plugin.py, ms-swift/training_scripts/Conan-AIR-RLVR.sh and
Conan-SFT-Stage1.sh to Stage3.sh. The release copies and extends ms-swift.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from vlrl.methods.common.conversation import ONE_REWARD_PER_CONVERSATION
from vlrl.methods.core.prompt_template import Chat
from vlrl.methods.core.select import SelectedRows
from vlrl.methods.core.turn_advantage import episodes_of
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.episodes import ACTIONS, TURN_PARTS
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import RewardShaping, Select
from vlrl.types import Group, Prompt, Rollout, Row

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
    found, both by environment `video_clips`; R_ret = R_ide for an answer without a request, as in the
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
    """A chat (`chat`) without the row's video: environment `video_clips` shows its frames.

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
                f"environment: {{name: video_clips}}"
            )
