"""A broken gold answer is a GoldError of the package, for every verifier and reward and every type that JSON
has; never another exception."""

import math

import pytest
from vlrl_rewards import GoldError, verify
from vlrl_rewards.audit.forms import FORMS, NESTED
from vlrl_rewards.math import judge
from vlrl_rewards.verification import kinds

from vlrl.plugins.registry import build
from vlrl.plugins.stages import Reward
from vlrl.types import Group, Prompt, Rollout, Row

GOLDS = [
    None, True, False, 0, 1, -1, 1.5, math.nan, math.inf, 10**400, "", " ", "x", "1", "\ud800", "[1, 2", "{",
    [], [1, 2], [1.5, 2.5],
    ["a"], ["a", "b"],
    [None], [True], [[1]], [[]], [{}], [[1, 2], [3, 4]], [1, 2, 3, 4], ["a", 1, None], {}, {"a": 1},
    {"size": None}, {"size": [4, 4], "counts": None},
    {"start": None, "end": None}, {"inputs": None}, {"objects": None}, {"box": None, "action": None},
    {"id": 1}, [{"id": 1}], [{"bbox": None}],
    [{"bbox": ["a", None, 1, 2]}], {"a": {"b": [1]}}, {"a": [None]}, "S", "S.#\n..G", [1, "S"], ["S", 5],
    {"answer": None, "box": [1]}, [[1, [2]]],
    [[["a"]]],
]  # fmt: skip
RESPONSES = ("", "5", "<answer>[1, 2]</answer>", "<answer>up, right</answer>", '{"a": 1}', "B")


@pytest.fixture(autouse=True)
def no_library(monkeypatch):
    monkeypatch.setattr(judge, "compare", lambda gold, said: (None, "not asked"))


@pytest.mark.parametrize("kind", sorted(set(kinds()) - {"code"}))
def test_a_kind_judges_a_gold_or_refuses_it_clearly(kind):
    for gold in GOLDS:
        for response in RESPONSES:
            for choices in (None, ["cat", "dog"]):
                try:
                    verdict = verify(gold, response, kind, choices)
                    assert 0.0 <= verdict.score <= 1.0
                except GoldError as error:
                    assert len(str(error)) > 15, (gold, error)
                except ValueError as error:
                    assert not str(error).startswith(("gold", "answer")), (kind, gold, error)


@pytest.mark.parametrize("name", sorted(name for name in (*FORMS, *NESTED) if name != "code"))
def test_a_reward_scores_a_gold_or_raises_value_error(name):
    spec, seed = (FORMS[name].spec, FORMS[name].seed) if name in FORMS else NESTED[name]
    reward = build(Reward, dict(spec))
    for gold in GOLDS:
        prompt = Prompt(
            Row(
                "gold", "?", answer=gold, choices=seed.choices, meta=dict(dict(seed.options).get("meta", {}))
            ),
            (),
        )
        rollouts = [
            Rollout(prompt, [0], text=text) for text in (seed.right, f"<answer>{seed.right}</answer>", "")
        ]
        try:
            assert len(list(reward.score_group(Group(prompt, rollouts)))) == 3
        except ValueError as error:
            assert str(error)


@pytest.mark.parametrize(
    ("kind", "gold", "names"),
    [
        ("maze", [1, 2], "maze"), ("maze", None, "maze"), ("maze", ["S.", 5], "list of texts"), ("jigsaw",
            [None], "whole numbers"),
        ("ranking", True, "no ranking"), ("ranking", {"a": None}, "no ranking"), ("count", 10**400,
            "not a count"), ("timestamp", 10**400,
        "not a time"),
        ("mcq", None, "none of the options"), ("text", "", "empty"), ("yes_no", "perhaps",
            "neither yes nor no"), ("box", "x", "no boxes"),
        ("mask", {"size": None}, "gold mask"), ("math", "", "empty"), ("list", None, "no items"),
    ],
)  # fmt: skip
def test_the_error_names_the_fault(kind, gold, names):
    with pytest.raises(GoldError, match=names):
        verify(gold, "5", kind)


def test_a_sound_gold_is_judged():
    assert verify(["S.#", "..G"], "down right right", "maze").correct
    assert not verify(["S.#", "..G"], "right", "maze").correct
