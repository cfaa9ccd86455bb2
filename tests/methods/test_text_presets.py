"""Presets of the text-reward family: they build on the lab's arithmetic and take steps, and those that change
a reward change it there."""

from __future__ import annotations

import json

import pytest
from run_kit import last_step
from task_kit import MODELS, params
from tiny import steps, text_run

SHAPED = [
    "laser_2",
    "grpo_lambda",
    "efficiencysteering_ser_rl",
    "campo",
    "par",
    "noisy_verifier_corrections",
    "cde",
    "diver",
    "memory_r",
]
REWARDED = ["format_length_surrogate", "rpr", "simplerl_zoo"]


@pytest.mark.parametrize("method", SHAPED + REWARDED)
def test_two_steps(method):
    made = text_run([f"methods/{method}"], MODELS.get(method, []))
    first, second = steps(made, 2)
    assert first["groups"] > 0 and second["rollouts"] > 0 and first["reward/errors"] == 0


OWN_DATA = {
    "rlcr": ("calibrated", {"answer": "4"},
        "<think>a</think><answer>4</answer><analysis>b</analysis><confidence>1</confidence>", 1.0, -2.0),
    "forecast_rlvr": ("forecast", {"answer": 1, "task": "forecast"}, "<think>so</think><answer>0.9</answer>",
        -0.01, -1.0),
    "med_rlvr": ("choice", {"answer": "A", "task": "choice", "choices": ["x", "y"]},
        "<think>a</think><answer>A</answer>", 1.0, -1.0),
    "alphamed": ("choice", {"answer": "A", "task": "choice", "choices": ["x", "y"]}, "<answer>A</answer>",
        1.0, 0.0),
    "reasonrank": (
        "ranking", {"answer": [1, 2], "task": "ranking", "meta": {"relevant": [1]}},
        "<think>a</think><answer>[1] > [2]</answer>", 1.3, -1.0,
    ),
    "reasoning_table": ("answer", {"answer": ["a", "b"], "task": "table_qa"},
        "<think>c</think><answer>b, a</answer>", 1.0, 0.0),
    "mt_r1_zero": ("quality", {"answer": "the cat sat here", "task": "translation"},
        "<think>a</think><answer>the cat sat here</answer>", 1.0, -4.0),
    "time_r1": ("date", {"answer": "2016-05", "task": "date"}, "<answer>2016-05</answer>", 1.0, 0.0),
    "tat_r1": ("words", {"answer": "a liver", "task": "terms", "meta": {"terms": ["liver"]}},
        "<think>a</think><answer>a liver</answer>", 1.0, 0.0),
    "recode": ("edit", {"answer": "x = 1", "task": "migration"}, "<answer>```python\nx = 1\n```</answer>",
        2.0, -2.0),
    "swe_rl": (
        "patch", {"answer": {"a": "y"}, "task": "patch", "meta": {"files": {"a": "x"}}},
        "<think>a</think><solution>### a\n<<<<<<< SEARCH\nx\n=======\ny\n>>>>>>> REPLACE</solution>", 1.0,
        -1.0,
    ),
    "interleaved_reasoning": (
        "answers", {"answer": "8", "task": "steps", "meta": {"steps": ["3"]}},
        "<think>a</think><answer>3</answer><think>b</think><answer>8</answer>",
        3.0, -1.0,
    ),
    "guru": ("math", {"answer": "1/2", "task": "math"}, "\\boxed{0.5}", 1.0, 0.0),
    "verif": ("rules", {"answer": [{"id": "punctuation:no_comma"}], "task": "instructions"}, "yes indeed",
        1.0, None),
    "prompt_based_length_control_rl": ("length", {"answer": "4", "meta": {"length": [1, 100]}},
        "<answer>4</answer>", 0.0, None),
    "ssrl": ("format", {"answer": "e", "task": "qa"}, "<think>d</think><answer>e</answer>", 0.5, 0.0),
    "deeptheorem": ("verdict", {"answer": "proved", "task": "theorem"},
        "<think>a</think><answer>\\boxed{proved}</answer>", 1.0, 0.0),
}  # fmt: skip


@pytest.mark.parametrize("method", params(OWN_DATA))
def test_the_preset_scores_its_own_rows(method, tmp_path):
    """A right answer and an empty one on a row made for the preset's reward: what each earns, and a step of
    training."""
    slot, row, right, best, worst = OWN_DATA[method]
    rows = [{"id": f"r{i}", "question": "q?", "target": right, **row} for i in range(4)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    source = f"{{arithmetic: null, rows: {{name: files, path: {path}}}}}"
    speaks = ["engine.options=['{target}', '']", "sampling.max_tokens=120", "group_size=8"]
    made = text_run(
        [f"methods/{method}"],
        [f"data={{train: {source}, heldout: {source}}}", *speaks, *MODELS.get(method, [])],
    )
    (metrics,) = steps(made, 1)
    assert metrics["reward/errors"] == 0 and metrics["groups"] == 4
    scores = {
        rollout.text == right: rollout.rewards[slot] for group in last_step(made).groups for rollout in group
    }
    assert set(scores) == {True, False}
    assert best is None or scores[True] == pytest.approx(best)
    assert worst is None or scores[False] == pytest.approx(worst)
    if best is None:
        assert scores[True] > scores[False]
