"""Patches, migrated code, dates, terms and answers on the way: values worked out by hand, limits, and what
does not count."""

import difflib
import math
import random
from types import SimpleNamespace

import pytest
from vlrl_rewards.code.edits import _alike, bare_code, edits_in
from vlrl_rewards.format.interleaved import turns

from vlrl.plugins.registry import build
from vlrl.plugins.stages import Reward
from vlrl.types import Prompt, Rollout, Row

BEFORE = {"a.py": "x = 1\ny = 2\n", "b.py": "z = 0\n"}
AFTER = {"a.py": "x = 1\ny = 3\n"}


def score(spec, answer, text, **meta):
    return build(Reward, spec)(Rollout(Prompt(Row("q", "?", answer=answer, meta=meta), ()), [1], text=text))


def block(path, search, replace):
    return f"```\n### {path}\n<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE\n```"


def solved(*blocks, think="so"):
    return f"<think>{think}</think><solution>" + "\n".join(blocks) + "</solution>"


# The real diff is "@@ -1,2 +1,2 @@", " x = 1", "-y = 2", "+y = 3": 15 + 6 + 6 + 6 characters and 3 line ends,
# 36 in all.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (solved(block("a.py", "y = 2", "y = 3")), 1.0),
        (solved(block("a.py", "x = 1\ny = 2", "x = 1\ny = 3")), 1.0),
        (solved(block("a.py", "y = 2", "y = 4")), 35 / 36),
        (solved(block("a.py", "y = 2", "y = 3"), block("b.py", "z = 0", "z = 1")), 0.5),
        (solved(block("b.py", "z = 0", "z = 1")), 0.0),
        (solved(block("a.py", "y = 2", "y = 2")), -1.0),
        (solved(block("a.py", "y = 9", "y = 3")), -1.0),
        (solved(block("a.py", "y = 2", "y = 3"), think=" "), -1.0),
        (solved(block("", "y = 2", "y = 3")), -1.0),
        ("<think>a</think>" + block("a.py", "y = 2", "y = 3"), -1.0),
        (solved(block("a.py", "y = 2", "y = 3").replace(">>>>>>> REPLACE", "")), -1.0),
        (solved(*[block("a.py", "x = 1", "x = 1\nx = 1")] * 60), -1.0),
        ("", -1.0),
    ],
)
def test_patch_similarity(text, expected):
    assert score({"name": "patch_similarity"}, AFTER, text, files=BEFORE) == pytest.approx(
        expected, abs=1e-12
    )


def test_patch_needs_files_and_a_change():
    for answer, files in ((AFTER, {}), (BEFORE, BEFORE), ("y = 3", BEFORE)):
        with pytest.raises(ValueError, match="files"):
            score({"name": "patch_similarity"}, answer, "", **({"files": files} if files else {}))


def test_patch_ratio_is_never_below_difflibs():
    draw = random.Random(0)
    for _ in range(200):
        a, b = ("".join(draw.choice("ab +-\n") for _ in range(draw.randint(1, 60))) for _ in range(2))
        theirs = difflib.SequenceMatcher(None, a, b, autojunk=False).ratio()
        assert theirs - 1e-12 <= _alike(a, b) <= 1.0
        assert _alike(a, a) == 1.0


def test_edits_keep_their_order_and_indentation():
    text = (
        block("m/a.py", "    if x:\n        y()", "    if not x:\n        y()")
        + "\n"
        + block("b.py", "", "import os")
    )
    assert edits_in(text) == [
        ("m/a.py", "    if x:\n        y()", "    if not x:\n        y()"),
        ("b.py", "", "import os"),
    ]


# Without comments and blank lines the target is "x = 1\ny = 2", 11 characters.
@pytest.mark.parametrize(
    ("code", "similarity", "exact"),
    [
        ("x = 1\ny = 2", 2.0, 2.0),
        ("# note\nx = 1  # one\n\n\ny = 2\n", 2.0, 2.0),
        ("x = 1\ny = 3", 3.5 * 10 / 11 - 1.5, -1.5),
        ("x = 1", 3.5 * 5 / 11 - 1.5, -1.5),
        ("x = = 1", -2.0, -2.0),
        ("# only a note", -2.0, -2.0),
        ("(" * 5000, -2.0, -2.0),
        ("x = 1\n" * 5000, -2.0, -2.0),
    ],
)
def test_code_edit(code, similarity, exact):
    for mode, expected in (("similarity", similarity), ("exact", exact)):
        text = f"<think>x</think><answer>\n```python\n{code}\n```\n</answer>"
        assert score({"name": "code_edit", "mode": mode}, "x = 1\n# hi\n\ny = 2\n", text) == pytest.approx(
            expected
        )


FENCE = "```\nx = 1\n```"


@pytest.mark.parametrize("said", ["x = 1", f"{FENCE}\n{FENCE}", "```java\nx = 1\n```", ""])
def test_code_edit_wants_one_block(said):
    assert (
        score({"name": "code_edit"}, "x = 1", f"<answer>{said}</answer>")
        == score({"name": "code_edit"}, "x = 1", FENCE)
        == -2.0
    )


def test_code_edit_wants_a_python_gold():
    with pytest.raises(ValueError, match="not Python"):
        score({"name": "code_edit"}, "x = = 1", "")
    assert bare_code("s = '# no note'  # note") == "s = '# no note'"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("<answer>2016-05</answer>", 1.0),
        ("<answer>May 2016</answer>", 1.0),
        ("<answer>2016-05-30</answer>", 1.0),
        ("<answer>2016-06</answer>", math.exp(-0.1)),
        ("<answer>2015-05</answer>", math.exp(-1.2)),
        ("<answer>2016-13</answer>", 0.0),
        ("<answer>05/06/2016</answer>", 0.0),
        ("<think>2016-05</think>", 0.0),
        ("<answer>2016-05</answer><answer>2016-06</answer>", 0.0),
        ("", 0.0),
    ],
)
def test_date_decay(said, expected):
    assert score({"name": "date_decay"}, "2016-05", said) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("2016-05 and 2017-01, 8 months", 1.0),
        ("2016-06 and 2017-01, 7 months", 0.25 * math.exp(-0.1) + 0.25 + 0.5 * math.exp(-0.1)),
        (
            "2016-05 and 2017-01, 10 months",
            (0.5 + 0.5 * math.exp(-0.2)) * math.exp(-0.2),
        ),  # says 10, dates say 8
        ("2016-05 and 2017-01, 50 months", (0.5 + 0.5 * math.exp(-4.2)) * math.exp(-0.1 * 0.5 * 42)),
        ("2016-05 and 2017-01", 0.0),
        ("2016-05 and 2017-01, 8 or 9", 0.0),
        ("2016-05, 8 months", 0.0),
    ],
)
def test_date_gap(said, expected):
    assert score({"name": "date_gap"}, ["2016-05", "2017-01"], f"<answer>{said}</answer>") == pytest.approx(
        expected
    )


DATES = ["2016-05", "2017-01", "2015-03"]  # the third event is the earliest: order 3-1-2


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            "Event 1: 2016-05, Event 2: 2017-01, Event 3: 2015-03. Event order: 3-1-2.",
            1.0,
        ),  # the release's form
        ("2016-05, 2017-01, 2015-03: 3-1-2", 1.0),
        ("2016-07, 2017-01, 2015-03: 3-1-2", 0.2 * math.exp(-0.2) + 0.4 + 0.4),
        # 3-2-1 puts two of three pairs right, and has two in common with the stated dates' order: 0.7
        ("2016-05, 2017-01, 2015-03: 3-2-1", (0.6 + 0.4 * 2 / 3) * 0.7),
        ("2016-05, 2017-01, 2015-03: 2-1-3", 0.6 * 0.2),  # no pair right, none in common
        ("2016-05, 2017-01, 2015-03: 1-2-3", (0.6 + 0.4 / 3) * 0.4),  # only 1 before 2
        # all dates the same: 0.2; the order is that of equal dates, 1-2-3, of which one pair is right
        ("2016-05, 2016-05, 2016-05: 1-2-3", (0.2 * (1 + math.exp(-0.8) + math.exp(-1.4)) + 0.4 / 3) * 0.2),
        # successive months with the default order: 0.2
        ("2016-05, 2016-06, 2016-07: 1-2-3", (0.2 * (1 + math.exp(-0.7) + math.exp(-1.6)) + 0.4 / 3) * 0.2),
        (
            "2016-05, 2016-04, 2016-03: 3-2-1",
            (0.2 * (1 + math.exp(-0.9) + math.exp(-1.2)) + 0.4 * 2 / 3) * 0.2,
        ),
        ("2016-05, 2017-01, 2015-03: 3-1", 0.0),
        ("2016-05, 2017-01, 2015-03: 3-1-1", 0.0),
        ("2016-05, 2017-01: 3-1-2", 0.0),
        ("2016-13, 2017-01, 2015-03: 3-1-2", 0.0),
        ("3-1-2", 0.0),
        ("", 0.0),
    ],
)
def test_date_order(said, expected):
    assert score({"name": "date_order"}, DATES, f"<answer>{said}</answer>") == pytest.approx(expected)


def test_date_order_of_equal_gold_dates_is_right_in_either_order():
    gold = ["2016-05", "2016-05", "2015-03"]
    text = "<answer>2016-05, 2016-05, 2015-03: {}</answer>"
    assert score({"name": "date_order"}, gold, text.format("3-1-2")) == pytest.approx(1.0)
    # 3-2-1 has two pairs in common with the stated dates, of which the first is named first: 0.7
    assert score({"name": "date_order"}, gold, text.format("3-2-1")) == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("masked", "said", "expected"),
    [
        ("May", "Event: 2016-05. Missing entity: May.", 1.0),  # the release's form
        ("May", "2016-05, 5", 1.0),
        ("May", "2016-07, jun.", 0.5 * math.exp(-0.2) + 0.5 * math.exp(-0.3)),
        ("January", "2016-05, December", 0.5 + 0.5 * math.exp(-0.3)),  # around the circle
        ("January", "2016-05, July", 0.5 + 0.5 * math.exp(-1.8)),
        ("September", "2016-05, Sept", 1.0),
        ("2016", "2016-05, 2018", 0.5 + 0.5 * math.exp(-0.6)),
        ("2016", "2016-05, May", 0.0),  # a year was asked for
        ("May", "2016-05, 2016", 0.0),
        ("May", "2016-05, May or June", 0.0),
        ("May", "2016-05", 0.0),
        ("May", "May", 0.0),
        ("May", "2016-05, 2016-06, May", 0.0),
        ("2016", "2016-05, 2500", 0.0),
    ],
)
def test_masked_date(masked, said, expected):
    assert score({"name": "masked_date"}, ["2016-05", masked], f"<answer>{said}</answer>") == pytest.approx(
        expected
    )


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("date_decay", "soon"),
        *(("date_gap", answer) for answer in ("2016-05", ["2016-05", "soon"])),
        *(
            ("date_order", answer)
            for answer in ("2016-05", ["2016-05", "2016-06"], ["2016-05", "2016-06", "soon"])
        ),
        *(("masked_date", answer) for answer in ("2016-05", ["soon", "May"])),
    ],
)
def test_dates_need_dates(name, answer):
    with pytest.raises(ValueError, match="date"):
        score({"name": name}, answer, "")


def test_masked_date_needs_a_year_or_a_month():
    with pytest.raises(ValueError, match="neither a year"):
        score({"name": "masked_date"}, ["2016-05", "spring"], "")


def test_hard_dates_decay_more_slowly_and_approach_the_rate_over_the_steps():
    spec = {"name": "date_decay", "rate": 0.1, "hard_rate": 0.07}
    assert score(spec, "2016-05", "<answer>2016-09</answer>") == pytest.approx(math.exp(-0.4))  # not marked
    assert score(spec, "2016-05", "<answer>2016-09</answer>", hard=True) == pytest.approx(math.exp(-0.28))
    reward = build(Reward, spec | {"hard_steps": 50})
    reward.setup(SimpleNamespace(phase_step=24))  # the 25th step; the release counts from 1
    row = Row("q", "?", answer="2016-05", meta={"hard": True})
    rollout = Rollout(Prompt(row, ()), [1], text="<answer>2016-09</answer>")
    assert reward(rollout) == pytest.approx(math.exp(-0.085 * 4))  # half way from 0.07 to 0.1
    reward.run.phase_step = 80
    assert reward(rollout) == pytest.approx(math.exp(-0.4))
    for name in ("date_gap", "date_order", "masked_date"):
        assert build(Reward, {"name": name, "hard_rate": 0.07}).rate_of(row) == 0.07
    with pytest.raises(ValueError, match="hard_rate"):
        build(Reward, spec | {"hard_rate": 0.0})
    with pytest.raises(ValueError, match="hard_steps"):
        build(Reward, spec | {"hard_steps": -1})


@pytest.mark.parametrize(
    ("gold", "said", "expected"),
    [
        ("2016-05", "1990-01", 0.05),  # the form, not the date
        ("2016-05", "soon", 0.0),
        ("2016-05", "No event.", -0.1),
        ("2016-05", "None", -0.1),
        ("2016-05", "", -0.2),
        (["2016-05", "2017-01"], "1990-01, 1990-02: 7", 0.05),
        (["2016-05", "2017-01"], "1990-01", -0.2),
        (["2016-05", "2017-01"], "no event", -0.2),
        (["2016-05", "2017-01", "2015-03"], "1990-01, 1990-02, 1990-03: 2-1-3", 0.05),
        (["2016-05", "2017-01", "2015-03"], "1990-01, 1990-02, 1990-03: 2-1-1", -0.2),
        (["2016-05", "May"], "1990-01, June", 0.05),
        (["2016-05", "2016"], "1990-01, 1999", 0.05),
        (["2016-05", "2016"], "1990-01, June", -0.2),
    ],
)
def test_date_form(gold, said, expected):
    assert score({"name": "date_form"}, gold, f"<answer>{said}</answer>") == pytest.approx(expected)
    with pytest.raises(ValueError, match="1 items"):
        score({"name": "date_form"}, ["2016-05"], f"<answer>{said}</answer>")
    assert (
        score(
            {"name": "date_form", "bonus": 0.0, "missing": 0.0, "refused": 0.0},
            gold,
            f"<answer>{said}</answer>",
        )
        == 0.0
    )


def distinct(n):
    return " ".join(f"w{i}" for i in range(n))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (distinct(900), 0.0),
        (distinct(962), 0.3 * 62 / 124),
        (distinct(1500), 0.3),
        ("no " * 50, 0.0),  # too short to judge
        (distinct(47) + " no no no no", 0.0),
        (distinct(47) + " no" * 5, 0.1),
        (distinct(47) + " no" * 8, 0.4),
        (distinct(47) + " no" * 30, 0.5),
        (
            distinct(80) + " a b c" * 3 + distinct(20),
            0.3,
        ),  # twice in the nine words behind its first occurrence
        (distinct(80) + " a b c" * 4 + distinct(20), 0.45),
        (distinct(80) + " a b c a b c " + distinct(20), 0.0),
        (
            " ".join(f"w{i % 60}" for i in range(300)),
            0.5 - 60 / 295,
        ),  # sixty different sequences of five among 295
        (" ".join(f"w{i % 200}" for i in range(300)), 0.0),
        ("", 0.0),
    ],
)
def test_wordiness(text, expected):
    assert score({"name": "wordiness"}, None, text) == pytest.approx(-expected)


def test_wordiness_refuses_senseless_values():
    with pytest.raises(ValueError, match="span"):
        build(Reward, {"name": "wordiness", "span": 0})


REFERENCE = "the liver enzyme binds the receptor"
TERMS = ["liver", ["enzyme", "catalyst"], "receptor"]


@pytest.mark.parametrize(
    ("where", "said", "expected"),
    [
        ("answer", "the liver enzyme binds the receptor", 1.0),
        ("answer", "the liver catalyst meets a receptor", 1.0),
        ("answer", "the delivery enzyme", 1 / 3),
        ("answer", "receptor enzyme liver", 1.0),
        ("order", "receptor enzyme liver", 0.0),
        ("order", "the liver binds the receptor", 1 / 3),
        ("order", REFERENCE, 1.0),
        ("thinking", "nothing", 2 / 3),
    ],
)
def test_term_recall(where, said, expected):
    text = f"<think>liver, and a receptor</think><answer>{said}</answer>"
    assert score({"name": "term_recall", "where": where}, REFERENCE, text, terms=TERMS) == pytest.approx(
        expected
    )


def test_term_recall_is_no_word_list():
    words = "liver enzyme receptor " + "some other words " * 20
    length, allowed = len(words.split()), 1.5 * len([w for w in REFERENCE.split() if w != "the"])
    assert score(
        {"name": "term_recall"}, REFERENCE, f"<answer>{words}</answer>", terms=TERMS
    ) == pytest.approx(allowed / length)
    assert (
        score(
            {"name": "term_recall"}, "肝酶与受体结合", "<answer>肝酶结合受体</answer>", terms=["肝酶", "受体"]
        )
        == 1.0
    )
    with pytest.raises(ValueError, match="terms"):
        score({"name": "term_recall"}, REFERENCE, "")


def told(*answers):
    return "".join(f"<think>so</think>\n<answer>{answer}</answer>\n" for answer in answers)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (told("3", "8"), 1 + 2.0),
        (told("8"), 1 + 2.0),  # one turn is a right format too
        (told("3", "9"), 1 - 1.5),
        (told("8", "9"), 1 - 1.5),
        (told("8") + "so", -1.0),
        ("<answer>8</answer>", -1.0),
        ("", -1.0),
    ],
)
def test_interleaved(text, expected):
    reward = build(Reward, {"name": "interleaved", "verifier": "math"})
    rollout = Rollout(Prompt(Row("q", "?", answer="8"), ()), [1], text=text)
    assert reward(rollout) == pytest.approx(expected) and reward.correct(rollout, reward(rollout)) == (
        expected > 1
    )
    weighted = build(Reward, {"name": "interleaved", "verifier": "math", "form": 0.5, "answer": 0.1})
    assert weighted.correct(rollout, weighted(rollout)) == (expected > 1)


def test_an_answer_that_cannot_be_read_costs_more_than_a_wrong_one():
    assert score({"name": "interleaved", "verifier": "mcq"}, "B", told("(C)")) == pytest.approx(1 - 1.5)
    assert score({"name": "interleaved", "verifier": "mcq"}, "B", told("???")) == pytest.approx(1 - 2.0)


# Two steps, golds 3 and 5, then 8; half a point for the steps.
@pytest.mark.parametrize(
    ("answers", "everything", "share", "early"),
    [
        (("3", "5", "8"), 0.5, 0.5, 0.5),
        (("3", "6", "8"), 0.0, 0.25, 0.5 * 1 / 2),
        (("4", "5", "8"), 0.0, 0.25, 0.5 * 0.5 / 2),
        (("5", "3", "8"), 0.0, 0.0, 0.5),  # early: every step is there, in whatever order
        (("1", "2", "5", "8"), 0.0, 0.0, 0.5 * (1 / 3) / 2),
        (("3", "1", "5", "8"), 0.0, 0.25, 0.5),
        (("4", "6", "8"), 0.0, 0.0, 0.0),
        (("3", "5", "9"), 0.0, 0.0, 0.0),
        (("8",), 0.0, 0.0, 0.0),
        ((*("1",) * 8, "3", "8"), 0.0, 0.0, 0.0),  # behind the first 4 n answers
    ],
)
def test_interleaved_steps(answers, everything, share, early):
    for credit, expected in (("all", everything), ("share", share), ("early", early)):
        spec = {"name": "interleaved_steps", "credit": credit, "verifier": "math"}
        assert score(spec, "8", told(*answers), steps=["3", "5"]) == pytest.approx(expected)
        assert score(spec, "8", told(*answers) + "!", steps=["3", "5"]) == 0.0


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (told("1", "2"), ["1", "2"]),
        ("<think>a</think><answer>1</answer>", ["1"]),
        ("<answer>1</answer>", None),
        ("<think>a</think>so<answer>1</answer>", None),
        ("<think>a</think><answer></answer>", None),
        ("<think>a<answer>1</answer></think>", None),
        ("<think>a</think><answer>1</answer>!", None),
        ("", None),
    ],
)
def test_turns(text, found):
    assert turns(text) == found


def test_interleaved_needs_steps():
    with pytest.raises(ValueError, match="steps"):
        score({"name": "interleaved_steps"}, "8", told("8"))
