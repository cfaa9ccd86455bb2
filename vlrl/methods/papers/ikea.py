"""IKEA: a search agent that searches only where its own knowledge does not reach.

    ikea           reward shaping: the knowledge-boundary reward
    ikea.balance   select: as many questions that the base model can answer alone as it cannot

Paper: Huang et al. 2025 (IKEA), arXiv:2505.07596; checked against hzy312/knowledge-r1 at 79c38e8,
verl/utils/reward_score/qa_em.py (compute_score_em), search_r1/llm_agent/generation.py and train_grpo_kb.sh.
Deviates: whether the base model can answer a question is read from the rows (`row.meta`), where the authors'
data set has it; the probing, several samples per question without search, is `vlrl data difficulty` with the
base model.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.core.select import SelectedRows
from vlrl.plugins.episodes import ACTIONS, EPISODE_END, INVALID_ACTIONS, TRANSCRIPT
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import RewardShaping, Select
from vlrl.types import Group, Rollout, Row

_WRONG_TAG = re.compile(r"[(\[](?:think|search|answer)|(?:think|search|answer)[)\]]")


@register("ikea")
@dataclass(frozen=True)
class Ikea(RewardShaping):
    """IKEA's knowledge-boundary reward, in place of the total. With n = number of searches (how often the
    policy wrote `call`):

        R = -1                                  if malformed
            1 + max(0, bonus - step n)          if correct
            wrong_searched if n > 0 else 0      otherwise

    Malformed: no thought (`<think>`, `</think>`), a tag in other brackets, in a passage too ("(research)"),
    or a turn that neither searches nor answers. Correct: the row's outcome. `call` "<tool_call>" counts the
    calls of another tool in place of searches.
    Paper: Huang et al. 2025 (IKEA), arXiv:2505.07596, sec. 3 (knowledge-boundary-aware reward); values of the
    released qa_em.py: 0.6, 0.4, 0.2, 0 for 0, 1, 2, 3 searches, and 0.05. Edge: the last of `max_turns` turns
    is never malformed, nor is a cut one that ends the episode; a search that found nothing counts.
    """

    bonus: float = 0.6
    step: float = 0.2
    wrong_searched: float = 0.05
    malformed: float = -1.0
    call: str = "<search>"
    requires = (ACTIONS, EPISODE_END, INVALID_ACTIONS, TRANSCRIPT)

    def __post_init__(self) -> None:
        if self.bonus < 0 or self.step < 0:
            raise ValueError(f"bonus={self.bonus} and step={self.step} must not be negative")
        if not self.call:
            raise ValueError(
                "call is empty; give the text that opens a search or a call, as '<search>' or '<tool_call>'"
            )

    def __call__(self, group: Group) -> list[float]:
        return [self.value(rollout) for rollout in group]

    def value(self, rollout: Rollout) -> float:
        """The reward of one rollout."""
        searches = rollout.text.count(self.call)
        if not well_formed(rollout):
            return self.malformed
        if rollout.correct:
            return 1.0 + max(0.0, self.bonus - self.step * searches)
        return self.wrong_searched if searches else 0.0


def told_invalid(rollout: Rollout) -> int:
    """How many turns were answered that their action is invalid: all that had none but the last of
    `max_turns`, which nothing answers."""
    last = ACTIONS[rollout][-1] if EPISODE_END[rollout] == "max_turns" and ACTIONS[rollout] else "</answer>"
    return INVALID_ACTIONS[rollout] - (not re.search("</(?:search|answer|tool_call)>", last))


def well_formed(rollout: Rollout) -> bool:
    """Whether there is a thought, no tag has other brackets, in the replies neither, and every turn searches
    or answers."""
    text = rollout.text
    thinks = "<think>" in text and "</think>" in text
    acts = not told_invalid(rollout) and (EPISODE_END[rollout] != "done" or "</answer>" in text)
    return thinks and acts and not _WRONG_TAG.search(TRANSCRIPT.get(rollout, text))


@register("ikea.balance")
@dataclass(frozen=True)
class IkeaBalance(Select):
    """IKEA's training set: all rows of the smaller kind, and as many of the other, drawn at random. The
    kinds: `row.meta[key]` true, or not.

    Paper: Huang et al. 2025 (IKEA), arXiv:2505.07596, sec. 3 (a balanced mix of questions that the base model
    can and cannot answer). Order is kept. Raises ConfigError where a row has no such value, or all rows are
    of one kind.
    """

    key: str = "known"
    seed: int = 0

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        kinds: dict[bool, list[int]] = {True: [], False: []}
        for number, row in enumerate(rows):
            if self.key not in row.meta:
                raise ConfigError(
                    f"select: ikea.balance: row {row.id!r} has no meta[{self.key!r}]: whether the base "
                    "model can answer it alone"
                )
            kinds[bool(row.meta[self.key])].append(number)
        least = min(map(len, kinds.values()))
        if not least:
            raise ConfigError(
                f"select: ikea.balance: no row has meta[{self.key!r}] "
                f"{'true' if kinds[False] else 'false'}; both kinds are needed"
            )
        draw = random.Random(self.seed)
        return SelectedRows(
            rows, sorted(number for kind in (True, False) for number in draw.sample(kinds[kind], least))
        )
