"""The `graph` reward on answers that are checked by rule, and on sets of nodes."""

from types import SimpleNamespace

import pytest

from vlrl.plugins.registry import build
from vlrl.plugins.stages import Reward
from vlrl.types import Rollout

SQUARE = {"nodes": 4, "edges": [[0, 1], [1, 2], [2, 3], [0, 3]]}


@pytest.mark.parametrize(
    ("checked", "text", "expected"),
    [
        ({"check": "path", "start": 0, "end": 2, "length": 2}, "0 1 2", 1.0),
        ({"check": "path", "start": 0, "end": 2, "length": 2}, "0 -> 3 -> 2", 1.0),
        ({"check": "path", "start": 0, "end": 2, "length": 2}, "0 2", 0.0),
        ({"check": "path", "start": 0, "end": 2, "length": 2}, "2 1 0", 0.0),
        ({"check": "path", "start": 0, "end": 2, "length": 2}, "0 1 0 1 2", 0.0),
        ({"check": "colouring", "colours": 2}, "1 2 1 2", 1.0),
        ({"check": "colouring", "colours": 2}, "2,1,2,1", 1.0),
        ({"check": "colouring", "colours": 2}, "1 1 2 2", 0.0),
        ({"check": "colouring", "colours": 2}, "1 2 1 3", 0.0),
        ({"check": "colouring", "colours": 2}, "1 2 1", 0.0),
        ({"check": "colouring", "colours": 2}, "any", 0.0),
        ({"check": "hamilton"}, "0 1 2 3", 1.0),
        ({"check": "hamilton"}, "1 -> 0 -> 3 -> 2", 1.0),
        ({"check": "hamilton"}, "0 2 1 3", 0.0),
        ({"check": "hamilton"}, "0 1 2", 0.0),
        ({"check": "clique", "size": 2}, "1, 2", 1.0),
        ({"check": "clique", "size": 2}, "0, 2", 0.0),
        ({"check": "clique", "size": 2}, "1, 1", 0.0),
        ({"check": "clique", "size": 2}, "0 1 2 3", 0.0),
        ({"check": "independent", "size": 2}, "0 2", 1.0),
        ({"check": "independent", "size": 2}, "0 1", 0.0),
        ({"check": "independent", "size": 2}, "0 7", 0.0),
        ({"check": "cover", "size": 2}, "1 3", 1.0),
        ({"check": "cover", "size": 2}, "1 2", 0.0),
        ({"check": "matching", "size": 2}, "0-1 2-3", 1.0),
        ({"check": "matching", "size": 2}, "(0, 3), (1, 2)", 1.0),
        ({"check": "matching", "size": 2}, "0-1 1-2", 0.0),
        ({"check": "matching", "size": 2}, "0-2 1-3", 0.0),
        ({"check": "tree"}, "0-1 1-2 2-3", 1.0),
        ({"check": "tree"}, "2-3 0-3 1-0", 1.0),
        ({"check": "tree"}, "0-1 1-2 0-1", 0.0),
        ({"check": "tree"}, "0-1 1-2", 0.0),
    ],
)
def test_graph_reward(checked, text, expected):
    rollout = Rollout(
        SimpleNamespace(row=SimpleNamespace(answer=None, meta=SQUARE | checked, choices=())),
        [1],
        text=f"<answer>{text}</answer>",
    )
    assert build(Reward, "graph")(rollout) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1, 3", 1.0),
        ("3 and 1", 1.0),
        ("1", 0.5),
        ("1, 3, 4", 2 / 3),
        ("4", 0.0),
        ("0, 1, 2, 3, 4, 5", 1 / 3),
    ],
)
def test_graph_sets(text, expected):
    rollout = Rollout(
        SimpleNamespace(row=SimpleNamespace(answer=["1", "3"], meta={}, choices=())),
        [1],
        text=f"<answer>{text}</answer>",
    )
    assert build(Reward, "graph")(rollout) == pytest.approx(expected)
