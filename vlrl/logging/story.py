"""A run in three sentences: whether it learned, where the reward came from, what looks wrong.

Everything is read from the log: metrics, held-out scores, and the findings about the slots. The console shows
`health` of each step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vlrl.pages.chart import number

FEW = 6  # steps from which a trend is stated
SHARE = 0.2  # the part of the steps at either end that is compared
SURE = 2.0  # standard errors from which on a change is more than noise
MAX_TASKS = 4  # held-out tasks that a sentence names
Rows = Sequence[Mapping[str, Any]]


def story(
    rows: Rows,
    heldout: Mapping[str, Any],
    findings: Sequence[Mapping[str, Any]],
    weights: Mapping[str, float],
) -> list[str]:
    """The three sentences.

    Args:
        rows: The metrics of each step, of all phases; the last phase is judged.
        heldout: Of `heldout_table`.
        findings: slot, level and message of each finding of the activity report.
        weights: The weight of each reward slot.
    """
    last = [row for row in rows if row["phase"] == rows[-1]["phase"]]
    return [learned(last, heldout), sources(last, weights), wrongs(last, heldout, findings)]


def learned(rows: Rows, heldout: Mapping[str, Any]) -> str:
    """The change of the held-out scores and of the reward in training."""
    scored = [row for row in heldout["rows"] if row["change"] is not None]
    parts = [_moved_score(row) for row in sorted(scored, key=lambda row: -abs(row["change"]))[:MAX_TASKS]]
    held = f"Held out, {'; '.join(parts)}." if parts else "Nothing was measured twice on held-out rows."
    trend = change(rows, "reward/total")
    if trend is None:
        return f"{held} {len(rows)} steps are too few to see a trend of the reward in training."
    before, after, sure = trend
    word = ("rose" if after > before else "fell") if sure else "did not clearly change"
    span = f"from {number(before)} to {number(after)}" if sure else f"({number(before)} to {number(after)})"
    return f"{held} The reward in training {word} {span}, first against last fifth of {len(rows)} steps."


def _moved_score(row: Mapping[str, Any]) -> str:
    known = [value for value in row["values"] if value is not None]
    word = "rose" if row["change"] > 0 else "fell" if row["change"] < 0 else "stayed"
    ends = f"from {known[0]:.3f} to {known[-1]:.3f}" if row["change"] else f"at {known[0]:.3f}"
    return f"{row['task']} {word} {ends}"


def change(rows: Rows, name: str) -> tuple[float, float, bool] | None:
    """(mean of the first fifth of the steps, mean of the last, whether they differ by more than `SURE`
    standard errors); None for too few numbers."""
    values = [float(row[name]) for row in rows if row.get(name) is not None]
    if len(values) < FEW:
        return None
    count = max(2, round(SHARE * len(values)))
    first, last = values[:count], values[-count:]
    before, after = sum(first) / count, sum(last) / count
    spread = sum((v - before) ** 2 for v in first) + sum((v - after) ** 2 for v in last)
    error = math.sqrt(spread / (count - 1) / count)
    return before, after, abs(after - before) > SURE * error


def sources(rows: Rows, weights: Mapping[str, float]) -> str:
    """Which reward slots made the change of the total, or pay most of it where it did not change."""
    slots = {
        name.partition("/")[2]
        for row in rows
        for name in row
        if name.startswith("reward/") and name.count("/") == 1
    }
    found = {slot: change(rows, f"reward/{slot}") for slot in sorted(slots - {"total", "errors"})}
    paid = {
        s: (weights.get(s, 1.0) * t[1], weights.get(s, 1.0) * (t[1] - t[0]), t[2])
        for s, t in found.items()
        if t
    }
    moved = {slot: delta for slot, (_, delta, sure) in paid.items() if sure and delta}
    if moved:
        order = sorted(moved, key=lambda slot: -abs(moved[slot]))
        return f"The change of the reward came from {', '.join(f'{s} ({moved[s]:+.3g})' for s in order)}."
    if not paid:
        return "No part of the reward has enough numbers to say where it came from."
    order = sorted(paid, key=lambda slot: -abs(paid[slot][0]))
    shares = ", ".join(f"{slot} {paid[slot][0]:.3g}" for slot in order)
    return f"No part of the reward clearly moved; at the end it is paid by {shares}."


def wrongs(rows: Rows, heldout: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> str:
    """What looks wrong: findings of the activity report, the health of the last steps, and a reward that
    rises while held-out scores fall."""
    found = [
        f"{f['slot']} is {f['level']} ({f['message']})"
        for f in findings
        if f["level"] in ("dead", "contradictory")
    ]
    trend = change(rows, "reward/total")
    fell = [row["task"] for row in heldout["rows"] if row["change"] is not None and row["change"] < 0]
    if trend and trend[2] and trend[1] > trend[0] and fell:
        found.append(
            f"the reward rose while held-out {', '.join(fell[:MAX_TASKS])} fell: read rewarded answers"
        )
    means = {name: _mean([row[name] for row in rows[-FEW:] if row.get(name) is not None]) for name in _LIMITS}
    found += health({name: value for name, value in means.items() if value is not None})
    return f"What looks wrong: {'; '.join(found)}." if found else "Nothing that the log watches looks wrong."


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


# metric -> (whether a value is unhealthy, what that means and what to do)
_LIMITS: dict[str, tuple[Callable[[float], bool], str]] = {
    "reward/errors": (lambda v: v > 0, "{:.0f} rollouts could not be scored: read the warnings"),
    "truncated": (lambda v: v > 0.2, "{:.0%} of the answers are cut off: raise sampling.max_tokens"),
    "zero_variance": (
        lambda v: v > 0.8,
        "in {:.0%} of the groups all rewards are equal: rows are too hard or too easy",
    ),
    "entropy": (lambda v: v < 0.01, "the entropy is {:.2g} nats: exploration has ended"),
    "grad_norm": (lambda v: v == 0, "the gradient is zero: no group has an advantage"),
    "clip_fraction": (lambda v: v > 0.3, "{:.0%} of the tokens are clipped: lower the learning rate"),
    "ppo_kl": (lambda v: abs(v) > 0.1, "an update moves the policy by {:.2g} nats: lower the learning rate"),
    "engine/kl": (lambda v: abs(v) > 0.05, "engine and trainer differ by {:.2g} nats a token"),
    "tokens": (lambda v: v == 0, "no token was trained on"),
}


def health(metrics: Mapping[str, float | None]) -> list[str]:
    """What is unhealthy in the numbers of a step, in words; [] if nothing is."""
    return [
        text.format(float(value))
        for name, (bad, text) in _LIMITS.items()
        if (value := metrics.get(name)) is not None and bad(float(value))
    ]
