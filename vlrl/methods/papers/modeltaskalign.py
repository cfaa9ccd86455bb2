"""Model-task alignment: pass@k of the start model decides which cheap tricks can work; a pre-flight that
trains nothing.

    modeltaskalign.no_update   advantage: 0, so that no weight changes
    modeltaskalign             callback: pass@k of the model by task, and the verdict

Paper: Wu et al. 2025 (Mirage or Method? How Model-Task Alignment Induces Divergent RL Conclusions),
arXiv:2508.21188.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vlrl.functional import pass_at_k
from vlrl.functional.exact import mean
from vlrl.plugins.contexts import CallbackContext, PhaseContext
from vlrl.plugins.finding import PaperFinding, RunNumbers, nothing
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import AdvantageEstimator, Callback, State
from vlrl.types import Group

VERDICTS = {
    True: (
        "strongly aligned: one example, noisy or random rewards, and negatives only can look as good as "
        "true rewards here, so they prove little"
    ),
    False: (
        "weakly aligned: expect only true rewards on enough rows to help; one example, random rewards and "
        "negatives only are likely to fail"
    ),
}


@register("modeltaskalign.no_update")
@dataclass(frozen=True)
class ModeltaskalignNoUpdate(AdvantageEstimator):
    """Advantage 0 for every rollout: the policy gradient is 0, so the model stays as it is while metrics read
    its rollouts. vlrl original."""

    trains = False

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        return [[0.0] * len(group) for group in groups]


@dataclass
class ModeltaskalignState(State):
    """(samples, correct samples) of every sampled group so far, by task."""

    counts: dict[str, list[list[int]]] = field(default_factory=dict)


@register("modeltaskalign")
@dataclass(frozen=True, kw_only=True)
class Modeltaskalign(Callback):
    """The pre-flight's verdict: pass@k of the model per task, over all groups that the phase has sampled;
    aligned from `threshold` on.

    Logs "TASK/1" and "TASK/k" (pass@1 and pass@k, k = `k`, 0: the largest group) and "TASK/aligned" (0 or 1).
    Its finding is the verdict.
    Paper: arXiv:2508.21188 (alignment is the pass@k of the start model on the task; no number divides strong
    from weak: 0.5 is ours). Edge: groups smaller than k are left out of pass@k. Raises ConfigError where an
    advantage would train the model. State: the counts.
    """

    state_class = ModeltaskalignState
    threshold: float = 0.5
    k: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1 or self.k < 0:
            raise ConfigError(
                f"callbacks: 'modeltaskalign' threshold={self.threshold} must be in (0, 1] and k={self.k} "
                "0 or more"
            )

    def check(self, phase: PhaseContext) -> None:
        if phase.advantage.trains or phase.objective.loss_terms:
            raise ConfigError(
                "callbacks: 'modeltaskalign' measures the start model, and this run would train it; use "
                "advantage: {name: modeltaskalign.no_update} "
                "and no loss_terms, or read pass@k of a training run with metrics: {passk: {name: pass_at_k}}"
            )

    def __call__(self, run: CallbackContext, groups: Sequence[Group]) -> Mapping[str, float]:
        for group in run.sampled_groups:
            scored = [rollout.correct for rollout in group if rollout.outcome is not None]
            if scored:
                self.state.counts.setdefault(group.row.task, []).append([len(scored), sum(scored)])
        numbers = {task: self.numbers(counts) for task, counts in sorted(self.state.counts.items())}
        return {f"{task}/{name}": value for task, found in numbers.items() for name, value in found.items()}

    def finding(self, numbers: RunNumbers) -> PaperFinding | None:
        tasks = [name.removesuffix("/aligned") for name in numbers.names() if name.endswith("/aligned")]
        if not tasks:
            return nothing("no answer of the start model was scored")
        told, aligned = [], []
        for task in tasks:
            found = {
                name.rpartition("/")[2]: value
                for name in numbers.names()
                if name.rpartition("/")[0] == task and (value := numbers.last(name)) is not None
            }
            aligned.append(bool(found.pop("aligned")))
            rates = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
            told.append(
                f"task {task!r}: {rates} of the start model (threshold {self.threshold:g}): "
                f"{VERDICTS[aligned[-1]]}"
            )
        return PaperFinding(". ".join(told) + ".", all(aligned) if len(set(aligned)) == 1 else None)

    def numbers(self, counts: Sequence[Sequence[int]]) -> dict[str, float]:
        """pass@1, pass@k and the verdict from (samples, correct) of each group."""
        by_size: dict[int, list[int]] = defaultdict(list)
        for n, correct in counts:
            by_size[n].append(correct)
        k = self.k or max(by_size)
        large = [pass_at_k(n, c, k) for n, members in by_size.items() if n >= k for c in members]
        found = {"pass@1": mean([c / n for n, members in by_size.items() for c in members])}
        if large:
            found[f"pass@{k}"] = mean(large)
        return {**found, "aligned": float(mean(large) >= self.threshold if large else False)}
