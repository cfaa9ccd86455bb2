"""Experiments on search, Python where it pays, and zoom: every part acts in a short run, and rewards tell
right from wrong use of the tool."""

import pytest
from vlrl_rewards.code import sandbox

from vlrl.activity.check import check
from vlrl.config import load
from vlrl.trainer.plan import Plan

MODE = "bubblewrap" if not sandbox.available() else "unsafe"
SMALL = [
    "policy.tiny.hidden=32",
    "prompts_per_step=4",
    "group_size=4",
    "phases.cold_start.prompts_per_step=4",
    "phases.rl.prompts_per_step=4",
]
CALL = '<think></think><tool_call>{"name": "python", "arguments": {"code": "print(5+5)"}}</tool_call>'
LINES = (
    f"engine.lines={{'': ['{CALL}', '<think></think><answer>{{answer}}</answer>', "
    f"'<think></think><answer>{{wrong}}</answer>']}}"
)
WORDS = {
    "lab_search": [],
    "lab_python_pays": [LINES, f"environment.mode={MODE}"],
    "lab_zoom": [
        (
            "engine.lines={'': ['<zoom>[6, 6, 8, 8]</zoom>', '<answer>{answer}</answer>', "
            "'<answer>{wrong}</answer>']}"
        )
    ],
}


@pytest.mark.parametrize("name", WORDS)
def test_every_part_of_the_experiment_acts(name):
    *warm_up, rl = check(
        load([f"experiments/{name}", "base/scripted"], [*SMALL, *WORDS[name]]), steps=2, rows=64
    )
    assert (
        rl.phase == "rl"
        and "cold_start" in [phase.phase for phase in warm_up]
        and not any(phase.bad for phase in (*warm_up, rl))
    )
    assert any(key.startswith("calls/share/") for step in rl.log for key in step)


def test_held_out_people_and_products_are_new_and_small_sums_are_not():
    first = Plan.of(load(["experiments/lab_search"])).phases[0]
    asked = {row.question for row in first.rows("train")["lookup"]}
    assert not asked & {row.question for row in first.heldout_by_task()["lookup"]}
    first = Plan.of(load(["experiments/lab_python_pays"], [f"environment.mode={MODE}"])).phases[0]
    asked, held_out = (
        {row.question for rows in first.rows("train").values() for row in rows},
        first.heldout_by_task(),
    )
    assert (
        not asked & {row.question for row in held_out["products"]}
        and {row.question for row in held_out["sums"]} <= asked
    )
