import io

import pytest
from rich.console import Console

from vlrl.logging.live import LiveView, clock, sparkline, total_steps

CONFIG = {"output": "runs/[x]", "steps": 10, "phases": {"sft": {"steps": 4}, "rl": {}}}
METRICS = {
    "reward/total": 0.75,
    "reward/accuracy": 0.5,
    "length/mean": 12.0,
    "entropy": 0.4,
    "kl": 0.001,
    "clip_fraction": 0.02,
    "tokens": 300,
}


def view(terminal):
    out = io.StringIO()
    return out, LiveView(CONFIG, Console(file=out, force_terminal=terminal, width=120))


@pytest.mark.parametrize(
    ("seconds", "text"), [(3.2, "3 s"), (59.7, "1:00"), (754, "12:34"), (11045, "3:04:05")]
)
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
    live.on_event("heldout", {"name": "[final]", "scores": {"digits": 0.5}})
    live.close()
    text = out.getvalue()
    for piece in (
        "rl",
        "5/14",
        "reward",
        "0.75",
        "accuracy",
        "0.5",
        "length",
        "entropy",
        "KL",
        "clipped",
        "0.02",
        "150",
        "18 s",
        "[final]",
    ):
        assert piece in text, piece
    assert ("\x1b[" in text) is terminal


def test_plain_lines_are_few_but_each_phase_starts_one_and_the_last_is_shown():
    out, live = view(False)
    for step in range(1, 15):
        live.update(step, "sft" if step <= 4 else "rl", METRICS, {"step": 0.1})
    lines = out.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["sft 1/14", "rl 5/14", "rl 14/14"]


def test_heldout_scores_of_a_phase_are_shown_beside_the_first_one():
    out, live = view(False)
    live.on_event("heldout", {"name": "start", "scores": {"digits": 0.25}})
    live.update(5, "rl", METRICS, {"step": 0.1})
    live.update(6, "rl", METRICS | {"heldout/digits": 0.75, "heldout/errors": 2.0}, {"step": 0.1})
    lines = out.getvalue().splitlines()
    assert (
        len(lines) == 3
        and "held-out digits 0.250 -> 0.750" in lines[-1]
        and "held-out errors" not in lines[-1]
    )


def test_rewards_of_another_phase_do_not_scale_the_curve():
    _, live = view(True)
    for reward in (1.1, 1.1, 1.1):
        live.update(1, "cold_start", METRICS | {"reward/total": reward}, {"step": 0.1})
    live.update(4, "rl", METRICS | {"reward/total": 0.1}, {"step": 0.1})
    live.update(5, "rl", METRICS | {"reward/total": 0.2}, {"step": 0.1})
    live.close()
    assert live.rewards == [0.1, 0.2]


def test_what_the_log_prints_is_not_printed_twice():
    out, live = view(False)
    live.on_event("warning", {"message": "the disk is full"})
    live.on_event("activity", {"lines": ["phase rl"]})
    assert out.getvalue() == ""


def test_progress_of_an_evaluation_is_shown(monkeypatch):
    out, live = view(True)
    live.update(5, "rl", METRICS, {"step": 0.1})
    live.progress("held-out", 3, 8)
    assert "held-out 3/8" in out.getvalue()
    live.update(6, "rl", METRICS, {"step": 0.1})
    live.close()
    assert "held-out 3/8" not in out.getvalue().rpartition("step 6/14")[2]


@pytest.mark.parametrize("terminal", [True, False])
def test_what_looks_wrong_is_said_in_words(terminal):
    out, live = view(terminal)
    live.update(5, "rl", METRICS | {"truncated": 0.5}, {"step": 0.1})
    live.update(14, "rl", METRICS | {"truncated": 0.5}, {"step": 0.1})
    live.close()
    wrong = "50% of the answers are cut off: raise sampling.max_tokens"
    assert wrong in out.getvalue() and (terminal or out.getvalue().count(wrong) == 1)
    out, live = view(terminal)
    live.update(14, "rl", METRICS, {"step": 0.1})
    live.close()
    assert ("nothing looks wrong" in out.getvalue()) is terminal and "looks wrong:" not in out.getvalue()
