"""Rewards for scene graphs: objects with boxes, relations between them, and bare triples."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from rapidfuzz.fuzz import ratio
from scipy.optimize import linear_sum_assignment

from vlrl.registry import register
from vlrl_rewards.boxes import Box, gold_boxes, parse_boxes, to_original
from vlrl_rewards.classification import normal_label
from vlrl_rewards.geometry import matrix
from vlrl_rewards.graded import Answer, Grade, Graded, Scene, judged
from vlrl_rewards.loose import find_values

Triple = tuple[str, str, str]
_ANGLED = re.compile(r"<([^<>,]{1,80}(?:,[^<>,]{1,80}){2})>")
_PART = r"([^\s|→(\[{][^|→(\[{\n]{0,80}?)"
_LINE = re.compile(rf"^\s{{0,9}}(?:[-*•]\s|[0-9]{{1,3}}[.)]\s)?\s{{0,9}}{_PART}\s(?:-|->|→|\|)\s{_PART}\s(?:-|->|→|\|)\s{_PART}\s*$")
MAX_OBJECTS = 200
_NAMES = {"subject": 0, "subj": 0, "predicate": 1, "relation": 1, "rel": 1, "object": 2, "obj": 2}


def triple_of(value: Any) -> Triple | None:
    """(subject, predicate, object), normalised, from a list of three texts or a mapping."""
    if isinstance(value, Mapping):
        parts = ["", "", ""]
        for key, part in value.items():
            if str(key).lower() in _NAMES and isinstance(part, (str, int)):
                parts[_NAMES[str(key).lower()]] = normal_label(str(part))
    else:
        parts = [normal_label(v) for v in value] if isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value) else []
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 and all(parts) else None


def triples_in(value: Any) -> list[Triple]:
    """Every triple of a nested value, in order."""
    triple = triple_of(value)
    if triple:
        return [triple]
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return [t for part in inner for t in triples_in(part)]


def triples_of(text: str) -> list[Triple]:
    """Every triple of a text, in order: in brackets (also `<a, b, c>`), else one a line as "a - b - c"."""
    found = [triple for value in find_values(_ANGLED.sub(r"(\1)", text)) for triple in triples_in(value.value)]
    lines = [m for line in text[:20_000].split("\n") if len(line) < 300 and (m := _LINE.match(line))] if not found else []
    return found or [triple for m in lines if (triple := triple_of(list(m.groups())))]


@judged("triples")
@register("triples")
@dataclass(frozen=True, kw_only=True)
class Triples(Graded):
    """f1: 2 hits / (n + m);  recall: hits / m over the first `most` triples;  exact: 1[same set], hits = triples (subject, predicate, object) in
    both.

    Paper: recall at K as in Visual Genome scene graphs, arXiv:1701.02426; the set F1 is vlrl original.
    Deviates: names are compared after normalisation, `person.1` as `person`; a triple counts as often as it is in the gold, not as often as it is
    said.
    Edge: no triple: 0; gold []: 1 for "none" or "[]". Range [0, 1].
    """

    metric: Literal["f1", "recall", "exact"] = "f1"
    most: int = 50

    def target(self, gold: Any, scene: Scene) -> Counter[Triple]:
        values = [f.value for f in find_values(gold)] if isinstance(gold, str) else [gold]
        found = triples_in(values)
        if not found and gold not in ([], (), "None", "[]"):
            raise ValueError(f"answer: no triples in the gold {gold!r:.200}; give [['man', 'rides', 'horse'], ...]")
        return Counter(map(plain_triple, found))

    def grade(self, target: Counter[Triple], answer: Answer, scene: Scene) -> Grade:
        said = Counter(map(plain_triple, triples_of(answer.text)))
        if not target or not said:
            nothing = not target and not said and normal_label(answer.text) in ("none", "")
            return Grade(1.0, True, "none, and said so") if nothing else self.refuse("no triples, or triples where there are none")
        total, meant = sum(said.values()), sum(target.values())
        hits = sum((said & target).values())
        first = sum((Counter(list(said.elements())[: self.most]) & target).values())
        exact = hits == total == meant
        table = {"f1": 2 * hits / (total + meant), "recall": first / meant, "exact": float(exact)}
        return Grade(table[self.metric], exact, f"{hits} of {meant} with {total} triples")


def plain_triple(triple: Triple) -> Triple:
    """The triple with instance numbers removed ("person.1" is "person")."""
    subject, predicate, thing = (part.rsplit(".", 1)[0] if part.rsplit(".", 1)[-1].isdecimal() else part for part in triple)
    return subject, predicate, thing


class Graph(NamedTuple):
    """Objects (boxes whose label is the plain name) by identifier, and relations between identifiers."""

    objects: dict[str, Box]
    relations: list[Triple]


def read_graph(value: Any) -> Graph | None:
    """A graph from {"objects": [{"id": ..., "bbox": ...}], "relationships": [...]}; None unless all ids differ and all relations use declared ids."""
    if not isinstance(value, Mapping) or not isinstance(value.get("objects"), (list, tuple)):
        return None
    objects: dict[str, Box] = {}
    for thing in value["objects"]:
        boxes = (parse_boxes(str(thing)) or []) if isinstance(thing, Mapping) else []
        key = normal_label(str(thing.get("id", thing.get("name", "")))) if isinstance(thing, Mapping) else ""
        if len(boxes) != 1 or not key or key in objects or len(objects) >= MAX_OBJECTS:
            return None
        name = key.rsplit(".", 1)[0] if key.rsplit(".", 1)[-1].isdecimal() else key
        objects[key] = Box(boxes[0].xyxy, name)
    raw = value.get("relationships", value.get("relations", []))
    relations = [triple_of(r) for r in raw] if isinstance(raw, (list, tuple)) else [None]
    if not objects or not all(r and r[0] in objects and r[2] in objects for r in relations):
        return None
    return Graph(objects, [r for r in dict.fromkeys(relations) if r])


def similarity(a: str, b: str, how: str) -> float:
    """1[a = b] ("exact"), or the share of equal characters ("ratio"), in [0, 1]."""
    return float(a == b) if how == "exact" else ratio(a, b) / 100


@judged("scene_graph")
@register("scene_graph")
@dataclass(frozen=True, kw_only=True)
class SceneGraph(Graded):
    """r = (2 node + 2 box + 5 edge) / 9 after Hungarian matching of objects by cost (1 - sim) + 2 (1 - GIoU) + 5 L1:

        node = sum sim / max(n, m);  box = sum (2 IoU + 5 exp(-L1)) / 7 / max(n, m);  edge = sum sim(s) sim(o) sim(p) / max(relations said, gold)

    Paper: R1-SGG, arXiv:2504.13617, sec. 3 (weights 2, 2, 5 of the release). L1: mean absolute difference of the corners as shares of the picture.
    Deviates: extra objects and relations cost (the release divides by the gold alone, so spam is free); names are compared exactly or by characters
    instead of word vectors; the range is scaled to [0, 1]; an object that is matched with IoU 0 and another name earns nothing.
    Edge: no JSON graph, equal ids, relations of undeclared ids: 0. Without gold relations the edge part is left out. Units: gold in original pixels.
    Gold: the same JSON; the picture's size from `scene.spaces` or `row.meta["size"]`.
    """

    similarity: Literal["exact", "ratio"] = "exact"
    node: float = 2.0
    box: float = 2.0
    edge: float = 5.0
    picture: int = 0

    def target(self, gold: Any, scene: Scene) -> tuple[Graph, tuple[float, float]]:
        values = [f.value for f in find_values(gold)] if isinstance(gold, str) else [gold]
        graph = read_graph(values[0]) if len(values) == 1 else None
        spaces = scene.spaces
        size = spaces[scene.meta.get("picture", self.picture)].original if spaces else scene.meta.get("size")
        if graph is None or not size:
            raise ValueError(
                f"answer: needs a graph {{'objects': [{{'id', 'bbox'}}], 'relationships': [...]}} and the picture's size ({size}), got {gold!r:.200}"
            )
        for thing in graph.objects.values():
            gold_boxes(list(thing.xyxy))
        return graph, (float(size[0]), float(size[1]))

    def grade(self, target: tuple[Graph, tuple[float, float]], answer: Answer, scene: Scene) -> Grade:
        gold, size = target
        graphs = [g for f in find_values(answer.text) for g in [read_graph(f.value)] if g]
        if len(graphs) != 1:
            return self.refuse("no graph in the answer" if not graphs else "several graphs in the answer")
        picture = scene.meta.get("picture", self.picture)
        said = {k: Box(tuple(to_original(b.xyxy, scene.spaces, picture)), b.label) for k, b in graphs[0].objects.items()}  # type: ignore[arg-type]
        mine, theirs = list(said.items()), list(gold.objects.items())
        sim_NM = np.array([[similarity(a.label, b.label, self.similarity) for _, b in theirs] for _, a in mine])
        corners_N4, corners_M4 = np.array([b.xyxy for _, b in mine]), np.array([b.xyxy for _, b in theirs])
        iou_NM, giou_NM = matrix(corners_N4, corners_M4), matrix(corners_N4, corners_M4, "giou")
        far_NM = np.abs((corners_N4[:, None] - corners_M4[None]) / np.array([*size, *size])).mean(-1)
        rows, columns = linear_sum_assignment(1 - sim_NM + 2 * (1 - giou_NM) + 5 * far_NM)
        pairs = [(i, j) for i, j in zip(rows, columns, strict=True) if sim_NM[i, j] > 0 or iou_NM[i, j] > 0]
        both = max(len(mine), len(theirs))
        node = sum(sim_NM[i, j] for i, j in pairs) / both
        box = sum((2 * iou_NM[i, j] + 5 * math.exp(-far_NM[i, j])) / 7 for i, j in pairs if iou_NM[i, j] > 0) / both
        to_gold = {mine[i][0]: (theirs[j][0], float(sim_NM[i, j])) for i, j in pairs}
        edge = self.edges(graphs[0].relations, gold.relations, to_gold)
        weights = (self.node, self.box, self.edge if gold.relations else 0.0)
        score = float(weights[0] * node + weights[1] * box + weights[2] * edge) / sum(weights)
        perfect = node == 1 and edge == 1 and all(iou_NM[i, j] >= 0.5 for i, j in pairs)
        return Grade(score, bool(perfect), f"node {node:.2f}, box {box:.2f}, edge {edge:.2f}")

    def edges(self, said: list[Triple], gold: list[Triple], to_gold: Mapping[str, tuple[str, float]]) -> float:
        """Credit of the relations; each gold relation is used once."""
        if not gold:
            return 1.0
        best: dict[Triple, float] = {}
        for subject, predicate, thing in said:
            (first, sure), (second, sure2) = to_gold.get(subject, ("", 0.0)), to_gold.get(thing, ("", 0.0))
            for meant in gold:
                if (meant[0], meant[2]) == (first, second):
                    credit = sure * sure2 * similarity(predicate, meant[1], self.similarity)
                    best[meant] = max(best.get(meant, 0.0), credit)
        return sum(best.values()) / max(len(said), len(gold))
