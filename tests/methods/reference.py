"""A second implementation of the classics in float64 numpy, rollout by rollout from the papers' equations.
Shares nothing with the package."""

from __future__ import annotations

from itertools import combinations

import numpy as np


def grpo(r, eps, ddof=1):
    """Advantages (r - mean) / (std + eps)."""
    r = np.asarray(r, float)
    return (r - r.mean()) / (r.std(ddof=ddof) + eps)


def rloo(r):
    """Reward minus the mean of the others."""
    return np.array([r[i] - np.mean([r[j] for j in range(len(r)) if j != i]) for i in range(len(r))])


def remax(r, greedy):
    """Reward minus the greedy completion's."""
    return np.asarray(r, float) - greedy


def opo(r, lengths):
    """Reward minus the length-weighted mean."""
    return np.asarray(r, float) - np.average(r, weights=lengths)


def gpg(groups):
    """Group-centred rewards, scaled by all groups over groups with contrast."""
    live = [np.ptp(r) > 0 for r in groups]
    return [len(groups) / max(sum(live), 1) * (np.asarray(r, float) - np.mean(r)) for r in groups]


def gdpo(groups, weights, eps):
    """Per-reward z-scores, weighted, summed, whitened over the step. `groups`: arrays (rollouts, rewards)."""
    sums = []
    for scores in groups:
        spread = scores.std(0, ddof=1)
        sums.append(((scores - scores.mean(0)) / (spread + eps)) @ np.asarray(weights))
    flat = np.concatenate(sums)
    return [(s - flat.mean()) / (flat.std(ddof=1) + eps) for s in sums]


def pass_at_k(right, k):
    """Over all subsets of size k: one succeeds if it holds a right rollout; a rollout is worth the mean over
    the subsets it is in."""
    n = len(right)
    subsets = list(combinations(range(n), k))
    value = {s: float(any(right[i] for i in s)) for s in subsets}
    mean = np.mean(list(value.values()))
    spread = np.sqrt(mean * (1 - mean))
    return np.array([(np.mean([value[s] for s in subsets if i in s]) - mean) / spread for i in range(n)])


def gae(rewards, values, gamma, lam):
    """The sum of discounted residuals, written out."""
    values = [*values, 0.0]
    delta = [rewards[t] + gamma * values[t + 1] - values[t] for t in range(len(rewards))]
    return np.array(
        [sum((gamma * lam) ** (s - t) * delta[s] for s in range(t, len(delta))) for t in range(len(delta))]
    )


def kl(logp, ref, kind):
    """Schulman's estimators of KL(pi || ref) from one sample."""
    r = np.exp(ref - logp)
    return {"k1": -np.log(r), "k2": 0.5 * np.log(r) ** 2, "k3": (r - 1) - np.log(r)}[kind]


def ppo(logp, old, advantage, low, high, dual):
    """The clipped surrogate of one token, as a loss."""
    r = np.exp(logp - old)
    objective = min(r * advantage, np.clip(r, 1 - low, 1 + high) * advantage)
    return -max(objective, dual * advantage) if dual and advantage < 0 else -objective


def reduce(rows, kind, length=0):
    """Aggregate ragged lists of token losses."""
    tokens = sum(map(len, rows))
    table = {
        "token_mean": sum(map(sum, rows)) / tokens,
        "sequence_mean": sum(sum(row) / len(row) for row in rows) / len(rows),
        "constant": sum(map(sum, rows)) / (len(rows) * max(length, 1)),
        "only_token_mean": sum(sum(row) / len(row) for row in rows),
    }
    return table[kind]
