"""What the numbers of a run's log mean, what is healthy, and what to do if they are not (`metrics.yaml`)."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import yaml

UNITS = {  # pattern of a metric -> the unit on its axis
    "reward/*": "mean score", "demonstrations/*": "mean score", "heldout/*": "share of right answers",
    "heldout_reward/*": "mean score", "length/*": "tokens", "lengths/*": "tokens", "lr": "learning rate",
    "loss*": "loss", "*entropy": "nats per token", "kl*": "nats per token", "nll": "nats per token",
    "engine/kl": "nats per token", "ppo_kl": "nats", "grad_norm": "norm", "ratio": "ratio",
    "truncated": "share of answers", "zero_variance": "share of groups", "clip_*": "share of tokens",
    "tokens": "tokens", "rollouts": "rollouts", "groups": "groups", "skipped_groups": "groups",
    "group_filter/*": "groups", "staleness/*": "updates", "*per second": "per second",
    "seconds per *": "seconds",
}  # fmt: skip


def unit(name: str) -> str:
    """The unit of a metric, for an axis; "value" for one that only its plug-in describes."""
    return next((text for pattern, text in UNITS.items() if fnmatchcase(name, pattern)), "value")


@cache
def glossary() -> dict[str, dict[str, str]]:
    """The described metrics: name, or pattern with `*` -> means, healthy, otherwise."""
    return yaml.safe_load(Path(__file__).with_name("metrics.yaml").read_text(encoding="utf-8"))


def described(name: str) -> str:
    """The entry of the glossary for a metric: its own, else the longest pattern that fits; "" for none."""
    if name in glossary():
        return name
    fits = [pattern for pattern in glossary() if "*" in pattern and fnmatchcase(name, pattern)]
    return max(fits, key=len, default="")


def explained(name: str) -> str:
    """The entry in a line of text, for a page; "" for a metric that only its plug-in describes."""
    entry = glossary().get(described(name))
    if entry is None:
        return ""
    healthy = f" Healthy: {entry['healthy']}" if entry["healthy"] else ""
    otherwise = f" If not: {entry['otherwise']}" if entry["otherwise"] else ""
    return f"{entry['means']}{healthy}{otherwise}".replace("`", "")
