"""Memory-R+: what is remembered, and the rewards it gives. Numbers by hand."""

from __future__ import annotations

import json

import pytest
from make import end_step, group, run

from vlrl.methods.papers.memory_r import SIZE, MemoryR, embedding, nearest


def on(**fields):
    shape = MemoryR(**fields)
    shape.setup(run())
    return shape


def answers(*pairs):
    """A group of (reward, text)."""
    return group(*[r for r, _ in pairs], raw={"a": [r for r, _ in pairs]}, texts=[text for _, text in pairs])


def test_embeddings():
    one, same, other = embedding("The cat sat."), embedding(" the CAT  sat. "), embedding("12+30=42")
    assert one == same and len(one) == SIZE and sum(v * v for v in one) == pytest.approx(1.0, abs=1e-3)
    assert sum(a * b for a, b in zip(one, other)) < 0.3 and embedding("") == embedding("   ") == [0.0] * SIZE


def test_nearest_answer_of_similar_questions():
    kept = [([1.0, 0.0], [1.0, 0.0]), ([1.0, 0.0], [0.6, 0.8]), ([0.0, 1.0], [0.0, 1.0])]
    assert nearest([1.0, 0.0], [0.0, 1.0], kept, k=2) == pytest.approx(0.8)  # the third is about another question
    assert nearest([1.0, 0.0], [0.0, 1.0], kept, k=3) == 1.0 and nearest([1.0, 0.0], [1.0, 0.0], [], k=1) is None


def test_near_the_right_ones():
    """Values of s_correct - s_wrong: +d for the remembered correct text, then -d for the wrong one: the largest and the smallest value."""
    shape = on(exploit=0.5, explore=0.0)
    pair = ((1.0, "four apples"), (0.0, "no idea"))
    assert shape(answers(*pair)) == [1.0, 0.0] == shape(answers(*pair))  # the memory is empty until the end of the step
    end_step(shape, [])
    assert shape.metrics() == {"memory/correct": 2.0, "memory/wrong": 2.0} == shape.metrics()
    assert shape(answers((0.0, "no idea"))) == [0.0]  # the first value: there is no other one to scale it by
    end_step(shape, [])
    again = on(exploit=0.5, explore=0.0)
    again.load_state_dict(json.loads(json.dumps(shape.state_dict())))
    assert again(answers(*pair)) == [1.5, 0.0]
    end_step(again, [])
    (between,) = again(answers((0.0, "four pears")))
    assert 0.0 < between < 0.5


def test_novelty_is_scaled_by_its_history():
    shape = on(exploit=0.0, explore=1.0)
    shape(answers((1.0, "abc abc")))
    for text, value in (("abc abc", 0.0), ("xyz xyz", 1.0), ("abc abc", 0.0)):  # 1 - 1 is the only value at first; as unlike as any; the least
        end_step(shape, [])
        assert shape(answers((0.0, text))) == [value]


def test_memory_is_bounded():
    shape = on(capacity=3, window=2)
    for i in range(9):
        shape(answers((i % 2, f"answer {i}")))
        end_step(shape, [])
    assert [len(values) for values in shape.state_dict().values()] == [3, 3, 2, 2]
    with pytest.raises(ValueError, match="at least 1"):
        MemoryR(k=0)
