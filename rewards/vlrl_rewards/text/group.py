"""How unlike its siblings a rollout is."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, Literal

from vlrl.registry import register
from vlrl.stages import Reward
from vlrl.types import Group, Rollout
from vlrl_rewards.goldless import MAX_CHARS
from vlrl_rewards.textmetrics import bleu

_FORMULAS = (re.compile(r"\\\[([^\]]*?)\\\]"), re.compile(r"\\\(([^)]*?)\\\)"), re.compile(r"\$([^$]*?)\$"))


def formulas(text: str) -> set[str]:
    r"""What stands between \[ \], \( \) or $ $."""
    return {found for pattern in _FORMULAS for found in pattern.findall(text[:MAX_CHARS])}


@register("group_diversity")
@dataclass(frozen=True, kw_only=True)
class GroupDiversity(Reward):
    """formulas: r_i = |F_i - union of the others' F| / |F_i|, F_i the LaTeX formulas of rollout i;  text: r_i = 1 - mean over j != i of BLEU(i, j).

    Paper: Hu et al. 2025 (DIVER), arXiv:2509.26209 (equational and textual diversity; formulas as in the released code).  Deviates: BLEU is the
    sentence BLEU of `text_metric`, of the first 4,000 characters, without the release's floor of 0.09. Edge: no formula: 0; alone in its group: 0.
    No gold answer is read, so pay it to right rollouts only (shape `diver`). Range [0, 1].
    """

    reads_answer: ClassVar[bool] = False
    by: Literal["formulas", "text"] = "text"

    def __call__(self, rollout: Rollout) -> float:
        return 0.0

    def score(self, group: Group) -> list[float]:
        if len(group) < 2:
            return [0.0] * len(group)
        return self.of_formulas(group) if self.by == "formulas" else self.of_text(group)

    def of_formulas(self, group: Group) -> list[float]:
        """The share of a rollout's formulas that nobody else wrote."""
        own = [formulas(rollout.text) for rollout in group]
        counts = Counter(formula for found in own for formula in found)
        return [sum(counts[formula] == 1 for formula in found) / len(found) if found else 0.0 for found in own]

    def of_text(self, group: Group) -> list[float]:
        """How unlike the others' words a rollout's are."""
        texts = [rollout.text[:4000] for rollout in group]
        said = [any(char.isalnum() for char in text) for text in texts]
        return [
            1 - sum(bleu(text, other) for j, other in enumerate(texts) if j != i) / (len(texts) - 1) if said[i] else 0.0
            for i, text in enumerate(texts)
        ]
