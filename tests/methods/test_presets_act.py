"""Presets whose mechanism once did nothing as shipped: each is run on its own task, with the mechanism on and
off."""

from __future__ import annotations

import math

import pytest
from make import group
from run_kit import Steps, last_step
from task_kit import MODELS
from tiny import steps
from vlrl_rewards.audit.controls import NoisyReward

from vlrl.config import load
from vlrl.methods.common.schedule import check_begins, steps_of
from vlrl.methods.core.base_comparison import compared
from vlrl.methods.papers.modeltaskalign import Modeltaskalign
from vlrl.plugins.finding import RunNumbers
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.plan import Plan
from vlrl.trainer.session import Session

TINY = [
    "policy.tiny={hidden: 32, layers: 2, heads: 2, kv_heads: 1, intermediate: 64}",
    "prompts_per_step=4",
    "group_size=6",
    "threads=1",
]
QUIET = ["max_refill_rounds=1", "watch.rollouts_every=0", "optimizer.lr=1e-3"]
CHAINS = (
    "engine={name: fake, options: ['{target}', '<think>a1+1=2</think><answer>7</answer>', "
    "'<answer>{answer}</answer>', 'no']}"
)
SUMS = (
    "engine={name: fake, options: ['<answer>{answer}</answer>', '<answer>1</answer>', "
    "'<answer>9</answer>', 'no']}"
)


def made(preset: str, *overrides: str, engine: str = SUMS) -> Session:
    """The preset on the task that it names, opened."""
    task = load(["base/rl", f"methods/{preset}"]).tree["about"]["task"]
    run = Session(
        Plan.of(
            load(
                ["base/rl", "models/tiny_text", f"tasks/{task}", f"methods/{preset}"],
                [*TINY, *QUIET, *MODELS.get(preset, []), engine, *overrides],
            )
        )
    )
    run.observers.members.append(Steps())
    run.open()
    run.enter(0)
    run.engine.sync(run.policy)
    return run


def advantages(run: Session) -> list[list[float]]:
    """The advantages of the first step, group by group."""
    steps(run, 1)
    return [[rollout.advantage for rollout in group] for group in last_step(run).trained_groups]


def differ(a: list[list[float]], b: list[list[float]]) -> bool:
    return any(
        not math.isclose(x, y, abs_tol=1e-6)
        for one, two in zip(a, b, strict=True)
        for x, y in zip(one, two, strict=True)
    )


@pytest.mark.parametrize(
    ("preset", "slot", "engine"),
    [
        ("noisy_verifier_corrections", "noise", SUMS),
        ("par", "preference", SUMS),
        ("laser_2", "length.target=0.5", CHAINS),  # one of the two right answers is longer
    ],
)
def test_the_shaping_moves_advantages(preset, slot, engine):
    slot, _, value = slot.partition(".")
    stated = [f"reward_shaping.{slot}.{value}"] if value else []
    assert differ(
        advantages(made(preset, *stated, engine=engine)),
        advantages(made(preset, f"reward_shaping.{slot}=null", engine=engine)),
    )


def test_the_forward_correction_is_right_on_average_for_a_verifier_with_its_rates():
    rates = {"rho0": 0.25, "rho1": 0.25}
    noisy = NoisyReward(of={"name": "exact"}, **rates)
    g = group(*[0.0] * 400, texts=["<answer>4</answer>"] * 200 + ["<answer>5</answer>"] * 200)
    for rollout in g:
        object.__setattr__(rollout.prompt.row, "answer", "4")
    found = noisy.score_group(g)
    assert set(found) == {0.0, 1.0} and noisy.score_group(g) == found
    right, wrong = sum(found[:200]) / 200, sum(found[200:]) / 200
    assert 0.65 < right < 0.85 and 0.15 < wrong < 0.35  # 1 - rho1 and rho0, four standard deviations wide
    assert NoisyReward(of={"name": "exact"}, rho0=0.0, rho1=0.0).score_group(g) == [1.0] * 200 + [0.0] * 200


def test_a_schedule_that_outlasts_the_run_is_refused():
    with pytest.raises(ConfigError, match="start=200: the phase has 100 steps"):
        made("laser", "advantage.start=200")
    with pytest.raises(ConfigError, match="warmup=100"):
        made("kimi_k1_5", "reward_shaping.length.warmup=100")
    run = made("laser")
    assert steps_of(0.02, run) == 2 and steps_of(30, run) == 30
    assert check_begins(run, "x", 99) is None
    run.close()


def test_laser_mixes_its_own_verdicts_after_the_start():
    late, now = (
        made("laser", f"advantage.start={start}", "advantage.min_std=0.0", engine=CHAINS) for start in (50, 0)
    )
    assert differ(advantages(late), advantages(now))
    assert (
        now.advantage.constant < 0
        and now.objective.loss_terms["self_reward"].constant == now.advantage.constant
    )


def test_co_reward_pays_votes_alone():
    run = made("co_reward")
    steps(run, 1)
    rollouts = [rollout for group in last_step(run).trained_groups for rollout in group]
    assert [r.reward for r in rollouts] == [r.rewards["vote"] for r in rollouts]
    assert [r.outcome for r in rollouts] == [
        r.rewards["gold"] for r in rollouts
    ]  # the accuracy is the gold answer's
    assert {r.row.question for r in rollouts if r.row.id.endswith("/paraphrased")} == {
        f"what is {group.row.question.removesuffix('=')}?" for group in last_step(run).trained_groups
    }
    with pytest.raises(ConfigError, match="paraphrased"):
        made("co_reward", "rollout={name: independent}", "advantage={name: grpo}")


@pytest.mark.parametrize("preset", ["rlvr_tax_audit", "thinkingoutloud"])
def test_the_prompt_asks_for_a_confidence(preset):
    said = (
        "engine={name: fake, options: ['<answer>{answer}</answer><confidence>80</confidence>', 'I do not "
        "know.']}"
    )
    run = made(preset, engine=said)
    (metrics,) = steps(run, 1)
    assert "<confidence>" in str(last_step(run).trained_groups[0].prompt.messages)
    assert 0 < metrics["calibration/stated"] < 1 and metrics["calibration/abstained"] == pytest.approx(
        1 - metrics["calibration/stated"]
    )
    assert metrics["calibration/confidence"] == pytest.approx(0.8) and metrics[
        "calibration/brier"
    ] == pytest.approx(0.04)


def test_cot_pass_k_counts_answers_with_all_steps():
    (metrics,) = steps(made("cot_pass_k", engine=CHAINS), 1)
    assert 0 < metrics["cot_passk/given_answer"] < 1  # '<answer>{answer}</answer>' is right without steps


def test_the_clip_of_spurious_rewards_sees_ratios():
    run = made("spuriousreward_clip", "optimizer.lr=0.05")
    (metrics,) = steps(run, 1)
    assert metrics["clip_fraction"] > 0
    rollouts = [rollout for g in last_step(run).trained_groups for rollout in g]
    assert {r.reward for r in rollouts} == {0.0, 1.0} and all(
        r.reward == r.rewards["control"] for r in rollouts
    )


def test_the_pre_flight_trains_nothing_and_gives_a_verdict():
    run = made("modeltaskalign", "steps=2", engine=CHAINS)
    before = {name: weight.clone() for name, weight in run.policy.model.state_dict().items()}
    _, last = steps(run, 2)
    assert all(weight.equal(before[name]) for name, weight in run.policy.model.state_dict().items())
    assert next(value for name, value in last.items() if name.endswith("chains/aligned")) in (0.0, 1.0)
    (slot,) = [slot for slot in run.callbacks if isinstance(run.callbacks[slot], Modeltaskalign)]
    found = run.callbacks[slot].finding(RunNumbers(slot, [last]))
    assert "task 'chains': pass@1" in found.text and found.shows is not None
    with pytest.raises(ConfigError, match="would train it"):
        made("modeltaskalign", "advantage={name: grpo}")


def test_support_by_hand():
    base = {"a": [4, 4, 8], "b": [4, 1, 8], "c": [4, 0, 8], "d": [4, 0, 8]}
    now = {"a": [4, 4, 4], "b": [4, 0, 4], "c": [4, 2, 4], "d": [4, 0, 4], "e": [4, 4, 4]}
    found = compared(base, now, 4)
    assert (found["kept"], found["found"], found["score"], found["net"]) == (
        0.5,
        0.5,
        0.5,
        0.0,
    )  # kept a, lost b, found c
    assert found["base/1"] == pytest.approx(5 / 16) and found["now/1"] == pytest.approx(6 / 16)
    assert found["base/4"] == 0.5 and found["now/4"] == 0.5
    assert (
        found["change/hard"] == pytest.approx((-0.25 + 0.5 + 0.0) / 3)
        and found["change/easy"] == 0.0
        and "change/middle" not in found
    )
    assert (found["length/base"], found["length/now"]) == (2.0, 1.0)
    unsolved = compared({"a": [4, 0, 8]}, {"a": [4, 0, 8]}, 4)
    assert unsolved.keys() == {
        "base/1",
        "now/1",
        "base/2",
        "now/2",
        "base/4",
        "now/4",
        "length/base",
        "length/now",
        "change/hard",
    }
    assert compared(base, {}, 4) == {}


@pytest.mark.parametrize("preset", ["invisible_leash", "rlvsdistill"])
def test_the_base_model_is_sampled_after_training(preset):
    slot = {"invisible_leash": "support", "rlvsdistill": "migration"}[preset]
    run = made(
        preset,
        "steps=2",
        f"callbacks.{slot}.prompts=3",
        f"callbacks.{slot}.samples=4",
        "optimizer.lr=0.05",
        engine=CHAINS,
    )
    base = {name: weight.clone() for name, weight in run.policy.model.state_dict().items()}
    seen: list[bool] = []
    counts = type(run.callbacks[slot]).counts
    at_base = lambda: all(weight.equal(base[name]) for name, weight in run.policy.model.state_dict().items())  # noqa: E731

    def spy(self, run):
        seen.append(at_base())
        return counts(self, run)

    type(run.callbacks[slot]).counts = spy
    try:
        first, last = steps(run, 2)
    finally:
        type(run.callbacks[slot]).counts = counts
    assert (
        seen == [True, False] and not at_base()
    )  # first the base weights, then the trained ones, which stay
    assert not any("base/1" in key for key in first) and any(key.endswith("base/1") for key in last)


@pytest.mark.parametrize(
    "preset", ["rlcr", "heron", "rpr", "mt_r1_zero", "ssrl", "forecast_rlvr", "time_r1", "guru"]
)
def test_a_preset_with_a_reward_of_its_own_replaces_the_task_s(preset):
    task = load(["base/rl", f"methods/{preset}"]).tree["about"]["task"]
    own = load([f"methods/{preset}"]).tree["rewards"]
    assert set(
        load(["base/rl", "models/tiny_text", f"tasks/{task}", f"methods/{preset}"]).tree["rewards"]
    ) == set(own) - {"*"}
