"""`gen_sequence` and `gen_compose`: optima by brute force, unique solutions, and the rewards of right and
wrong answers."""

import itertools
import random

import pytest
from vlrl_data.generators.sequences import FUNCTIONS, longest_increasing, most_activities

from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Reward, Source
from vlrl.types import Prompt, Rollout, Row


def rows(count=20, **fields):
    return list(build(Source, {"count": count, **fields})())


def score(row, text, mode="both"):
    return build(Reward, {"name": "sequence", "mode": mode})(Rollout(Prompt(row, ()), [], text))


def all_best(count, fits):
    """Every largest valid subset of 0 .. count - 1, by brute force."""
    for size in range(count, 0, -1):
        found = [list(subset) for subset in itertools.combinations(range(count), size) if fits(subset)]
        if found:
            return found
    return [[]]


@pytest.mark.parametrize("seed", range(12))
def test_longest_increasing_against_all_subsets(seed):
    values = random.Random(seed).choices(range(8), k=7)
    best = all_best(7, lambda subset: all(values[a] < values[b] for a, b in itertools.pairwise(subset)))
    found, ways = longest_increasing(values)
    assert found in best and ways == len(best)


@pytest.mark.parametrize("seed", range(12))
def test_most_activities_against_all_subsets(seed):
    rng = random.Random(seed)
    spans = [tuple(sorted(rng.sample(range(12), 2))) for _ in range(7)]

    def fits(subset):
        return all(
            spans[a][1] <= spans[b][0] or spans[b][1] <= spans[a][0]
            for a, b in itertools.combinations(subset, 2)
        )

    best = all_best(7, fits)
    found, ways = most_activities(spans)
    assert sorted(found) in best and ways == len(best)
    assert [spans[i][0] for i in found] == sorted(spans[i][0] for i in found)


@pytest.mark.parametrize("ask", ["lis", "scheduling"])
def test_rows_have_one_solution_and_the_demonstration_is_it(ask):
    made = rows(name="gen_sequence", ask=ask, items=5)
    assert made == rows(name="gen_sequence", ask=ask, items=5)
    assert len({row.question for row in made}) == len(made)
    for row in made:
        assert score(row, row.target) == 1.0
        assert row.answer["value"] == len(row.answer["ids"])


GOLD = Row("r", "?", {"value": 3, "ids": [1, 2, 5]})


@pytest.mark.parametrize(
    ("text", "value", "ids", "prefix", "both", "consistent"),
    [
        ("3: 1 2 5", 1, 1, 1, 1, 1),
        ("3; [1, 2, 5]", 1, 1, 1, 1, 1),
        ("3: 1 2 4", 1, 0, 2 / 3, 0, 1),
        ("3: 1 2", 1, 0, 2 / 3, 0, 0),
        ("4: 1 2 5", 0, 1, 1, 0, 0),
        ("4: 1 2 5 6", 0, 0, 3 / 4, 0, 1),
        ("3: 5 2 1", 1, 0, 0, 0, 1),
        ("0:", 0, 0, 0, 0, 0),
        ("3:", 1, 0, 0, 0, 0),
        ("3", 0, 0, 0, 0, 0),
        ("3: 1 2 5 or 3: 1 2 4", 0, 0, 0, 0, 0),
        ("three: 1 2 5", 0, 0, 0, 0, 0),
        ("", 0, 0, 0, 0, 0),
        ("3: " + "1 " * 5000, 0, 0, 0, 0, 0),
    ],
)
def test_scores(text, value, ids, prefix, both, consistent):
    found = [
        score(GOLD, f"<answer>{text}</answer>", mode)
        for mode in ("value", "ids", "prefix", "both", "consistent")
    ]
    assert found == pytest.approx([value, ids, prefix, both, consistent])


@pytest.mark.parametrize("answer", [None, 3, {"value": 3}, {"ids": [1], "value": "3"}])
def test_a_broken_row_is_an_error(answer):
    with pytest.raises(ValueError, match="'r'"):
        score(Row("r", "?", answer), "<answer>3: 1 2 5</answer>")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [("f1", "abc", "cba"), ("f2", "ab", "abab"), ("f3", "abc", "bca"), ("f4", "abc", "ab"), ("f5", "abc",
        "cba"), ("f5", "a", "a"), ("f6", "a", "xa"),
     ("f7", "abcde", "ace"), ("f8", "cab", "abc")],
)  # fmt: skip
def test_string_functions(name, text, expected):
    assert FUNCTIONS[name][1](text) == expected


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("define", [True, False])
def test_compositions(depth, define):
    for row in rows(name="gen_compose", depth=depth, letters=5, define=define):
        call = row.question.partition("What is ")[2].removesuffix("?")
        names = call.split("(")[:-1]
        text = call.split("(")[-1].rstrip(")")
        for name in reversed(names):
            text = FUNCTIONS[name][1](text)
        assert text == row.answer != "" and len(names) == depth
        assert row.question.startswith("What is ") is not define
        assert build(Reward, {"name": "exact"})(Rollout(Prompt(row, ()), [], row.target)) == 1.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "gen_sequence", "items": 1}, "items=1"),
        ({"name": "gen_sequence", "ask": "knapsack"}, "ask"),
        ({"name": "gen_compose", "functions": ["f9"]}, "f9"),
        ({"name": "gen_compose", "depth": 5, "letters": 3}, "letters=3"),
    ],
)
def test_impossible_settings_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        build(Source, fields)
