"""Presets train; 200 random combinations of plug-ins either train two steps or are refused with a reason."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import pytest
from tiny import steps, text_run, vision_run

from vlrl import stages as S
from vlrl.registry import ConfigError, get, names

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


@pytest.mark.parametrize("method", [*CLASSICS, *objective()])
def test_every_preset_trains(method):
    run = vision_run([f"methods/{method}"], TINY) if "papo" in method else text_run([f"methods/{method}"])
    metrics = steps(run, 3)[-1]
    assert metrics.get("grad_norm", 0.0) > 0 or metrics["zero_variance"] > 0


@pytest.mark.parametrize("method", ["spae", "pppo", "remax", "progrpo", "open_reasoner_zero"])
def test_presets_with_passes_of_their_own_train_on_pictures(method):
    metrics = steps(vision_run([f"methods/{method}"], TINY))[-1]
    assert metrics["length/mean"] >= 1


WHOLE = {"gmpo", "gspo", "kimi_k1_5", "nft", "pacs", "trpa"}  # surrogates that move all tokens of a rollout alike
STRATEGIES = {"remax": "remax", "spae": "spae", "pure": "spae"}  # of advantages that read what only these leave
CRITICS = {"gae": "value", "oreal": "outcome"}


def drawn(seed):
    """Overrides of a random combination."""
    draw = random.Random(seed)
    kinds = (("advantage", S.AdvantageEstimator), ("credit", S.TokenCredit), ("surrogate", S.PolicyLoss), ("reduce", S.LossAggregation))
    choice = {kind: draw.choice(names(stage)) for kind, stage in kinds}
    written = get(S.AdvantageEstimator, choice["advantage"]).writes_tokens
    if written != (choice["credit"] == "per_token"):
        choice["credit"] = "per_token" if written else "uniform"
    if choice["credit"] != "uniform" and choice["surrogate"] in WHOLE:
        choice["surrogate"] = "ppo_clip"
    words = [f"{kind}={{name: {name}}}" for kind, name in choice.items()]
    for slot, stage, chance in (
        ("terms", S.LossTerm, 0.6),
        ("weights", S.TokenWeight, 0.4),
        ("shape", S.RewardShaping, 0.3),
        ("gate", S.GroupFilter, 0.2),
    ):
        if draw.random() < chance:
            words.append(f"{slot}={{x: {{name: {draw.choice(names(stage))}}}}}")
    critic = CRITICS.get(choice["advantage"] if choice["advantage"] == "gae" else "oreal" if "token_weights={x: {name: oreal}}" in words else "")
    words += [f"callbacks={{critic: {{name: critic, epochs: 1, objective: {critic}}}}}"] if critic else []
    words += [f"rollout={{name: {STRATEGIES[choice['advantage']]}}}"] if choice["advantage"] in STRATEGIES else []
    return [*words, f"num_minibatches={draw.choice([1, 2])}", f"ppo_epochs={draw.choice([1, 1, 2])}"]


@pytest.mark.parametrize("seed", range(200))
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
    assert valid >= 25
