"""Combinations that would train on nothing, or on the same thing twice, are refused with the reason and what to use instead."""

from __future__ import annotations

import pytest

from vlrl.config import load
from vlrl.registry import ConfigError
from vlrl.run import Run

COMPARING = ["bnpo", "gdpo", "gpg", "grpo", "maxrl", "opo", "oreal", "rloo", "twostage", "verl_rank", "reinforce_pp, baseline: true"]
WHOLE = ["gmpo", "gspo", "kimi_k1_5", "nft", "pacs", "trpa"]
CRITIC = ["advantage={name: gae}", "credit={name: per_token}"]
REFUSED = [
    *((["group_size=1", f"advantage={{name: {name}}}"], "group_size: 1.*use 2 or more") for name in COMPARING),
    *((["group_size=1", f"advantage={{name: {name}}}", "credit={name: per_token}"], "group_size: 1") for name in ("spae", "pure", "capo")),
    *(([f"surrogate={{name: {name}}}", "credit={name: late_bonus}"], "lost; use credit: .name: uniform") for name in WHOLE),
    (CRITIC, "critic that learns"),
    ([*CRITIC, "callbacks={c: {name: critic, objective: outcome}}"], "objective 'outcome'.*token_score"),
    (["callbacks={c: {name: critic}}"], "nothing reads"),
    (["advantage={name: gae}", "callbacks={c: {name: critic}}"], "overwrite"),
    (["credit={name: per_token}"], "does not write"),
    (["surrogate={name: none}"], "nothing to learn from"),
    (["shape={a: {name: soft_overlong}, b: {name: kimi_length}}"], "a and b both punish length"),
    (["shape={k: {name: kl_in_reward}}", "terms={k: {name: kl}}"], "twice"),
    (["terms={k: {name: kl, kind: k1}}"], "mean zero"),
    (["terms={a: {name: entropy}, b: {name: adaptive_entropy}}"], "drop one"),
    (["terms={f: {name: f_divergence}}"], 'source "base"'),
    (["strategy={name: remax}"], "does not read"),
    (["advantage={name: remax}"], "greedy rollout"),
    (["strategy={name: t_grpo}"], "does not see"),
    (["terms={p: {name: perception}}"], "does not see"),
    (["policy={name: qwen2_5_vl, tiny: {hidden: 32}}", "strategy={name: t_grpo}"], "shuffled frames"),
    (["shape={t: {name: t_grpo}}"], "use strategy"),
    (["probes={t: {name: t_grpo}}"], "there is none"),
    (["strategy={name: expert}"], "one demonstration per prompt"),
    (["decode.temperature=0"], "all 6 rollouts of a prompt the same"),
    (["advantage={name: pass_at_k, k: 6}"], "must be below group_size"),
    (["advantage={name: nsr, positive: 0, negative: 0}"], "both 0"),
    (["gate={g: {name: accuracy_range, low: 0.8, high: 0.2}}"], "no group would be kept"),
    (["callbacks={r: {name: reference_reset}}"], "nothing reads it"),
    (["weights={w: {name: oreal}}"], "scorer that learns"),
]


@pytest.mark.parametrize(("words", "reason"), REFUSED, ids=lambda value: " ".join(value) if isinstance(value, list) else None)
def test_senseless_combinations_are_refused(words, reason):
    base = ["base/rl", "models/tiny_text", "tasks/lab_arithmetic", "methods/grpo"]
    with pytest.raises(ConfigError, match=reason):
        Run(load(base, ["group_size=6", "prompts_per_step=4", *words]))
