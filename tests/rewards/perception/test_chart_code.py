"""Charts as code: what is read from a script, by hand; nothing is run."""

from __future__ import annotations

import time

import pytest
from vlrl_rewards.charts.chart_code import ChartCode, chart_of

GOLD = """
import matplotlib.pyplot as plt
names, values = ["north", "south"], [3, 5.5]
x = ["north", "south"]
y = [3, 5.5]
fig, ax = plt.subplots(1, 2, figsize=(8, 4))
ax[0].bar(x, y, color="red", label="2020")
ax[0].set_title("Sales by region")
ax[1].plot([0, 1, -2], [4, 5, 6], "k--", c="#00f")
ax[1].set_xlabel("Year")
plt.show()
"""


NAMES = (
    f"a = [{'b,' * 2900}]\nb = [{'c,' * 2900}]\nc = [{'1,' * 2900}]\n" + "plt.bar(a)\n" * 200
)  # 2900 ** 3 numbers, written short


def fenced(code):
    return f"Here is the code:\n```python\n{code}\n```"


def test_what_is_read():
    chart = chart_of(GOLD)
    assert chart["type"] == {"bar": 1, "line": 1} and chart["layout"] == {"subplots 1 2": 1}
    assert chart["data"] == {"3.0": 1, "5.5": 1, "0.0": 1, "1.0": 1, "-2.0": 1, "4.0": 1, "5.0": 1, "6.0": 1}
    assert chart["colour"] == {"#ff0000": 1, "#0000ff": 1}
    assert chart["text"] == {"north": 1, "south": 1, "2020": 1, "sales by region": 1, "year": 1}


@pytest.mark.parametrize(
    ("change", "score"),
    [
        (("", ""), 1),
        (('"red"', '"#FF0000"'), 1),  # the same colour
        (('"red"', '"r"'), 1),
        (('"red"', '"green"'), (4 + 0.5) / 5),
        (("bar(", "barh("), (4 + 0.5) / 5),
        (("Sales by region", "Prices"), (4 + 4 / 5) / 5),
        (("1, 2, figsize", "2, 2, figsize"), 4 / 5),
        (("[4, 5, 6]", "[4, 5, 7]"), (4 + 7 / 8) / 5),
    ],
)
def test_each_dimension_counts_once(change, score):
    grade = ChartCode().verify(GOLD, fenced(GOLD.replace(*change) if change[0] else GOLD))
    assert grade.score == pytest.approx(score) and grade.correct == (score >= 0.9)


def test_numbers_are_compared_with_all_their_digits():
    one, other, huge = (
        chart_of(f"plt.bar([{numbers}])")["data"] for numbers in ("1234567, 3", "1234568, 3.0", 10**400)
    )
    assert (one & other).total() == 1, "3 and 3.0 are one number, 1234567 and 1234568 are two"
    assert huge == {str(10**400): 1}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a bar chart",
        fenced("plt.bar(["),
        fenced("print('Sales by region')"),
        fenced("plt.title('Sales by region')"),
        f"<think>{fenced(GOLD)}</think>",
    ],
)
def test_no_chart_earns_nothing(text):
    assert ChartCode().verify(GOLD, text).score == 0


def test_layout_by_names():
    named = GOLD.replace("subplots(1, 2,", "subplots(nrows=1, ncols=2,")
    assert (
        chart_of(named)["layout"] == {"subplots 1 2": 1}
        and ChartCode().verify(GOLD, fenced(named)).score == 1
    )
    assert chart_of("fig, ax = plt.subplots()\nax.bar([1], [2])")["layout"] == {"subplots 1 1": 1}


def test_extra_calls_cost_and_the_last_block_counts():
    assert ChartCode().verify(GOLD, fenced(GOLD + "\nplt.pie([1, 2, 3])" * 20)).score < 0.75
    assert ChartCode().verify(GOLD, fenced("plt.pie([1])") + "\nBetter:\n" + fenced(GOLD)).score == 1
    assert ChartCode().verify(GOLD, fenced(GOLD) + "\nOr:\n" + fenced("plt.pie([1])")).score < 0.2


def test_nothing_is_run(tmp_path):
    file = tmp_path / "written"
    code = f"import os\nopen({str(file)!r}, 'w').write('1')\nos._exit(1)\n{GOLD}"
    assert ChartCode().verify(GOLD, fenced(code)).score == pytest.approx(1) and not file.exists()


@pytest.mark.parametrize(
    "bomb",
    [
        "(" * 19_000,
        "plt.bar(" + "-" * 18_000 + "1)",
        "x = x\n" * 3000,
        "plt.bar(" + "[" * 90 + "]" * 90 + ")",
        "a = b = " * 2000 + "1",
        NAMES,
    ],
)
def test_bombs_are_read_in_time(bomb):
    started = time.thread_time()
    ChartCode().verify(GOLD, fenced(bomb))
    assert time.thread_time() - started < 2


def test_a_gold_that_draws_nothing_raises():
    for broken in ("print(1)", "plt.bar(", None, 7):
        with pytest.raises(ValueError, match="chart"):
            ChartCode().verify(broken, "")
