"""Rewards of papers that score a response by criteria of a rubric or by principles, one question each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from vlrl.beside.judge import Judgement, Question, check_judge
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.scoring import NoScore
from vlrl.types import Group, Rollout, Row
from vlrl_rewards.combine.judged import AsksJudge, no_score, shown, texts_of
from vlrl_rewards.combine.nested import note
from vlrl_rewards.combine.rubrics import Rubric, vetoed

YES_NO_TIERS = ("no", "yes")


@register("rubric_anchors")
@dataclass(frozen=True, kw_only=True)
class RubricAnchors(Rubric):
    """Rubicon's reward: a rubric whose criteria have ordered tiers, with vetoes, diminishing returns, pairs
    of criteria, and a curve that spreads good responses.

        s_k = tier / (tiers - 1),  f(s) = (1 - e^(-saturation s)) / (1 - e^(-saturation))
        R = [sum_k p_k f(s_k) + sum_kl p_kl s_k s_l] / best, within [0, 1]
        r = (e^(spread R) - 1) / (e^spread - 1)

    A failed `veto` makes r = 0. `meta.rubrics` and `bank` are those of reward `rubric`; a criterion may have
    `tiers`, texts from worst to best (else no, yes), and `pairs: {other criterion: points}`. Criteria of
    negative points are taken off as they are. Paper: Huang et al. 2025 (Rubicon), arXiv:2508.12790, sec. 2.3,
    in words alone: both curves and the products are ours. Edge: as `rubric`, but r is 0 to 1.
    """

    template: ClassVar[str] = "tiers"
    saturation: float = 2.0
    spread: float = 2.0

    def __post_init__(self) -> None:
        if self.saturation < 0 or self.spread < 0:
            raise ConfigError(
                f"rewards: {self.name!r}: saturation={self.saturation} and spread={self.spread} must not be "
                "negative; 0 is a straight line"
            )

    def question(self, rollout: Rollout, item: Mapping[str, Any]) -> Question:
        tiers = "\n".join(f"{number}: {text}" for number, text in enumerate(tiers_of(item)))
        criteria = f"Criterion: {item['criterion']}\nTiers:\n{tiers}"
        values = (("question", rollout.row.question), ("answer", shown(rollout)), ("criteria", criteria))
        return Question(values, rollout.prompt.images, rollout.prompt.videos)

    def share(self, item: Mapping[str, Any], judgement: Judgement) -> float | None:
        """tier / (tiers - 1); None for a tier that the criterion does not have."""
        if judgement.value is None:
            return None
        share = 10 * judgement.value / (len(tiers_of(item)) - 1)
        return share if share <= 1 + 1e-9 else None

    def total(self, items: Sequence[Mapping[str, Any]], met: Sequence[float]) -> float:
        if vetoed(items, met):
            return 0.0
        shares = {str(item["criterion"]): share for item, share in zip(items, met, strict=True)}
        earned = best = 0.0
        for item, share in zip(items, met, strict=True):
            points = item["points"]
            earned += points * (curve(share, -self.saturation) if points > 0 else share)
            best += max(points, 0)
            for other, extra in item.get("pairs", {}).items():
                if other not in shares:
                    raise ValueError(f"criterion {item['criterion']!r}: pairs names {other!r}, which is none")
                earned += extra * share * shares[other]
                best += max(extra, 0)
        return curve(min(max(earned / best, 0.0), 1.0), self.spread)


def tiers_of(item: Mapping[str, Any]) -> Sequence[str]:
    """The tiers of a criterion, worst first. Raises ValueError for fewer than 2 or more than 11."""
    tiers: Sequence[str] = item.get("tiers", YES_NO_TIERS)
    if not 2 <= len(tiers) <= 11:
        raise ValueError(f"criterion {item['criterion']!r} has {len(tiers)} tiers; give 2 to 11")
    return tiers


def curve(x: float, k: float) -> float:
    """(e^(k x) - 1) / (e^k - 1): from 0 to 1; k above 0 is steep at the end, below 0 at the start."""
    return math.expm1(k * x) / math.expm1(k) if k else x


@register("yes_no_principles")
@dataclass(frozen=True, kw_only=True)
class YesNoPrinciples(AsksJudge):
    """RLBFF's reward: whether the response fulfils each of the principles, as yes or no.

        r = mean over principles of log P(yes) - log P(no), within `limit`;  scale "share": of P(yes)

    The principles are `principles` by task, "*" for all, or the row's `meta[key]`; a user of the reward picks
    them. P is over the judge's two choices, from `judge.logprobs`; a verdict without them has P = 1.
    Paper: Wang et al. 2025 (RLBFF), arXiv:2509.21319; card of nvidia/Qwen3-Nemotron-32B-GenRM-Principle:
    score_yes - score_no, each at least -50 below the best token. Deviates: the words of the prompt and the
    mean over several principles are ours. Edge: a principle without a verdict leaves no score; a row without
    any raises ValueError.
    """

    template: ClassVar[str] = "principle"
    reads_answer: ClassVar[bool] = False
    needs_gold: ClassVar[bool] = False
    principles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    key: str = "principles"
    scale: Literal["log_odds", "share"] = "log_odds"
    limit: float = 50.0

    def __post_init__(self) -> None:
        if self.limit <= 0:
            raise ConfigError(f"rewards: {self.name!r}: limit={self.limit} must be above 0")
        if not all(isinstance(texts, (list, tuple)) and texts for texts in self.principles.values()):
            raise ConfigError(
                f"rewards: {self.name!r}: principles must map a task (or '*') to a list of texts, got "
                f"{dict(self.principles)}"
            )

    def check(self, phase: PhaseContext) -> None:
        check_judge(self.judge, f"rewards: {self.name!r}: judge")

    def asked(self, group: Group) -> list[str]:
        """The principles of a group's row. Raises ValueError where it has none."""
        row: Row = group.row
        found = texts_of(group, self.key) or self.principles.get(row.task) or self.principles.get("*")
        if not found:
            raise ValueError(
                f"row {row.id!r}: no principles for task {row.task!r}; set `principles` of the reward "
                f"{self.name!r}, or meta.{self.key}"
            )
        return list(found)

    def questions(self, group: Group) -> list[Question]:
        media = (group.prompt.images, group.prompt.videos)
        return [
            Question(
                (("question", group.row.question), ("answer", shown(rollout)), ("principle", principle)),
                *media,
            )
            for rollout in group
            for principle in self.asked(group)
        ]

    def score_group(self, group: Group) -> list[float | NoScore]:
        if not len(group):
            return []
        asked = self.asked(group)
        found = iter(self.judgements(self.questions(group)))
        scores: list[float | NoScore] = []
        for rollout in group:
            verdicts = [next(found) for _ in asked]
            unread = next((verdict for verdict in verdicts if verdict.value is None), None)
            if unread is not None:
                scores.append(no_score(self, unread))
                continue
            values = [self.value(verdict.value or 0.0) for verdict in verdicts]
            for principle, value in zip(asked, values, strict=True):
                note(rollout, principle[:60], value)
            scores.append(math.fsum(values) / len(values))
        return scores

    def value(self, yes: float) -> float:
        """The score of P(yes)."""
        if self.scale == "share":
            return yes
        if not 0 < yes < 1:
            return self.limit if yes else -self.limit
        return min(max(math.log(yes) - math.log1p(-yes), -self.limit), self.limit)
