"""Findings from an observed run: slots that changed nothing, or that work against another part.

A slot is judged only where the config states it: what `base/rl` sets is the default that every method starts
from. A plug-in that says what it waits for (`Stage.waits_for`) is no dead slot where it did nothing: that is
a note.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

from vlrl.activity.figures import Finding, Tally
from vlrl.activity.observer import SMALL, Activity
from vlrl.config import load
from vlrl.plugins.capabilities import NO_POLICY_GRADIENT
from vlrl.plugins.registry import build, stage_of
from vlrl.plugins.stages import Stage
from vlrl.trainer.phase import PhasePlan

ENOUGH = 8  # scores from which on "never varied" is said


def findings(phase: PhasePlan, activity: Activity) -> list[Finding]:
    """All findings about the current phase of a run that was observed for some steps."""
    if not activity.log:
        return []
    found: list[Finding] = []
    if phase.rollout.samples:
        if (
            not phase.has(NO_POLICY_GRADIENT) or phase.replay is not None
        ):  # else nothing reads the rewards: a phase of supervised training
            for judge in (_rewards, _same_rewards, _shaping):
                found += judge(phase, activity)
        for judge in (_filters, _replay, _advantages, _environment):
            found += judge(phase, activity)
    for judge in (_policy_loss, _token_weights, _loss_terms, _metrics):
        found += judge(phase, activity)
    return found


def _idle(place: str, plugin: Stage, message: str) -> Finding:
    """A plug-in that did nothing: dead, or a note where it waits for something."""
    return (
        Finding(place, "note", f"{message} yet: it waits for {plugin.waits_for}")
        if plugin.waits_for
        else Finding(place, "dead", message)
    )


@cache
def _default(slot: str, stage: type[Stage]) -> Stage:
    return build(stage, load(["base/rl"]).tree[slot], slot)


def is_stated(phase: PhasePlan, slot: str) -> bool:
    """Whether the config has another plug-in in a slot than `base/rl`, or other values of its fields."""
    plugin = getattr(phase, slot)
    return plugin != _default(slot, stage_of(type(plugin)))


def _rewards(phase: PhasePlan, activity: Activity) -> Iterator[Finding]:
    for slot, reward in phase.rewards.items():
        place, score = f"rewards.{slot}", activity.figures.of(f"rewards.{slot}", "score")
        varies, asked = activity.figures.of(place, "varies"), activity.figures.of(place, "asked")
        if not score.n:
            coming = sorted(
                {row.task for rows in phase.rows("train").values() for row in rows}
                & set(reward.tasks) - set(activity.tasks)
            )
            if coming:
                yield Finding(
                    place, "note", f"scored no rollout yet: no prompt was of task {', '.join(coming)}"
                )
                continue
            tasks = ", ".join(reward.tasks) or "any"
            drawn = ", ".join(sorted(activity.tasks)) or "none"
            yield Finding(
                place,
                "dead",
                f"scored no rollout: it is for rows of task {tasks}, the prompts are of task {drawn}",
            )
        elif reward.weight and score.n >= ENOUGH and score.high - score.low <= SMALL:
            yield Finding(
                place,
                "dead",
                (
                    f"always {score.low:g} over {score.n} rollouts, so it moves no "
                    f"advantage{_why_constant(score, activity, slot)}"
                ),
            )
        elif reward.weight and varies.n >= 2 and not varies.total and phase.group_size > 1:
            yield Finding(
                place,
                "dead",
                f"the same for all rollouts of each of {varies.n} groups: group normalisation removes it",
            )
        if reward.weight and asked.n and not asked.total:
            marks = " ".join(reward.form_marks)
            yield Finding(
                place,
                "contradictory",
                (
                    f"pays for {marks}, which no prompt asks for and no demonstration shows; set "
                    "prompt_template.style"
                ),
            )


def _why_constant(score: Tally, activity: Activity, slot: str) -> str:
    """Why a reward pays nobody, with a text that says just the gold where there was one."""
    if score.high > 0:
        return ""
    read = activity.figures.of(f"rewards.{slot}", "read")
    known = f": {read.total:.0f} of {read.n} answers were read" if read.n else ""
    if slot in activity.bare:
        return (
            f"{known}; {activity.bare[slot][:40]!r} equals the gold and is not paid: it lacks the form that "
            "the reward reads, such as tags; set prompt_template.style=answer"
        )
    return (
        f"{known}; the policy never earns it: take easier rows or a cold start, or look at the reward with "
        "`vlrl verify`"
    )


def _same_rewards(phase: PhasePlan, activity: Activity) -> Iterator[Finding]:
    slots = [slot for slot, reward in phase.rewards.items() if reward.weight]
    for place, first in enumerate(slots):
        for second in slots[place + 1 :]:
            a, b = activity.scores[first], activity.scores[second]
            common = a.keys() & b.keys()
            if (
                len(common) >= ENOUGH
                and len({a[i] for i in common}) > 1
                and all(abs(a[i] - b[i]) <= SMALL for i in common)
            ):
                message = (
                    f"pays the same as rewards.{first} on all of {len(common)} rollouts; remove one or "
                    "give it weight 0"
                )
                yield Finding(f"rewards.{second}", "contradictory", message)


def _shaping(phase: PhasePlan, activity: Activity) -> Iterator[Finding]:
    for slot, shape in phase.reward_shaping.items():
        place = f"reward_shaping.{slot}"
        changed, change, moved = (activity.figures.of(place, name) for name in ("changed", "change", "moved"))
        if not changed.n or shape.provides:
            continue
        if not changed.total:
            yield _idle(place, shape, f"changed none of {changed.n} rewards")
        elif moved.n and moved.high <= 1e-6:
            constant = " by the same amount" if change.high - change.low <= SMALL else ""
            message = (
                f"changed {changed.total:.0f} of {changed.n} rewards{constant}, but no advantage: "
                f"{phase.advantage.name!r} removes the change"
            )
            yield Finding(place, "dead", message)


def _filters(phase: PhasePlan, activity: Activity) -> Iterator[Finding]:
    for slot in phase.group_filters:
        place = f"group_filters.{slot}"
        dropped = activity.figures.of(place, "dropped")
        if dropped.n and dropped.total == dropped.n:
            reasons = ", ".join(f"{reason} {n}" for reason, n in activity.reasons[slot].most_common(3))
            yield Finding(
                place, "dead", f"dropped all of {dropped.n} groups ({reasons}), so nothing was trained"
            )
        elif dropped.n and not dropped.total:
            yield Finding(place, "note", f"dropped none of {dropped.n} groups")


def _replay(phase: PhasePlan, activity: Activity) -> Iterator[Finding]:
    added, removed = activity.figures.of("replay", "added"), activity.figures.of("replay", "removed")
    if phase.replay is not None and added.n and not added.total and not removed.total:
        yield _idle("replay", phase.replay, f"added and removed no rollout in {added.n} steps")


def _advantages(phase: PhasePlan, activity: Activity) -> Iterator[Finding]:
    nonzero, varies = (
        activity.figures.of("advantage", "nonzero"),
        activity.figures.of("token_credit", "varies"),
    )
    if not phase.advantage.trains or phase.has(NO_POLICY_GRADIENT):
        return
    if nonzero.n and not nonzero.total and phase.objective.policy_loss.zero_without_advantage:
        yield Finding(
            "advantage", "dead", f"0 for all of {nonzero.n} rollouts: no group had different rewards"
        )
    elif varies.n and not varies.total and is_stated(phase, "token_credit"):
        yield Finding(
            "token_credit",
            "dead",
            f"the same value on all tokens of each of {varies.n} rollouts, as with token_credit: uniform",
        )


def _environment(phase: PhasePlan, activity: Activity) -> Iterator[Finding]:
    answered = activity.figures.of("environment", "answered")
    if answered.n and not answered.total:
        yield Finding(
            "environment",
            "dead",
            f"never answered in {answered.n} rollouts: the policy wrote no call that it understands",
        )


def _policy_loss(phase: PhasePlan, activity: Activity) -> Iterator[Finding]:
    off, versus = (
        activity.figures.of("policy_loss", "off_policy"),
        activity.figures.of("policy_loss", "vs_policy_gradient"),
    )
    loss = phase.objective.policy_loss
    if (
        not is_stated(phase, "policy_loss")
        or loss.is_plain
        or not versus.n
        or versus.high > 1e-4
        or off.high > 1e-4
    ):
        return
    if not phase.settings.optimizer.lr:  # a phase that only measures
        return
    updates = phase.settings.ppo_epochs * phase.settings.num_minibatches
    reason, fix = (
        f"{updates} optimizer step per batch leaves the ratio at 1",
        "set num_minibatches (or ppo_epochs) above 1",
    )
    if updates > 1:
        reason = (
            f"the ratio stayed at 1 in {updates} optimizer steps per batch, all but one of which had no "
            "advantage, or the learning rate is small"
        )
        fix = "raise prompts_per_step or group_size"
    yield Finding(
        "policy_loss", "dead", f"{loss.name!r} has the gradient of the plain policy gradient: {reason}; {fix}"
    )


def _token_weights(phase: PhasePlan, activity: Activity) -> Iterator[Finding]:
    for slot, weight in phase.objective.token_weights.items():
        changed = activity.figures.of(f"token_weights.{slot}", "changed")
        if changed.n and not changed.total:
            yield _idle(f"token_weights.{slot}", weight, f"1 on every token of {changed.n} micro-batches")


def _loss_terms(phase: PhasePlan, activity: Activity) -> Iterator[Finding]:
    for slot, term in phase.objective.loss_terms.items():
        value, gradient = (activity.figures.of(f"loss_terms.{slot}", name) for name in ("value", "gradient"))
        if not value.n:
            continue
        if not term.coef:
            yield Finding(f"loss_terms.{slot}", "note", "coef is 0: only logged")
        elif not math.isfinite(gradient.total):
            yield Finding(
                f"loss_terms.{slot}", "dead", f"a gradient that is no number in {value.n} micro-batches"
            )
        elif not gradient.total and (frozen := _frozen_by(phase, activity)):
            yield Finding(
                f"loss_terms.{slot}",
                "note",
                f"no gradient in {value.n} micro-batches, in which token_weights.{frozen} was 0",
            )
        elif not gradient.total:
            yield _idle(
                f"loss_terms.{slot}",
                term,
                f"no gradient in {value.n} micro-batches (mean value {value.mean:.3g})",
            )


def _frozen_by(phase: PhasePlan, activity: Activity) -> str:
    """The token weight that is 0 on every token, as in a warm-up, so that the policy stays equal to its
    reference; "" without one."""
    weights = {
        slot: activity.figures.of(f"token_weights.{slot}", "weight") for slot in phase.objective.token_weights
    }
    return next((slot for slot, weight in weights.items() if weight.n and weight.low == weight.high == 0), "")


def _metrics(phase: PhasePlan, activity: Activity) -> Iterator[Finding]:
    for slot in phase.metrics:
        numbers = activity.figures.of(f"metrics.{slot}", "numbers")
        if numbers.n and not numbers.total:
            yield Finding(f"metrics.{slot}", "dead", f"reported no number in {numbers.n} steps")
