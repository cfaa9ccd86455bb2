"""What a probe says about a run: logs that show the paper's finding, that do not, and that cannot tell."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from make import group

from vlrl.config import load
from vlrl.plugins.finding import RunNumbers
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Callback, Metric


def log(slot="s", **names):
    """The log of a slot from lists of numbers per step; `__` in a name stands for `/`."""
    steps = max(len(values) for values in names.values()) if names else 0
    rows = [{} for _ in range(steps)]
    for name, values in names.items():
        for row, value in zip(rows[steps - len(values) :], values, strict=True):
            row[f"{slot}/{name.replace('__', '/').lstrip('_')}"] = value
    return RunNumbers(slot, rows)


def test_the_start_and_the_end_are_fifths_of_the_steps_that_have_the_number():
    numbers = log(a=[1.0, 3.0, *[0.0] * 6, 5.0, 7.0], b=[2.0], c=[1.0, None, 4.0])
    assert (numbers.start("a"), numbers.end("a"), numbers.last("a")) == (2.0, 6.0, 7.0)
    assert numbers.change("a") == (2.0, 6.0) and numbers.change("b") is None and numbers.last("b") == 2.0
    assert numbers.all("c") == [1.0, 4.0] and numbers.start("absent") is None
    assert numbers.names() == ["a", "b", "c"]


CURVES = {"base__1": [0.2], "now__1": [0.55], "base__2": [0.4], "now__2": [0.6], "base__4": [0.6]}
CASES = {
    # preset: (kind, fields, [(log, words of the sentence, shows)])
    "limit_of_rlvr": (
        Callback,
        {"samples": 4},
        [
            (CURVES | {"now__4": [0.5]}, ["0.200 (base) to 0.550", "from k = 4 on"], True),
            (CURVES | {"now__4": [0.7]}, ["does not overtake up to k = 4"], False),
            ({"base__1": [0.5], "now__1": [0.4], "base__4": [0.9], "now__4": [0.8]}, ["at k = 1"], False),
            ({"base__1": [0.5], "now__1": [0.4]}, ["no finding"], None),
            ({key: [0.0] for key in (*CURVES, "now__4")}, ["neither model solved"], None),
        ],
    ),
    "invisible_leash": (
        Callback,
        {"samples": 8},
        [
            (
                {"base__1": [0.2], "now__1": [0.5], "net": [-0.1], "kept": [0.8], "found": [0.05]},
                ["0.200 -> 0.500", "SRR 0.800, NDR 0.050, NSCR -0.100", "shrank more than it grew"],
                True,
            ),
            ({"base__1": [0.2], "now__1": [0.5], "net": [0.2], "kept": [1.0]}, ["grew more"], False),
            ({"base__1": [0.0], "now__1": [0.0]}, ["no finding: neither model"], None),
        ],
    ),
    "rlvsdistill": (
        Callback,
        {"samples": 8},
        [
            (
                {
                    **{"base__1": [0.5], "now__1": [0.6], "base__8": [0.9], "now__8": [0.85]},
                    **{"change__hard": [-0.05], "change__easy": [0.2]},
                },
                ["accuracy 0.500 -> 0.600", "(pass@8) 0.900 -> 0.850", "hard -0.050, easy +0.200"],
                True,
            ),
            (
                {
                    **{"base__1": [0.5], "now__1": [0.6], "base__8": [0.9], "now__8": [0.95]},
                    "change__hard": [0.05],
                },
                ["hard +0.050"],
                False,
            ),
            ({"base__1": [0.5]}, ["no finding"], None),
        ],
    ),
    "causalrlvr": (
        Callback,
        {"source": {"name": "gen_causal"}},
        [
            (
                {
                    **{
                        "base__associational": [0.3],
                        "now__associational": [0.7],
                        "trained__associational": [1],
                    },
                    **{"base__counterfactual": [0.2], "now__counterfactual": [0.3]},
                    "trained__counterfactual": [0],
                },
                ["associational (trained) 0.300 -> 0.700", "within +0.400, across +0.100", "is able"],
                True,
            ),
            (
                {
                    **{
                        "base__associational": [0.3],
                        "now__associational": [0.7],
                        "trained__associational": [1],
                    },
                    **{"base__counterfactual": [0.2], "now__counterfactual": [0.1]},
                    "trained__counterfactual": [0],
                },
                ["across -0.100"],
                False,
            ),
            ({"base__a": [0.0], "now__a": [0.0], "trained__a": [1]}, ["is not able"], None),
            ({}, ["no finding"], None),
        ],
    ),
    "cot_pass_k": (
        Metric,
        {"both": "chain"},
        [
            (
                {"_1": [0.1, 0.4], "_2": [0.2, 0.5], "given_answer": [0.3, 0.8]},
                ["CoT-pass@1 rose 0.1 -> 0.4", "2 of 2 values", "0.300 -> 0.800"],
                True,
            ),
            ({"_1": [0.1, 0.4], "_2": [0.5, 0.4], "given_answer": [0.3, 0.8]}, ["1 of 2 values"], False),
            ({"_1": [0.1, 0.4]}, ["no finding"], None),
        ],
    ),
    "rlvr_exploration_analysis": (
        Metric,
        {"parts": 2},
        [
            (
                {
                    **{"wrong": [2.0, 0.5], "correct": [1.0, 0.4], "part__1": [0.6], "part__2": [0.2]},
                    **{"accuracy__likely": [0.9], "accuracy__unlikely": [0.4]},
                },
                [
                    "2.000 -> 0.500",
                    "nats a token: the rising stage",
                    "0.900, the other in 0.400",
                    "0.600, 0.2",
                ],
                True,
            ),
            (
                {
                    **{"wrong": [0.5, 0.5], "correct": [1.0, 0.4]},
                    **{"accuracy__likely": [0.9], "accuracy__unlikely": [0.4]},
                },
                ["not the rising stage"],
                False,
            ),
            ({"correct": [1.0, 0.4]}, ["no finding"], None),
        ],
    ),
    "vb_vs_vf_theory": (
        Metric,
        {},
        [
            (
                {"std": [0.4], "anticoncentration": [0.2], "zero_variance": [0.1]},
                ["0.400", "is hetero"],
                True,
            ),
            (
                {"std": [0.01], "anticoncentration": [0.02], "zero_variance": [0.9]},
                ["0.020 of them", "threshold 0.05", "is not hetero"],
                False,
            ),
            ({}, ["no finding"], None),
        ],
    ),
    "thinkingoutloud": (
        Metric,
        {},
        [
            (
                {"ece": [0.4, 0.1], "length": [-0.3], "stated": [1.0], "auroc": [0.7]},
                ["ECE fell 0.4 -> 0.1 in 10 bins", "AUROC 0.700", "correlate by -0.300"],
                True,
            ),
            ({"ece": [0.1, 0.4], "length": [-0.3]}, ["ECE rose 0.1 -> 0.4"], False),
            ({"ece": [0.4, 0.1], "length": [0.3]}, ["+0.300"], False),
            ({"stated": [0.0, 0.0]}, ["no finding"], None),
        ],
    ),
    "rlvr_tax_audit": (
        Metric,
        {},
        [
            (
                {
                    **{"accuracy": [0.3, 0.5], "abstained": [0.4, 0.0], "attempted_wrong": [0.3, 0.5]},
                    "ece": [0.1, 0.3],
                },
                ["abstentions fell 0.4 -> 0", "attempt inflation and calibration drift"],
                True,
            ),
            (
                {
                    **{"accuracy": [0.3, 0.9], "abstained": [0.4, 0.0], "attempted_wrong": [0.3, 0.1]},
                    "ece": [0.3, 0.1],
                },
                ["no tax"],
                False,
            ),
            ({"accuracy": [0.3]}, ["no finding"], None),
        ],
    ),
    "answer_styles": (
        Metric,
        {"patterns": {"code": "def"}},
        [
            (
                {
                    **{"code": [0.3, 0.98], "other": [0.7, 0.02], "entropy": [0.61, 0.1]},
                    **{"accuracy__code": [0.6], "accuracy__other": [0.2]},
                },
                ["'code'", "the most accurate one at the start", "rose 0.3 -> 0.98", "converged to one"],
                True,
            ),
            (
                {"code": [0.3, 0.5], "other": [0.7, 0.5], "entropy": [0.61, 0.69]},
                ["did not converge"],
                False,
            ),
            ({"code": [1.0, 1.0], "other": [0.0, 0.0], "entropy": [0.0, 0.0]}, ["no finding: all"], None),
            ({}, ["no finding"], None),
        ],
    ),
    "answer_styles.habits": (
        Metric,
        {"patterns": {"verification": "check", "backtracking": "wait"}},
        [
            (
                {
                    **{"share__verification": [0.6, 0.8], "share__backtracking": [0.0, 0.1]},
                    "accuracy": [0.2, 0.6],
                },
                [
                    "verification 0.600 -> 0.800",
                    "at the start verification at 0.1",
                    "accuracy rose 0.2 -> 0.6",
                ],
                True,
            ),
            ({"share__verification": [0.6, 0.8], "accuracy": [0.2, 0.2]}, ["accuracy stayed at 0.2"], False),
            ({"share__verification": [0.0, 0.0], "accuracy": [0.2, 0.2]}, ["at the start none"], True),
            ({}, ["no finding"], None),
        ],
    ),
    "starc": (
        Metric,
        {},
        [
            ({"a|b": [0.9]}, ["a|b 0.900", "pull against each other"], True),
            ({"a|b": [0.7071]}, ["are unrelated"], True),
            ({"a|b": [0.001], "a|c": [0.3]}, ["a|c, rewards that lean the same way"], True),
            ({"a|b": [0.001]}, ["order policies alike"], False),
            ({}, ["no finding"], None),
        ],
    ),
    "the_policy_cliff": (
        Metric,
        {"change": 0.1},
        [
            ({"best": [0.25], "sign": [0.1]}, ["by +10%", "in 0.250", "a cliff"], True),
            ({"best": [0.0], "sign": [0.0]}, ["away from ties"], False),
            ({}, ["no finding"], None),
        ],
    ),
    "modeltaskalign": (
        Callback,
        {},
        [
            (
                {"sums__pass@1": [0.2], "sums__pass@8": [0.9], "sums__aligned": [1.0]},
                ["'sums': pass@1 0.200, pass@8 0.900", "threshold 0.5", "strongly aligned"],
                True,
            ),
            ({"sums__pass@1": [0.0], "sums__aligned": [0.0]}, ["weakly aligned"], False),
            ({"a__aligned": [0.0], "b__aligned": [1.0]}, ["weakly", "strongly"], None),
            ({}, ["no finding"], None),
        ],
    ),
}


@pytest.mark.parametrize(
    "name, kind, fields, numbers, words, shows",
    [(name, kind, fields, *case) for name, (kind, fields, cases) in CASES.items() for case in cases],
)
def test_a_run_that_shows_it_and_one_that_does_not(name, kind, fields, numbers, words, shows):
    found = build(kind, {"name": name, **fields}).finding(log(**numbers))
    assert found.shows is shows, found.text
    for word in words:
        assert word in found.text, found.text
    assert len(found.text.split()) < 130 and json.dumps(found._asdict())


def test_every_preset_that_probes_states_a_finding_of_its_own():
    said: dict[str, str] = {}
    for path in sorted(Path("configs/methods").glob("*.yaml")):
        if yaml.safe_load(path.read_text(encoding="utf-8"))["about"].get("kind") != "probe":
            continue
        tree = load([f"methods/{path.stem}"]).tree
        plugins = [
            (spec["name"], build(kind, spec))
            for slot, kind in (("metrics", Metric), ("callbacks", Callback))
            for spec in (tree.get(slot) or {}).values()
        ]
        own = [name for name, plugin in plugins if plugin.finding(log()) is not None]
        assert own, f"{path.stem} states no finding"
        assert own[0] not in said, f"{path.stem} says what {said[own[0]]} says"
        said[own[0]] = path.stem
    assert len(said) == 14


def test_wrong_attempts_are_neither_right_nor_abstentions():
    one = group(1, 0, 0, 0, texts=["4", "5", "I do not know.", "6"])
    assert build(Metric, "rlvr_tax_audit")([one]) == {
        **{"stated": 0.0, "abstained": 0.25, "accuracy": 0.25},
        "attempted_wrong": 0.5,
    }


def test_cot_pass_k_needs_the_slot_of_the_chain():
    with pytest.raises(ConfigError, match="name the reward slot"):
        build(Metric, "cot_pass_k").check(SimpleNamespace(rewards={}))
