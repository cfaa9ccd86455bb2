"""Group-wise text rewards without a gold answer: majority votes across two views of a question, and diversity
within a group."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward
from vlrl.types import Group, Rollout
from vlrl_rewards.parsing import last_answer
from vlrl_rewards.text.metrics import bleu
from vlrl_rewards.text.verifier import folded

MAX_CHARS = 100_000
PARAPHRASED: Annotation[bool] = Annotation(
    "paraphrased", bool, hint="rollout: {name: co_reward}", doc="whether the rollout answers the paraphrase"
)
_FORMULAS = (re.compile(r"\\\[([^\]]*?)\\\]"), re.compile(r"\\\(([^)]*?)\\\)"), re.compile(r"\$([^$]*?)\$"))


def majority(answers: Sequence[str]) -> str:
    """The most frequent non-empty answer (the first of several); "" if there is none."""
    counts = Counter(answer for answer in answers if answer)
    return counts.most_common(1)[0][0] if counts else ""


@register("cross_vote")
@dataclass(frozen=True, kw_only=True)
class CrossVote(Reward):
    """Co-Reward: the majority answer of the other view of a question is the label.

        r = 1[answer = majority answer of the other view]

    The annotation PARAPHRASED is the view of a rollout.
    Paper: Zhang et al. 2025 (Co-Reward), arXiv:2508.00410; votes and cross-assignment as in the released
    code. Deviates: answers are read in every form that the verifiers read, not in boxes only, and compared
    after folding case, articles and punctuation, unless `exact` (the release's comparison).
    Edge: no answer: 0; a view without any answer: 0 for the other view. The gold answer is not read: views
    that agree on a wrong answer score 1, so monitor the accuracy of held-out rows. Range: 0 or 1.
    """

    reads_answer: ClassVar[bool] = False
    requires = (PARAPHRASED,)
    exact: bool = False

    def __call__(self, rollout: Rollout) -> float:
        return 0.0

    def score_group(self, group: Group) -> list[float]:
        said = [last_answer(rollout.text)[:2000] for rollout in group]
        answers = said if self.exact else [folded(answer) for answer in said]
        turned = [bool(PARAPHRASED.get(rollout, False)) for rollout in group]
        votes = {
            side: majority([a for a, t in zip(answers, turned, strict=True) if t is side])
            for side in (False, True)
        }
        return [
            float(answer != "" and answer == votes[not side])
            for answer, side in zip(answers, turned, strict=True)
        ]


def formulas(text: str) -> set[str]:
    r"""The texts between \[ \], \( \) or $ $."""
    return {found for pattern in _FORMULAS for found in pattern.findall(text[:MAX_CHARS])}


@register("group_diversity")
@dataclass(frozen=True, kw_only=True)
class GroupDiversity(Reward):
    """DIVER's diversity within a group.

        formulas:  r_i = |F_i - union of the others' F| / |F_i|
        text:      r_i = 1 - mean over j != i of BLEU(i, j)

    F_i: the LaTeX formulas of rollout i.
    Paper: Hu et al. 2025 (DIVER), arXiv:2509.26209 (equational and textual diversity; formulas as in the
    released code). Deviates: BLEU is the sentence BLEU of `text_metric`, of the first 4,000 characters,
    without the release's floor of 0.09. Edge: no formula: 0; a group of one: 0. The gold answer is not read,
    so apply it to correct rollouts only (reward shaping `diver`). Range [0, 1].
    """

    reads_answer: ClassVar[bool] = False
    by: Literal["formulas", "text"] = "text"

    def __call__(self, rollout: Rollout) -> float:
        return 0.0

    def score_group(self, group: Group) -> list[float]:
        if len(group) < 2:
            return [0.0] * len(group)
        return self.of_formulas(group) if self.by == "formulas" else self.of_text(group)

    def of_formulas(self, group: Group) -> list[float]:
        """The share of a rollout's formulas that no other rollout has."""
        own = [formulas(rollout.text) for rollout in group]
        counts = Counter(formula for found in own for formula in found)
        return [
            sum(counts[formula] == 1 for formula in found) / len(found) if found else 0.0 for found in own
        ]

    def of_text(self, group: Group) -> list[float]:
        """1 - the mean BLEU with the other rollouts."""
        texts = [rollout.text[:4000] for rollout in group]
        said = [any(char.isalnum() for char in text) for text in texts]
        return [
            1 - sum(bleu(text, other) for j, other in enumerate(texts) if j != i) / (len(texts) - 1)
            if said[i]
            else 0.0
            for i, text in enumerate(texts)
        ]
