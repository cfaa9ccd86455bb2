"""Answer styles: which reasoning behaviours and output formats the policy's answers show, counted with
regular expressions.

`answer_styles` is the distribution over formats, `answer_styles.habits` the frequency of four reasoning
behaviours. Both are metrics.

Papers: Zhao et al. 2025 (Echo Chamber), arXiv:2504.07912; Gandhi et al. 2025 (four habits), arXiv:2503.01307.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Metric
from vlrl.types import Group

HABITS = {
    "verification": (
        r"\b(?:let me (?:check|verify)|(?:double[- ])?check(?:ing)? "
        r"(?:this|that|my|the|again)|verify(?:ing)?|to confirm)\b"
    ),
    "backtracking": (
        r"\b(?:wait|hmm|actually|let me (?:try again|reconsider|rethink)|that(?:'s| is) (?:not "
        r"right|wrong)|on second thought)\b"
    ),
    "subgoals": (
        r"\b(?:first(?:ly)?,|step \d+|next,|then,|now (?:let|we|i)|let me (?:break|start)|our goal is|we "
        r"need to)"
    ),
    "backward_chaining": (
        r"\b(?:work(?:ing)? backwards?|start(?:ing)? from the (?:answer|result|target|end)|to "
        r"(?:get|reach) (?:the|this) target)\b"
    ),
}
STYLES = {
    "code": r"```|\bdef \w+\(",
    "latex": r"\\(?:boxed|frac|\()|\$[^$]+\$",
    "list": r"(?m)^\s*(?:\d+[.)]|[-*])\s",
    "tags": r"<\w+>",
}


@register("answer_styles")
@dataclass(frozen=True, kw_only=True)
class AnswerStyles(Metric):
    """Format distribution: the share p_s of rollouts in each style and its entropy.

        entropy = -sum_s p_s ln p_s

    A rollout's style is the first of `patterns` that its text matches, else "other". The default patterns are
    code, LaTeX, lists and tags. "accuracy/s" is the share of correct rollouts of a style, where it has any.
    Released code: rosieyzh/openrlhf-pretrain 34d239da, openrlhf/utils/math_verifier.py (get_llm_answer) and
    inference/run_inference_all.py; there a program counts as its style only if it runs. Paper: Zhao et al.
    2025, arXiv:2504.07912: RL converges to one format of the pretraining mixture; an entropy near 0 shows
    that it has. Edge: no rollouts: no numbers. Units: shares, nats.
    """

    patterns: Mapping[str, str] = field(default_factory=lambda: dict(STYLES))

    def __post_init__(self) -> None:
        _compiled(self.patterns)

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        patterns = _compiled(self.patterns)
        texts = [rollout.text for group in groups for rollout in group]
        styles = [
            next((name for name, pattern in patterns.items() if pattern.search(text)), "other")
            for text in texts
        ]
        if not styles:
            return {}
        shares = {name: styles.count(name) / len(styles) for name in [*patterns, "other"]}
        correct = Counter(
            style
            for style, rollout in zip(styles, (r for group in groups for r in group), strict=True)
            if rollout.correct
        )
        accuracy = {
            f"accuracy/{name}": correct[name] / styles.count(name) for name in shares if name in styles
        }
        return {
            **shares,
            "entropy": -sum(share * math.log(share) for share in shares.values() if share) + 0.0,
            **accuracy,
        }


@register("answer_styles.habits")
@dataclass(frozen=True, kw_only=True)
class AnswerStylesHabits(Metric):
    """Four cognitive behaviours: verification, backtracking, subgoals, backward chaining.

    The number under a behaviour's name is the mean count of matches of its pattern per rollout, "share/name"
    the share of rollouts with a match. Paper: Gandhi et al. 2025, arXiv:2503.01307. Deviates: the paper's
    classifier is a language model; regular expressions are an approximation that misses what is said in other
    words. Edge: no rollouts: no numbers. Units: matches per rollout, shares.
    """

    patterns: Mapping[str, str] = field(default_factory=lambda: dict(HABITS))

    def __post_init__(self) -> None:
        _compiled(self.patterns)

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        texts = [rollout.text for group in groups for rollout in group]
        out: dict[str, float] = {}
        for name, pattern in _compiled(self.patterns).items() if texts else ():
            counts = [len(pattern.findall(text)) for text in texts]
            out |= {
                name: sum(counts) / len(counts),
                f"share/{name}": sum(count > 0 for count in counts) / len(counts),
            }
        return out


def _compiled(patterns: Mapping[str, str]) -> dict[str, re.Pattern[str]]:
    """The patterns by name, case-insensitive. Raises ConfigError for one that is no regular expression."""
    try:
        return {name: re.compile(pattern, re.IGNORECASE) for name, pattern in patterns.items()}
    except re.error as error:
        raise ConfigError(f"patterns: {error.pattern!r} is not a regular expression ({error})") from None
