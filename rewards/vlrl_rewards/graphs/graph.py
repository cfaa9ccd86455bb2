"""Graph questions: a number, a word, a set of nodes, or a structure that a program checks."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Verdict
from vlrl.types import Row
from vlrl_rewards.boxes.reading import says_none
from vlrl_rewards.graded import Graded
from vlrl_rewards.puzzles.generated import read_integers
from vlrl_rewards.recognition.classification import normal_label
from vlrl_rewards.recognition.labels import read_labels


def _edges(meta: Any) -> set[frozenset[int]]:
    """The edges of the graph."""
    return {frozenset(edge) for edge in meta["edges"]}


def _is_walk(nodes: Sequence[int], meta: Any) -> bool:
    """Whether consecutive nodes are joined by edges."""
    return bool(nodes) and {frozenset(step) for step in itertools.pairwise(nodes)} <= _edges(meta)


def is_shortest_path(path: Sequence[int], meta: Any) -> bool:
    """Whether the nodes form a path of meta.length edges from meta.start to meta.end."""
    return (
        _is_walk(path, meta)
        and path[0] == meta["start"]
        and path[-1] == meta["end"]
        and len(path) - 1 == meta["length"]
    )


def is_colouring(colours: Sequence[int], meta: Any) -> bool:
    """Whether every node has a colour from 1 to meta.colours, and adjacent nodes have different ones."""
    fits = len(colours) == meta["nodes"] and all(1 <= colour <= meta["colours"] for colour in colours)
    return fits and all(colours[a] != colours[b] for a, b in meta["edges"])


def is_hamilton_path(path: Sequence[int], meta: Any) -> bool:
    """Whether a path visits every node exactly once."""
    return sorted(path) == list(range(meta["nodes"])) and _is_walk(path, meta)


def _is_set(nodes: Sequence[int], meta: Any) -> bool:
    """Whether these are meta.size different nodes of the graph."""
    return len(set(nodes)) == len(nodes) == meta["size"] and set(nodes) <= set(range(meta["nodes"]))


def is_clique(nodes: Sequence[int], meta: Any) -> bool:
    """Whether meta.size nodes are pairwise adjacent (a clique)."""
    return _is_set(nodes, meta) and all(
        frozenset(pair) in _edges(meta) for pair in itertools.combinations(nodes, 2)
    )


def is_independent(nodes: Sequence[int], meta: Any) -> bool:
    """Whether no two of meta.size nodes are adjacent (an independent set)."""
    return _is_set(nodes, meta) and not any(edge <= set(nodes) for edge in _edges(meta))


def is_cover(nodes: Sequence[int], meta: Any) -> bool:
    """Whether every edge has an end among meta.size nodes (a vertex cover)."""
    return _is_set(nodes, meta) and all(edge & set(nodes) for edge in _edges(meta))


def _pairs(nodes: Sequence[int], meta: Any) -> list[frozenset[int]] | None:
    """The nodes in pairs, as edges; None if their number is odd or a pair is not an edge of the graph."""
    pairs = [frozenset(nodes[i : i + 2]) for i in range(0, len(nodes), 2)]
    return pairs if len(nodes) % 2 == 0 and set(pairs) <= _edges(meta) else None


def is_matching(nodes: Sequence[int], meta: Any) -> bool:
    """Whether meta.size edges (a b c d: a-b and c-d) share no node (a matching)."""
    pairs = _pairs(nodes, meta)
    return pairs is not None and len(pairs) == meta["size"] and len(set(nodes)) == len(nodes)


def is_spanning_tree(nodes: Sequence[int], meta: Any) -> bool:
    """Whether meta.nodes - 1 edges connect all nodes (a spanning tree)."""
    pairs = _pairs(nodes, meta)
    if pairs is None or len(pairs) != meta["nodes"] - 1:
        return False
    reached = {0}
    for _ in pairs:
        reached |= {node for pair in pairs if pair & reached for node in pair}
    return len(reached) == meta["nodes"]


GRAPH_CHECKS = {
    "path": is_shortest_path,
    "colouring": is_colouring,
    "hamilton": is_hamilton_path,
    "clique": is_clique,
    "independent": is_independent,
    "cover": is_cover,
    "matching": is_matching,
    "tree": is_spanning_tree,
}


_JOINED = re.compile(r"(?<=\d)-(?=\d)")  # an edge: 0-1


@register("graph")
@dataclass(frozen=True, kw_only=True)
class GraphAnswer(Graded):
    """Graph reasoning reward: exact match, Jaccard index of sets, or a program that checks the structure.

        number, word: r = 1[answer = gold];  set of nodes: r = |P & G| / |P | G|;  with `row.meta["check"]`: r
        = 1[the check passes]

    Paper: G1, arXiv:2505.18499, sec. 3. Reads `row.meta`: edges, nodes, and where several answers are correct
    `check` (path, colouring, hamilton, clique, independent, cover, matching, tree) with its parameters
    (start, end, length; colours; size). Gold: an int, a word, a list of node names (a set), or a list of ints
    with a `check`. Edge: another kind of answer: 0; an empty gold set: 1 for "none" or "[]", else 0. Range
    [0, 1].
    """

    def target(self, gold: Any, row: Row) -> Any:
        check = row.meta.get("check")
        if check is not None:
            if check not in GRAPH_CHECKS or "edges" not in row.meta:
                raise GoldError(
                    f"meta.check: {check!r} must be one of {', '.join(GRAPH_CHECKS)}, with meta.edges"
                )
            return check
        if isinstance(gold, (list, tuple)):
            return {normal_label(str(item)) for item in gold}
        text = normal_label(str(gold))
        if not text:
            raise GoldError(f"answer: {gold!r} is empty; give a number, a word or a list of nodes")
        return text

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        target = self.target(gold, row)
        answer = self.committed(response)
        if row.meta.get("check") is not None:
            numbers = read_integers(_JOINED.sub(" ", answer.text))
            correct = numbers is not None and GRAPH_CHECKS[target](numbers, row.meta)
            return self.scored(answer, float(correct), correct, target, answer.text[:200])
        if isinstance(target, set):
            said = {label for label in read_labels(answer.text) if label != "none"}
            score = len(said & target) / len(said | target) if target else float(says_none(answer.text))
            return self.scored(answer, score, score == 1.0, "set", ", ".join(sorted(said))[:200])
        said_text = normal_label(answer.text)
        return self.scored(answer, float(said_text == target), said_text == target, "the answer", said_text)
