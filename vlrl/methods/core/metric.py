"""How many different answers a group gives, and what a vote among them is worth.

What the rewards of a group can still teach.

Lengths of right and wrong answers.

Whether a policy knows when it is right.

What was gained and what was lost since a prompt was first seen.

How often k tries hold a right one.

Text that goes round in circles.

Where the policy is unsure: surprise of right and wrong rollouts, early and late.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vlrl.functional import pass_at_k
from vlrl.methods.common.judged_metric import Judged, answer_of, mean
from vlrl.registry import ConfigError, register
from vlrl.stages import Metric
from vlrl.types import Group


@register("answer_diversity")
@dataclass(frozen=True, kw_only=True)
class AnswerDiversity(Judged):
    """Different answers per group, the entropy of their distribution H = -sum_a p_a ln p_a, the majority's share, and how often the vote is right.

    An answer is the last match of `pattern`, else the last line. "vote" is maj@n (self-consistency): the most frequent answer, ties by first come,
    is right if the first rollout that gives it is.
    Paper: answer-level entropy: arXiv:2507.14843 (beside token-level entropy it shows when only the wording varies); vote:
    Wang et al. 2022, arXiv:2203.11171. Edge: empty answers count as one answer. Units: nats, shares.
    """

    pattern: str = r"<answer>(.*?)</answer>"

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        unique, entropy, majority, vote = [], [], [], []
        for members in self.judged(groups):
            answers = [answer_of(rollout.text, self.pattern) for rollout, _ in members]
            counts = Counter(answers)
            shares = [count / len(answers) for count in counts.values()]
            winner = max(counts, key=lambda answer: counts[answer])
            unique.append(float(len(counts)))
            entropy.append(-sum(share * math.log(share) for share in shares))
            majority.append(max(shares))
            vote.append(float(members[answers.index(winner)][1]))
        if not unique:
            return {}
        return {"unique": mean(unique), "entropy": mean(entropy) + 0.0, "majority": mean(majority), "vote": mean(vote)}


@register("groups")
@dataclass(frozen=True, kw_only=True)
class Groups(Judged):
    """Shares of groups whose rewards are all equal ("flat"), all right, all wrong, and mixed; the mean std of rewards; anti-concentration.

    "std" is the population std of the total rewards of a group, mean over groups. "anticoncentration" is the mean over groups of
    P(r >= mean + `margin` * std): how much of the policy's own mass lies clearly above its mean, which is what RL can move towards.
    Paper: groups without variance: DAPO, arXiv:2503.14476, sec. 3.2; anti-concentration: arXiv:2502.12118 (the empirical form is ours).
    Edge: in a flat group nothing lies above the mean, so it adds 0. Units: shares, and reward for std.
    """

    margin: float = 1.0

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        full = [group.rewards for group in groups if len(group)]
        if not full:
            return {}
        stds = [_std(rewards) for rewards in full]
        out = {
            "flat": mean([float(std == 0) for std in stds]),
            "std": mean(stds),
            "anticoncentration": mean([_above(rewards, std, self.margin) for rewards, std in zip(full, stds)]),
        }
        shares = [mean([float(right) for _, right in members]) for members in self.judged(groups)]
        if shares:
            out |= {"all_right": mean([float(s == 1) for s in shares]), "all_wrong": mean([float(s == 0) for s in shares])}
            out["mixed"] = mean([float(0 < s < 1) for s in shares])
        return out


def _std(rewards: Sequence[float]) -> float:
    if len(set(rewards)) == 1:
        return 0.0  # exactly, whatever rounding would make of it
    centre = mean(rewards)
    return math.sqrt(mean([(reward - centre) ** 2 for reward in rewards]))


def _above(rewards: Sequence[float], std: float, margin: float) -> float:
    bar = mean(rewards) + margin * std
    return mean([float(reward >= bar - 1e-12) for reward in rewards]) if std else 0.0


@register("lengths")
@dataclass(frozen=True, kw_only=True)
class Lengths(Judged):
    """Mean tokens of right and of wrong rollouts, the share that was cut off among each, and the correlation of length with being right.

    "correlation" is Pearson's r over all judged rollouts: sum (l - l_mean)(y - y_mean) / sqrt(sum (l - l_mean)^2 sum (y - y_mean)^2).
    Paper: length and correctness under GRPO: Dr.GRPO, arXiv:2503.20783, sec. 3.1 (wrong answers grow longer).
    Edge: a number without rollouts (no wrong ones, say) is left out, as is the correlation where nothing varies. Units: tokens, shares.
    """

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        pairs = [pair for members in self.judged(groups) for pair in members]
        out = {}
        for name, wanted in (("right", True), ("wrong", False)):
            chosen = [rollout for rollout, right in pairs if right is wanted]
            if chosen:
                out[name] = mean([len(rollout) for rollout in chosen])
                out[f"cut/{name}"] = mean([float(rollout.truncated) for rollout in chosen])
        r = correlation([float(len(rollout)) for rollout, _ in pairs], [float(right) for _, right in pairs])
        return out if r is None else {**out, "correlation": r}


def correlation(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Pearson's r; None where one of the two does not vary."""
    if len(set(xs)) < 2 or len(set(ys)) < 2:
        return None
    x0, y0 = mean(xs), mean(ys)
    along = sum((x - x0) * (y - y0) for x, y in zip(xs, ys))
    return along / math.sqrt(sum((x - x0) ** 2 for x in xs) * sum((y - y0) ** 2 for y in ys))


@register("calibration")
@dataclass(frozen=True, kw_only=True)
class Calibration(Judged):
    """Of stated confidences p (last match of `pattern`; above 1 or with "%" it is percent) against being right y: ECE, Brier, AUROC.

    ECE = sum_b |b|/N * |mean y_b - mean p_b| over `bins` equal bins; Brier = mean (p - y)^2; AUROC = P(p_right > p_wrong) + P(equal)/2.
    "stated" is the share with a confidence, "abstained" the share that matches `abstain`, "length" the correlation of p with the number of tokens.
    Paper: ECE: Guo et al. 2017, arXiv:1706.04599, eq. 3; of reasoning models: arXiv:2504.06564. Edge: confidences outside [0, 1] after reading do
    not count as stated; AUROC needs both a right and a wrong one; what cannot be computed is left out.
    """

    pattern: str = r"<confidence>\s*(\d+(?:\.\d+)?\s*%?)\s*</confidence>"
    abstain: str = r"\b(?:i (?:do not|don't) know|i am not sure|i'm not sure|cannot be determined)\b"
    bins: int = 10

    def __post_init__(self) -> None:
        if self.bins < 1:
            raise ConfigError(f"bins: {self.bins} must be 1 or more")

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        pairs = [pair for members in self.judged(groups) for pair in members]
        if not pairs:
            return {}
        read = [(confidence_of(rollout.text, self.pattern), right, len(rollout)) for rollout, right in pairs]
        stated = [(p, float(right), length) for p, right, length in read if p is not None]
        abstained = [float(bool(re.search(self.abstain, rollout.text, re.IGNORECASE))) for rollout, _ in pairs]
        out = {"stated": len(stated) / len(pairs), "abstained": mean(abstained)}
        if not stated:
            return out
        ps, ys = [p for p, _, _ in stated], [y for _, y, _ in stated]
        length = correlation(ps, [float(tokens) for _, _, tokens in stated])
        extra = {"auroc": auroc(ps, ys), "length": length}
        out |= {"ece": ece(ps, ys, self.bins), "brier": mean([(p - y) ** 2 for p, y in zip(ps, ys)]), "confidence": mean(ps)}
        return {**out, **{name: value for name, value in extra.items() if value is not None}}


def confidence_of(text: str, pattern: str) -> float | None:
    """A confidence in [0, 1], or None."""
    found = re.findall(pattern, text)
    if not found:
        return None
    number = float(found[-1].rstrip("% "))
    value = number / 100 if "%" in found[-1] or number > 1 else number
    return value if 0 <= value <= 1 else None


def ece(ps: Sequence[float], ys: Sequence[float], bins: int) -> float:
    """Expected calibration error over equal bins of [0, 1]."""
    members: dict[int, list[tuple[float, float]]] = {}
    for p, y in zip(ps, ys):
        members.setdefault(min(int(p * bins), bins - 1), []).append((p, y))
    return sum(abs(sum(y - p for p, y in pairs)) for pairs in members.values()) / len(ps)


def auroc(ps: Sequence[float], ys: Sequence[float]) -> float | None:
    """P(p of a right one > p of a wrong one) + P(equal) / 2; None without both."""
    right, wrong = [p for p, y in zip(ps, ys) if y], [p for p, y in zip(ps, ys) if not y]
    if not right or not wrong:
        return None
    return mean([(p > q) + (p == q) / 2 for p in right for q in wrong])


@register("pass_rate_migration")
@dataclass(frozen=True, kw_only=True)
class PassRateMigration(Judged):
    """Pass rates p of rows now against those at their first visit: change by first difficulty, and support kept, found and lost.

    Over rows that were seen at least twice, with the first and the latest visit: "change/hard|middle|easy" is the mean of p_now - p_first for rows
    with p_first in [0, 1/3), [1/3, 2/3), [2/3, 1]. With S_first and S_now the rows with any right rollout: "kept" = |both| / |S_first|,
    "found" = |S_now - S_first| / |S_now|, "lost" = |S_first - S_now| / |S_first|.
    Paper: change by difficulty: arXiv:2505.14216 (the three bins are ours); support kept and lost: arXiv:2507.14843 (there with thousands of samples
    per problem; with the few of a group, "lost" is partly luck). Edge: nothing is logged before a row returns; part of the checkpoint; at most
    `rows` rows are remembered.
    """

    rows: int = 100_000
    first: dict[str, float] = field(init=False, default_factory=dict, repr=False, compare=False)
    latest: dict[str, float] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ConfigError(f"rows: {self.rows} must be 1 or more")

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        for members in self.judged(groups):
            row, rate = members[0][0].row.id, mean([float(right) for _, right in members])
            if row in self.first:
                self.latest[row] = rate
            elif len(self.first) < self.rows:
                self.first[row] = rate
        return self._numbers() if self.latest else {}

    def _numbers(self) -> dict[str, float]:
        pairs = [(self.first[row], now) for row, now in self.latest.items()]
        bins: dict[str, list[float]] = {"hard": [], "middle": [], "easy": []}
        for first, now in pairs:
            bins["hard" if first < 1 / 3 else "middle" if first < 2 / 3 else "easy"].append(now - first)
        out = {f"change/{name}": mean(changes) for name, changes in bins.items() if changes}
        before, after = sum(first > 0 for first, _ in pairs), sum(now > 0 for _, now in pairs)
        both = sum(first > 0 and now > 0 for first, now in pairs)
        if before:
            out |= {"kept": both / before, "lost": (before - both) / before}
        return {**out, **({"found": (after - both) / after} if after else {}), "rows": float(len(pairs))}

    def state_dict(self) -> dict[str, Any]:
        return {"first": dict(self.first), "latest": dict(self.latest)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.first.update(state["first"])
        self.latest.update(state["latest"])


@register("pass_at_k")
@dataclass(frozen=True, kw_only=True)
class PassAtK(Judged):
    """mean over groups of 1 - C(n - c, k) / C(n, k), with c right among n rollouts, for every k of `ks` up to n.

    Logs "1" (which is mean@n), "2", ..., "n" and "unsolved", the share of groups with c = 0. `both`: a second slot that must reach `threshold` too
    (its score of the chain of thought, for instance), which gives CoT-Pass@K and "given_answer", the share of right answers for which it does.
    Paper: Chen et al. 2021, arXiv:2107.03374, eq. 1; as the boundary of what RL can reach: arXiv:2504.13837; with `both`: arXiv:2506.14245.
    Edge: a k larger than a group leaves that group out; a k larger than all groups gives no number. Without `ks`: powers of two, and n.
    """

    ks: tuple[int, ...] = ()
    both: str = ""

    def __post_init__(self) -> None:
        if any(k < 1 for k in self.ks):
            raise ConfigError(f"ks: {self.ks} must be 1 or more")

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        judged = [members for members in self.judged(groups) if not self.both or all(self.both in r.rewards for r, _ in members)]
        if not judged:
            return {}
        counts = [(len(members), sum(right and self._also(rollout) for rollout, right in members)) for members in judged]
        largest = max(n for n, _ in counts)
        ks = self.ks or sorted({*(2**i for i in range(largest.bit_length())), largest})
        out = {str(k): mean([pass_at_k(n, c, k) for n, c in counts if n >= k]) for k in ks if k <= largest}
        out["unsolved"] = mean([float(c == 0) for _, c in counts])
        right = [rollout for members in judged for rollout, good in members if good]
        if self.both and right:
            out["given_answer"] = mean([float(self._also(rollout)) for rollout in right])
        return out

    def _also(self, rollout: object) -> bool:
        return not self.both or rollout.rewards[self.both] >= self.threshold - 1e-9  # type: ignore[attr-defined]


@register("repetition")
@dataclass(frozen=True, kw_only=True)
class Repetition(Metric):
    """The share of repeated n-grams of tokens, 1 - (different n-grams) / (n-grams), mean over rollouts and its maximum.

    "looping" is the share of rollouts above `limit`. Paper: distinct-n, Li et al. 2016, arXiv:1510.03055 (here by rollout, and its complement).
    Edge: rollouts of fewer than n tokens are left out.
    """

    n: int = 4
    limit: float = 0.5

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ConfigError(f"n: {self.n} must be 1 or more")

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        shares = [repeated(rollout.ids, self.n) for group in groups for rollout in group if len(rollout) >= self.n]
        if not shares:
            return {}
        return {"share": mean(shares), "max": max(shares), "looping": mean([float(share > self.limit) for share in shares])}


def repeated(ids: Sequence[int], n: int) -> float:
    """1 - (different n-grams) / (n-grams) of at least n tokens."""
    grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    return 1.0 - len(set(grams)) / len(grams)


@register("surprisal")
@dataclass(frozen=True, kw_only=True)
class Surprisal(Judged):
    """Mean -log pi(y_t) of sampled tokens: of right and wrong rollouts, by part of the rollout, and of the least and most likely ones.

    Sampled at temperature 1 it is an unbiased estimate of the mean token entropy, at no cost. "part/1" .. "part/n": the first to last of `parts`
    equal parts. "accuracy/likely" and "accuracy/unlikely": of the halves of all rollouts with the lower and the higher perplexity.
    Paper: entropy by stage, instance and token: arXiv:2508.07534 (the estimate by surprise is ours). Edge: rollouts without log-probs (experts) are
    left out; an estimate of nothing is left out. Units: nats per token.
    """

    parts: int = 4

    def __post_init__(self) -> None:
        if self.parts < 1:
            raise ConfigError(f"parts: {self.parts} must be 1 or more")

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        pairs = [(r, right) for members in self.judged(groups) for r, right in members if r.logp and len(r.logp) == len(r.ids)]
        out = {}
        for name, wanted in (("right", True), ("wrong", False)):
            chosen = [-mean(rollout.logp) for rollout, right in pairs if right is wanted]
            if chosen:
                out[name] = mean(chosen)
        for part in range(self.parts):
            tokens = [-value for rollout, _ in pairs for value in _part(rollout.logp, part, self.parts)]
            if tokens:
                out[f"part/{part + 1}"] = mean(tokens)
        return {**out, **_halves([(-mean(rollout.logp), right) for rollout, right in pairs])}


def _part(values: Sequence[float], part: int, parts: int) -> Sequence[float]:
    return values[math.floor(part * len(values) / parts) : math.floor((part + 1) * len(values) / parts)]


def _halves(pairs: list[tuple[float, bool]]) -> dict[str, float]:
    if len(pairs) < 2:
        return {}
    ordered = [float(right) for _, right in sorted(pairs, key=lambda pair: pair[0])]
    half = len(ordered) // 2
    return {"accuracy/likely": mean(ordered[:half]), "accuracy/unlikely": mean(ordered[half:])}
