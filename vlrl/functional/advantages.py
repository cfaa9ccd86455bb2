"""Advantage estimators: one number per rollout, from the rewards of the rollouts of each prompt.

Rewards are a vector, and `group_B` says which prompt each belongs to (any integers, in any order; groups may
differ in size). The arithmetic is float64 with exactly rounded sums (`vlrl.functional.exact`): a result does
not depend on the order of rollouts or on the device. It is computed on the CPU, so a call waits for the
device once. Results have the dtype and device of the rewards and carry no gradient; rewards of integers or
bools give the default float dtype.

Shape legend: B rollouts, K rewards per rollout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from vlrl.functional.checks import check_choice, check_groups, check_shapes
from vlrl.functional.exact import centred, mean, std
from vlrl.services.lazy import Tensor, torch

BASELINES = ("mean", "leave_one_out", "batch_mean", "none")
SCALES = ("std", "others_std", "batch_std", "centred_batch_std", "none")


def group_advantages(
    reward_B: Tensor,
    group_B: Tensor,
    *,
    baseline: str = "mean",
    scale: str = "std",
    eps: float = 1e-6,
    unbiased: bool = True,
) -> Tensor:
    """Group-relative advantages (GRPO, Dr.GRPO, Lite PPO, RLOO).

        A_i = (r_i - b_i) / d_i

    | method        | baseline        | scale               | source
    |
    |---------------|-----------------|---------------------|------------------------------------------------------------------|
    | GRPO          | "mean"          | "std"               | Shao et al. 2024, arXiv:2402.03300, sec. 4.1.2
    |
    | Dr.GRPO       | "mean"          | "none"              | Liu et al. 2025, arXiv:2503.20783, sec. 3.2
    |
    | Lite PPO      | "mean"          | "batch_std"         | arXiv:2508.08221
    |
    | RLOO          | "leave_one_out" | "none"              | Ahmadian et al. 2024, arXiv:2402.14740, eq. 8
    |
    | NeMo RL       | "leave_one_out" | "others_std"        | NVIDIA-NeMo/RL 7ea279ab,
    nemo_rl/algorithms/utils.py             |
    | AReaL (group) | "mean"          | "centred_batch_std" | inclusionAI/AReaL 4aef98d8, areal/utils/data.py,
    Normalization   |
    | AReaL (batch) | "batch_mean"    | "batch_std"         | the same
    |

    Args:
        reward_B: (B,) rewards.
        group_B: (B,) integer prompt ids.
        baseline: b_i: the group's "mean", the mean of the other rollouts of the group ("leave_one_out"), the
            mean of all rewards ("batch_mean"), or 0 ("none").
        scale: d_i: the group's std ("std"), the std of the other rollouts of the group ("others_std"), the
            std of all rewards ("batch_std"), the root of the mean square of all r - b ("centred_batch_std"),
            each plus eps, or 1 ("none").
        eps: added to the std. GRPO's paper leaves it open: 1e-6 is verl's, 1e-4 TRL's.
        unbiased: std with n - 1 in the denominator.

    Returns:
        (B,) advantages. A group of equal rewards gives exact zeros (with a baseline of the group), a group of
        one rollout too. Where the others of a rollout have equal rewards, "others_std" does not divide, as in
        NeMo RL.

    Raises:
        ValueError: for shapes that differ, group ids that are not integers, an unknown baseline or scale.

    >>> group_advantages(torch.tensor([1.0, 0.0, 1.0, 1.0]), torch.tensor([0, 0, 7, 7]), scale="none")
    tensor([ 0.5000, -0.5000,  0.0000,  0.0000])
    """
    check_choice("baseline", baseline, BASELINES)
    check_choice("scale", scale, SCALES)
    rewards, rows = _read(reward_B, group_B)
    groups = [[rewards[i] for i in row] for row in rows]
    overall = mean(rewards)
    deviations = {
        "mean": lambda values: centred(values, 1.0),
        "leave_one_out": _leave_one_out,
        "batch_mean": lambda values: [v - overall for v in values],
        "none": list,
    }[baseline]
    centred_groups = [deviations(values) for values in groups]
    pooled = 0.0
    if scale == "batch_std":
        pooled = std(rewards, unbiased)
    elif scale == "centred_batch_std":
        pooled = math.sqrt(
            math.fsum(d * d for row in centred_groups for d in row) / max(len(rewards) - unbiased, 1)
        )
    divisors = [_divisors(values, scale, pooled, eps, unbiased) for values in groups]
    return _write(
        reward_B,
        rows,
        [[d / by if d else 0.0 for d, by in zip(row, parts)] for row, parts in zip(centred_groups, divisors)],
    )


def _divisors(values: Sequence[float], scale: str, pooled: float, eps: float, unbiased: bool) -> list[float]:
    """What the deviations of a group's rewards are divided by; `pooled` is the std of the batch."""
    if scale == "none":
        return [1.0] * len(values)
    if scale == "others_std":
        spreads = [std([*values[:i], *values[i + 1 :]], unbiased) for i in range(len(values))]
        return [spread + eps if spread else 1.0 for spread in spreads]
    return [(std(values, unbiased) if scale == "std" else pooled) + eps] * len(values)


def rloo_advantages(reward_B: Tensor, group_B: Tensor) -> Tensor:
    """RLOO: the reward less the mean of the other rollouts' rewards.

        A_i = r_i - sum_{j != i} r_j / (G - 1) = G / (G - 1) (r_i - mean r)

    Paper: Ahmadian et al. 2024, arXiv:2402.14740, eq. 8 (Kool et al. 2019).

    Args:
        reward_B: (B,) rewards.
        group_B: (B,) integer prompt ids.

    Returns:
        (B,) advantages; 0 for a rollout alone in its group, and in groups of equal rewards.

    Raises:
        ValueError: for shapes that differ, or group ids that are not integers.

    >>> rloo_advantages(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0, 0, 0]))
    tensor([ 1.0000, -0.5000, -0.5000])
    """
    return group_advantages(reward_B, group_B, baseline="leave_one_out", scale="none")


def reinforce_pp_advantages(
    reward_B: Tensor, length_B: Tensor, group_B: Tensor | None = None, *, eps: float = 1e-8
) -> Tensor:
    """REINFORCE++: rewards normalised over all TOKENS of the batch; with `group_B` the variant with a group
    baseline.

        A_i = (s_i - m) / sqrt(v + eps),  s_i = r_i, or r_i - mean_G r with `group_B`,
        m = sum_i n_i s_i / N,  v = sum_i n_i (s_i - m)^2 / (N - 1),  N = sum_i n_i

    With `group_B`, m is the mean of the centred rewards over tokens: 0 where correct and wrong rollouts are
    equally long. Else a group of equal rewards is shifted by -m too, as in the paper and its implementations.
    Paper: Hu 2025, arXiv:2501.03262, eq. 4-5 (baseline: sec. 3.2). A rollout's value counts once per token,
    with the unbiased variance, as in compute_reinforce_plus_plus_baseline_outcome_advantage of
    verl-project/verl 1dda039b (OpenRLHF 3c3be623 has the biased one).

    Args:
        reward_B: (B,) rewards.
        length_B: (B,) numbers n_i of trained tokens.
        group_B: (B,) integer prompt ids, for the baseline; None for none.
        eps: added to the variance.

    Returns:
        (B,) advantages; zeros where all s are equal.

    Raises:
        ValueError: for shapes that differ, or group ids that are not integers.

    >>> reinforce_pp_advantages(torch.tensor([1.0, 0.0]), torch.tensor([1, 3]), eps=0.0)
    tensor([ 1.5000, -0.5000])
    """
    check_shapes("B", reward_B=reward_B, length_B=length_B)
    rewards, rows = _read(
        reward_B, torch.zeros_like(reward_B, dtype=torch.long) if group_B is None else group_B
    )
    lengths = length_B.tolist()
    scores = list(rewards)
    for row in rows if group_B is not None else ():
        centre = mean([rewards[i] for i in row])
        for i in row:
            scores[i] = rewards[i] - centre
    tokens = sum(lengths)
    centre = math.fsum(s * n for s, n in zip(scores, lengths)) / max(tokens, 1)
    variance = math.fsum(n * (s - centre) ** 2 for s, n in zip(scores, lengths)) / max(tokens - 1, 1)
    if variance < 1e-24:  # all equal: rounding errors must not be divided by their own size
        return _write(reward_B, [range(len(scores))], [[0.0] * len(scores)])
    return _write(
        reward_B, [range(len(scores))], [[(s - centre) / math.sqrt(variance + eps) for s in scores]]
    )


def maxrl_advantages(reward_B: Tensor, group_B: Tensor, *, eps: float = 0.0) -> Tensor:
    """MaxRL: rewards relative to the group's mean reward, which follow the gradient of log p(correct) up to
    order G.

        A_i = (r_i - mean_G r) / (mean_G r + eps)

    Paper: Tajwar et al. 2026, arXiv:2602.02710, estimator of sec. 4 (the mean over successes of grad log pi,
    with the mean as control variate).

    Args:
        reward_B: (B,) rewards, 0 or larger.
        group_B: (B,) integer prompt ids.
        eps: added to the mean.

    Returns:
        (B,) advantages; zeros for a group without success.

    Raises:
        ValueError: for a negative reward (the divisor is a success rate), for shapes that differ, or group
            ids that are not integers.

    >>> maxrl_advantages(torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.tensor([0, 0, 0, 0]))
    tensor([ 3., -1., -1., -1.])
    """
    rewards, rows = _read(reward_B, group_B)
    if any(r < 0 for r in rewards):
        raise ValueError(
            f"reward_B holds {min(rewards)}; MaxRL divides by the mean reward, so rewards must not be "
            "negative"
        )

    def of_group(values: Sequence[float]) -> list[float]:
        centre = mean(values)
        return [(v - centre) / (centre + eps) if centre else 0.0 for v in values]

    return _write(reward_B, rows, [of_group([rewards[i] for i in row]) for row in rows])


def opo_advantages(reward_B: Tensor, length_B: Tensor, group_B: Tensor) -> Tensor:
    """OPO: the reward less the variance-minimising baseline, the length-weighted mean reward.

        A_i = r_i - sum_j n_j r_j / sum_j n_j

    Paper: Hao et al. 2025 (On-Policy RL with Optimal reward baseline), arXiv:2505.23585, eq. 7. Meant for
    exactly on-policy steps.

    Args:
        reward_B: (B,) rewards.
        length_B: (B,) lengths n in tokens.
        group_B: (B,) integer prompt ids.

    Returns:
        (B,) advantages; zeros for a group of equal rewards.

    Raises:
        ValueError: for shapes that differ, or group ids that are not integers.

    >>> opo_advantages(torch.tensor([1.0, 0.0]), torch.tensor([1, 3]), torch.tensor([0, 0]))
    tensor([ 0.7500, -0.2500])
    """
    check_shapes("B", reward_B=reward_B, length_B=length_B)
    rewards, rows = _read(reward_B, group_B)
    lengths = length_B.tolist()

    def of_group(values: Sequence[float], sizes: Sequence[float]) -> list[float]:
        if min(values) == max(values):
            return [0.0] * len(values)
        baseline = math.fsum(r * n for r, n in zip(values, sizes)) / max(sum(sizes), 1)
        return [r - baseline for r in values]

    return _write(
        reward_B, rows, [of_group([rewards[i] for i in row], [lengths[i] for i in row]) for row in rows]
    )


def pass_at_k_advantages(correct_B: Tensor, group_B: Tensor, k: int) -> Tensor:
    """Pass@k training: the advantage of belonging to the best of k, in closed form.

        A(right) = (1 - R) / s,  A(wrong) = (1 - R - C(w - 1, k - 1) / C(n - 1, k - 1)) / s,
        R = 1 - C(w, k) / C(n, k),  s = sqrt(R (1 - R)),  for n rollouts with w of them wrong

    Paper: Chen et al. 2025, arXiv:2508.10751, eq. 10-16 (the analytic form).

    Args:
        correct_B: (B,) bool, or numbers of which those other than 0 are correct.
        group_B: (B,) integer prompt ids.
        k: how many rollouts one draw has, 1 or more; at most the group's size is used.

    Returns:
        (B,) advantages in the default float dtype (that of `correct_B` where it is floating); zeros where R
        is 0 or 1 (all wrong, or fewer than k wrong).

    Raises:
        ValueError: for k below 1, for shapes that differ, or group ids that are not integers.

    >>> pass_at_k_advantages(torch.tensor([True, False, False, False]), torch.tensor([0, 0, 0, 0]), k=2)
    tensor([ 1.0000, -0.3333, -0.3333, -0.3333])
    """
    if k < 1:
        raise ValueError(f"k={k} must be 1 or more")
    correct, rows = _read(correct_B, group_B)

    def of_group(right: Sequence[bool]) -> list[float]:
        n, drawn, wrong = len(right), min(k, len(right)), right.count(False)
        failing = math.comb(wrong, drawn) / math.comb(n, drawn)
        if failing in (0.0, 1.0):
            return [0.0] * n
        spread = math.sqrt(failing * (1 - failing))
        low = (failing - math.comb(wrong - 1, drawn - 1) / math.comb(n - 1, drawn - 1)) / spread
        return [failing / spread if ok else low for ok in right]

    return _write(correct_B, rows, [of_group([correct[i] != 0 for i in row]) for row in rows])


def pass_at_k_max_advantages(
    reward_B: Tensor, group_B: Tensor, *, scale: str = "std", eps: float = 1e-6
) -> Tensor:
    """Pass@k by the maximum: only the best rollout of a group has an advantage, its margin over the second
    best.

        A_i = (r_i - max_{j != i} r_j) / d for the best rollout i (of equal ones the first), else 0

    The margin is what the best rollout adds to the maximum of the group, so that it estimates the gradient of
    E[max of k] for groups of k rollouts. Paper: Tang et al. 2025, arXiv:2503.19595;
    compute_grpo_passk_outcome_advantage of verl-project/verl 1dda039b.

    Args:
        reward_B: (B,) rewards.
        group_B: (B,) integer prompt ids.
        scale: d: the group's unbiased std plus eps ("std"), or 1 ("none").
        eps: added to the std.

    Returns:
        (B,) advantages; zeros for a group whose two best rewards are equal, and for a group of one rollout.

    Raises:
        ValueError: for an unknown scale, shapes that differ, or group ids that are not integers.

    >>> pass_at_k_max_advantages(torch.tensor([1.0, 0.25, 0.0]), torch.tensor([0, 0, 0]), scale="none")
    tensor([0.7500, 0.0000, 0.0000])
    """
    check_choice("scale", scale, ("std", "none"))
    rewards, rows = _read(reward_B, group_B)

    def of_group(values: Sequence[float]) -> list[float]:
        ranked = sorted(values, reverse=True)
        margin = ranked[0] - ranked[1] if len(ranked) > 1 else 0.0
        best = values.index(ranked[0])
        return [
            margin / (std(values) + eps if scale == "std" else 1.0) if i == best and margin else 0.0
            for i in range(len(values))
        ]

    return _write(reward_B, rows, [of_group([rewards[i] for i in row]) for row in rows])


def best_and_worst(reward_B: Tensor, group_B: Tensor, keep: int) -> Tensor:
    """The best and the worst of a group's rollouts: the `keep` rollouts whose rewards have the largest
    variance.

    They are always the h highest and keep - h lowest rewards for some h: of 0/1 rewards as nearly half of
    each as there are. Paper: Xu et al. 2025 (PODS), arXiv:2504.13818, theorem 1 (max-variance down-sampling).

    Args:
        reward_B: (B,) rewards.
        group_B: (B,) integer prompt ids.
        keep: rollouts to keep of each group, 1 or more; a smaller group is kept whole.

    Returns:
        (B,) bool: whether a rollout is kept. Of equal rewards the earlier counts as the higher; of splits of
        equal variance the one with more of the highest is taken.

    Raises:
        ValueError: for keep below 1, shapes that differ, or group ids that are not integers.

    >>> best_and_worst(torch.tensor([0.5, 1.0, 0.0, 0.25]), torch.tensor([0, 0, 0, 0]), keep=2)
    tensor([False,  True,  True, False])
    """
    if keep < 1:
        raise ValueError(f"keep={keep} must be 1 or more")
    rewards, rows = _read(reward_B, group_B)
    chosen_B = torch.zeros(len(reward_B), dtype=torch.bool)
    for row in rows:
        order = sorted(row, key=lambda i: (-rewards[i], i))
        count = min(keep, len(row))
        splits = [order[:h] + order[len(order) - count + h :] for h in range(count, -1, -1)]
        best = max(splits, key=lambda split: std([rewards[i] for i in split], unbiased=False))
        chosen_B[best] = True
    return chosen_B.to(reward_B.device)


def gdpo_advantages(
    score_BK: Tensor,
    group_B: Tensor,
    weights: Sequence[float] | None = None,
    *,
    eps: float = 1e-6,
    unbiased: bool = True,
    whiten: bool = True,
) -> Tensor:
    """GDPO: every reward normalised within the group on its own, then summed, then normalised over the batch.

        A_i = (z_i - mean z) / (std z + eps),  z_i = sum_k w_k (r_ik - mean_G r_k) / (std_G r_k + eps)

    Paper: Liu et al. 2026, arXiv:2601.05242, eq. 4-6.

    Args:
        score_BK: (B, K) raw rewards; a column with a NaN in a group does not count in that group.
        group_B: (B,) integer prompt ids.
        weights: K factors w_k; None for ones.
        eps: added to every std.
        unbiased: std with n - 1 in the denominator.
        whiten: false leaves the normalisation over the batch out.

    Returns:
        (B,) advantages; a group whose every reward is equal stays at 0.

    Raises:
        ValueError: for another number of weights than columns, for shapes that differ, or group ids that are
            not integers.

    >>> gdpo_advantages(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 0]), whiten=False, eps=0.0,
    ... unbiased=False)
    tensor([ 1., -1.])
    """
    if score_BK.dim() != 2 or len(score_BK) != len(group_B):
        raise ValueError(
            f"score_BK has shape {tuple(score_BK.shape)}; it must be (B, K) with B = {len(group_B)}, the "
            "length of group_B"
        )
    factors = [1.0] * score_BK.shape[1] if weights is None else list(weights)
    if len(factors) != score_BK.shape[1]:
        raise ValueError(
            f"weights has {len(factors)} entries; score_BK has {score_BK.shape[1]} columns, and each needs "
            "one"
        )
    _, rows = _read(group_B, group_B)
    scores = score_BK.tolist()
    sums = []
    for row in rows:
        total = [0.0] * len(row)
        for k, weight in enumerate(factors):
            column = [scores[i][k] for i in row]
            if not any(map(math.isnan, column)):
                total = [t + weight * z for t, z in zip(total, centred(column, std(column, unbiased) + eps))]
        sums.append(total)
    if whiten:
        flat = [value for total in sums for value in total]
        spread = std(flat, unbiased) + eps
        centre = math.fsum(flat) / max(len(flat), 1)  # zero up to rounding: every group is centred
        sums = [[(value - centre) / spread if any(total) else 0.0 for value in total] for total in sums]
    return _write(score_BK.new_empty(len(group_B)), rows, sums)


def _leave_one_out(values: Sequence[float]) -> list[float]:
    """Each value less the mean of the others."""
    if len(values) < 2 or min(values) == max(values):
        return [0.0] * len(values)
    total = math.fsum(values)
    return [v - (total - v) / (len(values) - 1) for v in values]


def _read(value_B: Tensor, group_B: Tensor) -> tuple[list[float], list[list[int]]]:
    """The values as Python floats, and the places of each group's rollouts in them."""
    check_groups(group_B)
    check_shapes("B", group_B=group_B, reward_B=value_B)
    rows: dict[int, list[int]] = {}
    for place, group in enumerate(group_B.tolist()):
        rows.setdefault(group, []).append(place)
    return value_B.tolist(), list(rows.values())


def _write(like_B: Tensor, rows: Sequence[Sequence[int]], values: Sequence[Sequence[float]]) -> Tensor:
    """(B,): each group's numbers at their places, in the dtype and on the device of `like_B`."""
    out = [0.0] * len(like_B)
    for row, numbers in zip(rows, values, strict=True):
        for place, number in zip(row, numbers, strict=True):
            out[place] = number
    dtype = like_B.dtype if like_B.is_floating_point() else torch.get_default_dtype()
    return torch.tensor(out, dtype=dtype, device=like_B.device)
