"""Counts, labels, puzzles, spans and texts against numpy, scipy, scikit-learn, networkx, rapidfuzz and jiwer:
1,000 random answers each."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections import Counter

import numpy as np
import pytest
from vlrl_rewards.graphs.scene_graph import SceneGraph
from vlrl_rewards.graphs.triples import Triples
from vlrl_rewards.math.closeness import Angle, Closeness, SeveralCounts
from vlrl_rewards.puzzles.jigsaw import Jigsaw
from vlrl_rewards.puzzles.maze import Maze
from vlrl_rewards.puzzles.ordering import METRICS
from vlrl_rewards.puzzles.plans import PlanSteps, alignment, word_f1
from vlrl_rewards.recognition.classification import OpenSet
from vlrl_rewards.recognition.counting import Counting
from vlrl_rewards.recognition.labels import Hierarchy, MultiLabel
from vlrl_rewards.recognition.ocr import Ocr
from vlrl_rewards.text.captions import Caption
from vlrl_rewards.text.documents import Fields
from vlrl_rewards.text.mentions import words_of
from vlrl_rewards.text.yes_no import TrueFalse
from vlrl_rewards.video.temporal import TemporalIou, Timestamp

CASES = 200  # of each part
in_parts = pytest.mark.parametrize("part", range(5))
WORDS = ["red", "blue", "cat", "dog", "bus", "sky"]


def tag(value):
    return f"<answer>{value if isinstance(value, str) else json.dumps(value)}</answer>"


@pytest.mark.sweep
@in_parts
def test_counts_and_measures_by_numpy(part):
    rng, thresholds = np.random.default_rng([0, part]), np.linspace(0.5, 0.95, 10)
    for gold, said in rng.integers(1, 60, (CASES, 2)).tolist():
        error = abs(said - gold) / gold
        mra = float(np.mean(error <= 1 - thresholds))
        assert Counting(mode="mra").verify(gold, tag(said)).score == pytest.approx(mra)
        assert Counting(mode="relative").verify(gold, tag(said)).score == pytest.approx(
            float(np.clip(1 - error, 0, 1))
        )
        assert Counting().verify(gold, tag(said)).score == (gold == said)
        assert Closeness(mode="mra").verify(gold, tag(said)).score == pytest.approx(mra)
        assert Closeness().verify(gold, tag(said)).score == pytest.approx(float(np.exp(-5 * error)), rel=1e-4)
        assert Closeness(mode="absolute", rate=0.1).verify(gold, tag(said)).score == pytest.approx(
            float(np.exp(-abs(said - gold) / 10))
        )
    for gold, said in rng.integers(1, 9, (CASES, 2, 3)):
        expected = np.clip(1 - np.abs(said - gold) / gold, 0, 1).mean()
        assert SeveralCounts().verify(gold.tolist(), tag(", ".join(map(str, said)))).score == pytest.approx(
            float(expected)
        )


@pytest.mark.sweep
@in_parts
def test_angles_on_the_circle_of_complex_numbers(part):
    for gold, said in np.random.default_rng([1, part]).integers(-720, 720, (CASES, 2)).tolist():
        away = abs(math.degrees(np.angle(np.exp(1j * math.radians(gold - said)))))
        assert Angle(mode="linear").verify(gold, tag(said)).score == pytest.approx(1 - away / 180, abs=1e-9)
        assert Angle(mode="decay", tolerance=20).verify(gold, tag(said)).score == pytest.approx(
            math.exp(-away / 20), abs=1e-9
        )
        half = abs(math.degrees(np.angle(np.exp(2j * math.radians(gold - said))))) / 2
        assert Angle(mode="linear", period=180).verify(gold, tag(said)).score == pytest.approx(
            1 - half / 90, abs=1e-9
        )


@pytest.mark.sweep
@in_parts
def test_several_labels_by_scikit_learn(part):
    metrics = pytest.importorskip("sklearn.metrics")
    rng, golds, saids, scores = np.random.default_rng([2, part]), [], [], []
    for _ in range(CASES):
        gold, said = rng.random((2, len(WORDS))) < 0.5
        if not gold.any() or not said.any():
            continue
        chosen = [list(np.array(WORDS)[row]) for row in (gold, said)]
        answer = tag(", ".join(chosen[1]))
        golds.append(gold)
        saids.append(said)
        scores.append(
            [
                MultiLabel(metric=name).verify(chosen[0], answer).score
                for name in ("f1", "jaccard", "recall", "exact")
            ]
        )
    references = [
        reference(golds, saids, average="samples")
        for reference in (metrics.f1_score, metrics.jaccard_score, metrics.recall_score)
    ]
    assert np.mean(scores, 0) == pytest.approx([*references, metrics.accuracy_score(golds, saids)])


@pytest.mark.sweep
@in_parts
def test_trees_by_networkx(part):
    nx = pytest.importorskip("networkx")
    rng = random.Random(f"3/{part}")
    for _ in range(CASES):
        names = [f"n{i}x" for i in range(rng.randint(2, 9))]
        parents = {
            name: names[rng.randrange(i)] if i and rng.random() < 0.9 else "" for i, name in enumerate(names)
        }
        tree = nx.DiGraph([(parent or "root", child) for child, parent in parents.items()])
        depth = nx.shortest_path_length(tree, "root")
        gold, said = rng.choice(names), rng.choice(names)
        common = nx.lowest_common_ancestor(tree, gold, said)
        expected = 2 * depth[common] / (depth[gold] + depth[said])
        assert Hierarchy(parents=parents).verify(gold, tag(said)).score == pytest.approx(expected)


@pytest.mark.parametrize(
    ("gold", "said", "score"),
    [
        ("cat", "cat", 1),
        ("cat", "dog", 0),
        ("cat", "unknown", 0.3),
        ("unknown", "unknown", 0.9),
        ("unknown", "cat", 0),
    ],
)
def test_open_sets_by_table(gold, said, score):
    assert OpenSet(reject=0.9, abstain=0.3).verify(gold, tag(said)).score == score


@pytest.mark.sweep
@in_parts
def test_verdict_lists_by_numpy(part):
    for gold, said in np.random.default_rng([4, part]).integers(0, 2, (CASES, 2, 5)):
        texts = [" ".join("FT"[v] for v in row) for row in (gold, said)]
        assert TrueFalse(mode="share").verify(texts[0], tag(texts[1])).score == pytest.approx(
            float((gold == said).mean())
        )
        assert TrueFalse().verify(texts[0], tag(texts[1])).score == np.array_equal(gold, said)


def neighbours(picture):
    """Every pair of pieces that touch, with the direction."""
    sideways = {(int(a), int(b), "right") for row in picture for a, b in itertools.pairwise(row)}
    return sideways | {
        (int(a), int(b), "below") for column in picture.T for a, b in itertools.pairwise(column)
    }


@pytest.mark.sweep
@in_parts
def test_jigsaws_by_putting_the_picture_together(part):
    rng = np.random.default_rng([5, part])
    for _ in range(CASES):
        rows, columns = map(int, rng.integers(1, 4, 2))
        if rows * columns < 2:
            continue
        gold, said = (rng.permutation(rows * columns) + 1 for _ in range(2))
        scene = {"meta": {"rows": rows, "columns": columns}}
        built = []
        for order in (gold, said):
            picture = np.zeros(rows * columns, int)
            picture[order - 1] = np.arange(
                rows * columns
            )  # the piece shown at place k belongs to place order[k]
            built.append(neighbours(picture.reshape(rows, columns)))
        text = tag(" ".join(map(str, said)))
        seams = len(built[0] & built[1]) / len(built[0])
        assert Jigsaw(mode="adjacency").verify(gold.tolist(), text, **scene).score == pytest.approx(seams)
        assert Jigsaw().verify(gold.tolist(), text, **scene).score == pytest.approx(
            float((gold == said).mean())
        )


@pytest.mark.sweep
@in_parts
def test_orders_by_scipy_and_rapidfuzz(part):
    cityblock = pytest.importorskip("scipy.spatial.distance").cityblock
    from rapidfuzz.distance import LCSseq

    rng = np.random.default_rng([6, part])
    for _ in range(CASES):
        n = int(rng.integers(2, 9))
        order, gold = list(map(int, rng.permutation(n))), list(map(int, rng.permutation(n)))
        footrule = 1 - cityblock(np.argsort(order), np.argsort(gold)) / (n * n // 2)
        assert METRICS["footrule"](order, gold) == pytest.approx(footrule)
        assert METRICS["lcs"](order, gold) == pytest.approx(LCSseq.similarity(order, gold) / n)
        pairs = {tuple(gold[i : i + 2]) for i in range(n - 1)}
        kept = sum(tuple(order[i : i + 2]) in pairs for i in range(n - 1))
        assert METRICS["adjacency"](order, gold) == pytest.approx(kept / (n - 1))


@pytest.mark.sweep
@in_parts
def test_spans_by_counting_seconds(part):
    rng = np.random.default_rng([7, part])
    for _ in range(CASES):
        spans = []
        for _ in range(2):
            start, length = int(rng.integers(0, 40)), int(rng.integers(1, 40))
            spans.append((start, start + length))
        seconds = [set(range(*span)) for span in spans]
        expected = len(seconds[0] & seconds[1]) / len(seconds[0] | seconds[1])
        assert TemporalIou().verify(
            list(spans[0]), tag(f"{spans[1][0]} to {spans[1][1]}")
        ).score == pytest.approx(expected)
        moment, said = spans[0][0], spans[1][0]
        assert Timestamp(mode="decay", tolerance=5).verify(moment, tag(f"{said} s")).score == pytest.approx(
            math.exp(-abs(moment - said) / 5)
        )
        assert Timestamp(tolerance=5).verify(moment, tag(f"{said} s")).score == (abs(moment - said) <= 5)


@pytest.mark.sweep
@in_parts
def test_texts_by_jiwer(part):
    jiwer = pytest.importorskip("jiwer")
    rng = random.Random(f"8/{part}")
    for _ in range(CASES):
        said, meant = (
            " ".join(rng.choices(["ab", "bc", "abc", "ca"], k=rng.randint(1, 6))) for _ in range(2)
        )
        cer = jiwer.cer(meant, said)
        similarity = 1 - cer * len(meant) / max(len(said), len(meant))
        expected = {
            "cer": max(0, 1 - cer),
            "wer": max(0, 1 - jiwer.wer(meant, said)),
            "edit": similarity,
            "anls": similarity * (similarity >= 0.5),
        }
        for metric, value in expected.items():
            assert Ocr(metric=metric).verify(meant, tag(said)).score == pytest.approx(value, abs=1e-9)


def removed(left, right):
    """How many members of one list can be paired with equal ones of another."""
    rest = list(right)
    return sum(1 for item in left if item in rest and not rest.remove(item))


@pytest.mark.sweep
@in_parts
def test_triples_fields_and_words_by_pairing(part):
    rng = random.Random(f"9/{part}")
    for _ in range(CASES):
        gold, said = (
            [[rng.choice("ab"), rng.choice("xy"), rng.choice("cd")] for _ in range(rng.randint(1, 5))]
            for _ in range(2)
        )
        hits = removed(said, gold)
        assert Triples().verify(gold, tag(said)).score == pytest.approx(2 * hits / (len(said) + len(gold)))
        form, other = (
            {rng.choice("abcd"): rng.choice("xyz") for _ in range(rng.randint(1, 4))} for _ in range(2)
        )
        both = len(form.items() & other.items())
        assert Fields(alpha=0.3).verify(form, tag(other)).score == pytest.approx(
            0.3 * both / len(other) + 0.7 * both / len(form)
        )
        a, b = (rng.choices("xyz", k=rng.randint(1, 5)) for _ in range(2))
        f1 = 2 * removed(a, b) / (len(a) + len(b))
        assert word_f1(" ".join(a), " ".join(b)) == pytest.approx(f1)


def dense_cider(said, reference):
    """CIDEr-D over 10 for one reference with equal weights, on dense count vectors."""
    total, sizes = 0.0, [n for n in range(1, 5) if len(reference) >= n]
    for n in sizes:
        grams = [[tuple(words[i : i + n]) for i in range(len(words) - n + 1)] for words in (said, reference)]
        axis = sorted({g for side in grams for g in side})
        mine, theirs = (np.array([Counter(side)[g] for g in axis], float) for side in grams)
        norm = np.linalg.norm(mine) * np.linalg.norm(theirs)
        total += (np.minimum(mine, theirs) @ theirs / norm if norm else 0.0) * math.exp(
            -((len(said) - len(reference)) ** 2) / 72
        )
    return total / len(sizes)


@pytest.mark.sweep
@in_parts
def test_captions_by_dense_vectors(part):
    rng = random.Random(f"10/{part}")
    for _ in range(CASES):
        said, first, second = (" ".join(rng.choices(WORDS, k=rng.randint(1, 8))) for _ in range(3))
        scores = [dense_cider(words_of(said), words_of(text)) for text in (first, second)]
        assert Caption().verify([first, second], tag(said)).score == pytest.approx(max(scores))
        assert Caption(references="mean").verify([first, second], tag(said)).score == pytest.approx(
            sum(scores) / 2
        )


@pytest.mark.sweep
@in_parts
def test_mazes_by_networkx(part):
    nx = pytest.importorskip("networkx")
    rng = random.Random(f"11/{part}")
    steps = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
    for _ in range(CASES):
        grid = nx.grid_2d_graph(4, 4)
        walls = [cell for cell in grid if cell not in ((0, 0), (3, 3)) and rng.random() < 0.25]
        grid.remove_nodes_from(walls)
        if not nx.has_path(grid, (0, 0), (3, 3)):
            continue
        rows = [
            "".join(
                "S" if (r, c) == (0, 0) else "G" if (r, c) == (3, 3) else "#" if (r, c) in walls else "."
                for c in range(4)
            )
            for r in range(4)
        ]
        route = nx.shortest_path(grid, (0, 0), (3, 3))
        moves = [
            next(name for name, step in steps.items() if (a[0] + step[0], a[1] + step[1]) == b)
            for a, b in itertools.pairwise(route)
        ]
        assert Maze().verify(rows, tag(", ".join(moves))).score == 1
        cut = rng.randint(1, len(moves) - 1)
        left = nx.shortest_path_length(grid, route[cut], (3, 3))
        progress = Maze(mode="progress").verify(rows, tag(", ".join(moves[:cut]))).score
        assert progress == pytest.approx(0.5 * (1 - left / (len(route) - 1)))


@pytest.mark.sweep
@in_parts
def test_plans_and_processes_by_trying_everything(part):
    rng = random.Random(f"12/{part}")
    for _ in range(CASES):
        gold, said = (
            rng.choices(["find cup", "take cup", "wash cup"], k=rng.randint(1, 5)) for _ in range(2)
        )
        n = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(gold, said, strict=False))))
        extra = 0.25 * (n == len(gold) < len(said))
        share = sum(range(1, n + 1)) / sum(range(1, len(gold) + 1))
        assert PlanSteps().verify(gold, tag(said)).score == pytest.approx(max(0, share - extra))
        steps, states = (
            [" ".join(rng.choices("abc", k=3)) for _ in range(rng.randint(1, 4))] for _ in range(2)
        )
        best = max(
            sum(word_f1(steps[i], state) for i, state in zip(places, states, strict=True))
            for places in itertools.combinations_with_replacement(range(len(steps)), len(states))
        )
        assert alignment(steps, states) == pytest.approx(best / len(states))


@pytest.mark.sweep
@in_parts
def test_scene_graphs_keep_their_score_under_new_names_and_orders(part):
    rng = random.Random(f"13/{part}")
    for _ in range(CASES // 4):  # three properties each
        objects = [
            {
                "id": f"{rng.choice(WORDS)}.{i}",
                "bbox": [x := rng.randint(0, 60), y := rng.randint(0, 60), x + 20, y + 30],
            }
            for i in range(4)
        ]
        ids = [thing["id"] for thing in objects]
        relations = [
            dict(zip(("subject", "predicate", "object"), (a, rng.choice(["on", "holds"]), b), strict=True))
            for a, b in itertools.pairwise(ids)
        ]
        gold, scene = {"objects": objects, "relationships": relations}, {"meta": {"size": (100, 100)}}
        turned = {"objects": objects[::-1], "relationships": relations[::-1]}
        renamed = json.loads(json.dumps(turned).replace(".", ".7"))
        assert SceneGraph().verify(gold, tag(gold), **scene).score == pytest.approx(1)
        assert SceneGraph().verify(gold, tag(renamed), **scene).score == pytest.approx(1)
        fewer = {"objects": objects[:3], "relationships": relations[:2]}
        score = SceneGraph().verify(gold, tag(fewer), **scene).score
        assert (
            0 < score < 1
            and SceneGraph().verify(gold, tag({**fewer, "relationships": []}), **scene).score < score
        )
