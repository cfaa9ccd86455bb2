"""Several valid ways to reason: the thought follows one of them, and siblings that follow different ones earn
more."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Verdict
from vlrl.types import Group, Row
from vlrl_rewards.graded import Graded
from vlrl_rewards.puzzles.plans import alignment
from vlrl_rewards.text.mentions import words_of
from vlrl_rewards.text.process import sentences, thinking


@register("several_paths")
@dataclass(frozen=True, kw_only=True)
class SeveralPaths(Graded):
    """GRiP's multi-heuristic reward: the thought follows one of several valid reasoning paths; paths that
    fewer siblings follow earn more.

        q_i = max_k alignment(sentences of the thought, path k) min(1, slack m_k / n)
        r_i = q_i (1 - spread (c_i - 1) / (G - 1))

    n: sentences, m_k: steps of path k, c_i: rollouts of the group whose best path is that of rollout i and
    whose q is at least `follows`. Paper: GRiP, arXiv:2511.22172 (abstract only; the formula is ours, with the
    alignment of `process_order`). Paths: `row.meta[paths]`, a list of lists of texts. Edge: no closed
    thinking block: 0; a single rollout, or a path below `follows`, pays q. Range [0, 1].
    """

    paths: str = "paths"
    slack: float = 2.0
    spread: float = 0.3
    follows: float = 0.5
    correct_at: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.spread <= 1:
            raise ValueError(f"spread: {self.spread} must lie in [0, 1]")

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        paths = [
            [" ".join(words_of(str(step))) for step in path]
            for path in row.meta.get(self.paths, ())
            if isinstance(path, (list, tuple))
        ]
        if not paths or not all(path and all(path) for path in paths):
            raise GoldError(
                f"paths: row.meta[{self.paths!r}] must be a list of lists of texts, got "
                f"{row.meta.get(self.paths)!r:.200}"
            )
        thought = thinking(response)
        steps = sentences(thought.text)
        scores = [alignment(steps, path) * min(1.0, self.slack * len(path) / len(steps)) for path in paths]
        best = max(range(len(scores)), key=scores.__getitem__)
        found = self.scored(
            thought, scores[best], scores[best] >= self.correct_at, f"path {best + 1} of {len(paths)}"
        )
        return replace(found, details={"path": best})

    def score_group(self, group: Group) -> list[float]:
        verdicts = [self.judged(rollout) for rollout in group]
        followed = [found.details.get("path") if found.score >= self.follows else None for found in verdicts]
        counts = Counter(followed)
        others = max(1, len(verdicts) - 1)
        return [
            float(
                found.score if path is None else found.score * (1 - self.spread * (counts[path] - 1) / others)
            )
            for found, path in zip(verdicts, followed, strict=True)
        ]
