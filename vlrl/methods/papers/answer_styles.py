"""Which ways of writing a policy uses, and how many are left."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vlrl.methods.common.judged_metric import mean
from vlrl.registry import ConfigError, register
from vlrl.stages import Metric
from vlrl.types import Group

_HABITS = {
    "verification": r"\b(?:let me (?:check|verify)|(?:double[- ])?check(?:ing)? (?:this|that|my|the|again)|verify(?:ing)?|to confirm)\b",
    "backtracking": r"\b(?:wait|hmm|actually|let me (?:try again|reconsider|rethink)|that(?:'s| is) (?:not right|wrong)|on second thought)\b",
    "subgoals": r"\b(?:first(?:ly)?,|step \d+|next,|then,|now (?:let|we|i)|let me (?:break|start)|our goal is|we need to)",
    "backward_chaining": r"\b(?:work(?:ing)? backwards?|start(?:ing)? from the (?:answer|result|target|end)|to (?:get|reach) (?:the|this) target)\b",
}


def _compiled(patterns: Mapping[str, str]) -> dict[str, re.Pattern[str]]:
    try:
        return {name: re.compile(pattern, re.IGNORECASE) for name, pattern in patterns.items()}
    except re.error as error:
        raise ConfigError(f"patterns: {error.pattern!r} is not a regular expression ({error})") from None


@register("answer_styles.habits")
@dataclass(frozen=True, kw_only=True)
class AnswerStylesHabits(Metric):
    """Per rollout, how often each of four habits shows: verification, backtracking, subgoals, backward chaining; "share/x": rollouts with any.

    Counts matches of `patterns`. Paper: arXiv:2503.01307 (there a language model judges the traces; regular expressions are an approximation
    that costs nothing and misses what is said in other words). Edge: no rollouts, no numbers. Units: matches per rollout, shares.
    """

    patterns: Mapping[str, str] = field(default_factory=lambda: dict(_HABITS))

    def __post_init__(self) -> None:
        _compiled(self.patterns)

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        texts = [rollout.text for group in groups for rollout in group]
        out: dict[str, float] = {}
        for name, pattern in _compiled(self.patterns).items() if texts else ():
            counts = [len(pattern.findall(text)) for text in texts]
            out |= {name: mean(counts), f"share/{name}": mean([float(count > 0) for count in counts])}
        return out


@register("answer_styles")
@dataclass(frozen=True, kw_only=True)
class AnswerStyles(Metric):
    """The share p_s of rollouts in each style (the first of `patterns` that matches, else "other") and the entropy -sum_s p_s ln p_s.

    Paper: arXiv:2504.07912: RL collapses onto one format of the pretraining mixture; an entropy near 0 says that it has happened.
    Edge: no rollouts, no numbers. Units: shares, nats. The defaults tell code, LaTeX, lists and tagged thoughts apart.
    """

    patterns: Mapping[str, str] = field(
        default_factory=lambda: {
            "code": r"```|\bdef \w+\(",
            "latex": r"\\(?:boxed|frac|\()|\$[^$]+\$",
            "list": r"(?m)^\s*(?:\d+[.)]|[-*])\s",
            "tags": r"<\w+>",
        }
    )

    def __post_init__(self) -> None:
        _compiled(self.patterns)

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        patterns = _compiled(self.patterns)
        found = [
            next((name for name, pattern in patterns.items() if pattern.search(rollout.text)), "other") for group in groups for rollout in group
        ]  # fmt: skip
        if not found:
            return {}
        shares = {name: found.count(name) / len(found) for name in [*patterns, "other"]}
        return {**shares, "entropy": -sum(share * math.log(share) for share in shares.values() if share) + 0.0}
