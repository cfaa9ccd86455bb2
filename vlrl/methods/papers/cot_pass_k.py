"""CoT-Pass@K: a sample counts only if its answer and its chain of thought are correct.

`cot_pass_k` is a metric. Paper: Wen et al. 2025, arXiv:2506.14245.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.methods.core.metric import PassAtK
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.finding import PaperFinding, RunNumbers, moved, nothing
from vlrl.plugins.registry import ConfigError, register


@register("cot_pass_k")
@dataclass(frozen=True, kw_only=True)
class CotPassK(PassAtK):
    """pass@k with `both`, the reward slot that says whether a chain of thought is correct.

    Its finding: CoT-Pass@K rises at every K, and so does the share of correct answers whose chain is correct
    ("given_answer"). Paper: Wen et al. 2025, arXiv:2506.14245: under this measure the trained model stays
    above the base model for all K, though plain pass@K meets. Edge: see `pass_at_k`.
    """

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        if not self.both:
            raise ConfigError(
                "metrics: 'cot_pass_k' both: name the reward slot that scores chains of thought"
            )

    def finding(self, numbers: RunNumbers) -> PaperFinding | None:
        ks = sorted((name for name in numbers.names() if name.isdigit()), key=int)
        changes = {k: pair for k in ks if (pair := numbers.change(k)) is not None}
        given = numbers.change("given_answer")
        if not changes or given is None:
            return nothing(f"no correct answer whose chain of thought {self.both!r} scored, in two steps")
        rising = [k for k, (before, after) in changes.items() if after > before]
        first, last = next(iter(changes)), list(changes)[-1]
        told = ", ".join(moved(f"CoT-pass@{k}", changes[k]) for k in dict.fromkeys((first, last)))
        return PaperFinding(
            f"{told} (higher at {len(rising)} of {len(changes)} values of k); of correct answers "
            f"{given[0]:.3f} -> {given[1]:.3f} have a correct chain. The paper: higher at every k.",
            len(rising) == len(changes),
        )
