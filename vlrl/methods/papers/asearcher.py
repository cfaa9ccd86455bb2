"""ASearcher: long searches with pages, trained asynchronously; the answer is paid where every turn has the
right form.

    asearcher   reward shaping: the answer's score where all turns are well formed

Paper: Gao et al. 2025 (ASearcher), arXiv:2508.07976; checked against inclusionAI/ASearcher at 813e804,
AReaL/ASearcher/train/asearcher.py (collect_agent_trajectory, arun_episode), AReaL/ASearcher/utils/rewards.py
(correct_format_fn) and configs/asearcher_local.yaml.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vlrl.plugins.episodes import ACTIONS
from vlrl.plugins.registry import register
from vlrl.plugins.stages import RewardShaping
from vlrl.types import Group, Rollout

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
TAGS = ("search", "access", "answer")
REFUSALS = (
    "question",
    "invalid",
    "appropriate",
    "valid",
)  # in an answer that says that the question has none


def well_formed(turn: str, thoughts: int = 1) -> bool:
    """Whether tags are closed, there is at most one action and `thoughts` ends of a thought, and nobody else
    is played."""
    closed = all(turn.count(f"<{tag}>") == turn.count(f"</{tag}>") for tag in TAGS)
    actions = sum(turn.count(f"<{tag}>") for tag in TAGS)
    ends = turn.count("</think>")
    return closed and actions <= 1 and ends <= thoughts and not re.search("[Aa]ssistant", turn)


@register("asearcher")
@dataclass(frozen=True)
class Asearcher(RewardShaping):
    """ASearcher's reward: R = r [every turn is well formed], and `refused` where the last answer calls the
    question invalid.

    r is the total so far (F1). A turn is well formed if <search>, <access> and <answer> are closed, at most
    one of them stands in it, "assistant" nowhere, and `</think>` at most once, or twice behind a reply, where
    the release samples a turn in two. Calling the question invalid: the last answer holds "question", "valid"
    or "appropriate". Paper: Gao et al. 2025 (ASearcher), arXiv:2508.07976, sec. 4; the rules and -0.5 are the
    release's. Edge: its instruction that allows such an answer (in 1 - valid_inst_ratio of the prompts) is
    not given, so that it is always refused.
    """

    refused: float = -0.5
    requires = (ACTIONS,)

    def __call__(self, group: Group) -> list[float]:
        return [self.value(rollout) for rollout in group]

    def value(self, rollout: Rollout) -> float:
        """The reward of one rollout."""
        answers = _ANSWER.findall(rollout.text)
        if answers and any(word in answers[-1] for word in REFUSALS):
            return self.refused
        turns = ACTIONS[rollout]
        return rollout.reward if all(well_formed(turn, 1 + (i > 0)) for i, turn in enumerate(turns)) else 0.0
