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

from vlrl.plugins.finding import PaperFinding, RunNumbers, moved, nothing
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
    inference/run_inference_all.py; there a text whose <llm-code> does not run is asked for the next style.
    Paper: Zhao et al. 2025, arXiv:2504.07912: RL converges to one format of the pretraining mixture; an
    entropy near 0 shows
    that it has; its finding calls a share of `dominant` (ours) convergence. Edge: no rollouts: no numbers.
    Units: shares, nats.
    """

    patterns: Mapping[str, str] = field(default_factory=lambda: dict(STYLES))
    dominant: float = 0.9

    def __post_init__(self) -> None:
        _compiled(self.patterns)

    def finding(self, numbers: RunNumbers) -> PaperFinding | None:
        names = [*self.patterns, "other"]
        shares = {name: pair for name in names if (pair := numbers.change(name)) is not None}
        entropy = numbers.change("entropy")
        if not shares or entropy is None:
            return nothing("two steps with answers are needed")
        if max(start for start, _ in shares.values()) == 1:
            return nothing("all answers are in one format from the start on; see `patterns`")
        winner = max(shares, key=lambda name: shares[name][1])
        accuracy = {name: rate for name in names if (rate := numbers.start(f"accuracy/{name}")) is not None}
        best = [name for name, rate in accuracy.items() if rate == max(accuracy.values())]
        rated = (
            ""
            if winner not in accuracy
            else (
                f", {'' if winner in best else 'not '}the most accurate one at the start "
                f"({accuracy[winner]:.3f})"
            )
        )
        converged = shares[winner][1] >= self.dominant and shares[winner][1] > shares[winner][0]
        return PaperFinding(
            f"the share of {winner!r}, the commonest format at the end{rated}, "
            f"{moved('', shares[winner]).strip()} (threshold {self.dominant:g}); "
            f"{moved('format entropy', entropy)} nats: the policy "
            f"{'converged' if converged else 'did not converge'} to one format. The paper: it does, to one "
            "of the pretraining mixture, mostly the best one.",
            converged,
        )

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
    the share of rollouts with a match, "accuracy" that of correct ones. Paper: Gandhi et al. 2025,
    arXiv:2503.01307. Deviates: the paper's classifier is a language model; regular expressions are an
    approximation that misses what is said in other words; `least` and `gain` of its finding are ours. Edge:
    no rollouts: no numbers. Units: matches per rollout, shares.
    """

    patterns: Mapping[str, str] = field(default_factory=lambda: dict(HABITS))
    least: float = 0.1
    gain: float = 0.05

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
        if texts:
            out["accuracy"] = sum(rollout.correct for group in groups for rollout in group) / len(texts)
        return out

    def finding(self, numbers: RunNumbers) -> PaperFinding | None:
        accuracy = numbers.change("accuracy")
        shares = {
            name: pair for name in self.patterns if (pair := numbers.change(f"share/{name}")) is not None
        }
        if accuracy is None or not shares:
            return nothing("two steps with answers are needed")
        present = [name for name, (start, _) in shares.items() if start >= self.least]
        gained = accuracy[1] - accuracy[0] >= self.gain
        told = ", ".join(f"{name} {start:.3f} -> {end:.3f}" for name, (start, end) in shares.items())
        return PaperFinding(
            f"share of answers with each habit: {told}; at the start {', '.join(present) or 'none'} at "
            f"{self.least:g} or more; {moved('accuracy', accuracy)}. The paper: models that show the habits "
            f"before RL improve by it, others stay behind (an accuracy gain of {self.gain:g} counts).",
            bool(present) == gained,
        )


def _compiled(patterns: Mapping[str, str]) -> dict[str, re.Pattern[str]]:
    """The patterns by name, case-insensitive. Raises ConfigError for one that is no regular expression."""
    try:
        return {name: re.compile(pattern, re.IGNORECASE) for name, pattern in patterns.items()}
    except re.error as error:
        raise ConfigError(f"patterns: {error.pattern!r} is not a regular expression ({error})") from None
