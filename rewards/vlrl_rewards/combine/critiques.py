"""Rewards of verifiers that are trained: whether a critic's or a chain's verdicts are right, and what another
model makes of a critique."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Literal

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError
from vlrl.plugins.stages import Reward
from vlrl.types import Group, Message, Prompt, Rollout, Row
from vlrl_rewards.combine.solver_gain import SolverGain
from vlrl_rewards.parsing import strip_thinking

CORRECT = "Correctness of the final answer: Correct"
WRONG = "Correctness of the final answer: Wrong"
REFINE = (
    "This is a critique of your solution, step by step. Read it with care, and follow it: solve the problem "
    "again with all steps, and end with the final answer.\n\n{text}"
)


def verdict_is_right(rollout: Rollout) -> bool:
    """Whether a critique's only verdict is the row's label: "yes" for a right solution, "no" for a wrong one.

    Both verdicts, or none, is no verdict. Raises GoldError for another label.
    """
    label = str(rollout.row.answer)
    if label not in ("yes", "no"):
        raise GoldError(
            f"row {rollout.row.id!r}: the answer {label!r} is no label of a solution; use yes or no"
        )
    text = strip_thinking(rollout.text)
    said = [CORRECT in text, WRONG in text]
    return said == [label == "yes", label == "no"]


@register("critique_verdict")
@dataclass(frozen=True, kw_only=True)
class CritiqueVerdict(Reward):
    """Critique-RL's first stage: 1 if the critique's verdict on the solution is right, else -1.

    The verdict is the line "Correctness of the final answer: Correct" (or Wrong); the row's answer is "yes"
    for a right solution. Paper: Xi et al. 2025 (Critique-RL), arXiv:2510.24320, sec. 4; released code:
    WooooDyy/Critique-RL at 06283864, RL/Critique-RL/reward/reward_func.py:24-73. Deviates: who writes both
    verdicts is paid -1 (there the right one counts). -1 or 1.
    """

    def __call__(self, rollout: Rollout) -> float:
        return 1.0 if verdict_is_right(rollout) else -1.0


@register("critique_refinement")
@dataclass(frozen=True, kw_only=True)
class CritiqueRefinement(SolverGain):
    """Critique-RL's second stage: what a fixed actor makes of its solution by the critique, and the verdict.

        r = r_mode + `verdict` if the critique's verdict is right, else -1

    c is the share of right refinements, o = 1 for a right solution: refine c, delta c - o, correct c for a
    wrong solution and 0.2 c for a right one. The actor sees problem, solution and critique as a conversation.
    Paper: Xi et al. 2025 (Critique-RL), arXiv:2510.24320, sec. 4; released code: reward_func.py:76-182
    (0.2). Edge: the actor is not asked behind a wrong verdict. -1 to 1.2; correct where the verdict is right.
    """

    needs_gold: ClassVar[bool] = True
    ask: str = REFINE
    mode: Literal["refine", "delta", "correct"] = "refine"
    verdict: float = 0.2
    part: Literal["answer", "text"] = "text"

    def score_group(self, group: Group) -> list[float]:
        right = [verdict_is_right(rollout) for rollout in group]
        asked = [place for place, known in enumerate(right) if known]
        texts = [self.filled(self.ask, group.row, self.written(group.rollouts[i].text)) or "" for i in asked]
        shares = dict(zip(asked, self.accuracies(texts, group.row) if texts else (), strict=True))
        self.state.asked += len(asked)
        self.state.gained += sum(shares.values())
        return [
            self.helped(shares[i], group.row) + self.verdict if i in shares else -1.0
            for i in range(len(group))
        ]

    def helped(self, share: float, row: Row) -> float:
        """r_mode of a share of right refinements."""
        before = float(str(row.answer) == "yes")
        if self.mode == "delta":
            return share - before
        return share * (0.2 if self.mode == "correct" and before else 1.0)

    def solver_prompt(self, row: Row) -> Prompt:
        """Problem, solution and request as the actor's conversation."""
        turns = (("user", row.meta["problem"]), ("assistant", row.meta["solution"]), ("user", row.question))
        messages: tuple[Message, ...] = tuple({"role": role, "content": str(text)} for role, text in turns)
        return Prompt(row, messages)

    def correct(self, rollout: Rollout, score: float) -> bool:
        return verdict_is_right(rollout)


_BOXED = re.compile(r"\\boxed\{(correct|incorrect)\}")


@register("step_verdicts")
@dataclass(frozen=True, kw_only=True)
class StepVerdicts(Reward):
    """ThinkPRM's check of a verification chain: 1 if the verdicts on all steps are as labelled, else 0.

    The verdicts are the chain's \\boxed{correct} and \\boxed{incorrect}, in order, behind its thoughts; the
    labels are `row.meta[labels]`, the probability that each step is right. Steps behind the first wrong one
    need no verdict (PRM800K labels none). Paper: Khalifa et al. 2025 (ThinkPRM), arXiv:2504.16828, sec. 3.
    Edge: another number of verdicts is wrong. 0 or 1.
    """

    labels: str = "step_labels"

    def __call__(self, rollout: Rollout) -> float:
        labels = rollout.row.meta.get(self.labels)
        if not isinstance(labels, (list, tuple)) or not labels:
            raise GoldError(
                f"row {rollout.row.id!r}: meta.{self.labels} must be a list with a label for each step"
            )
        wanted = [float(label) > 0.5 for label in labels]
        said = [word == "correct" for word in _BOXED.findall(strip_thinking(rollout.text))]
        first = wanted.index(False) + 1 if False in wanted else len(wanted)
        return float(said[:first] == wanted[:first] and first <= len(said) <= len(wanted))
