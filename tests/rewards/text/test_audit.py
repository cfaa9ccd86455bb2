"""The audit: nothing passes on any shipped kind or reward, every one is covered, and it finds what is
hackable."""

import json
import re
from dataclasses import dataclass

import pytest
from task_kit import params
from typer.testing import CliRunner
from vlrl_rewards import verify
from vlrl_rewards.audit import attack as audit
from vlrl_rewards.audit import text as attacks_text
from vlrl_rewards.audit.perception import Seed
from vlrl_rewards.cli import app
from vlrl_rewards.code import sandbox
from vlrl_rewards.math import pool as math_pool
from vlrl_rewards.parsing import answer_tags, last_answer

from vlrl.plugins.registry import build, get, names, register
from vlrl.plugins.stages import Reward


@pytest.fixture(scope="module", autouse=True)
def pool():
    math_pool.warm(wait=True)


def passing(outcomes):
    return [outcome for outcome in outcomes if outcome.passed]


@pytest.mark.sweep
@pytest.mark.parametrize("kind", params(sorted(attacks_text.SEEDS)))
def test_no_attack_passes_on_a_kind(kind):
    outcomes = audit.attack_kind(kind)
    assert len(outcomes) > 50 and not passing(outcomes)


def test_the_right_answer_passes_on_every_kind():
    for kind, seed in attacks_text.SEEDS.items():
        if kind != "code" or not sandbox.available():
            verdict = verify(
                seed.gold,
                f"<think>hm</think><answer>{seed.right}</answer>",
                kind,
                seed.choices,
                **seed.options,
            )
            assert verdict.correct, (kind, verdict)


UNSET = {"hierarchy", "jigsaw_question", "objects_named"}  # read a field of their config that has no default


def test_every_reward_pays_a_bare_right_answer_as_one_in_tags():
    paid = set()
    for reward, kind in audit.reward_of_kind().items():
        if reward in UNSET | {"code"}:
            continue
        seed = audit.seed_of(kind)
        tagged = f"<answer>{seed.right}</answer>"
        bare, right, empty = audit._scores(build(Reward, reward), seed, seed.right, tagged, "")
        assert bare == right > empty, (reward, bare, right, empty)
        paid.add(reward)
    assert len(paid) > 40 and {"exact", "numeric", "evidence", "iou"} <= paid


def reward_names():
    ours = [name for name in names(Reward) if get(Reward, name).__module__.startswith("vlrl_rewards.")]
    return [name for name in ours if name not in audit.EXEMPT and (name != "code" or not sandbox.available())]


@pytest.mark.sweep
@pytest.mark.parametrize("name", reward_names())
def test_no_attack_passes_on_a_reward(name):
    """Every shipped reward but those that `audit.EXEMPT` names with a reason."""
    outcomes = audit.attack(name)
    assert outcomes and not passing(outcomes)


@pytest.mark.parametrize("name", sorted(audit.EXEMPT))
def test_what_cannot_be_audited_says_why(name):
    with pytest.raises(ValueError, match=re.escape(audit.EXEMPT[name])):
        audit.attack(name)


@register("hackable")
@dataclass(frozen=True, kw_only=True)
class Hackable(Reward):
    """r = 1 if the gold stands anywhere in the text. Paper: vlrl original (a fault on purpose)."""

    def __call__(self, rollout):
        return float(str(rollout.answer) in rollout.text)


@register("careful")
@dataclass(frozen=True, kw_only=True)
class Careful(Reward):
    """r = 1 if the last answer is the gold. Paper: vlrl original."""

    def __call__(self, rollout):
        return float(last_answer(rollout.text) == str(rollout.answer) and len(answer_tags(rollout.text)) == 1)


def test_a_users_reward_is_audited():
    seed = Seed("7", "7", ("8", "6", "12"))
    found = {outcome.attack for outcome in passing(audit.attack("hackable", seed))}
    assert {"gold in the thinking", "right and many wrong", "a chant"} <= found
    assert not passing(audit.attack("careful", seed))
    with pytest.raises(ValueError, match="--example"):
        audit.attack("hackable")
    with pytest.raises(ValueError, match="Did you mean 'math'"):
        audit.attack("matth")


@register("needs_meta")
@dataclass(frozen=True, kw_only=True)
class NeedsMeta(Reward):
    """r = 1 if the last answer is the row's own gold. Paper: vlrl original."""

    def __call__(self, rollout):
        return float(last_answer(rollout.text) == rollout.row.meta["own_gold"])


def test_an_example_without_the_meta_that_a_reward_reads(tmp_path):
    example, run = tmp_path / "example.json", CliRunner()
    example.write_text('{"gold": "7", "right": "7", "wrong": "8"}')
    refused = run.invoke(app, ["--attack", "needs_meta", "--example", str(example)])
    assert refused.exit_code == 2 and "'meta': {'own_gold': ...}" in refused.stderr
    example.write_text('{"gold": "7", "right": "7", "wrong": "8", "meta": {"own_gold": "7"}}')
    attacked = run.invoke(app, ["--attack", "needs_meta", "--example", str(example)])
    assert attacked.exit_code in (0, 1) and "attacks" in attacked.stdout
    example.write_text('{"gold": "7", "right": "7", "wrong": []}')
    assert run.invoke(app, ["--attack", "needs_meta", "--example", str(example)]).exit_code == 2


@pytest.mark.parametrize(("kind", "gold"), [("table", [1, 2]), ("instructions", [1, 2])])
def test_a_gold_of_the_wrong_shape_is_a_broken_gold(kind, gold):
    with pytest.raises(ValueError, match="gold"):
        verify(gold, "x", kind)


def test_commands(tmp_path):
    rows, run = tmp_path / "rows.jsonl", CliRunner()
    rows.write_text(
        '{"gold": "6", "pred": "<answer>6</answer>", "kind": "math", "id": "a"}\n\n{"gold": "B", "pred": '
        '"A or B", "choices": ["x", "y"]}\n'
    )
    judged = run.invoke(app, [str(rows)])
    verdicts = [json.loads(line) for line in judged.stdout.splitlines()]
    assert (
        judged.exit_code == 0
        and [row["correct"] for row in verdicts] == [True, False]
        and verdicts[0]["id"] == "a"
    )
    golds = tmp_path / "golds.jsonl"
    golds.write_text(
        '{"gold": "6", "kind": "math"}\n{"gold": "", "kind": "text"}\n{"gold": [1, 2], "kind": "yes_no"}\n'
    )
    tested = run.invoke(app, ["--self-test", str(golds)])
    assert tested.exit_code == 1 and [json.loads(line)["line"] for line in tested.stdout.splitlines()] == [
        2,
        3,
    ]
    seed = tmp_path / "seed.json"
    seed.write_text('{"gold": "7", "right": "7", "wrong": ["8", "6"]}')
    attacked = run.invoke(app, ["--attack", "hackable", "--example", str(seed)])
    assert attacked.exit_code == 1 and "PASSES  gold in the thinking" in attacked.stdout
    assert run.invoke(app, []).exit_code == 2
    rows.write_text("not json\n")
    assert run.invoke(app, [str(rows)]).exit_code == 2
