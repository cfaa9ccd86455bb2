"""The formulas of the probes by hand, and what their statements say of made numbers."""

import math

import numpy as np
import pytest
import torch

from vlrl.plugins.registry import ConfigError
from vlrl.probes import (
    curves,
    hierarchy,
    inference,
    profiles,
    rewardmath,
    self_prm,
    shortcuts,
    sparkle,
    verifiers,
)
from vlrl.probes.result import Figure, ProbeResult, against, as_json, as_page, as_text
from vlrl.types import Row

# --- one against many ---------------------------------------------------------------------------------------


def test_the_correct_solution_ranks_behind_ties():
    assert rewardmath.rank(0.9, [0.1, 0.5]) == 1
    assert rewardmath.rank(0.5, [0.5, 0.1]) == 2
    assert rewardmath.rank(0.0, [0.5, 0.1]) == 3


def test_rewardmath_by_hand():
    rows = [{"chosen": "aaa", "rejected": ["a", "aa"]}, {"chosen": "a", "rejected": ["aaaa", "b"]}]
    found = rewardmath.measure(
        rows, {"length": lambda text, row: len(text), "letter": lambda text, row: "a" in text}
    )
    # length: ranks 1 and 3; letter: all "a..." tie at 1, so ranks 3 and 2
    assert found.rows == [
        ["length", 0.5, pytest.approx((1 + 1 / 3) / 2)],
        ["letter", 0.0, pytest.approx((1 / 3 + 1 / 2) / 2)],
    ]
    assert found.figure.lines["length"] == [(1.0, 0.5), (2.0, 0.5), (3.0, 1.0)]
    with pytest.raises(ValueError, match="'rejected' is empty"):
        rewardmath.measure([{"chosen": "a", "rejected": []}], {"length": lambda text, row: 0.0})


# --- verifiers ----------------------------------------------------------------------------------------------


def test_a_strict_and_a_gullible_verifier():
    rows = [
        {"gold": "1/2", "response": "1/2", "correct": True},
        {"gold": "1/2", "response": "0.5", "correct": True},
        {"gold": "1/2", "response": "3", "correct": False},
    ]
    judges = {"strict": lambda text, row: text == row["gold"], "gullible": lambda text, row: True}
    found = verifiers.measure(rows, judges)
    assert found.rows[0] == ["strict", 1.0, 0.5, 0.5, 0.0]
    assert found.rows[1] == ["gullible", pytest.approx(2 / 3), 1.0, 0.0, 1.0]
    assert "strict misses 50.0% of the right answers" in found.statement
    assert "gullible is fooled by 100.0% of the patterns" in found.statement
    assert len(found.figure.labels) == 6
    never = verifiers.measure(rows[2:], {"never": lambda text, row: False})
    assert never.rows == [["never", None, None, None, 0.0]] and "has neither fault" in never.statement


# --- few runs -----------------------------------------------------------------------------------------------


def test_statistics_of_runs_and_tasks_are_the_library_s():
    scores = np.array([[0.1, 0.9, 0.4], [0.3, 1.2, 0.2], [0.5, 0.8, 0.6], [0.7, 1.0, 0.0]])
    stats = pytest.importorskip("scipy.stats")
    assert profiles.iqm(scores) == pytest.approx(stats.trim_mean(scores, 0.25, axis=None))
    # gamma - mean(min(score, 1)): the 1.2 counts as 1
    assert profiles.optimality_gap(scores) == pytest.approx(1 - (scores.sum() - 0.2) / 12)
    assert profiles.profile(scores, [0.0, 0.5, 1.0]) == [11 / 12, 6 / 12, 1 / 12]
    other = scores - 0.15
    wanted = np.mean([
        stats.mannwhitneyu(scores[:, m], other[:, m], alternative="greater")[0] / 16 for m in range(3)
    ])  # fmt: skip
    assert profiles.improvement(scores, other) == pytest.approx(wanted)
    assert profiles.improvement(scores, scores) == pytest.approx(0.5)


def test_intervals_draw_runs_within_tasks():
    apart = np.array([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]])  # runs agree: drawing runs changes nothing
    low, high = profiles.interval(profiles.iqm, apart, draws=50)
    assert low == high == pytest.approx(0.5)
    found = profiles.measure({"a": [[0.1, 0.2], [0.2, 0.3]], "b": [[0.8, 0.9], [0.9, 0.8]]}, draws=200)
    assert [row[0] for row in found.rows] == ["a", "b"] and found.rows[1][5] == 1.0
    assert "b has the highest" in found.statement and "above that of a" in found.statement
    with pytest.raises(ValueError, match="runs x 2 tasks"):
        profiles.measure({"a": [[0.1, 0.2]], "b": [[0.8]]})


# --- inference ----------------------------------------------------------------------------------------------


def test_votes():
    assert inference.vote(["3", "4", "4"], [1, 1, 1]) == 1
    assert inference.vote(["3", "4", "4"], [1.0, 0.3, 0.3]) == 0
    assert inference.vote(["3", "4"], [1, 1]) == 0  # ties by first come


def test_self_prm_votes_among_those_judged_right():
    answers = ["7", "8", "7", "7"]
    assert self_prm.reranked(answers, [False, True, False, False]) == 1
    assert self_prm.reranked(answers, [False] * 4) == 0  # none is judged right: the majority
    assert self_prm.precision_recall([(True, True), (True, False), (False, True)]) == (0.5, 0.5)
    assert self_prm.precision_recall([(False, False)]) == (None, None)
    assert [self_prm.difficulty(share) for share in (0.0, 0.33, 0.5, 0.67, 1.0)] == [
        "hard", "hard", "middle", "easy", "easy",
    ]  # fmt: skip


def test_a_bin_in_which_nothing_was_judged_right_is_not_drawn(monkeypatch):
    monkeypatch.setattr(self_prm, "verdicts", lambda subject, pairs: [0.0] * len(pairs))
    words = ["models/tiny_text", "tasks/gen_planned", "engine={name: scripted}", "threads=1"]
    found = self_prm.measure(words, [""], 2, 2, 1.0)
    assert [*found.figure.lines.values()] == [[]] and found.rows[0][3] is None
    monkeypatch.setattr(self_prm, "verdicts", lambda subject, pairs: [1.0] * len(pairs))
    assert [*self_prm.measure(words, [""], 2, 2, 1.0).figure.lines.values()] != [[]]


# --- SPARKLE ------------------------------------------------------------------------------------------------

PROBLEM = Row(
    "1", "2+3-1=", answer="4",
    meta={
        "plan": "Add, then subtract.",
        "subproblems": [{"question": "2+3=", "answer": "5"}, {"question": "5-1=", "answer": "4"}],
    },
)  # fmt: skip


def test_what_each_mode_asks():
    assert sparkle.questions(PROBLEM, "plain") == [PROBLEM]
    (planned,) = sparkle.questions(PROBLEM, "plan")
    assert planned.question == "2+3-1=\nFollow this plan:\nAdd, then subtract." and planned.answer == "4"
    assert sparkle.questions(PROBLEM, "knowledge") == []
    first, second = sparkle.questions(PROBLEM, "subproblems")
    assert (first.question, first.answer) == ("2+3=", "5")
    assert second.question == "2+3=\nThe answer is 5.\n\n5-1=" and second.id == "1/1"


def test_deltas_by_level():
    right = {
        ("m", "1", "plain"): {"a": 1.0, "b": 0.0}, ("m", "1", "plan"): {"a": 0.0, "b": 0.0},
        ("m", "1", "subproblems"): {"a": 1.0},  # the problem without subproblems is no part of what they do
    }  # fmt: skip
    assert sparkle.deltas(right, "m", "1") == {"plan": -0.5, "knowledge": None, "subproblems": 0.0}
    found = sparkle.finding(right, ["m"], ["1"])
    assert found.rows == [["m", "1", 0.5, -0.5, None, 0.0]]
    assert "plan hurts (-50.0%, 95% interval" in found.statement
    assert "not told from chance by 2 questions), subproblems changes nothing" in found.statement


def test_a_difference_that_chance_may_give_is_called_so():
    sure = against([1.0] * 9 + [0.0], [0.0] * 10)
    assert sure.startswith("+90.0%, 95% interval +67.4% to +100.0%") and "chance" not in sure
    # one of ten gained: McNemar's p is 1; half = t(0.975, 9) * sqrt(0.1 / 10) = 2.2622 * 0.1
    assert against([1.0] + [0.0] * 9, [0.0] * 10) == (
        "+10.0%, 95% interval -12.6% to +32.6%: not told from chance by 10 questions"
    )


# --- HierTraversal ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("Animals, then Mammals, then Cats", 1.0),
        ("animals ... cats", 2 / 3),
        ("cats, mammals, animals", 1 / 3),  # named, but the other way round
        ("fish", 0.0),
    ],
)
def test_path_recall(text, share):
    assert hierarchy.path_recall(text, ["animals", "mammals", "cats"]) == pytest.approx(share)


def test_what_a_structured_prompt_closes():
    alike = {"statement": [1.0, 0.9], "query": [1.0, 0.5]}

    def pair(gained, of=100):
        return [1.0] * gained + [0.0] * (of - gained), [0.0] * of

    told = hierarchy.stated({"plain": pair(24), "structured": pair(7)}, alike)
    assert (
        "closes 71% of a gap of 24.0% (+24.0%, 95% interval +15.5% to +32.5%): the gain is procedure" in told
    )
    assert "query 0.500" in told
    assert "more than procedure" in hierarchy.stated({"plain": pair(20), "structured": pair(15)}, alike)
    none = hierarchy.stated({"plain": pair(0), "structured": pair(0)}, alike)
    assert "no gap to explain" in none and "not told from chance by 100 questions" in none


# --- shortcuts ----------------------------------------------------------------------------------------------


def test_divergence_and_nll():
    p, q = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    assert shortcuts.jsd(torch.stack([p, p]), torch.stack([q, p])).tolist() == [
        pytest.approx(math.log(2)),
        0.0,
    ]
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]]))
    # tokens 0 1 | 2: the prompt's second token has probability 0.25, the answer's 0.1
    prompt, answer = shortcuts.nll(logits, [0, 1, 2], 2)
    assert prompt == pytest.approx(-math.log(0.25)) and answer == pytest.approx(-math.log(0.1))


def test_the_paradox_needs_both_moves():
    reading = shortcuts.LayerReading
    start = reading(1.0, 2.0, [0.1, 0.2], [0.0, 0.0], [0.2, 0.3])
    after = reading(1.5, 1.0, [0.1, 0.9], [0.0, 0.0], [0.6, 0.4])
    paradox = shortcuts.finding(["a", "b"], [start, after], [[0.5, 0.0], [0.0, 2.0]])
    assert "the perplexity paradox" in paradox.statement and "MLP of layer 2 (of 2)" in paradox.statement
    assert "the MLP of layer 1 changed most (divergence +0.4)" in paradox.statement
    plain = shortcuts.finding(["a", "b"], [start, after._replace(prompt=0.5)], [[0.0, -1.0], [0.0, -2.0]])
    assert "no perplexity paradox" in plain.statement and "No single layer" in plain.statement
    assert plain.rows[1][1:3] == [pytest.approx(math.exp(0.5)), pytest.approx(math.e)]


# --- curves of runs -----------------------------------------------------------------------------------------


def a_run(folder, name, advantage, values):
    where = folder / name
    where.mkdir()
    (where / "config.yaml").write_text(
        f"advantage: {{name: {advantage}}}\ngroup_size: 2\nprompts_per_step: 3\n"
    )
    (where / "sessions.jsonl").write_text('{"time": 100.0, "packages": {"torch": "2"}}\n')
    lines = enumerate(values, 1)
    (where / "metrics.jsonl").write_text("".join(f'{{"step": {i}, "reward/total": {v}}}\n' for i, v in lines))
    (where / "timings.jsonl").write_text(
        "".join(f'{{"step": {i + 1}, "time": {102 + i}}}\n' for i in range(len(values)))
    )
    return where


def test_levels_are_in_the_order_of_their_numbers():
    assert sparkle.in_order({"10", "9", "2.5", "2"}) == ["2", "2.5", "9", "10"]
    assert sparkle.in_order({"hard", "level 10", "level 2"}) == ["hard", "level 2", "level 10"]


def test_a_reward_that_is_always_right_is_not_called_gameable():
    rows = [{"chosen": "aa", "rejected": ["a"]}]
    long = rewardmath.measure(rows, {"long": lambda text, row: len(text)}).statement
    short = rewardmath.measure(rows, {"short": lambda text, row: -len(text)}).statement
    assert "without being right" in short and "without being right" not in long


def test_curves_by_setting(tmp_path):
    runs = [
        a_run(tmp_path, "a", "grpo", [0.1, 0.3]),
        a_run(tmp_path, "b", "grpo", [0.3, 0.5, 0.9]),
        a_run(tmp_path, "c", "rloo", [0.2]),
    ]
    found = curves.measure(runs, "reward/total", "samples")
    assert found.figure.lines["grpo"] == [(6.0, pytest.approx(0.2)), (12.0, pytest.approx(0.4))]
    assert found.rows == [
        ["grpo", 2, 12.0, pytest.approx(0.4), 0.3, 0.5, 1],
        ["rloo", 1, 6.0, 0.2, 0.2, 0.2, 1],
    ]
    assert "different places (samples: 12, 6)" in found.statement and "overlap" not in found.statement
    assert curves.measure(runs[:1], "reward/total", "seconds").figure.lines["grpo"][1][0] == 3.0
    assert len(curves.measure(runs, "reward/total", keep=["advantage.name=rloo"]).rows) == 1
    for fault, match in (
        ({"metric": "reward/totl"}, "reward/total"),
        ({"by": "optimizer.lr"}, "no setting"),
        ({"keep": ["advantage.name=gae"]}, "no run matches"),
    ):
        with pytest.raises(ConfigError, match=match):
            curves.measure(runs, **{"metric": "reward/total", **fault})
    with pytest.raises(ConfigError, match="holds no metrics.jsonl"):
        curves.measure([tmp_path], "reward/total")


# --- what is told -------------------------------------------------------------------------------------------


def test_a_finding_as_text_json_and_page():
    found = ProbeResult(
        "A <title>",
        "It holds.",
        ("model", "share"),
        [["x", 0.5], ["y", None]],
        Figure({"x": [(0.0, 1.0), (1.0, 2.0)]}, "step", "share"),
    )
    assert "x      0.5\ny      -" in as_text(found) and as_text(found).endswith("It holds.")
    assert '"table": [' in as_json(found) and '"share": null' in as_json(found)
    page = as_page(found)
    assert "<svg" in page and "A &lt;title&gt;" in page and page.count("<circle") == 2


def test_runs_are_counted_in_words():
    assert curves.counted(1) == "1 run" and curves.counted(3) == "3 runs"
