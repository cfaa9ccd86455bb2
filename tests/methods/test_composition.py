"""Presets train; 200 random combinations of plug-ins either train two steps or are refused with a reason."""

from __future__ import annotations

import csv
import random
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from tiny import steps, text_run, vision_run

from vlrl.plugins import stages as S
from vlrl.plugins.registry import ConfigError, build, names

ROOT = Path(__file__).parents[2]
CLASSICS = [
    "adaptive_entropy",
    "cispo",
    "clip_cov",
    "clip_higher",
    "dapo",
    "dr_grpo",
    "dual_clip",
    "entropy_bonus",
    "gdpo",
    "gmpo",
    "gpg",
    "grpo",
    "grpo_kl",
    "gspo",
    "gspo_token",
    "kl_cov",
    "maxrl",
    "opo",
    "papo_dapo",
    "pass_at_k",
    "ppl_position",
    "ppo",
    "psr",
    "reinforce",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "remax",
    "rloo",
    "sapo",
    "vespo",
    "w_reinforce",
]


TINY = ["policy.tiny={hidden: 32, layers: 2, heads: 2, kv_heads: 1, intermediate: 64}"]


def objective() -> list[str]:
    """The presets of the objective family."""
    with (ROOT / "docs" / "catalogue.csv").open(newline="", encoding="utf-8") as file:
        return [row["id"] for row in csv.DictReader(file) if row["family"] == "objective"]


# presets that need rows of a kind, that wait, or that leave a model to their user: configs and overrides
SPECIAL = {
    "capo": (
        ["tasks/lab_chains", "methods/capo"],
        ["data.train.arithmetic=null", "data.train.chains.styles=[stepwise]"],
    ),
    "dph_rl": (["methods/dph_rl"], ["data.train.arithmetic.count=4", "replay.attempts=1"]),
    "oreal": (["methods/oreal"], ["token_weights.tokens.warmup=0"]),
    "pure": (["methods/pure"], ["reward_shaping.process.model=tiny"]),
}


@pytest.mark.sweep
@pytest.mark.parametrize("method", [*CLASSICS, *objective()])
def test_every_preset_trains(method):
    run = (
        vision_run([f"methods/{method}"], TINY)
        if "papo" in method
        else text_run(*SPECIAL.get(method, ([f"methods/{method}"],)))
    )
    metrics = steps(run, 3)[-1]
    assert metrics.get("grad_norm", 0.0) > 0 or metrics["zero_variance"] > 0


@pytest.mark.parametrize("method", ["spae", "pppo", "remax", "progrpo", "open_reasoner_zero"])
def test_presets_with_passes_of_their_own_train_on_pictures(method):
    metrics = steps(vision_run([f"methods/{method}"], TINY))[-1]
    assert metrics["length/mean"] >= 1


SEQUENCE = {
    "gmpo",
    "gspo",
    "kimi_k1_5",
    "nft",
    "pacs",
    "trpa",
}  # policy losses with one gradient for all tokens of a rollout
STAGES = {
    "advantage": S.AdvantageEstimator,
    "token_credit": S.TokenCredit,
    "policy_loss": S.PolicyLoss,
    "loss_aggregation": S.LossAggregation,
}
# what `drawn` adds for a capability that a drawn plug-in requires; `token_advantages` it chooses
PARTNERS = {
    "critic.value": "callbacks={critic: {name: critic, epochs: 1, objective: value}}",
    "critic.outcome": "callbacks={critic: {name: critic, epochs: 1, objective: outcome}}",
    "steps": "rollout={name: spae.probing}",
    "remax.greedy_baseline": "rollout={name: remax.greedy_baseline}",
}

SHORT = {"rl_tango": ", max_tokens: 16"}  # a random verifier never ends by itself


@cache
def composable(stage) -> list[str]:
    """The plug-ins of a stage that work with their defaults and without a partner of their own paper."""
    found = []
    for name in names(stage):
        if name == "capo.rule_critic":  # needs gold steps in the rows
            continue
        with suppress(ConfigError):  # a field without a default
            if required(stage, name) <= {*PARTNERS, S.TOKEN_ADVANTAGES.name}:
                found.append(name)
    return found


@cache
def required(stage, name) -> frozenset[str]:
    """Names of the capabilities that a plug-in requires."""
    return frozenset(capability.name for capability in build(stage, name).requires)


def drawn(seed):
    """Overrides of a random combination."""
    draw = random.Random(seed)
    choice = {slot: draw.choice(composable(stage)) for slot, stage in STAGES.items()}
    per_token = S.TOKEN_ADVANTAGES in build(S.AdvantageEstimator, choice["advantage"]).provides
    if per_token != (S.TOKEN_ADVANTAGES.name in required(S.TokenCredit, choice["token_credit"])):
        choice["token_credit"] = "per_token" if per_token else "uniform"
    if choice["token_credit"] != "uniform" and choice["policy_loss"] in SEQUENCE:
        choice["policy_loss"] = "ppo_clip"
    maps = (
        ("loss_terms", S.LossTerm, 0.6),
        ("token_weights", S.TokenWeight, 0.4),
        ("reward_shaping", S.RewardShaping, 0.3),
        ("group_filters", S.GroupFilter, 0.2),
    )
    extra = {slot: draw.choice(composable(stage)) for slot, stage, chance in maps if draw.random() < chance}
    words = [f"{slot}={{name: {name}}}" for slot, name in choice.items()] + [
        f"{slot}={{x: {{name: {name}{SHORT.get(name, '')}}}}}" for slot, name in extra.items()
    ]
    stages = {**STAGES, **{slot: stage for slot, stage, _ in maps}}
    wanted = {one for slot, name in {**choice, **extra}.items() for one in required(stages[slot], name)}
    words += [PARTNERS[one] for one in sorted(wanted & set(PARTNERS))]
    return [*words, f"num_minibatches={draw.choice([1, 2])}", f"ppo_epochs={draw.choice([1, 1, 2])}"]


@pytest.mark.sweep
@pytest.mark.parametrize(
    "seed", [*range(60), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(60, 200))]
)
def test_random_combinations(seed):
    for attempt in range(20):
        words = drawn(f"{seed}/{attempt}")
        try:
            run = text_run([], words)
        except ConfigError as error:
            assert len(str(error)) > 20, words
            continue
        for metrics in steps(run):  # finite numbers all of them
            assert metrics["length/mean"] >= 1, words
        return
    pytest.fail("twenty draws, and none is valid")


def test_most_combinations_are_valid():
    valid = 0
    for seed in range(40):
        try:
            text_run([], drawn(seed)).close()
            valid += 1
        except ConfigError as error:
            assert str(error)
    assert valid >= 25  # of 40; the others need a value, or a part that the defaults do not have
