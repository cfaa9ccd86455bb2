"""ReSeek's search: the policy judges what it found; what it judges useless is taken out of the context of
later turns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from vlrl.environments.search import ACTION, CorpusEpisode, Search
from vlrl.methods.common.conversation import FORGETS
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.episodes import Action, Observation
from vlrl.plugins.registry import register
from vlrl.services.http import JsonClient
from vlrl.types import Row, RowError

JUDGE = re.compile(r"<judge>\s*(yes|no)\s*</judge>", re.IGNORECASE)
GO_ON = "Write a query between <search> and </search>, or the answer between <answer> and </answer>."


@register("reseek")
@dataclass(frozen=True, kw_only=True)
class Reseek(Search):
    """ReSeek's search engine with a JUDGE action: `<judge>Yes</judge>` or `<judge>No</judge>` in the turn
    after a result says whether it is useful.

        C_t = tau_{t-1}, o_t   if the verdict is Yes (or there is none);   C_t = tau_{t-1}   if it is No

    The turn that judges has read o_t; with `drop` the turns after a No have not. The first verdict of a turn
    counts; it may stand alone, or with the next query or the answer. Each verdict states one reward part, 1
    for `yes_useful`, `yes_useless`, `no_useful` or `no_useless`, which reward shaping `reseek` pays. A result
    is useful if it holds a gold answer as whole words, case left out; with `ranker`, the URL of a server, if
    its similarity to the gold answer is at least `threshold`.
    Paper: Li et al. 2025 (ReSeek), arXiv:2510.00568, sec. 3 (dynamic self-correction); TencentBAC/ReSeek at
    d5a8330,
    utils/preprocess_reseek_dataset.py (tags), verl/utils/reward_score/reseek_rerank.py (POST /score
    {"text_1", "text_2"} -> {"similarities"}, 0.5) and reseek_regex.py (the gold answer in the result).
    Deviates: the release leaves dropping to the policy (its search/llm_agent/generation.py keeps every result
    in the context), a note in place of o_t keeps roles apart; whole words in place of any substring; a
    verdict counts for the result that its turn answers, not for every result before it.
    Edge: a verdict without a result before it says nothing; a row without a gold answer is a RowError; a
    ranker that fails is the environment's failure. Only what the retriever returned is judged: tags that the
    policy writes around words of its own are no result.
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

    def __init__(self, settings: Reseek) -> None:
        super().__init__(settings)
        self.judging, self.golds, self.result = settings, list[str](), ""

    def reset(self, row: Row, seed: int) -> Observation:
        golds = row.answer if isinstance(row.answer, (list, tuple)) else [row.answer]
        self.golds = [str(gold).strip() for gold in golds if gold is not None and str(gold).strip()]
        if not self.golds:
            raise RowError(
                f"row {row.id!r}: environment 'reseek' compares what is found with the gold answer, and "
                "the row has none"
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
