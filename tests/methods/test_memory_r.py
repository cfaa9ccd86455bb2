"""Memory-R+: what is remembered, and the rewards it gives. Numbers by hand."""

from __future__ import annotations

import json

import pytest
from make import end_step, group, run

from vlrl.methods.papers.memory_r import SIZE, MemoryR, embedding, neighbours, scaled


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


def test_answers_of_similar_questions():
    kept = [([1.0, 0.0], [1.0, 0.0]), ([1.0, 0.0], [0.6, 0.8]), ([0.0, 1.0], [0.0, 1.0])]
    assert neighbours([1.0, 0.0], kept, k=1) == [[1.0, 0.0], [0.6, 0.8]]  # both answers of the one question
    assert len(neighbours([1.0, 0.0], kept, k=2)) == 3 and neighbours([1.0, 0.0], [], k=1) == []
    assert (
        scaled(2.0, [1.0, 3.0], alone=0.0),
        scaled(2.0, [2.0], alone=0.3),
        scaled(5.0, [1.0], alone=0.0),
    ) == (0.5, 0.3, 1.0)


def test_near_the_right_ones():
    """1 - n(d): the remembered correct text has distance 0, the least; another one the largest."""
    shape = on(exploit=0.5, explore=0.0)
    pair = ((1.0, "four apples"), (0.0, "no idea"))
    assert (
        shape(answers(*pair)) == [1.0, 0.0] == shape(answers(*pair))
    )  # the memory is empty until the end of the step
    end_step(shape, [])
    assert shape.metrics() == {"memory/correct": 2.0, "memory/wrong": 2.0} == shape.metrics()
    assert shape(answers((0.0, "four apples"))) == [
        pytest.approx(0.5, abs=1e-3)
    ]  # the first value counts as it is: 1 - 0
    end_step(shape, [])
    again = on(exploit=0.5, explore=0.0)
    again.load_state_dict(json.loads(json.dumps(shape.state_dict())))
    assert again(answers((0.0, "no idea"))) == [0.0]  # the largest distance
    end_step(again, [])
    (between,) = again(answers((0.0, "four pears")))
    assert 0.0 < between < 0.5


def test_unlike_the_wrong_ones():
    """n(1 - s): far from the remembered wrong answers is worth more, for correct and wrong answers alike."""
    shape = on(exploit=0.0, explore=1.0)
    shape(answers((0.0, "abc abc")))
    for reward, text, value in ((0.0, "abc abc", 0.0), (0.0, "xyz xyz", 1.0), (1.0, "xyz xyz", 1.0)):
        end_step(shape, [])
        if value == 1.0 and reward:
            shape.state.wrong[:] = shape.state.wrong[:1]  # "abc abc" alone
        assert shape(answers((reward, text))) == [pytest.approx(reward + value, abs=1e-3)]
    late = on(exploit=0.0, explore=1.0, explore_from=2)
    for text in ("abc", "xyz"):
        late(answers((0.0, text)))
        end_step(late, [])
        assert late(answers((0.0, "uvw"))) == [0.0]  # one question so far


def test_memory_is_bounded():
    shape = on(capacity=3, window=2)
    for i in range(9):
        shape(answers((i % 2, f"answer {i}")))
        end_step(shape, [])
    assert [len(values) for values in shape.state_dict().values()] == [3, 3, 2, 2]
    with pytest.raises(ValueError, match="at least 1"):
        MemoryR(k=0)
