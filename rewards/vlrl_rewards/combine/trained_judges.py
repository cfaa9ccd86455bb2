"""Rewards for judges that are trained, and for policies that are paid by how much better they are than their
siblings."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import ClassVar

from vlrl.beside.judge import MARGINS, Question, check_judge
from vlrl.beside.templates import JudgeTemplate, load_template
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, NoScore
from vlrl.plugins.stages import Reward
from vlrl.types import Group, Rollout
from vlrl_rewards.combine.judged import AsksJudge, shown
from vlrl_rewards.parsing import strip_thinking

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_STRENGTH = re.compile(r"(?:\\boxed\{)?\s*([+-]?[1-3])\s*\}?")


@register("judge_verdict")
@dataclass(frozen=True, kw_only=True)
class JudgeVerdict(Reward):
    """The reward of a judge that is trained: 1 if its verdict is the label, else 0.

        r = 1[the verdict of the response, read by `template`, is the row's answer]

    The row's answer is a verdict of the template, as select `judge_rows` writes it. Paper: Zhou et al. 2025
    (Libra), arXiv:2507.21645, sec. 4 (the judging of solutions as a task with a verifiable answer). Edge: no
    verdict, two different ones, or one in the thinking alone are worth 0: here they are the policy's; an
    answer that is no verdict raises GoldError. 0 or 1.
    """

    template: str = "correctness"

    @property
    def loaded(self) -> JudgeTemplate:
        """The template."""
        return load_template(self.template)

    def __call__(self, rollout: Rollout) -> float:
        gold = self.loaded.read(f"{self.loaded.label}: {rollout.row.answer}")
        if gold.value is None:
            raise GoldError(
                f"row {rollout.row.id!r}: the answer {rollout.row.answer!r} is no verdict of template "
                f"{self.template!r}"
            )
        found = self.loaded.read(rollout.text)
        return float(found.value is not None and math.isclose(found.value, gold.value, abs_tol=1e-9))


@register("preference_strength")
@dataclass(frozen=True, kw_only=True)
class PreferenceStrength(Reward):
    """Think-RM's reward for a judge of pairs that is trained: how much better the second response is.

        r = 1 if the strength is the label, 1/2 if only its sign is, else 0;  strengths are -3 to 3 without 0

    The strength is the whole of the last `<answer>` behind the thoughts, perhaps in \\boxed{}.
    Paper: Hong et al. 2025 (Think-RM), arXiv:2505.16265; released code: IlgeeHong/Think-RM at 2976ace,
    VERL/verl/utils/reward_score/naive-reasoning-multiclass.py. Deviates: there the last digit of 1 to 3 in
    the answer counts, so that "13" or "1 or 3" are a 3. Edge: another label raises GoldError. 0, 1/2 or 1.
    """

    def __call__(self, rollout: Rollout) -> float:
        gold = strength(str(rollout.row.answer))
        if not gold:
            raise GoldError(
                f"row {rollout.row.id!r}: the answer {rollout.row.answer!r} is no strength from -3 to 3, "
                "without 0"
            )
        written = _ANSWER.findall(strip_thinking(rollout.text))
        found = strength(written[-1]) if written else 0
        if found == gold:
            return 1.0
        return 0.5 if found * gold > 0 else 0.0


def strength(text: str) -> int:
    """A strength from -3 to 3; 0 for a text that is none."""
    match = _STRENGTH.fullmatch(text.strip())
    return int(match[1]) if match else 0


@register("judged_margins")
@dataclass(frozen=True, kw_only=True)
class JudgedMargins(AsksJudge):
    """Think-RM's pairwise reward: how much better a response is than its siblings, by a judge of strengths.

        r_i = sum_j d_ij / G,  d_ij = -d_ji from -3 to 3, d_ii = 0

    Each pair is asked once, as in the release, the earlier one as A. MARGINS has the row d_i for advantage
    `think_rm`. Paper: Hong et al. 2025 (Think-RM), arXiv:2505.16265; released code: IlgeeHong/Think-RM at
    2976ace, PairwiseRLHF/verl/workers/reward_manager/batch_pref.py. Deviates: a pair without a verdict is
    left out, and the others count for it (there it is a tie). Edge: a rollout without any verdict has no
    score; a group of one has 0. -3 to 3.
    """

    template: ClassVar[str] = "margin"
    reads_answer: ClassVar[bool] = False
    needs_gold: ClassVar[bool] = False
    correct_at: float = 0.0

    def check(self, phase: PhaseContext) -> None:
        check_judge(self.judge, f"rewards: {self.name!r}: judge")

    def pairs(self, group: Group) -> list[tuple[int, int]]:
        """The places of the responses that are compared."""
        return [(i, j) for i in range(len(group)) for j in range(i + 1, len(group))]

    def questions(self, group: Group) -> list[Question]:
        row, texts = group.row, [shown(rollout) for rollout in group]
        media = (group.prompt.images, group.prompt.videos)
        return [
            Question((("question", row.question), ("answer_a", texts[i]), ("answer_b", texts[j])), *media)
            for i, j in self.pairs(group)
        ]

    def score_group(self, group: Group) -> list[float | NoScore]:
        size = len(group)
        margins: list[list[float | None]] = [[None] * size for _ in group]
        for (i, j), judgement in zip(self.pairs(group), self.judgements(self.questions(group)), strict=True):
            if judgement.value is not None:
                worse = 6 * judgement.value - 3  # of the template: above 0 where B is better
                margins[i][j], margins[j][i] = -worse, worse
        scores: list[float | NoScore] = []
        for place, rollout in enumerate(group):
            known = [value for value in margins[place] if value is not None]
            MARGINS.set(rollout, known)
            if size > 1 and not known:
                scores.append(NoScore(f"reward {self.name!r}: no comparison with a sibling could be read"))
                continue
            scores.append(math.fsum(known) / max(len(known), 1) * (size - 1) / size)
        return scores
