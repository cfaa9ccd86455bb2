"""The activity report as text: one line per slot, with what it did and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vlrl.activity.figures import Finding
from vlrl.activity.observer import Activity
from vlrl.trainer.phase import PhasePlan

BAD = ("dead", "contradictory")


def lines(phase: PhasePlan, activity: Activity, found: Sequence[Finding]) -> list[str]:
    """The report of the current phase: a head, one line per slot, and each finding below its slot."""
    out = [f"phase {phase.phase}: {len(activity.log)} steps, {activity.scored} rollouts"]
    named = {finding.slot for finding in found}
    shown = set()
    for slot, plugin, text in described(phase, activity):
        if text or slot in named:
            out.append(f"  {slot:<28} {plugin:<24} {text}".rstrip())
            shown.add(slot)
            out += [
                f"    {'!' if finding.level in BAD else '-'} {finding.level}: {finding.message}"
                for finding in found
                if finding.slot == slot
            ]
    out += [f"  {finding}" for finding in found if finding.slot not in shown]
    return out


def described(phase: PhasePlan, activity: Activity) -> Iterator[tuple[str, str, str]]:
    """(slot, plug-in, what it did) of every slot of the current phase, in the order of the step."""
    for slot, plugin in phase.plugins():
        kind, _, name = slot.partition(".")
        if kind not in ("aux_tensors", "data") and kind in _TEXTS:
            yield slot, plugin.name, _TEXTS[kind](activity, slot, name)


def _sampler(activity: Activity, slot: str, name: str) -> str:
    drawn = sum(activity.draws.values())
    return (
        f"drew {drawn} rows, {len(activity.draws)} different, of {len(activity.tasks)} "
        f"task{'s' if len(activity.tasks) > 1 else ''}"
    )


def _template(activity: Activity, slot: str, name: str) -> str:
    return (
        f"{activity.prompts()} different prompts of {activity.figures.of(slot, 'characters').mean:.0f} "
        "characters on average"
    )


def _sampling(activity: Activity, slot: str, name: str) -> str:
    temperature, tokens, cut = (
        activity.figures.of(slot, figure) for figure in ("temperature", "tokens", "truncated")
    )
    if not tokens.n:
        return ""
    spread = (
        f"{temperature.low:g}"
        if temperature.low == temperature.high
        else f"{temperature.low:g} to {temperature.high:g}"
    )
    return f"temperature {spread}; {tokens.mean:.1f} tokens, {cut.mean:.0%} cut at the limit"


def _budget(activity: Activity, slot: str, name: str) -> str:
    count = activity.figures.of(slot, "count")
    return f"{count.low:g} to {count.high:g} rollouts per prompt" if count.n else ""


def _rollout(activity: Activity, slot: str, name: str) -> str:
    size, own, other, masked = (
        activity.figures.of(slot, figure) for figure in ("size", "own", "other_prompt", "masked")
    )
    parts = [f"{size.n} groups of {size.mean:.1f} rollouts"]
    parts += [f"{1 - own.mean:.0%} not the policy's own"] if own.n and own.mean < 1 else []
    parts += (
        [f"{other.mean:.0%} sampled with another prompt than they are trained with"] if other.total else []
    )
    parts += [f"{masked.mean:.0%} of the tokens carry no loss"] if masked.total else []
    return ", ".join(parts)


def _environment(activity: Activity, slot: str, name: str) -> str:
    return f"answered in {activity.figures.of(slot, 'answered').mean:.0%} of the rollouts"


def _reward(activity: Activity, slot: str, name: str) -> str:
    score, varies = activity.figures.of(slot, "score"), activity.figures.of(slot, "varies")
    if not score.n:
        return "" if "." in name else "scored nothing"  # a reward inside another one has no scores of its own
    values = f"mean {score.mean:.3g}, from {score.low:.3g} to {score.high:.3g}"
    return f"scored {score.n} rollouts: {values}; differs in {varies.total:.0f} of {varies.n} groups"


def _shaping(activity: Activity, slot: str, name: str) -> str:
    changed, change, moved = (activity.figures.of(slot, figure) for figure in ("changed", "change", "moved"))
    effect = f"; advantages moved by {moved.mean:.3g} on average" if moved.n else ""
    return (
        f"changed {changed.total:.0f} of {changed.n} rewards, by {change.mean:+.3g} on average{effect}"
        if changed.n
        else ""
    )


def _filter(activity: Activity, slot: str, name: str) -> str:
    dropped = activity.figures.of(slot, "dropped")
    reasons = ", ".join(f"{reason} {n}" for reason, n in activity.reasons[slot].most_common(3))
    return (
        f"dropped {dropped.total:.0f} of {dropped.n} groups{f' ({reasons})' if reasons else ''}"
        if dropped.n
        else ""
    )


def _replay(activity: Activity, slot: str, name: str) -> str:
    added, removed = activity.figures.of(slot, "added"), activity.figures.of(slot, "removed")
    return f"added {added.total:.0f} rollouts and removed {removed.total:.0f} in {added.n} steps"


def _advantage(activity: Activity, slot: str, name: str) -> str:
    value, size, nonzero, versus = (
        activity.figures.of(slot, figure) for figure in ("value", "size", "nonzero", "vs_grpo")
    )
    if not value.n:
        return ""
    return (
        f"not 0 on {nonzero.mean:.0%} of {value.n} rollouts, mean size {size.mean:.3g}, from "
        f"{value.low:.3g} to {value.high:.3g}; "
        f"{versus.mean:.3g} from GRPO's on average"
    )


def _credit(activity: Activity, slot: str, name: str) -> str:
    varies = activity.figures.of(slot, "varies")
    return f"differs between the tokens of {varies.mean:.0%} of the rollouts" if varies.n else ""


def _policy_loss(activity: Activity, slot: str, name: str) -> str:
    off, clipped, versus = (
        activity.figures.of(slot, figure) for figure in ("off_policy", "clipped", "vs_policy_gradient")
    )
    if not off.n:
        return ""
    return (
        f"ratio up to {off.high:.3g} from 1; no gradient on {clipped.mean:.1%} of the tokens; "
        f"{versus.mean:.3g} from the plain policy gradient"
    )


def _token_weight(activity: Activity, slot: str, name: str) -> str:
    weight, changed = activity.figures.of(slot, "weight"), activity.figures.of(slot, "changed")
    return f"mean {weight.mean:.3g}, other than 1 on {changed.mean:.1%} of the tokens" if weight.n else ""


def _loss_term(activity: Activity, slot: str, name: str) -> str:
    value, own, main = (
        activity.figures.of(slot, "value"),
        activity.figures.of(slot, "gradient"),
        activity.figures.of("policy_loss", "gradient"),
    )
    share = f", {own.total / main.total:.3g} of the policy loss's" if main.total else ""
    return f"mean {value.mean:.3g}; gradient per token {own.mean:.3g}{share}" if value.n else ""


def _aggregation(activity: Activity, slot: str, name: str) -> str:
    ratio = activity.figures.of(slot, "ratio")
    return f"the heaviest token weighs {ratio.high:.3g} times the lightest" if ratio.n else ""


def _trainable(activity: Activity, slot: str, name: str) -> str:
    return f"{activity.figures.of(slot, 'share').mean:.1%} of the parameters are trained"


def _numbers(activity: Activity, slot: str, name: str) -> str:
    numbers = activity.figures.of(slot, "numbers")
    return f"{numbers.mean:.0f} numbers per step" if numbers.n else ""


_TEXTS = {
    "prompt_sampler": _sampler,
    "prompt_template": _template,
    "sampling": _sampling,
    "rollout_budget": _budget,
    "rollout": _rollout,
    "environment": _environment,
    "rewards": _reward,
    "reward_shaping": _shaping,
    "group_filters": _filter,
    "replay": _replay,
    "advantage": _advantage,
    "token_credit": _credit,
    "policy_loss": _policy_loss,
    "token_weights": _token_weight,
    "loss_terms": _loss_term,
    "loss_aggregation": _aggregation,
    "trainable": _trainable,
    "callbacks": _numbers,
    "metrics": _numbers,
}
