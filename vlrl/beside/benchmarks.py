"""Benchmarks of judges in their released schema, scored by their own rules.

    RewardBench 2             prompt, chosen [..], rejected [..], subset, id ("ref:3", "tied:3" of Ties)
    JudgeBench                question, response_A, response_B, label "A>B", source
    VL-RewardBench            id, image, query, response [..], human_ranking [0, 1]
    Multimodal RewardBench    ID, Image, Text, Output1, Output2, Better, Category

Sources: allenai/reward-bench rewardbench/utils.py (Ties), ScalerLab/JudgeBench utils/metrics.py,
vl-rewardbench/VL_RewardBench cal.py at 6f64385b (groups), facebookresearch/multimodal_rewardbench
scripts/2_get_accuracy.py at 3366b34a (groups). ProcessBench: `vlrl/beside/process_bench.py`.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vlrl.plugins.registry import ConfigError

TIES = "Ties"
# columns with the pictures of a record: bytes, a map with bytes or path, or a path; the first that it has
PICTURES = ("images", "image", "Image", "image_path")
# VL-RewardBench: its data sets, as the paths of its pictures name them, and how ids of each begin
VL_GROUPS = {
    "vlfeedback": "general",
    "wildvision-battle": "general",
    "povid": "hallucination",
    "rlhf-v": "hallucination",
    "rlaif-v": "hallucination",
    "reasoning_tasks": "reasoning",
}
VL_IDS = {
    "RLAIF": "rlaif-v",
    "RLHF": "rlhf-v",
    "mathverse": "reasoning_tasks",
    "mmmu": "reasoning_tasks",
    "wildvision": "wildvision-battle",
    "hallucination": "povid",
}
# Multimodal RewardBench: categories that are two, by how the id begins
SPLIT_CATEGORIES = {
    "safety": ("pairs", "safety/bias", "safety/toxicity"),
    "reasoning": ("math", "reasoning/math", "reasoning/coding"),
}


@dataclass(frozen=True)
class Compared:
    """Answers to a question, and the group of the benchmark that it counts in. `id`: of Ties."""

    question: str
    chosen: tuple[str, ...]
    rejected: tuple[str, ...]
    group: str = ""
    id: str = ""
    reference: str = ""


def compared(row: Mapping[str, Any], number: int) -> Compared | None:
    """A record of one of the benchmarks, or of {question, chosen, rejected}; None for a record with a label
    of one answer. Raises ConfigError for another one."""
    keys = set(row)
    if {"question", "answer", "label"} <= keys:
        return None
    if {"question", "response_A", "response_B", "label"} <= keys:
        return _ordered(row, "question", ("response_A", "response_B"), row["label"] == "A>B", "source")
    if {"Text", "Output1", "Output2", "Better"} <= keys:
        found = _ordered(row, "Text", ("Output1", "Output2"), row["Better"] == "Output1", "Category")
        return replace(found, group=multimodal_group(found.group, str(row.get("ID", ""))))
    if {"query", "response", "human_ranking"} <= keys:
        first, second = row["response"]
        ranks = row["human_ranking"]
        best = (first, second) if ranks[0] < ranks[1] else (second, first)
        question = str(row["query"]).replace("<image>\n", "")
        return Compared(question, (str(best[0]),), (str(best[1]),), vl_group(row))
    if {"chosen", "rejected"} <= keys:
        chosen, rejected = (
            tuple(str(text) for text in (row[key] if isinstance(row[key], (list, tuple)) else [row[key]]))
            for key in ("chosen", "rejected")
        )
        question = str(row.get("question", row.get("prompt", "")))
        names = (str(row.get(key, "")) for key in ("subset", "id", "reference"))
        return Compared(question, chosen, rejected, *names)
    raise ConfigError(
        f"judge check: record {number} has {sorted(row)}; it needs question, answer and label, or question, "
        "chosen and rejected, or the columns of RewardBench 2, JudgeBench, VL-RewardBench or Multimodal "
        "RewardBench"
    )


def vl_group(row: Mapping[str, Any]) -> str:
    """VL-RewardBench's group of a record: by the folder of its picture, its source, or how its id begins.

    >>> vl_group({"id": "mathverse_12"}), vl_group({"id": "x", "image_path": "images/povid/a.jpg"})
    ('reasoning', 'hallucination')
    """
    folders = str(row.get("image_path", "")).split("/")[1:2]
    for name in (*folders, str(row.get("query_source", "")).lower()):
        if name in VL_GROUPS:
            return VL_GROUPS[name]
    start = re.split("[_-]", str(row.get("id", "")), maxsplit=1)[0]
    return VL_GROUPS[VL_IDS.get(start, "vlfeedback")]


def multimodal_group(category: str, name: str) -> str:
    """Multimodal RewardBench's group of a record, from its category and its id.

    >>> multimodal_group("safety", "PAIRS_1"), multimodal_group("reasoning", "EMMA_1")
    ('safety/bias', 'reasoning/coding')
    """
    if category not in SPLIT_CATEGORIES:
        return category
    start, yes, no = SPLIT_CATEGORIES[category]
    return yes if name.lower().startswith(start) else no


def pictures_of(row: Mapping[str, Any]) -> list[Any]:
    """What a record has of its pictures, as stored; [] without any."""
    for name in PICTURES:
        value = row.get(name)
        if value is not None and value != "":
            return list(value) if isinstance(value, (list, tuple)) else [value]
    return []


def _ordered(
    row: Mapping[str, Any], question: str, answers: tuple[str, str], first_wins: bool, group: str
) -> Compared:
    best, other = (str(row[name]) for name in (answers if first_wins else answers[::-1]))
    return Compared(str(row[question]), (best,), (other,), str(row.get(group, "")))


def best_of(chosen: Sequence[float], rejected: Sequence[float]) -> float:
    """RewardBench 2's credit: 1 over the number of answers that share the highest score, 0 if none of them is
    a chosen one.

    >>> best_of([3.0], [1.0, 2.0]), best_of([3.0], [3.0, 1.0]), best_of([1.0], [2.0])
    (1.0, 0.5, 0.0)
    """
    best = max(*chosen, *rejected)
    winners = sum(value == best for value in (*chosen, *rejected))
    return 1.0 / winners if best in chosen else 0.0


def ties_score(rows: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> float:
    """RewardBench 2's score of its subset Ties, from (scores of right answers, of wrong ones) by record id
    "ref:N" or "tied:N".

        .3 tied accuracy + .3 ref accuracy + .2 preferred + .2 hard + .01 margin

    Accurate: the worst right answer is above the best wrong one, by a gap. Of prompts with both records:
    preferred where the tied gap is above the spread of the right answers, hard where both gaps are, margin
    tanh(smaller gap / spread - 1), 0 where that is no number.
    """
    gaps: dict[str, dict[str, float]] = {"ref": {}, "tied": {}}
    spreads: dict[str, float] = {}
    for name, (right, wrong) in rows.items():
        kind, _, number = name.partition(":")
        if kind not in gaps or not right or not wrong:
            raise ConfigError(
                f"judge check: record {name!r} of Ties has no id ref:N or tied:N, or no right or wrong answer"
            )
        gaps[kind][number] = min(right) - max(wrong)
        if kind == "tied":
            spreads[number] = max(right) - min(right)
    both = sorted(set(gaps["ref"]) & set(gaps["tied"]))
    smaller = {number: min(gaps["ref"][number], gaps["tied"][number]) for number in both}
    margins = [_margin(smaller[number], spreads[number]) for number in both]
    return (
        0.3 * mean([gap > 0 for gap in gaps["tied"].values()])
        + 0.3 * mean([gap > 0 for gap in gaps["ref"].values()])
        + 0.2 * mean([gaps["tied"][number] > spreads[number] for number in both])
        + 0.2 * mean([smaller[number] > spreads[number] for number in both])
        + 0.01 * mean(margins)
    )


def _margin(gap: float, spread: float) -> float:
    """tanh(gap / spread - 1); without a spread 1 or -1 by the gap's sign, and 0 for 0 / 0."""
    return math.tanh(gap / spread - 1) if spread else float((gap > 0) - (gap < 0))


def summary(credits: Sequence[tuple[str, float]], ties: Mapping[str, Any]) -> dict[str, Any]:
    """Overall accuracy, by group, and the mean over groups (`macro`); Ties is a group with its own score."""
    groups: dict[str, list[float]] = defaultdict(list)
    for group, credit in credits:
        groups[group].append(credit)
    by_group = {group: mean(values) for group, values in groups.items()}
    if ties:
        by_group[TIES] = ties_score(ties)
    found: dict[str, Any] = {"accuracy": mean([credit for _, credit in credits])}
    if set(by_group) - {""}:
        found |= {"macro": mean(list(by_group.values())), "by_group": by_group}
    return found


def mean(values: Sequence[bool | float]) -> float:
    """The mean; 0 without values."""
    return math.fsum(values) / len(values) if values else 0.0
