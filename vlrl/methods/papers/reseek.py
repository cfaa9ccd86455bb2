"""ReSeek: a search agent that judges what it finds and leaves useless results behind.

    reseek          reward shaping: each verdict is paid by whether it is right
    reseek.search   environment: search with a JUDGE action

Paper: Li et al. 2025 (ReSeek), arXiv:2510.00568; checked against TencentBAC/ReSeek at d5a8330,
verl/utils/reward_score/reseek_rerank.py (compute_content_overlap_reward) and scripts/train_grpo.sh.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from vlrl.environments.search import ACTION, CorpusEpisode, Search
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.episodes import ACTIONS, EPISODE_END, FORGETS, SEGMENT, TURN_PARTS, Action, Observation
from vlrl.plugins.registry import register
from vlrl.plugins.stages import RewardShaping, StepCounts
from vlrl.plugins.tool_calls import last_call
from vlrl.services.http import JsonClient
from vlrl.types import Group, Rollout, Row, RowError

RIGHT, WRONG = ("yes_useful", "no_useless"), ("yes_useless", "no_useful")


@register("reseek")
@dataclass(frozen=True)
class Reseek(RewardShaping):
    """ReSeek's instructive reward: the total plus one term per verdict, where the episode ended with an
    answer.

        verdict                  answer correct   answer wrong
        Yes, result useful       reward           near penalty
        Yes, result useless      reward           penalty
        No, result useless       quiet reward     quiet reward
        No, result useful        penalty          penalty

    Correct: the row's outcome. Environment `reseek.search` states which results are useful (TURN_PARTS).
    Source: TencentBAC/ReSeek at d5a8330, reseek_rerank.py: overlap_positive_reward 0.1,
    overlap_negative_reward -0.05, factors 0.2 (`quiet`) and 0.5 (`near`). Paper: Li et al. 2025,
    arXiv:2510.00568, sec. 3. Deviates: the release's quarter of the score for more than 10 answer tags is
    left out. Edge: an episode that was cut, or ended without an answer, keeps its total; a Yes to a useless
    result is paid where the answer is correct, as in the release. Logs `reseek/right_verdicts`, the share of
    verdicts that agree with the label.
    """

    state_class = StepCounts
    reward: float = 0.1
    penalty: float = -0.05
    quiet: float = 0.2
    near: float = 0.5
    requires = (ACTIONS, EPISODE_END, TURN_PARTS)

    def __post_init__(self) -> None:
        if self.reward < 0 or self.penalty > 0 or not 0 <= self.quiet <= 1 or not 0 <= self.near <= 1:
            raise ValueError(
                f"reward={self.reward} must not be negative, penalty={self.penalty} not positive, "
                f"quiet={self.quiet} and near={self.near} in [0, 1]"
            )

    def __call__(self, group: Group) -> list[float]:
        for parts in (TURN_PARTS[rollout] for rollout in group if not SEGMENT.get(rollout, 0)):
            right, wrong = (math.fsum(parts.get(name, 0.0) for name in names) for names in (RIGHT, WRONG))
            self.state.add(right=right, all=right + wrong)
        return [rollout.reward + (self.paid(rollout) if answered(rollout) else 0.0) for rollout in group]

    def paid(self, rollout: Rollout) -> float:
        """What the verdicts of an episode earn."""
        yes = (self.reward, self.reward) if rollout.correct else (self.near * self.penalty, self.penalty)
        each = {
            "yes_useful": yes[0],
            "yes_useless": yes[1],
            "no_useful": self.penalty,
            "no_useless": self.quiet * self.reward,
        }
        parts = TURN_PARTS[rollout]
        return math.fsum(parts.get(name, 0.0) * value for name, value in each.items())

    def metrics(self) -> Mapping[str, float | tuple[float, float]]:
        return {"reseek/right_verdicts": self.state.share("right", "all")}


def answered(rollout: Rollout) -> bool:
    """Whether the episode ended with an answer: a last turn that holds a non-empty <answer> and calls no
    tool."""
    last = ACTIONS[rollout][-1] if ACTIONS[rollout] else ""
    inside = last.rpartition("<answer>")[2].partition("</answer>")
    return (
        EPISODE_END[rollout] == "done"
        and "<answer>" in last
        and bool(inside[1])
        and bool(inside[0].strip())
        and last_call(last) is None
    )


# --- the environment ----------------------------------------------------------------------------------------


JUDGE = re.compile(r"<judge>\s*(yes|no)\s*</judge>", re.IGNORECASE)
GO_ON = "Write a query between <search> and </search>, or the answer between <answer> and </answer>."


@register("reseek.search")
@dataclass(frozen=True, kw_only=True)
class ReseekSearch(Search):
    """ReSeek's search engine with a JUDGE action: `<judge>Yes</judge>` or `<judge>No</judge>` in the turn
    after a result says whether it is useful.

        C_t = tau_{t-1}, o_t   if the verdict is Yes (or there is none);   C_t = tau_{t-1}   if it is No

    A turn's first verdict counts. It states one reward part, 1 for `yes_useful`, `yes_useless`, `no_useful`
    or `no_useless`. Paper: Li et al. 2025 (ReSeek), arXiv:2510.00568, sec. 3; TencentBAC/ReSeek at d5a8330,
    utils/preprocess_reseek_dataset.py (tags), verl/utils/reward_score/{reseek_rerank,reseek_regex}.py.
    Deviates: the release leaves dropping to the policy (search/llm_agent/generation.py); a note in place of
    o_t; whole words in place of any substring; a verdict counts for its own result only. Edge: a verdict
    without a result says nothing; a row without a gold answer is a RowError; a ranker that fails is the
    environment's failure; tags that the policy writes are no result.

    Attributes:
        drop: The turns after a No have not read o_t (the turn that judges has).
        ranker: URL of a server: a result is useful if its similarity to the gold answer is at least
            `threshold` (POST /score {"text_1", "text_2"} -> {"similarities"}, 0.5); without it, if it holds a
            gold answer as whole words, case left out.
    """

    drop: bool = True
    ranker: str = ""
    threshold: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold={self.threshold} is a similarity, between 0 and 1")

    @property
    def provides(self) -> Sequence[Capability]:
        return (FORGETS,) if self.drop else ()

    def episode(self) -> ReseekEpisode:
        return ReseekEpisode(self)

    @cached_property
    def client(self) -> JsonClient:
        """The connection to the ranker."""
        return JsonClient(self.ranker, timeout=self.call_seconds, attempts=2, deadline=self.call_seconds)

    def useful(self, result: str, golds: Sequence[str]) -> bool:
        """Whether a result helps to answer. Raises ServiceError or ConnectionError for a ranker that does not
        answer."""
        if not self.ranker:
            return any(re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", result, re.IGNORECASE) for gold in golds)
        answer = self.client.post("/score", {"text_1": [golds[0]], "text_2": [result]})
        found = answer.get("similarities") if isinstance(answer, dict) else None
        if not isinstance(found, list) or len(found) != 1 or not isinstance(found[0], (int, float)):
            raise ConnectionError(
                f'{self.client.url}: expected {{"similarities": [number]}}, got {str(answer)[:200]}'
            )
        return float(found[0]) >= self.threshold


class ReseekEpisode(CorpusEpisode):
    """Queries and verdicts of one conversation. `result` is what the last turn found, "" where it found
    nothing to judge."""

    def __init__(self, settings: ReseekSearch) -> None:
        super().__init__(settings)
        self.judging, self.golds, self.result = settings, list[str](), ""

    def reset(self, row: Row, seed: int) -> Observation:
        golds = row.answer if isinstance(row.answer, (list, tuple)) else [row.answer]
        self.golds = [str(gold).strip() for gold in golds if gold is not None and str(gold).strip()]
        if not self.golds:
            raise RowError(
                f"row {row.id!r}: environment 'reseek.search' compares what is found with the gold answer, "
                "and the row has none"
            )
        return super().reset(row, seed)

    def step(self, action: Action) -> Observation:
        verdict, result = JUDGE.search(action.text), self.result
        judged = verdict is not None and bool(result)
        answer = Observation(GO_ON) if judged and not ACTION.search(action.text) else super().step(action)
        self.result = answer.text if answer.calls else ""
        if verdict is None or not result:
            return answer
        said = verdict[1].lower()
        useful = "useful" if self.judging.useful(result, self.golds) else "useless"
        forget: Literal["", "observation"] = "observation" if said == "no" and self.judging.drop else ""
        return replace(answer, parts={f"{said}_{useful}": 1.0}, forget=forget)
