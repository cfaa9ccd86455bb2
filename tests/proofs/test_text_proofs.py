"""Observables of what is paid, by hand on small records; proofs against a plain reward; what the report does
not call dead."""

import pytest
from proof_kit.observables import OBSERVABLES, Record, StepRecord, advantage_of_text
from proof_kit.proof import Proof, parse
from proof_kit.prove import Observed, prove

from vlrl.activity.check import check
from vlrl.config import load
from vlrl.types import Group, Prompt, Rollout, Row


def group(*members):
    """A group of (text, advantage, correct)."""
    prompt = Prompt(Row("r", "q", "1"), ({"role": "user", "content": "q"},))
    return Group(
        prompt,
        [Rollout(prompt, list(range(len(t.split()))), t, advantage=a, correct=c) for t, a, c in members],
    )


def record(*groups):
    return Record([StepRecord(groups, groups, {})])


def test_advantage_of_rollouts_with_a_text():
    seen = record(
        group(("wait a", 1.0, True), ("b\nc", -0.5, False)),
        group(("wait wait", 0.5, True), ("d", -1.5, False)),
    )
    assert advantage_of_text(seen, "wait") == pytest.approx(0.75 - -1.0)
    assert advantage_of_text(seen, "b.c") == pytest.approx(-0.5 - 0.0)  # "." also matches a line break
    assert (
        advantage_of_text(seen, "nowhere")
        == advantage_of_text(seen, "")
        == advantage_of_text(record(), "a")
        == 0
    )
    observed = Observed([type("Check", (), {"phase": "rl"})()], {"rl": seen})
    assert observed.number("advantage_of/wait", "") == pytest.approx(1.75)
    assert observed.number("advantage_of/x/y|d", "rl") == pytest.approx(
        -1.5 - 1 / 3
    )  # only the first slash ends the name


def test_advantage_by_novelty_and_by_length_of_correct_rollouts():
    # of the correct ones: "a b" shares all its words, "a c d" has two of three for itself; the wrong one does
    # not count
    seen = record(group(("a b", 0.0, True), ("a c d", 1.0, True), ("b", -1.0, False)))
    assert OBSERVABLES["advantage_by_novelty"](seen) == pytest.approx(1.0)
    assert OBSERVABLES["advantage_of_correct_by_length"](seen) == pytest.approx(1.0)
    flat = record(group(("a b", 1.0, True), ("a c d", 1.0, True)), group(("a", 1.0, True)))
    assert (
        OBSERVABLES["advantage_by_novelty"](flat) == OBSERVABLES["advantage_of_correct_by_length"](flat) == 0
    )
    mixed = record(group(("a b", 0.0, True), ("a c d", 1.0, True)), group(("a", 1.0, True)))
    assert OBSERVABLES["advantage_of_correct_by_length"](mixed) == pytest.approx(0.5)  # mean over groups


def test_a_proof_against_a_plain_reward():
    stated = {"observe": "advantage_of/x", "off": "rewards.a=null", "base": "rewards.b=null"}
    assert parse(stated, "x.yaml") == Proof(
        "advantage_of/x", off=("rewards.a=null",), base=("rewards.b=null",)
    )
    verdict = prove("methods/swe_rl")
    assert verdict.holds and verdict.off_is_base and not verdict.bad
    assert (
        verdict.off == pytest.approx(0.0, abs=1e-6) and verdict.on > 0.1
    )  # a near miss is paid like a miss, and better than one


def findings(*overrides, configs=()):
    names = ["base/rl", "models/tiny_text", *configs, "base/scripted"]
    (result,) = check(load(names, ["group_size=4", "prompts_per_step=2", *overrides]), 1)
    return {finding.slot: finding for finding in result.findings}


def test_an_advantage_of_zero_on_purpose_is_not_dead():
    overrides = ["steps=4", "engine.skill=0.5"]
    assert "advantage" not in findings(*overrides, configs=["tasks/lab_arithmetic", "methods/modeltaskalign"])
    dead = findings(
        "rewards.arithmetic={name: random, p: 0.0}", "rewards.format=null", configs=["tasks/lab_arithmetic"]
    )
    assert dead["advantage"].level == "dead"


def test_a_reward_whose_rows_were_not_drawn_yet_is_a_note():
    found = findings("prompts_per_step=1", configs=["tasks/gen_domains"])
    levels = {
        slot: found[slot].level
        for slot in ("rewards.math", "rewards.verified", "rewards.code")
        if slot in found
    }
    assert "note" in levels.values() and "dead" not in {
        level for slot, level in levels.items() if "scored no" in found[slot].message
    }
