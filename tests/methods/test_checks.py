"""Combinations that would train on nothing, or on the same thing twice, are refused with the reason and what
to use instead."""

from __future__ import annotations

import pytest

from vlrl.config import load
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.plan import Plan
from vlrl.trainer.session import Session

COMPARING = [
    "bnpo",
    "gdpo",
    "gpg",
    "grpo",
    "maxrl",
    "opo",
    "oreal",
    "rloo",
    "twostage",
    "verl",
    "reinforce_pp, baseline: true",
]
WHOLE = ["gmpo", "gspo", "kimi_k1_5", "nft", "pacs", "trpa"]
SHARES = {"trpa": ["advantage={name: trpa.pairs}"]}
PROBING = "rollout={name: spae.probing}"
CRITIC = ["advantage={name: gae}", "token_credit={name: per_token}"]
REFUSED = [
    *(
        (["group_size=1", f"advantage={{name: {name}}}"], "group_size: 1.*use 2 or more")
        for name in COMPARING
    ),
    (
        [
            "group_size=1",
            "advantage={name: capo}",
            "token_credit={name: per_token}",
            "reward_shaping={critic: {name: capo.rule_critic}}",
        ],
        "group_size: 1",
    ),
    *(
        (
            ["group_size=1", f"advantage={{name: {name}}}", "token_credit={name: per_token}", PROBING],
            "group_size: 1",
        )
        for name in ("spae", "pure")
    ),
    (
        ["advantage={name: pure}", "token_credit={name: per_token}"],
        "requires 'steps'.*set rollout: {name: spae.probing}",
    ),
    *(
        (
            [f"policy_loss={{name: {name}}}", "token_credit={name: ppl.late_bonus}", *SHARES.get(name, [])],
            "lost; use token_credit: .name: uniform",
        )
        for name in WHOLE
    ),
    (CRITIC, "requires 'critic.value'.*set callbacks: {critic: {name: critic}}"),
    ([*CRITIC, "callbacks={c: {name: critic, objective: outcome}}"], "requires 'critic.value'"),
    (["callbacks={c: {name: critic}}"], "requires 'gae.returns'.*set advantage: {name: gae}"),
    (["callbacks={c: {name: critic, objective: outcome}}"], "nothing reads"),
    (["callbacks={c: {name: critic_model, objective: outcome}}"], "nothing reads"),
    (["advantage={name: gae}", "callbacks={c: {name: critic}}"], "overwrite"),
    (["token_credit={name: per_token}"], "requires 'token_advantages'"),
    (["environment={name: python, mode: unsafe}"], "requires 'episode_end'.*set rollout: {name: multi_turn}"),
    (["token_weights={w: {name: mask_given_prefix}}"], "requires 'given'"),
    (["loss_terms={n: {name: nll, given: true}}"], "requires 'given'"),
    (["metrics={m: {name: pass_at_k, slot: chain}}"], "no reward slot 'chain'"),
    (["policy_loss={name: zero_loss}"], "nothing to learn from"),
    (
        ["reward_shaping={a: {name: soft_overlong}, b: {name: kimi_k1_5.length_reward}}"],
        "a and b both punish length",
    ),
    (["reward_shaping={k: {name: kl_in_reward}}", "loss_terms={k: {name: kl}}"], "twice"),
    (["loss_terms={k: {name: kl, estimator: k1}}"], "mean zero"),
    (["loss_terms={a: {name: entropy_bonus}, b: {name: adaptive_entropy}}"], "drop one"),
    (
        ["loss_terms={f: {name: dph_rl.f_divergence}}"],
        "requires 'dph_rl.base_rollouts'.*set replay: {name: dph_rl}",
    ),
    (["replay={name: dph_rl}"], "requires 'dph_rl.base_divergence'"),
    (["replay={name: ampo}"], "requires 'untrained_demonstrations'.*replace: false, trained: false"),
    (["advantage={name: co_reward.per_view}"], "requires 'paraphrased'"),
    (["rollout={name: exgrpo.with_experience}"], "requires 'exgrpo.experience'"),
    (["prompt_sampler={name: depo}"], "requires 'depo.explorability'"),
    (["rollout={name: remax.greedy_baseline}"], "no plug-in of this config reads"),
    (
        ["advantage={name: remax}"],
        "requires 'remax.greedy_baseline'.*set rollout: {name: remax.greedy_baseline}",
    ),
    (["rollout={name: t_grpo}", "reward_shaping={t: {name: t_grpo.temporal_bonus}}"], "is text-only"),
    (["loss_terms={p: {name: papo.masked_kl}}"], "has no images"),
    (
        ["policy={name: qwen2_5_vl, tiny: {hidden: 32}}", "rollout={name: t_grpo}"],
        "requires 't_grpo.contrast'.*t_grpo.temporal_bonus",
    ),
    (
        ["reward_shaping={t: {name: t_grpo.temporal_bonus}}"],
        "requires 't_grpo.shuffled_frames'.*set rollout: {name: t_grpo}",
    ),
    (["metrics={t: {name: t_grpo.contrast}}"], "no phase's reward shaping writes"),
    (["rollout={name: expert}"], "one demonstration per prompt"),
    (["sampling.temperature=0"], "all 6 rollouts of a prompt the same"),
    (["advantage={name: pass_k_training, k: 6}"], "must be below group_size"),
    (["advantage={name: nsr, positive: 0, negative: 0}"], "both 0"),
    (["group_filters={g: {name: accuracy_range, low: 0.8, high: 0.2}}"], "no group would be kept"),
    (["callbacks={r: {name: reference_reset}}"], "nothing reads it"),
    (["token_weights={w: {name: oreal.decisive_tokens}}"], "requires 'critic.outcome'.*objective: outcome"),
]


@pytest.mark.parametrize(
    ("words", "reason"), REFUSED, ids=lambda value: " ".join(value) if isinstance(value, list) else None
)
def test_senseless_combinations_are_refused(words, reason):
    base = ["base/rl", "models/tiny_text", "tasks/lab_arithmetic", "methods/grpo"]
    with pytest.raises(ConfigError, match=reason):
        Session(Plan.of(load(base, ["group_size=6", "prompts_per_step=4", *words])))
