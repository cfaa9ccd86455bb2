"""Boxes, points and groups against torchvision, scipy, networkx, shapely and pycocotools: 1,000 random
answers each, as text."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from coco_kit import coco_ap, scenes
from vlrl_rewards.boxes.detection import Detection, DetectionConfidence, DetectionMap, DetectionWeighted
from vlrl_rewards.boxes.group import BoxAgreement, IouHard
from vlrl_rewards.gui.grounding import Blink, GuiGrounding
from vlrl_rewards.points.points import PointReward, Points

torch, ops = pytest.importorskip("torch"), pytest.importorskip("torchvision.ops")
CASES = 200  # of each part
pytestmark = [pytest.mark.sweep, pytest.mark.parametrize("part", range(5))]


def tag(value):
    return f"<answer>{value}</answer>"


def random_boxes(rng, most, near=()):
    """Whole-number boxes in a 60 x 60 picture, some of them near given ones."""
    boxes = []
    for _ in range(rng.integers(1, most + 1)):
        if near and rng.random() < 0.7:
            moved = np.array(near[rng.integers(len(near))]) + rng.integers(-3, 4, 4)
            if moved[2] > moved[0] and moved[3] > moved[1]:
                boxes.append([int(v) for v in moved])
                continue
        (x, y), (w, h) = rng.integers(0, 40, 2), rng.integers(4, 20, 2)
        boxes.append([int(x), int(y), int(x + w), int(y + h)])
    return boxes


def ious(said, gold):
    return ops.box_iou(
        torch.tensor(said, dtype=torch.float64), torch.tensor(gold, dtype=torch.float64)
    ).numpy()


def best_matching(useful):
    """The pairs of the largest total, by trying all assignments."""
    small = useful if useful.shape[0] <= useful.shape[1] else useful.T
    best = max(
        itertools.permutations(range(small.shape[1]), small.shape[0]),
        key=lambda p: sum(small[i, j] for i, j in enumerate(p)),
    )
    pairs = [(i, j) for i, j in enumerate(best) if small[i, j] > 0]
    return pairs if useful.shape[0] <= useful.shape[1] else [(j, i) for i, j in pairs]


def test_matched_overlap_is_that_of_the_best_assignment(part):
    rng = np.random.default_rng([0, part])
    for _ in range(CASES):
        gold = random_boxes(rng, 4)
        said = random_boxes(rng, 4, gold)
        iou = ious(said, gold)
        pairs = best_matching(np.where(iou >= 0.5, iou, 0))
        total, n, m = sum(iou[p] for p in pairs), len(said), len(gold)
        for name, bottom in (("max", max(n, m)), ("f1", (n + m) / 2), ("recall", m)):
            assert Detection(denominator=name).verify(gold, tag(said)).score == pytest.approx(
                total / bottom, abs=1e-9
            )
        mixed = (
            0.7 * total / max(n, m) + 0.3 * (1 - (2 - len(pairs) / n - len(pairs) / m) / 2) if pairs else 0.0
        )
        assert DetectionWeighted().verify(gold, tag(said)).score == pytest.approx(mixed, abs=1e-9)


def test_stated_confidence_by_the_published_loop(part):
    rng = np.random.default_rng([1, part])
    for _ in range(CASES):
        gold = random_boxes(rng, 4)
        boxes = random_boxes(rng, 5, gold)
        sure = [round(float(c), 3) for c in rng.random(len(boxes))]
        iou, free, hit = ious(boxes, gold), set(range(len(gold))), {}
        for i in sorted(range(len(boxes)), key=lambda i: -sure[i]):
            j = max(sorted(free), key=lambda j, i=i: iou[i, j], default=None)
            if j is not None and iou[i, j] >= 0.5:
                free.remove(j)
                hit[i] = iou[i, j]
        said = tag([{"Position": box, "Confidence": c} for box, c in zip(boxes, sure, strict=True)])
        gained = sum(c if i in hit else 1 - c for i, c in enumerate(sure)) if hit else 0.0
        assert DetectionConfidence().verify(gold, said).score == pytest.approx(
            gained / (len(boxes) + len(free)), abs=1e-9
        )
        score = Detection(matching="confidence").verify(gold, said).score
        assert score == pytest.approx(sum(hit.values()) / max(len(boxes), len(gold)), abs=1e-9)


def test_map_of_an_answer_is_that_of_pycocotools(part):
    for said, gold in scenes((7, part), CASES):
        answer = tag([{"bbox_2d": list(b.xyxy), "label": b.label, "confidence": b.score} for b in said])
        truth = [{"bbox": list(b.xyxy), "label": b.label} for b in gold]
        expected = coco_ap(said, gold)
        for metric, value in zip(("map", "ap50"), expected, strict=True):
            reward = DetectionMap(metric=metric, length_penalty=False, ranking="answer", extra="ignore")
            assert reward.verify(truth, answer).score == pytest.approx(value, abs=1e-12)
            listed = tag(
                [{"bbox_2d": list(b.xyxy), "label": b.label} for b in sorted(said, key=lambda b: -b.score)]
            )
            penalty = min(1, len(gold) / len(said)) if said else 1
            plain = DetectionMap(metric=metric, extra="ignore").verify(truth, listed).score
            assert plain == pytest.approx(value * penalty, abs=1e-12)


def test_candidates_survive_non_maximum_suppression(part):
    rng = np.random.default_rng([2, part])
    below = np.nextafter(0.5, 0)  # the release drops a tie, torchvision keeps it
    for _ in range(CASES):
        gold = random_boxes(rng, 1)
        said = random_boxes(rng, 5, gold)
        boxes = torch.tensor(said, dtype=torch.float64)
        survives = len(ops.nms(boxes, torch.arange(len(said), 0, -1, dtype=torch.float64), below)) == len(
            said
        )
        expected = survives and bool((ious(said, gold) > 0.5).any())
        assert Blink().verify(gold[0], f"<blink>{said}</blink>").score == expected


def test_points_by_bipartite_matching_and_containment(part):
    nx, shapely = pytest.importorskip("networkx"), pytest.importorskip("shapely")
    rng = np.random.default_rng([3, part])
    for _ in range(CASES):
        gold = random_boxes(rng, 4)
        said = [[int(x), int(y)] for x, y in rng.integers(0, 50, (rng.integers(1, 6), 2))]
        holds = [[shapely.box(*g).covers(shapely.Point(p)) for g in gold] for p in said]
        graph = nx.Graph(
            [(("p", i), ("g", j)) for i, row in enumerate(holds) for j, held in enumerate(row) if held]
        )
        hits = len(nx.max_weight_matching(graph, maxcardinality=True))
        assert Points().verify(gold, tag(said)).score == pytest.approx(2 * hits / (len(said) + len(gold)))
        assert Points(metric="max").verify(gold, tag(said)).score == pytest.approx(
            hits / max(len(said), len(gold))
        )
        assert PointReward().verify(gold[0], tag(said[0])).score == holds[0][0]


def test_distance_of_points_by_scipy(part):
    distance = pytest.importorskip("scipy.spatial.distance")
    rng = np.random.default_rng([4, part])
    for a, b in rng.integers(0, 100, (CASES, 2, 2)).tolist():
        away = distance.euclidean(a, b) / 30
        assert PointReward(radius=30).verify(a, tag(b)).score == (away <= 1)
        assert PointReward(radius=30, soft=True).verify(a, tag(b)).score == pytest.approx(math.exp(-away))


def test_gui_grounding_by_torchvision_and_scipy(part):
    hmean = pytest.importorskip("scipy.stats").hmean
    rng, scene = np.random.default_rng([5, part]), {"meta": {"size": (60, 80)}}
    for _ in range(CASES):
        gold = random_boxes(rng, 1)
        said = random_boxes(rng, 1, gold)[:1]
        (x1, y1, x2, y2), (a1, b1, a2, b2) = said[0], gold[0]
        hit = a1 <= (x1 + x2) / 2 <= a2 and b1 <= (y1 + y2) / 2 <= b2
        fit = hmean(
            [1 - abs(x1 - a1) / 60, 1 - abs(y1 - b1) / 80, 1 - abs(x2 - a2) / 60, 1 - abs(y2 - b2) / 80]
        )
        expected = 1 + 0.25 * ious(said, gold)[0, 0] + 0.125 * fit if hit else 0.0
        assert GuiGrounding().verify(gold[0], tag(said[0]), **scene).score == pytest.approx(
            expected, abs=1e-9
        )


def test_groups_of_boxes(group, part):
    rng = np.random.default_rng([6, part])
    for _ in range(CASES // 4):  # of four or more boxes each
        gold = random_boxes(rng, 1)
        said = [random_boxes(rng, 1, gold)[0] for _ in range(rng.integers(4, 7))]
        sample, iou = group(gold[0], [tag(box) for box in said]), ious(said, said)
        agreement = (iou.sum(1) - 1) / (len(said) - 1)
        assert BoxAgreement().score_group(sample) == pytest.approx(agreement.tolist(), abs=1e-9)
        votes = np.zeros((80, 80))
        for x1, y1, x2, y2 in (
            np.array(box) + 10 for box in said
        ):  # a near box may begin left of the picture
            votes[y1:y2, x1:x2] += 1
        shares = [votes[b[1] + 10 : b[3] + 10, b[0] + 10 : b[2] + 10].mean() / votes.max() for b in said]
        assert BoxAgreement(mode="votes").score_group(sample) == pytest.approx(shares, abs=1e-9)
        each = ious(said, gold)[:, 0]
        assert IouHard().score_group(sample) == pytest.approx(
            (each * math.exp(1 - each.mean())).tolist(), abs=1e-9
        )
