import io

import pytest
from rich.console import Console

from vlrl.logging.live import LiveView, clock, sparkline, total_steps

CONFIG = {"output": "runs/[x]", "steps": 10, "phases": {"sft": {"steps": 4}, "rl": {}}}
METRICS = {"reward/total": 0.75, "reward/accuracy": 0.5, "length/mean": 12.0, "entropy": 0.4, "kl": 0.001, "clip_fraction": 0.02, "tokens": 300}


def view(terminal):
    out = io.StringIO()
    return out, LiveView(CONFIG, Console(file=out, force_terminal=terminal, width=120))


@pytest.mark.parametrize(("seconds", "text"), [(3.2, "3 s"), (59.7, "1:00"), (754, "12:34"), (11045, "3:04:05")])
def test_clock(seconds, text):
    assert clock(seconds) == text


def test_steps_of_all_phases():
    assert total_steps(CONFIG) == 14
    assert total_steps({"steps": 7}) == 7


def test_sparkline_spans_its_own_range():
    assert sparkline([0, 7, 3]) == "▁█▄"
    assert sparkline([]) == "" and sparkline([2.0, 2.0]) == "▁▁"


@pytest.mark.parametrize("terminal", [True, False])
def test_everything_is_shown(terminal):
    out, live = view(terminal)
    live.update(5, "rl", METRICS, {"step": 2.0})
    live.say("heldout", {"name": "[final]", "scores": {"digits": 0.5}})
    live.close()
    text = out.getvalue()
    for piece in ("rl", "5/14", "reward", "0.75", "accuracy", "0.5", "length", "entropy", "KL", "clipped", "0.02", "150", "18 s", "[final]"):
        assert piece in text, piece
    assert ("\x1b[" in text) is terminal


def test_plain_lines_are_few_but_each_phase_starts_one_and_the_last_is_shown():
    out, live = view(False)
    for step in range(1, 15):
        live.update(step, "sft" if step <= 4 else "rl", METRICS, {"step": 0.1})
    lines = out.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["sft 1/14", "rl 5/14", "rl 14/14"]
