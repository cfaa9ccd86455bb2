"""Metrics: numbers for the log and the report, from the groups of a step.

pass_at_k             pass@k up to the group size; CoT-Pass@K with a second reward
pass_rate_migration   pass rates now against those at a row's first visit
groups                groups with and without variance of rewards
lengths               lengths of correct and of wrong rollouts
surprisal             mean -log pi of sampled tokens, an estimate of the entropy
answer_diversity      different answers of a group, and majority voting
calibration           stated confidences against being correct
repetition            repeated n-grams
tool_calls            calls per episode, by task
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from vlrl.functional import pass_at_k
from vlrl.plugins.contexts import PhaseContext, StepContext
from vlrl.plugins.episodes import CALLS, CONVERSATION
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Metric, State
from vlrl.types import Group, Rollout


def mean(values: Sequence[float]) -> float:
    """The mean. Raises ZeroDivisionError without values: a metric without data is left out, not invented."""
    return sum(values) / len(values)


def correlation(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Pearson's r; None where one of the two does not vary."""
    if len(set(xs)) < 2 or len(set(ys)) < 2:
        return None
    x0, y0 = mean(xs), mean(ys)
    covariance = sum((x - x0) * (y - y0) for x, y in zip(xs, ys))
    return covariance / math.sqrt(sum((x - x0) ** 2 for x in xs) * sum((y - y0) ** 2 for y in ys))


@dataclass(frozen=True, kw_only=True)
class OutcomeMetric(Metric):
    """Base of the metrics that need to know which rollouts are correct: `Rollout.correct`, by default.

    `slot` names another reward than the outcome, `correct_at` another score from which on it counts as
    correct (None: that reward's own). Rollouts without a score are left out, and so are rollouts of another
    source (experts, replay), which are not the policy's.
    """

    slot: str = ""
    correct_at: float | None = None

    def check(self, phase: PhaseContext) -> None:
        self.check_slot(phase, "slot", self.slot)

    def check_slot(self, run: PhaseContext, key: str, slot: str) -> None:
        """Raise ConfigError for a reward slot that the run does not have."""
        if slot and slot not in run.rewards:
            raise ConfigError(
                f"metrics: {self.name!r} {key}: no reward slot {slot!r}; the slots are "
                f"{', '.join(run.rewards) or 'none'}"
            )

    def is_correct(self, rollout: Rollout, slot: str) -> bool | None:
        """Whether the rollout's score in a slot ("": the outcome) counts as correct; None without a score."""
        score = rollout.rewards.get(slot) if slot else rollout.outcome
        if score is None:
            return None
        if not slot and self.correct_at is None:
            return rollout.correct
        if self.correct_at is None:
            return self.run.rewards[slot].correct(rollout, score)
        return score >= self.correct_at - 1e-9

    def judged(self, groups: Sequence[Group]) -> list[list[tuple[Rollout, bool]]]:
        """(rollout, correct) of the policy's scored rollouts, for every group that has any."""
        judged = []
        for group in groups:
            pairs = [
                (rollout, self.is_correct(rollout, self.slot))
                for rollout in group
                if rollout.source == "policy"
            ]
            known = [(rollout, correct) for rollout, correct in pairs if correct is not None]
            if known:
                judged.append(known)
        return judged


@register("pass_at_k")
@dataclass(frozen=True, kw_only=True)
class PassAtK(OutcomeMetric):
    """pass@k: the mean over groups of 1 - C(n - c, k) / C(n, k), with c correct among n rollouts, for every k
    of `ks` up to n.

    Logs "1" (which is mean@n), "2", ..., "n" and "unsolved", the share of groups with c = 0. `both`: a second
    reward slot that must be correct too (a score of the thoughts), which gives CoT-Pass@K and "given_answer",
    the share of correct answers for which it is. Paper: Chen et al. 2021, arXiv:2107.03374, eq. 1; as the
    boundary of what RL can reach: arXiv:2504.13837; with `both`: arXiv:2506.14245. Edge: groups smaller than
    k are left out; a k larger than all gives no number. Without `ks`: powers of two, and n.
    """

    ks: tuple[int, ...] = ()
    both: str = ""

    def __post_init__(self) -> None:
        if any(k < 1 for k in self.ks):
            raise ConfigError(f"metrics: 'pass_at_k' ks: {self.ks} must be 1 or more")

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        self.check_slot(phase, "both", self.both)

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        judged = [
            members
            for members in self.judged(groups)
            if not self.both or all(self.both in r.rewards for r, _ in members)
        ]
        if not judged:
            return {}
        counts = [
            (len(members), sum(correct and self._both_correct(rollout) for rollout, correct in members))
            for members in judged
        ]
        largest = max(n for n, _ in counts)
        ks = self.ks or sorted({*(2**i for i in range(largest.bit_length())), largest})
        out = {str(k): mean([pass_at_k(n, c, k) for n, c in counts if n >= k]) for k in ks if k <= largest}
        out["unsolved"] = mean([float(c == 0) for _, c in counts])
        answers = [rollout for members in judged for rollout, correct in members if correct]
        if self.both and answers:
            out["given_answer"] = mean([float(self._both_correct(rollout)) for rollout in answers])
        return out

    def _both_correct(self, rollout: Rollout) -> bool:
        return not self.both or bool(self.is_correct(rollout, self.both))


@dataclass
class PassRateMigrationState(State):
    """Pass rates by row id: at the first visit, and at the latest one of rows that were visited again."""

    first: dict[str, float] = field(default_factory=dict)
    latest: dict[str, float] = field(default_factory=dict)


@register("pass_rate_migration")
@dataclass(frozen=True, kw_only=True)
class PassRateMigration(OutcomeMetric):
    """Pass rates p of rows now against those at their first visit: change by first difficulty, and support
    kept, found and lost.

    Over rows visited at least twice: "change/hard|middle|easy" is the mean of p_now - p_first for p_first in
    [0, 1/3), [1/3, 2/3), [2/3, 1]. With S_first and S_now the rows with any correct rollout:

        kept = |both| / |S_first|,  found = |S_now - S_first| / |S_now|,  lost = |S_first - S_now| / |S_first|

    Paper: change by difficulty: arXiv:2505.14216 (the three bins are ours); support kept and lost:
    arXiv:2507.14843 (there with thousands of samples per problem; with the few of a group, "lost" is partly
    chance). Edge: nothing is logged before a row returns; at most `rows` rows are recorded. State: the pass
    rates.
    """

    state_class = PassRateMigrationState
    rows: int = 100_000

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ConfigError(f"metrics: 'pass_rate_migration' rows: {self.rows} must be 1 or more")

    def end_step(self, run: StepContext) -> None:
        state: PassRateMigrationState = self.state
        for members in self.judged(run.trained_groups):
            row, rate = members[0][0].row.id, mean([float(correct) for _, correct in members])
            if row in state.first:
                state.latest[row] = rate
            elif len(state.first) < self.rows:
                state.first[row] = rate

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        pairs = [(self.state.first[row], now) for row, now in self.state.latest.items()]
        if not pairs:
            return {}
        bins: dict[str, list[float]] = {"hard": [], "middle": [], "easy": []}
        for first, now in pairs:
            bins["hard" if first < 1 / 3 else "middle" if first < 2 / 3 else "easy"].append(now - first)
        out = {f"change/{name}": mean(changes) for name, changes in bins.items() if changes}
        before, after = sum(first > 0 for first, _ in pairs), sum(now > 0 for _, now in pairs)
        both = sum(first > 0 and now > 0 for first, now in pairs)
        if before:
            out |= {"kept": both / before, "lost": (before - both) / before}
        return {**out, **({"found": (after - both) / after} if after else {}), "rows": float(len(pairs))}


@register("groups")
@dataclass(frozen=True, kw_only=True)
class Groups(OutcomeMetric):
    """Shares of groups whose rewards are all equal ("zero_variance"), all correct, all wrong, and mixed; std
    of rewards; anti-concentration.

    "std" is the population std of the total rewards of a group, mean over groups. "anticoncentration" is the
    mean over groups of P(r >= mean + `margin` * std): how much of the policy's own mass lies clearly above
    its mean, which is what RL can move towards. Paper: groups without variance: DAPO, arXiv:2503.14476, sec.
    3.2; anti-concentration: arXiv:2502.12118 (the empirical form is ours). Edge: in a group of equal rewards
    nothing lies above the mean, so it adds 0. Units: shares, and reward for std.
    """

    margin: float = 1.0

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        full = [group.rewards for group in groups if len(group)]
        if not full:
            return {}
        stds = [population_std(rewards) for rewards in full]
        out = {
            "zero_variance": mean([float(std == 0) for std in stds]),
            "std": mean(stds),
            "anticoncentration": mean(
                [share_above(rewards, std, self.margin) for rewards, std in zip(full, stds)]
            ),
        }
        rates = [mean([float(correct) for _, correct in members]) for members in self.judged(groups)]
        if rates:
            out |= {
                "all_correct": mean([float(rate == 1) for rate in rates]),
                "all_wrong": mean([float(rate == 0) for rate in rates]),
            }
            out["mixed"] = mean([float(0 < rate < 1) for rate in rates])
        return out


def population_std(rewards: Sequence[float]) -> float:
    """The population standard deviation; exactly 0 for equal values."""
    if len(set(rewards)) == 1:
        return 0.0
    centre = mean(rewards)
    return math.sqrt(mean([(reward - centre) ** 2 for reward in rewards]))


def share_above(rewards: Sequence[float], std: float, margin: float) -> float:
    """The share of rewards of at least mean + margin * std; 0 where std is 0."""
    bound = mean(rewards) + margin * std
    return mean([float(reward >= bound - 1e-12) for reward in rewards]) if std else 0.0


@register("lengths")
@dataclass(frozen=True, kw_only=True)
class Lengths(OutcomeMetric):
    """Mean tokens of correct and of wrong rollouts, the truncated share of each, and the correlation of
    length with being correct.

    "correlation" is Pearson's r over all scored rollouts: sum (l - l_mean)(y - y_mean) / sqrt(sum (l -
    l_mean)^2 sum (y - y_mean)^2). Paper: length and correctness under GRPO: Dr.GRPO, arXiv:2503.20783, sec.
    3.1 (wrong answers grow longer).
    Edge: a number without rollouts (no wrong ones, say) is left out, as is the correlation where nothing
    varies. Units: tokens, shares.
    """

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        pairs = [pair for members in self.judged(groups) for pair in members]
        out = {}
        for name, wanted in (("correct", True), ("wrong", False)):
            chosen = [rollout for rollout, correct in pairs if correct is wanted]
            if chosen:
                out[name] = mean([rollout.sampled_tokens for rollout in chosen])
                out[f"truncated/{name}"] = mean([float(rollout.truncated) for rollout in chosen])
        r = correlation(
            [float(rollout.sampled_tokens) for rollout, _ in pairs], [float(correct) for _, correct in pairs]
        )
        return out if r is None else {**out, "correlation": r}


@register("surprisal")
@dataclass(frozen=True, kw_only=True)
class Surprisal(OutcomeMetric):
    """Mean -log pi(y_t) of sampled tokens: of correct and wrong rollouts, by part of the rollout, and
    accuracy of likely and unlikely rollouts.

    Sampled at temperature 1 it is an unbiased estimate of the mean token entropy, without extra cost.
    "part/1" .. "part/n": the first to last of `parts` equal parts. "accuracy/likely" and "accuracy/unlikely":
    of the halves of all rollouts with the lower and the higher perplexity. Paper: entropy by stage, instance
    and token: arXiv:2508.07534 (the estimate by surprisal is ours). Edge: rollouts without log-probs
    (experts) are left out; a number without data is left out. Units: nats per token.
    """

    parts: int = 4

    def __post_init__(self) -> None:
        if self.parts < 1:
            raise ConfigError(f"metrics: 'surprisal' parts: {self.parts} must be 1 or more")

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        judged = [
            pair
            for members in self.judged(groups)
            for pair in members
            if len(pair[0].logp) == len(pair[0].ids)
        ]
        pairs = [(logp, correct) for rollout, correct in judged if (logp := sampled_logp(rollout))]
        out = {}
        for name, wanted in (("correct", True), ("wrong", False)):
            chosen = [-mean(logp) for logp, correct in pairs if correct is wanted]
            if chosen:
                out[name] = mean(chosen)
        for part in range(self.parts):
            tokens = [-value for logp, _ in pairs for value in part_of(logp, part, self.parts)]
            if tokens:
                out[f"part/{part + 1}"] = mean(tokens)
        return {**out, **accuracy_of_halves([(-mean(logp), correct) for logp, correct in pairs])}


def sampled_logp(rollout: Rollout) -> list[float]:
    """The sampler's log-probs of the tokens that the policy sampled (nats)."""
    return [logp for logp, own in zip(rollout.logp, rollout.sampled) if own]


def part_of(values: Sequence[float], part: int, parts: int) -> Sequence[float]:
    """The `part`-th of `parts` equal parts."""
    return values[math.floor(part * len(values) / parts) : math.floor((part + 1) * len(values) / parts)]


def accuracy_of_halves(pairs: list[tuple[float, bool]]) -> dict[str, float]:
    """The share of correct ones in the half with the lower and that with the higher number; nothing for fewer
    than two pairs."""
    if len(pairs) < 2:
        return {}
    ordered = [float(correct) for _, correct in sorted(pairs, key=lambda pair: pair[0])]
    half = len(ordered) // 2
    return {"accuracy/likely": mean(ordered[:half]), "accuracy/unlikely": mean(ordered[half:])}


@register("answer_diversity")
@dataclass(frozen=True, kw_only=True)
class AnswerDiversity(OutcomeMetric):
    """Different answers per group, the entropy of their distribution H = -sum_a p_a ln p_a, the majority's
    share, and the accuracy of its vote.

    An answer is the last match of `pattern`, else the last line. "vote" is maj@n (self-consistency): the most
    frequent answer, ties by first come, is correct if the first rollout that gives it is.
    Paper: answer-level entropy: arXiv:2507.14843 (beside token-level entropy it shows when only the wording
    varies); vote: Wang et al. 2022, arXiv:2203.11171. Edge: empty answers count as one answer. Units: nats,
    shares.
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
        return {
            "unique": mean(unique),
            "entropy": mean(entropy) + 0.0,
            "majority": mean(majority),
            "vote": mean(vote),
        }


def answer_of(text: str, pattern: str) -> str:
    """The last match of `pattern` (its first group), else the last line that is not blank; case and spaces
    are ignored."""
    found = re.findall(pattern, text, re.DOTALL)
    lines = [line for line in text.splitlines() if line.strip()]
    answer = found[-1] if found else (lines[-1] if lines else "")
    return " ".join(answer.split()).lower()


@register("repetition")
@dataclass(frozen=True, kw_only=True)
class Repetition(Metric):
    """The share of repeated n-grams of tokens, 1 - (different n-grams) / (n-grams), mean over rollouts and
    its maximum.

    "looping" is the share of rollouts above `limit`. Paper: distinct-n, Li et al. 2016, arXiv:1510.03055
    (here by rollout, and its complement). Edge: rollouts of fewer than n tokens are left out.
    """

    n: int = 4
    limit: float = 0.5

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ConfigError(f"metrics: 'repetition' n: {self.n} must be 1 or more")

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        shares = [
            repeated(ids, self.n)
            for group in groups
            for rollout in group
            if len(ids := sampled_ids(rollout)) >= self.n
        ]
        if not shares:
            return {}
        return {
            "share": mean(shares),
            "max": max(shares),
            "looping": mean([float(share > self.limit) for share in shares]),
        }


def sampled_ids(rollout: Rollout) -> list[int]:
    """The token ids that the policy sampled."""
    return [token for token, own in zip(rollout.ids, rollout.sampled) if own]


def repeated(ids: Sequence[int], n: int) -> float:
    """1 - (different n-grams) / (n-grams) of at least n tokens."""
    grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    return 1.0 - len(set(grams)) / len(grams)


@register("tool_calls")
@dataclass(frozen=True, kw_only=True)
class ToolCalls(Metric):
    """Tool calls per episode, by task: "mean/TASK", and "share/TASK", the share of episodes with at least
    one.

    vlrl original. Shows where a policy calls: on the rows that need it, or on all. Calls are replies of the
    environment (CALLS). Edge: an episode of several rollouts counts once, by its last; rollouts of no
    episode, and those of another source (experts, replay), are left out. Units: calls, shares.
    """

    requires = (CALLS, CONVERSATION)

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        calls: dict[str, list[float]] = {}
        for group in groups:
            last: dict[int, int] = {}
            for rollout in group:
                if rollout.source == "policy" and CALLS.on(rollout):
                    last[CONVERSATION[rollout]] = max(CALLS[rollout], last.get(CONVERSATION[rollout], 0))
            calls.setdefault(group.row.task, []).extend(map(float, last.values()))
        found = [(task, numbers) for task, numbers in calls.items() if numbers]
        means = {f"mean/{task}": mean(numbers) for task, numbers in found}
        return means | {
            f"share/{task}": mean([float(number > 0) for number in numbers]) for task, numbers in found
        }
