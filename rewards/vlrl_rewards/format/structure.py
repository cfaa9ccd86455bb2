"""Kinds for structured answers: list, json, table, ranking, and brier (a probability)."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from vlrl.plugins.scoring import Answer, GoldError, Response, Unread, Verdict, verdict
from vlrl.types import Row
from vlrl_rewards.kinds import verifier
from vlrl_rewards.parsing import clean, committed, final_answer
from vlrl_rewards.text.denials import refuses
from vlrl_rewards.text.metrics import f_score
from vlrl_rewards.text.verifier import body, folded

MAX_CHARS = 100_000
_FENCE = re.compile(r"```(?:json|JSON|csv|markdown|md)?[ \t]*\n(.*?)```", re.DOTALL)
_BULLET = re.compile(r"^\s*(?:[-*•]|\(?\d{1,3}[.)]|\(?[a-z][.)])\s+")


def _said(response: Response) -> Answer:
    """The committed answer, or the visible text. Raises Unread where there is none."""
    stated = committed(response.text)
    if stated is not None and stated.problem:
        raise Unread(stated.problem, stated)
    answer = body(response)
    if (
        stated is not None
        and stated.route in ("box", "boxes", "phrase")
        and not answer.text.startswith(("{", "[", "|", "`"))
    ):
        answer = stated
    if len(answer.text) > MAX_CHARS or refuses(answer.text[:1000]):
        raise Unread("too long" if len(answer.text) > MAX_CHARS else "a refusal", answer)
    return answer


def items_of(text: str) -> list[str]:
    """The folded items of "a, b and c", "[a; b]", bullets or lines."""
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        loaded = loads(text)
        if isinstance(loaded, list):
            return [folded(str(item)) for item in loaded]
        text = text[1:-1]
    lines = [_BULLET.sub("", line) for line in text.splitlines() if line.strip()]
    if len(lines) == 1:
        lines = (
            re.split(r"\s*[;|]\s*", lines[0])
            if re.search(r"[;|]", lines[0])
            else re.split(r"\s*,\s*(?:and\s+)?|\s+and\s+", lines[0])
        )
    return [item for item in (folded(line) for line in lines) if item]


@verifier("list")
def list_kind(response: Response, gold: Any, row: Row, *, ordered: bool = False) -> Verdict:
    """Score: F1 of the items as a multiset, or with `ordered` the share of correct positions. Correct: score
    1."""
    listed = isinstance(gold, (list, tuple, set))
    wanted = [folded(str(item)) for item in gold] if listed else items_of(str(gold or ""))
    if not wanted or not all(wanted):
        raise GoldError(f"gold: {gold!r} has no items")
    answer = _said(response)
    items = items_of(answer.text)
    if ordered:
        score = sum(a == b for a, b in zip(items, wanted)) / max(len(items), len(wanted))
    else:
        score = f_score(sum((Counter(items) & Counter(wanted)).values()), len(items), len(wanted))
    return verdict(answer, score, score == 1.0, f"{len(items)} items, {score:.3f}", "items")


def loads(text: str) -> Any:
    """JSON from `text`: whole, from its last fenced block, or from its only outermost object; None if there
    is none."""
    fenced = _FENCE.findall(text)
    for piece in ([fenced[-1]] if fenced else []) + [text]:
        piece = piece.strip()
        if piece.count("[") + piece.count("{") > 2000:
            return None
        start = next((i for i, char in enumerate(piece) if char in "{["), None)
        for candidate in (piece, piece[start:] if start is not None else ""):
            try:
                value, end = json.JSONDecoder(parse_constant=lambda _: None).raw_decode(candidate)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, (dict, list)) and not re.search(r"[{\[]", candidate[end:]):
                return value
    return None


def leaves(value: Any, path: str = "") -> dict[str, str]:
    """Path -> folded value of every leaf; the index of a list item is part of its path."""
    if isinstance(value, Mapping):
        return {
            k: v
            for key, child in value.items()
            for k, v in leaves(child, f"{path}.{str(key).casefold().strip()}").items()
        }
    if isinstance(value, (list, tuple)):
        return {k: v for i, child in enumerate(value) for k, v in leaves(child, f"{path}[{i}]").items()}
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return {path: folded(str(value)) or clean(str(value))}


@verifier("json", "fields")
def json_kind(response: Response, gold: Any, row: Row, *, exact_fields: bool = True) -> Verdict:
    """Score: F1 of the leaves (path and value) of the JSON answer. Correct: every gold leaf and, with
    `exact_fields`, no other."""
    meant = loads(gold) if isinstance(gold, str) else gold
    wanted = leaves(meant)
    if meant is None or not wanted or list(wanted) == [""]:
        raise GoldError(f"gold: {gold!r} is no JSON object or list")
    answer = _said(response)
    value = loads(answer.text)
    if value is None:
        raise Unread("no JSON in the answer", answer)
    mine = leaves(value)
    matched = sum(mine.get(path) == leaf for path, leaf in wanted.items())
    score = f_score(matched, len(mine), len(wanted))
    correct = matched == len(wanted) and (len(mine) == len(wanted) or not exact_fields)
    return verdict(answer, score, correct, f"{matched} of {len(wanted)} fields, {len(mine)} given", "json")


def rows_of(text: str) -> list[list[str]]:
    """The folded cells of a markdown, tab-, semicolon- or comma-separated table, without the line under a
    markdown head."""
    fenced = _FENCE.findall(text)
    lines = [line.strip() for line in (fenced[-1] if fenced else text).strip().splitlines() if line.strip()]
    mark = next(
        (mark for mark in ("|", "\t", ";", ",") if lines and all(mark in line for line in lines)), "|"
    )
    rows = [
        [clean(cell) for cell in line.strip("|").split(mark)]
        for line in lines
        if mark in line or len(lines) == 1
    ]
    return [
        [folded(cell) for cell in row]
        for row in rows
        if not all(re.fullmatch(r":?-{2,}:?", cell) for cell in row)
    ]


@verifier("table")
def table(response: Response, gold: Any, row: Row) -> Verdict:
    """Score: F1 of cells at their (row, column). Correct: the same table. gold: a list of rows, or a table in
    text."""
    listed = isinstance(gold, (list, tuple)) and all(isinstance(line, (list, tuple)) for line in gold)
    lines = [[folded(str(cell)) for cell in line] for line in gold] if listed else []
    lines = rows_of(gold) if isinstance(gold, str) else lines
    if not lines or not any(lines):
        raise GoldError(f"gold: {gold!r} is no table")
    answer = _said(response)
    wanted = {(i, j): cell for i, line in enumerate(lines) for j, cell in enumerate(line)}
    mine = {(i, j): cell for i, line in enumerate(rows_of(answer.text)) for j, cell in enumerate(line)}
    score = f_score(sum(mine.get(place) == cell for place, cell in wanted.items()), len(mine), len(wanted))
    return verdict(answer, score, mine == wanted, f"{len(mine)} cells, {score:.3f}", "table")


def ranked(text: str) -> list[str]:
    """The items of a ranking ("[2] > [1]", a list, lines); an item counts at its first position only."""
    text = clean(text.replace("\n", " ; ")) if "\n" in text else clean(text)
    loaded = loads(text) if text.startswith("[") and text.endswith("]") and ">" not in text else None
    parts = [str(item) for item in loaded] if isinstance(loaded, list) else re.split(r"\s*(?:>|,|;)\s*", text)
    return [
        item
        for item in dict.fromkeys(_BULLET.sub("", part).strip(" []().\"'").casefold() for part in parts)
        if item
    ]


def ndcg(order: Sequence[str], gains: Mapping[str, float], k: int = 0) -> float:
    """nDCG@k: DCG / DCG of the best order, DCG = sum (2^rel - 1) / log2(position + 1) (Burges et al.
    2005)."""

    def dcg(values: Sequence[float]) -> float:
        return sum(
            (2**value - 1) / math.log2(place + 2) for place, value in enumerate(values[:k] if k else values)
        )

    best = dcg(sorted(gains.values(), reverse=True))
    return dcg([gains.get(item, 0.0) for item in order]) / best if best else 0.0


@verifier("ranking")
def ranking(response: Response, gold: Any, row: Row, *, metric: str = "ndcg", k: int = 0) -> Verdict:
    """nDCG@k or recall@k of the answer's ranking (k = 0: all). gold: {item: relevance}, or the relevant
    items, best first.

    Correct: score 1. A repeated item counts at its first position; an unknown item takes a position.
    """
    if metric not in ("ndcg", "recall"):
        raise ValueError(f"metric: {metric!r} is none of 'ndcg', 'recall'")
    given = gold
    if isinstance(gold, str):
        gold = ranked(gold)
    weights = gold.values() if isinstance(gold, Mapping) else ()
    if not isinstance(gold, (Mapping, list, tuple)) or not all(
        isinstance(value, (int, float)) for value in weights
    ):
        raise GoldError(
            f"gold: {given!r:.200} is no ranking; give the relevant items as a list, or {{item: relevance}}"
        )
    pairs = (
        list(gold.items())
        if isinstance(gold, Mapping)
        else [(item, float(len(gold) - i)) for i, item in enumerate(gold)]
    )
    gains = {str(item).strip(" []").casefold(): float(value) for item, value in pairs}
    relevant = {item for item, value in gains.items() if value > 0}
    if not relevant:
        raise GoldError(f"gold: {given!r} names nothing relevant")
    answer = _said(response)
    order = ranked(answer.text)
    top = set(order[:k] if k else order[: len(gains)])
    score = (
        ndcg(order, gains, k)
        if metric == "ndcg"
        else len(top & relevant) / min(len(relevant), k or len(relevant))
    )
    return verdict(answer, score, score >= 1.0 - 1e-12, f"{metric} {score:.3f}", "ranking")


def probability(text: str) -> float | None:
    """The probability of "0.7", "70%" or "p = 0.7"; None for anything else."""
    found = re.fullmatch(
        r"(?:[pP](?:robability)?\s*[=:]\s*)?(\d{1,3}(?:\.\d{1,12})?|\.\d{1,12})\s*(%?)",
        clean(text).rstrip(".").strip("$ "),
    )
    if found is None:
        return None
    value = float(found[1]) / (100 if found[2] else 1)
    return value if 0.0 <= value <= 1.0 else None


@verifier("brier")
def brier(response: Response, gold: Any, row: Row) -> Verdict:
    """score = 1 - (p - y)^2 for a stated probability p and an outcome y in {0, 1} (Brier 1950); correct: p is
    on the side of y."""
    if gold not in (0, 1, "0", "1", "yes", "no", True, False):
        raise GoldError(f"gold: {gold!r} is no outcome; give 0 or 1")
    happened = gold in (1, "1", "yes", True)
    answer = final_answer(response)
    p = probability(answer.text)
    if p is None:
        raise Unread("no probability", answer)
    right_side = (p > 0.5) == happened and p != 0.5
    return verdict(answer, 1 - (p - happened) ** 2, right_side, f"p = {p:g}", "probability")
