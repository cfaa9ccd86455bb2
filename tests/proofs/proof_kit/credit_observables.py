"""Signed observables of credit: which tokens, rollouts and groups the loss raises and lowers.

The push on a token is -d loss / d log-prob in its last optimizer step: above 0 the step raises its log-prob
(`Activity.tensors`). Positions without loss have no push.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from proof_kit.observables import OBSERVABLES, Record, correlation, mean, observable
from proof_kit.row_observables import NAMED_OBSERVABLES
from vlrl.methods.common.step_scores import mean_step_score
from vlrl.methods.papers.prime import log_ratios, returns_of
from vlrl.types import Group, Rollout

CLIP = 0.2  # PPO's clip range


class Token(NamedTuple):
    """A trained token: push, log-prob when sampled, log ratio to the policy of the step's start, advantage,
    entropy (nats), place in the rollout in [0, 1)."""

    push: float
    logp: float
    log_ratio: float
    advantage: float
    entropy: float
    place: float


def tokens_of(record: Record) -> Iterator[tuple[Rollout, list[Token]]]:
    """(rollout, its trained tokens) of all rollouts that the loss has seen."""
    for step in record.steps:
        for group in step.trained:
            for rollout in group:
                kept = step.tensors.get(id(rollout))
                if not kept:
                    continue
                n = len(rollout)
                columns = [
                    kept["push"],
                    rollout.logp or [0.0] * n,
                    kept["log_ratio"],
                    kept["advantage"],
                    kept.get("entropy", [0.0] * n),
                    [place / n for place in range(n)],
                ]
                rows = zip(*columns, rollout.trained_mask)
                yield rollout, [Token(*row[:-1]) for row in rows if row[-1]]


def all_tokens(record: Record) -> list[Token]:
    """The trained tokens of all rollouts."""
    return [token for _, tokens in tokens_of(record) for token in tokens]


def mean_push(record: Record, choose: Callable[[Rollout], bool]) -> float:
    """Mean push on the tokens of the chosen rollouts."""
    return mean([token.push for rollout, own in tokens_of(record) if choose(rollout) for token in own])


@observable
def push_of_correct(record: Record) -> float:
    """Mean push on the tokens of correct rollouts."""
    return mean_push(record, lambda rollout: rollout.correct)


@observable
def push_of_wrong(record: Record) -> float:
    """Mean push on the tokens of wrong rollouts."""
    return mean_push(record, lambda rollout: not rollout.correct)


@observable
def push_of_demonstrations(record: Record) -> float:
    """Mean push on the tokens of rollouts that the policy did not write."""
    return mean_push(record, lambda rollout: rollout.source != "policy")


@observable
def credit_of_correct(record: Record) -> float:
    """Mean push on the tokens of correct rollouts less that of wrong ones."""
    return push_of_correct(record) - push_of_wrong(record)


def shares(record: Record, of: Callable[[Token], float]) -> list[tuple[float, float]]:
    """(of(token), |push| in units of its rollout's mean |push|) of all tokens of rollouts with a push."""
    pairs = []
    for _, own in tokens_of(record):
        size = mean([abs(token.push) for token in own])
        if size:
            pairs += [(of(token), abs(token.push) / size) for token in own]
    return pairs


def by(record: Record, of: Callable[[Token], float]) -> float:
    """Correlation over tokens of a quantity with the token's share of its rollout's push."""
    pairs = shares(record, of)
    return correlation([a for a, _ in pairs], [b for _, b in pairs])


@observable
def push_by_entropy(record: Record) -> float:
    """Correlation over tokens of the entropy with the token's share of its rollout's |push|: above 0 where
    uncertain tokens weigh more."""
    return by(record, lambda token: token.entropy)


@observable
def push_by_likelihood(record: Record) -> float:
    """Correlation over tokens of the log-prob when sampled with the token's share of its rollout's |push|:
    below 0 where unlikely tokens weigh more."""
    return by(record, lambda token: token.logp)


@observable
def push_by_place(record: Record) -> float:
    """Correlation over tokens of the place in the rollout with the token's share of its rollout's |push|:
    above 0 where late tokens weigh more."""
    return by(record, lambda token: token.place)


@observable
def push_by_log_ratio(record: Record) -> float:
    """Slope over tokens of the push on the log ratio, in units of the mean |push|: below 0 where tokens that
    moved are pulled back."""
    tokens = all_tokens(record)
    size, ratios = mean([abs(t.push) for t in tokens]), [t.log_ratio for t in tokens]
    if not size or len(set(ratios)) < 2:
        return 0.0
    return statistics.linear_regression(ratios, [t.push / size for t in tokens]).slope


def beyond(token: Token) -> bool:
    """Whether PPO would clip it: the ratio left [1 - CLIP, 1 + CLIP] in the direction of the advantage."""
    ratio = math.exp(token.log_ratio)
    return ratio > 1 + CLIP if token.advantage > 0 else ratio < 1 - CLIP


def relative(tokens: Sequence[Token], choose: Callable[[Token], bool]) -> float:
    """Mean push per unit of advantage of the chosen tokens over that of the others."""
    live = [(token.push / token.advantage, choose(token)) for token in tokens if abs(token.advantage) > 1e-9]
    chosen, others = (mean([value for value, c in live if c is side]) for side in (True, False))
    return chosen / abs(others) if others else chosen


@observable
def push_beyond_clip(record: Record) -> float:
    """Push per unit of advantage of the tokens that PPO would clip over that of the others: 0 where they are
    clipped, 1 where they count in full."""
    return relative(all_tokens(record), beyond)


@observable
def push_above_clip(record: Record) -> float:
    """`push_beyond_clip` of the tokens with an advantage above 0: those that have risen by more than CLIP."""
    return relative([token for token in all_tokens(record) if token.advantage > 0], beyond)


@observable
def push_of_wrong_that_rose(record: Record) -> float:
    """Push per unit of advantage of the tokens with an advantage below 0 whose ratio is above 1 + CLIP, over
    that of the other tokens with an advantage below 0."""
    tokens = [token for token in all_tokens(record) if token.advantage < 0]
    return relative(tokens, lambda token: math.exp(token.log_ratio) > 1 + CLIP)


@observable
def push_of_demonstrations_by_likelihood(record: Record) -> float:
    """`push_by_likelihood` among the tokens of rollouts that the policy did not write, below 0
    where tokens that the policy would hardly write weigh more."""
    pairs = []
    for rollout, own in tokens_of(record):
        size = mean([abs(token.push) for token in own])
        if rollout.source != "policy" and size:
            pairs += [(token.logp, abs(token.push) / size) for token in own]
    return correlation([a for a, _ in pairs], [b for _, b in pairs])


@observable
def entropy_where_branched(record: Record) -> float:
    """Mean entropy (nats) of the first token that a rollout does not share with the one that it branched off
    from, less the mean entropy of its own tokens; 0 without branches."""
    values = []
    for step in record.steps:
        for group in step.trained:
            for rollout in group:
                entropies, mask = step.tensors.get(id(rollout), {}).get("entropy"), rollout.trained_mask
                if entropies and not mask[0] and True in mask:
                    own = [value for value, kept in zip(entropies, mask) if kept]
                    values.append(own[0] - mean(own))
    return mean(values)


# --- groups -------------------------------------------------------------------------------------------------


def over_groups(
    record: Record, x: Callable[[Group], float], y: Callable[[Group], float], where: Callable[[Group], bool]
) -> float:
    """Correlation of two numbers over the trained groups."""
    groups = [group for group in record.trained() if where(group)]
    return correlation([x(group) for group in groups], [y(group) for group in groups])


def accuracy_of(group: Group) -> float:
    """Share of correct rollouts."""
    return mean([float(rollout.correct) for rollout in group])


def advantage_size(group: Group) -> float:
    """Root mean square advantage."""
    return mean([rollout.advantage**2 for rollout in group]) ** 0.5


@observable
def advantage_size_by_spread(record: Record) -> float:
    """Correlation over the trained groups with different rewards of the rewards' standard deviation with the
    root mean square advantage: 0 where every group is scaled to the same size."""
    sizes = [round(advantage_size(group), 2) for group in record.trained()]
    if len({size for size in sizes if size}) < 2:
        return 0.0
    spread = lambda group: statistics.pstdev(group.rewards)  # noqa: E731
    return over_groups(record, spread, advantage_size, lambda group: spread(group) > 1e-6)


@observable
def advantage_size_by_accuracy(record: Record) -> float:
    """Correlation over the trained groups with some advantage of the share of correct rollouts with the mean
    |advantage|: below 0 where hard rows weigh more."""
    size = lambda group: mean([abs(r.advantage) for r in group])  # noqa: E731
    return over_groups(record, accuracy_of, size, lambda group: size(group) > 1e-6)


@observable
def push_by_accuracy(record: Record) -> float:
    """Correlation over the trained groups with a push of the share of correct rollouts with the sum of |push|
    per unit of the sum of |advantage|: below 0 where hard rows weigh more."""
    pairs = []
    for step in record.steps:
        for group in step.trained:
            kept = [step.tensors[id(rollout)]["push"] for rollout in group if id(rollout) in step.tensors]
            size = sum(abs(rollout.advantage) for rollout in group)
            total = sum(abs(value) for push in kept for value in push)
            if size > 1e-6 and total:
                pairs.append((accuracy_of(group), total / size))
    return correlation([a for a, _ in pairs], [b for _, b in pairs])


@observable
def sampled_accuracy(record: Record) -> float:
    """Share of the sampled rollouts that are correct."""
    return mean([float(rollout.correct) for group in record.sampled() for rollout in group])


@observable
def trained_accuracy_gap(record: Record) -> float:
    """Share of correct rollouts among the trained ones less that among the sampled ones."""
    return mean([float(r.correct) for r in record.rollouts()]) - sampled_accuracy(record)


def push_of_text(record: Record, pattern: str) -> float:
    """Mean push on the tokens of the rollouts in whose text a regular expression is found, less that of the
    others; 0 without either."""
    found: dict[bool, list[float]] = {True: [], False: []}
    for rollout, own in tokens_of(record):
        found[bool(re.search(pattern, rollout.text, re.DOTALL))] += [token.push for token in own]
    return mean(found[True]) - mean(found[False]) if found[True] and found[False] else 0.0


@observable
def group_advantage_by_accuracy(record: Record) -> float:
    """Covariance over the trained groups of the share of correct rollouts with the mean advantage: 0 where
    the baseline is the group's own mean, above 0 where solved groups are raised."""
    pairs = [(accuracy_of(group), mean([r.advantage for r in group])) for group in record.trained()]
    return statistics.covariance(*zip(*pairs)) if len(pairs) > 1 else 0.0


@observable
def demonstrations_by_accuracy(record: Record) -> float:
    """Correlation over the trained groups of the accuracy of the policy's own rollouts with the share of
    those that it did not write: below 0 where hard rows are taught."""
    pairs = []
    for group in record.trained():
        own = [rollout for rollout in group if rollout.source == "policy"]
        if own:
            pairs.append((mean([float(r.correct) for r in own]), 1 - len(own) / len(group)))
    return correlation([a for a, _ in pairs], [b for _, b in pairs])


@observable
def push_by_association(record: Record) -> float:
    """Correlation over the tokens of a group of their association with right answers (share of the correct
    rollouts that have the token less that of the wrong ones) with the push in units of the rollout's mean
    |push|: above 0 where what right answers share is raised."""
    pairs = []
    for step in record.steps:
        for group in step.trained:
            sides = [[set(r.ids) for r in group if r.correct is side] for side in (True, False)]
            if not all(sides):
                continue
            for rollout in group:
                push = step.tensors.get(id(rollout), {}).get("push", [])
                size = mean([abs(value) for value in push])
                for token, value in zip(rollout.ids, push if size else []):
                    right, wrong = (mean([float(token in ids) for ids in side]) for side in sides)
                    pairs.append((right - wrong, value / size))
    return correlation([a for a, _ in pairs], [b for _, b in pairs])


@observable
def mean_advantage(record: Record) -> float:
    """Mean advantage of the trained tokens: 0 where advantages are centred in groups of equal lengths."""
    return mean([token.advantage for token in all_tokens(record)])


@observable
def mean_log_ratio(record: Record) -> float:
    """Mean log ratio of the trained tokens."""
    return mean([token.log_ratio for token in all_tokens(record)])


@observable
def advantage_spread_in_rollouts(record: Record) -> float:
    """Mean over rollouts of the standard deviation of their tokens' advantages."""
    return mean([statistics.pstdev(r.advantages) for r in record.rollouts() if len(r.advantages) > 1])


@observable
def push_by_extremity(record: Record) -> float:
    """Correlation over the trained rollouts of |reward - mean of the group| with the mean |push| per unit of
    advantage: above 0 where the best and the worst weigh more."""
    pairs = []
    for step in record.steps:
        for group in step.trained:
            middle = mean(group.rewards)
            for rollout in group:
                push = step.tensors.get(id(rollout), {}).get("push")
                if push and abs(rollout.advantage) > 1e-6:
                    size = mean([abs(value) for value in push]) / abs(rollout.advantage)
                    pairs.append((abs(rollout.reward - middle), size))
    return correlation([a for a, _ in pairs], [b for _, b in pairs])


@observable
def push_in_uniform_groups(record: Record) -> float:
    """Mean push on the tokens of groups in which all rollouts are correct less that of groups in which all
    are wrong: 0 where groups without variance teach nothing."""
    found: dict[bool, list[float]] = {True: [], False: []}
    for step in record.steps:
        for group in step.trained:
            if len({rollout.correct for rollout in group}) == 1:
                for rollout in group:
                    found[rollout.correct] += step.tensors.get(id(rollout), {}).get("push", [])
    return mean(found[True]) - mean(found[False])


@observable
def push_at_high_covariance(record: Record) -> float:
    """Mean push per unit of advantage of the tenth of the tokens with the highest (logp - mean) (A - mean),
    over that of the others."""
    tokens = [token for token in all_tokens(record) if abs(token.advantage) > 1e-9]
    if not tokens:
        return 0.0
    logp, advantage = mean([token.logp for token in tokens]), mean([token.advantage for token in tokens])
    ranked = sorted(((t.logp - logp) * (t.advantage - advantage) for t in tokens), reverse=True)
    edge = ranked[len(ranked) // 10]
    return relative(tokens, lambda token: (token.logp - logp) * (token.advantage - advantage) > edge)


@observable
def push_per_token_by_length(record: Record) -> float:
    """Correlation over the trained rollouts of their length with the mean push per unit of advantage: below 0
    where the tokens of long answers weigh less."""
    pairs = [
        (float(len(rollout)), mean([token.push for token in own]) / rollout.advantage)
        for rollout, own in tokens_of(record)
        if abs(rollout.advantage) > 1e-6
    ]
    return correlation([a for a, _ in pairs], [b for _, b in pairs])


@observable
def reward_spread(record: Record) -> float:
    """Mean over the trained groups of the standard deviation of their rewards."""
    return mean([statistics.pstdev(group.rewards) for group in record.trained()])


def push_by_meta(record: Record, key: str) -> float:
    """Correlation over the trained groups with a push of `row.meta[key]` with the sum of |push| per unit of
    the sum of |advantage|."""
    pairs = []
    for step in record.steps:
        for group in step.trained:
            value = group.row.meta.get(key)
            kept = [step.tensors[id(rollout)]["push"] for rollout in group if id(rollout) in step.tensors]
            size = sum(abs(rollout.advantage) for rollout in group)
            if isinstance(value, (int, float)) and size > 1e-6 and kept:
                pairs.append((float(value), sum(abs(v) for push in kept for v in push) / size))
    return correlation([a for a, _ in pairs], [b for _, b in pairs])


def push_to(record: Record, name: str) -> float:
    """Slope over the tokens without an advantage of the push on (auxiliary tensor - log-prob), in units of
    the mean |push|: above 0 where log-probs are pulled to that tensor; 0 where it is not there."""
    pairs = []
    for step in record.steps:
        for kept in step.tensors.values():
            if name in kept:
                columns = zip(kept[name], kept["logp"], kept["push"], kept["advantage"])
                pairs += [(a - b, push) for a, b, push, own in columns if abs(own) < 1e-6]
    size = mean([abs(push) for _, push in pairs])
    if not size or len({gap for gap, _ in pairs}) < 2:
        return 0.0
    return statistics.linear_regression(*zip(*((gap, push / size) for gap, push in pairs))).slope


def credit_of_option(record: Record, key: str) -> float:
    """Mean advantage of the rollouts that answer with the letter of the option whose text is `row.meta[key]`,
    less that of the other rollouts of such rows."""
    found: dict[bool, list[float]] = {True: [], False: []}
    for rollout in record.rollouts():
        text = re.escape(str(rollout.row.meta.get(key, "")))
        if text and (letter := re.search(rf"^([A-Z])[.)] {text}$", rollout.prompt.text, re.MULTILINE)):
            said = re.search(r"<answer>\s*([A-Z])", rollout.text)
            found[bool(said) and said[1] == letter[1]].append(rollout.advantage)
    return mean(found[True]) - mean(found[False])


def credit_where(record: Record, pattern: str) -> float:
    """Mean advantage of the correct rollouts less that of the wrong ones, among those whose prompt contains a
    match of a regular expression; 0 without either."""
    found: dict[bool, list[float]] = {True: [], False: []}
    for rollout in record.rollouts():
        if re.search(pattern, rollout.prompt.text, re.DOTALL):
            found[rollout.correct].append(rollout.advantage)
    return mean(found[True]) - mean(found[False]) if all(found.values()) else 0.0


@observable
def agreement_of_steps(record: Record) -> float:
    """How much more the steps of the rollouts that were trained on agree with their outcome than those of
    all: differences of mean step scores, of the correct ones and, with the other sign, of the wrong ones. A
    process model that scores everything high moves neither."""
    gains = []
    for sign, correct in ((1.0, True), (-1.0, False)):
        side = [r for r in record.rollouts() if bool(r.correct) is correct]
        trained = [mean_step_score(r) for r in side if any(r.trained_mask)]
        gains.append(sign * (mean(trained) - mean(map(mean_step_score, side))) if trained else 0.0)
    return mean(gains)


@observable
def follows_process_model(record: Record) -> float:
    """Correlation over tokens, within rollouts, of the advantage with the return of PRIME's log-ratios."""
    values, returns = [], []
    for rollout in record.rollouts():
        if "prime.logp" in rollout.signals and len(rollout) > 1:
            row = returns_of(log_ratios(rollout))
            values += [a - mean(rollout.advantages) for a in rollout.advantages]
            returns += [g - mean(row) for g in row]
    return correlation(values, returns)


def trend(record: Record, name: str) -> float:
    """An observable of the second half of the steps less that of the first half."""
    half = len(record.steps) // 2
    early, late = Record(record.steps[:half]), Record(record.steps[half:])
    return OBSERVABLES[name](late) - OBSERVABLES[name](early)


NAMED_OBSERVABLES |= {
    "push_of": push_of_text,
    "push_to": push_to,
    "push_by_meta": push_by_meta,
    "credit_of_option": credit_of_option,
    "credit_where": credit_where,
    "trend": trend,
}
