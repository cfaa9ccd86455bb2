"""Pure functions of reinforcement learning for language models: tensors in, tensors out; no Run, config or
registry is needed.

    advantages         group_ (GRPO ...), rloo_, reinforce_pp_, maxrl_, opo_, pass_at_k_, pass_at_k_max_,
                       gdpo_advantages, best_and_worst
    token_advantages   reinforce_pp_token_advantages, remax_advantages
    returns            token_rewards, discounted_returns, gae, whiten, value_loss, value_clip_fraction
    policy_losses      reinforce_, ppo_clip_, clipped_ratio_, dppo_, gspo_(token_), cispo_, gmpo_, sapo_,
                       vespo_, cpgd_, mirror_descent_loss
    kl                 kl_estimate, kl_penalty, adaptive_kl_coef
    ratios             log_ratio, sequence_log_ratio, importance_ (TIS), icepop_weights, batch_normalised,
                       rejection_, off_policy_sequence_mask
    aggregation        aggregate, aggregation_weights, masked_mean, group_sum, group_mean
    distillation       divergence, sampled_divergence, with_gradient, top_and_rest, shared_spans
    distributions      logprobs_from_logits, entropy_from_logits
    length_rewards     overlong_penalty, overlong_mask (DAPO), kimi_length_reward
    sampling_metrics   pass_at_k, clip_fractions
    exact              mean, std, centred of Python floats, exactly rounded (import them from there)

The plug-ins in `vlrl.methods` call these functions, so a loss written with them has the numbers of a run.
docs/functional.md has a training step.

    loss_BT, metrics = ppo_clip_loss(logp_BT, old_logp_BT, group_advantages(reward_B, group_B), mask_BT,
                                     low=0.2, high=0.28)
    aggregate(loss_BT, mask_BT, "token_mean").backward()
"""

from __future__ import annotations

from vlrl.functional.advantages import (
    best_and_worst,
    gdpo_advantages,
    group_advantages,
    maxrl_advantages,
    opo_advantages,
    pass_at_k_advantages,
    pass_at_k_max_advantages,
    reinforce_pp_advantages,
    rloo_advantages,
)
from vlrl.functional.aggregation import aggregate, aggregation_weights, group_mean, group_sum, masked_mean
from vlrl.functional.distillation import (
    divergence,
    sampled_divergence,
    shared_spans,
    top_and_rest,
    with_gradient,
)
from vlrl.functional.distributions import entropy_from_logits, logprobs_from_logits
from vlrl.functional.kl import adaptive_kl_coef, kl_estimate, kl_penalty
from vlrl.functional.length_rewards import kimi_length_reward, overlong_mask, overlong_penalty
from vlrl.functional.policy_losses import (
    cispo_loss,
    clipped_ratio_loss,
    dppo_loss,
    gmpo_loss,
    gspo_loss,
    gspo_token_loss,
    ppo_clip_loss,
    reinforce_loss,
)
from vlrl.functional.ratios import (
    batch_normalised,
    effective_sample_size,
    icepop_weights,
    importance_weights,
    log_ratio,
    off_policy_sequence_mask,
    rejection_mask,
    sequence_log_ratio,
    weight_sums,
)
from vlrl.functional.returns import (
    discounted_returns,
    gae,
    token_rewards,
    value_clip_fraction,
    value_loss,
    whiten,
)
from vlrl.functional.sampling_metrics import clip_fractions, pass_at_k
from vlrl.functional.smooth_losses import cpgd_loss, mirror_descent_loss, sapo_loss, vespo_loss
from vlrl.functional.token_advantages import reinforce_pp_token_advantages, remax_advantages

__all__ = [
    "adaptive_kl_coef",
    "aggregate",
    "aggregation_weights",
    "batch_normalised",
    "best_and_worst",
    "cispo_loss",
    "clip_fractions",
    "clipped_ratio_loss",
    "cpgd_loss",
    "discounted_returns",
    "divergence",
    "dppo_loss",
    "effective_sample_size",
    "entropy_from_logits",
    "gae",
    "gdpo_advantages",
    "gmpo_loss",
    "group_advantages",
    "group_mean",
    "group_sum",
    "gspo_loss",
    "gspo_token_loss",
    "icepop_weights",
    "importance_weights",
    "kimi_length_reward",
    "kl_estimate",
    "kl_penalty",
    "log_ratio",
    "logprobs_from_logits",
    "masked_mean",
    "maxrl_advantages",
    "mirror_descent_loss",
    "off_policy_sequence_mask",
    "opo_advantages",
    "overlong_mask",
    "overlong_penalty",
    "pass_at_k",
    "pass_at_k_advantages",
    "pass_at_k_max_advantages",
    "ppo_clip_loss",
    "reinforce_loss",
    "reinforce_pp_advantages",
    "reinforce_pp_token_advantages",
    "rejection_mask",
    "remax_advantages",
    "rloo_advantages",
    "sampled_divergence",
    "sapo_loss",
    "sequence_log_ratio",
    "shared_spans",
    "token_rewards",
    "top_and_rest",
    "value_clip_fraction",
    "value_loss",
    "vespo_loss",
    "weight_sums",
    "whiten",
    "with_gradient",
]
