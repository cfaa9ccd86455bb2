"""Rewards for rankings by relevance, and for the table cells that the reasoning cites."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import Answer, GoldError, Response, Unread, Verdict
from vlrl.types import Row
from vlrl_rewards.format.structure import ndcg, ranked
from vlrl_rewards.graded import Graded
from vlrl_rewards.parsing import clean

_BEHIND = re.compile(r"</think>\s*<answer>")
_CELL = re.compile(r"<\|(.{1,200}?)\|><\|(.{1,200}?)\|>")


def average_overlap(said: Sequence[str], gold: Sequence[str]) -> float:
    """Mean over depths d of |first d of both| / d: rank-biased overlap with p = 1 (Webber et al. 2010)."""
    depth = min(len(said), len(gold))
    return sum(len(set(said[:d]) & set(gold[:d])) / d for d in range(1, depth + 1)) / depth if depth else 0.0


def behind_a_thought(response: Response) -> Answer:
    """The first `<answer>...</answer>` that follows a `<think>...</think>`, anywhere in the text."""
    opened = response.text.find("<think>")
    start = _BEHIND.search(response.text, opened) if opened >= 0 else None
    end = response.text.find("</answer>", start.end()) if start else -1
    if start is None or end < 0:
        raise Unread("not the format of a thought and an answer", response.whole)
    return Answer(response.text[start.end() : end], start.end(), end, "tag")


@register("rerank")
@dataclass(frozen=True, kw_only=True)
class Rerank(Graded):
    """ReasonRank's multi-view ranking reward.

        r = nDCG@k + recall_weight Recall@k + overlap_weight AO(answer, gold order)

    r = 0 for other ids than the gold's, -1 without the format. AO: average overlap, which is rank-biased
    overlap with p = 1. Gold answer: the ids in their best order; `row.meta[relevant]`: the relevant ids.
    Answer: "[2] > [1] > [3]" or a list, in the first `<answer>` behind a closed `<think>`. Paper: ReasonRank,
    arXiv:2508.07050 (multi-view ranking reward); released code: k 10, 0.2 and 0.1, p 1. Deviates:
    rewards/DEVIATIONS.md. Edge: no relevant ids, or some that are not in the gold order, raise ValueError.
    Range [-1, 1 + recall_weight + overlap_weight].
    """

    k: int = 10
    recall_weight: float = 0.2
    overlap_weight: float = 0.1
    relevant: str = "relevant"

    def lowest(self) -> float:
        return -1.0

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        wanted = [str(item).strip(" []").casefold() for item in gold or ()]
        relevant = {str(item).strip(" []").casefold() for item in row.meta.get(self.relevant, ())}
        if not relevant or len(set(wanted)) != len(wanted) or not relevant <= set(wanted):
            raise GoldError(
                f"row {row.id!r}: needs an order of different ids as the answer, and "
                f"meta[{self.relevant!r}] among them"
            )
        answer = behind_a_thought(response)
        said = ranked(answer.text) if len(answer.text) < 20_000 else []
        if sorted(said) != sorted(wanted) or len(re.findall(r"[^\s\[\]>,;]+", answer.text)) != len(wanted):
            return self.scored(answer, 0.0, False, "other ids than the gold's")
        recall = len(relevant & set(said[: self.k])) / len(relevant)
        score = (
            ndcg(said, dict.fromkeys(relevant, 1.0), self.k)
            + self.recall_weight * recall
            + self.overlap_weight * average_overlap(said, wanted)
        )
        return self.scored(answer, score, None, f"recall {recall:.2f}")


@register("table_evidence")
@dataclass(frozen=True, kw_only=True)
class TableEvidence(Graded):
    """Reasoning-Table's evidence reward: cited table cells.

        r = |C & G| / |C | G|

    C: the cells <|value|><|column|> that the text cites, G: the gold cells.
    Paper: Reasoning-Table, arXiv:2506.01710 (evidence reward; pairs and Jaccard index as in its release). The
    cells are read in the whole text, thinking included. Gold: `row.meta[cells]`, a list of [value, column].
    Deviates: case and white space are ignored; more than `most` times the number of gold cells: 0. Edge: no
    cell: 0. No gold cells raise ValueError. Range [0, 1].
    """

    cells: str = "cells"
    most: int = 10

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        wanted = {
            _cell(*pair)
            for pair in row.meta.get(self.cells, ())
            if isinstance(pair, (list, tuple)) and len(pair) == 2
        }
        if not wanted:
            raise GoldError(f"row {row.id!r}: meta[{self.cells!r}] must be a list of [value, column]")
        said = {_cell(*pair) for pair in _CELL.findall(response.text[:100_000])}
        score = len(said & wanted) / len(said | wanted) if len(said) <= self.most * len(wanted) else 0.0
        return self.scored(response.whole, score, None, f"{len(said & wanted)} of {len(wanted)} cells")


def _cell(value: object, column: object) -> tuple[str, str]:
    return clean(str(value)).casefold(), clean(str(column)).casefold()
