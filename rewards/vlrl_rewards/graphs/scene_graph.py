"""Scene graph reward: objects with boxes, and relations between them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from rapidfuzz.fuzz import ratio

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Unread, Verdict
from vlrl.types import Row
from vlrl_rewards.boxes.geometry import matrix
from vlrl_rewards.boxes.reading import Box, box_to_original, gold_boxes, parse_boxes
from vlrl_rewards.graded import Graded, unreadable
from vlrl_rewards.graphs.triples import Triple, triple_of
from vlrl_rewards.kinds import verifier
from vlrl_rewards.literals import find_values
from vlrl_rewards.recognition.classification import normal_label

MAX_OBJECTS = 200


class GraphOfScene(NamedTuple):
    """Objects by identifier (boxes labelled with the name without its instance number), and relations between
    identifiers."""

    objects: dict[str, Box]
    relations: list[Triple]


def read_graph(value: Any) -> GraphOfScene | None:
    """The graph of {"objects": [{"id": ..., "bbox": ...}], "relationships": [...]}.

    None if it has no objects or more than `MAX_OBJECTS` (200), an id occurs twice, or a relation uses an
    undeclared id.
    """
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
    return GraphOfScene(objects, [r for r in dict.fromkeys(relations) if r])


def similarity(a: str, b: str, how: str) -> float:
    """1[a = b] ("exact"), or the normalised character similarity ("ratio"), in [0, 1]."""
    return float(a == b) if how == "exact" else ratio(a, b) / 100


@verifier("scene_graph")
@register("scene_graph")
@dataclass(frozen=True, kw_only=True)
class SceneGraph(Graded):
    """Scene graph reward of R1-SGG: objects, boxes and relations after a Hungarian matching of the objects.

        r = (2 node + 2 box + 5 edge) / 9,  matching cost (1 - sim) + 2 (1 - GIoU) + 5 L1
        node = sum sim / max(n, m);  box = sum (2 IoU + 5 exp(-L1)) / 7 / max(n, m);
        edge = sum sim(s) sim(o) sim(p) / max(predicted relations, gold relations), over relations whose two
        objects have IoU >= iou_threshold

    Paper: R1-SGG, arXiv:2504.13617, sec. 3 (weights 2, 2, 5 of the release). Deviates: rewards/DEVIATIONS.md.
    Gold and answer: {"objects": [{"id": "dog.1", "bbox": [...]}], "relationships": [...]}. Edge: no graph,
    several graphs, equal ids, relations of undeclared ids: 0. Range
    [0, 1].
    """

    correct_at: float = 0.9
    similarity: Literal["exact", "ratio"] = "exact"
    node: float = 2.0
    box: float = 2.0
    edge: float = 5.0
    iou_threshold: float = 0.5
    picture: int = 0

    def target(self, gold: Any, response: Response, row: Row) -> tuple[GraphOfScene, tuple[float, float]]:
        values = [f.value for f in find_values(gold)] if isinstance(gold, str) else [gold]
        graph = read_graph(values[0]) if len(values) == 1 else None
        spaces = response.spaces
        size = spaces[row.meta.get("picture", self.picture)].original if spaces else row.meta.get("size")
        if graph is None or not size:
            raise GoldError(
                f"answer: needs {{'objects': [{{'id', 'bbox'}}], 'relationships': [...]}} and the image "
                f"size, got size {size} and {gold!r:.200}"
            )
        for thing in graph.objects.values():
            gold_boxes(list(thing.xyxy))
        return graph, (float(size[0]), float(size[1]))

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        # half a second to import, which other rewards do not need
        from scipy.optimize import linear_sum_assignment

        gold, size = self.target(gold, response, row)
        answer = self.committed(response)
        graphs = [g for f in find_values(answer.text) for g in [read_graph(f.value)] if g]
        if len(graphs) != 1:
            lists = [f.value.get("objects") for f in find_values(answer.text) if isinstance(f.value, Mapping)]
            many = any(isinstance(objects, list) and len(objects) > MAX_OBJECTS for objects in lists)
            limit = f"the answer has more than {MAX_OBJECTS} objects and is not read" if many else ""
            raise Unread("several graphs", answer) if graphs else unreadable("graph", answer, limit)
        picture = row.meta.get("picture", self.picture)
        said = {
            k: Box(box_to_original(b.xyxy, response.spaces, picture), b.label)
            for k, b in graphs[0].objects.items()
        }
        predicted, expected = list(said.items()), list(gold.objects.items())
        sim_NM = np.array(
            [[similarity(a.label, b.label, self.similarity) for _, b in expected] for _, a in predicted]
        )
        corners_N4, corners_M4 = (
            np.array([b.xyxy for _, b in predicted]),
            np.array([b.xyxy for _, b in expected]),
        )
        iou_NM, giou_NM = matrix(corners_N4, corners_M4), matrix(corners_N4, corners_M4, "giou")
        far_NM = np.abs((corners_N4[:, None] - corners_M4[None]) / np.array([*size, *size])).mean(-1)
        rows, columns = linear_sum_assignment(1 - sim_NM + 2 * (1 - giou_NM) + 5 * far_NM)
        pairs = [(i, j) for i, j in zip(rows, columns, strict=True) if sim_NM[i, j] > 0 or iou_NM[i, j] > 0]
        larger = max(len(predicted), len(expected))
        node = sum(sim_NM[i, j] for i, j in pairs) / larger
        box = (
            sum((2 * iou_NM[i, j] + 5 * math.exp(-far_NM[i, j])) / 7 for i, j in pairs if iou_NM[i, j] > 0)
            / larger
        )
        found = [(i, j) for i, j in pairs if iou_NM[i, j] >= self.iou_threshold]
        to_gold = {predicted[i][0]: (expected[j][0], float(sim_NM[i, j])) for i, j in found}
        edge = self.edges(graphs[0].relations, gold.relations, to_gold)
        weights = (self.node, self.box, self.edge if gold.relations else 0.0)
        score = float(weights[0] * node + weights[1] * box + weights[2] * edge) / sum(weights)
        perfect = node == 1 and edge == 1 and len(found) == len(pairs)
        return self.scored(answer, score, bool(perfect), f"node {node:.2f}, box {box:.2f}, edge {edge:.2f}")

    def edges(
        self, said: list[Triple], gold: list[Triple], to_gold: Mapping[str, tuple[str, float]]
    ) -> float:
        """Score of the relations, in [0, 1]; each gold relation counts once, with its best match."""
        if not gold:
            return 1.0
        best: dict[Triple, float] = {}
        for subject, predicate, thing in said:
            (first, sim_subject), (second, sim_object) = (
                to_gold.get(subject, ("", 0.0)),
                to_gold.get(thing, ("", 0.0)),
            )
            for meant in gold:
                if (meant[0], meant[2]) == (first, second):
                    credit = sim_subject * sim_object * similarity(predicate, meant[1], self.similarity)
                    best[meant] = max(best.get(meant, 0.0), credit)
        return sum(best.values()) / max(len(said), len(gold))
