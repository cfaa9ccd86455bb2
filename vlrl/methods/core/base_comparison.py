"""Comparison of the trained policy with the model that the run started from, on the same prompts: support
kept and found, gains by difficulty.

base_comparison   callback: samples both models on a fixed set of training prompts

Shapes: none; pass rates are plain numbers by row id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from vlrl.functional import pass_at_k
from vlrl.functional.exact import mean
from vlrl.plugins.contexts import CallbackContext, SamplingContext, StageContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Callback, State
from vlrl.services.lazy import no_grad, torch
from vlrl.types import Group, Request, Row

BINS = ("hard", "middle", "easy")  # base pass rate below 1/3, below 2/3, above


@dataclass
class BaseComparisonState(State):
    """(samples, correct samples, tokens) of the base model by row id: the base model never changes, so it is
    sampled once."""

    base: dict[str, list[float]] = field(default_factory=dict)


@register("base_comparison")
@dataclass(frozen=True, kw_only=True)
class BaseComparison(Callback):
    """Pass rates of the trained policy against those of the base model: the weights that the phase started
    with.

    With B and R the training rows that the base model and the policy solve at least once:

        kept = |B & R| / |B|  (SRR),  found = |R - B| / |R|  (NDR),  score = harmonic mean of the two  (SDS),
        net = (|R - B| - |B - R|) / |B | R|  (NSCR)
        base/k, now/k: pass@k, k = 1, 2, 4, ... and `samples`;  length/base, length/now: mean tokens
        change/hard, middle, easy: mean change of the pass rate, by the base's (the three bins are ours)

    Paper: Wu et al. 2025 (The Invisible Leash), arXiv:2507.14843, sec. 3 (there up to 16,384 samples a
    problem; with few, "kept" is partly chance); change by difficulty: arXiv:2505.14216. Memory: a copy of the
    base weights, the KL reference's, and one of the policy's while the base model samples; none with an
    adapter. Edge: a number without rows is left out. Raises ConfigError for sharded weights. State: the base
    model's counts.

    Attributes:
        prompts: Both models answer the first so many training rows, `samples` times each.
        every: After every so many steps of the phase (0: never in between), and after the last one.
    """

    state_class = BaseComparisonState
    prompts: int = 32
    samples: int = 16
    every: int = 0

    def __post_init__(self) -> None:
        if self.prompts < 1 or self.samples < 1 or self.every < 0:
            raise ConfigError(
                f"callbacks: 'base_comparison' prompts={self.prompts} and samples={self.samples} must be 1 "
                f"or more, every={self.every} 0 or more"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if run.params_sharded:
            raise ConfigError(
                "callbacks: 'base_comparison' puts the base weights into the policy while it samples; FSDP "
                "and ZeRO-3 shard them: use DDP or ZeRO-2, "
                "or compare two checkpoints with `vlrl eval`"
            )
        run.policy.keep_reference()

    def __call__(self, run: CallbackContext, groups: Sequence[Group]) -> Mapping[str, float]:
        step = run.phase_step + 1
        if step < run.settings.steps and not (self.every and step % self.every == 0):
            return {}
        if not self.state.base:
            with base_weights(run):
                self.state.base = self.counts(run)
        return self.compare(run, self.state.base, self.counts(run))

    def compare(
        self, run: StageContext, base: Mapping[str, Sequence[float]], now: Mapping[str, Sequence[float]]
    ) -> dict[str, float]:
        """The numbers for the log, from (samples, correct, tokens) of both models by row id."""
        return compared(base, now, self.samples)

    def counts(self, run: SamplingContext) -> dict[str, list[float]]:
        """(samples, correct, tokens) by row id, of the weights that the engine has now; each rank samples its
        share of the rows."""
        own = self.rows(run)[run.rank :: run.ranks]
        prompts = [run.prompt_template(row) for row in own]
        groups = {row.id: Group(prompt, []) for row, prompt in zip(own, prompts, strict=True)}
        requests = [
            Request(prompt, run.sampling(prompt, 0), self.samples, seed=run.seed + i)
            for i, prompt in enumerate(prompts)
        ]
        for completion in run.engine.generate(requests):
            groups[completion.request.prompt.row.id].rollouts.append(run.make_rollout(completion))
        run.score(list(groups.values()))
        found = [
            (
                name,
                [
                    float(len(group)),
                    float(sum(r.correct for r in group)),
                    float(sum(r.sampled_tokens for r in group)),
                ],
            )
            for name, group in groups.items()
            if len(group)
        ]
        return dict(run.gather(found))

    def rows(self, run: StageContext) -> list[Row]:
        """The first `prompts` training rows, of all sources in turn."""
        sources = [rows for rows in run.rows.values() if len(rows)]
        longest = max(map(len, sources), default=0)
        return [rows[i] for i in range(min(longest, self.prompts)) for rows in sources if i < len(rows)][
            : self.prompts
        ]


@contextmanager
def base_weights(run: StageContext) -> Iterator[None]:
    """The engine samples from the KL reference inside, from the policy again afterwards."""
    policy = run.policy
    with policy.reference() as base:
        same = base.model is policy.model  # an adapter that is switched off
        own = (
            {}
            if same
            else {name: weight.detach().clone() for name, weight in policy.model.state_dict().items()}
        )
        try:
            if not same:
                _put(policy.model, base.model.state_dict())
            run.engine.sync(policy)
            yield
        finally:
            if not same:
                _put(policy.model, own)
    run.engine.sync(policy)


@no_grad
def _put(model: torch.nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Copy weights into the tensors of a model, which optimizers and engines keep hold of."""
    for name, weight in model.state_dict().items():
        weight.copy_(weights[name])


def attempts(samples: int) -> list[int]:
    """The k of pass@k from 2: the powers of two below `samples`, and `samples`."""
    return sorted({*(2**i for i in range(1, samples.bit_length())), samples} - {1})


def compared(
    base: Mapping[str, Sequence[float]], now: Mapping[str, Sequence[float]], samples: int
) -> dict[str, float]:
    """The numbers of `base_comparison` from (samples, correct, tokens) by row id; rows that only one of the
    two has are left out."""
    pairs = [(base[name], now[name]) for name in base if name in now]
    if not pairs:
        return {}
    solved = [(before[1] > 0, after[1] > 0) for before, after in pairs]
    both, lost, found = (
        sum(pair == wanted for pair in solved) for wanted in ((True, True), (True, False), (False, True))
    )
    out: dict[str, float] = {}
    for side, name in enumerate(("base", "now")):
        rows = [pair[side] for pair in pairs]
        out[f"{name}/1"] = mean([row[1] / row[0] for row in rows])
        full = [row for row in rows if row[0] >= samples]
        for k in attempts(samples) if full else ():
            out[f"{name}/{k}"] = mean([pass_at_k(int(row[0]), int(row[1]), k) for row in full])
        out[f"length/{name}"] = sum(row[2] for row in rows) / sum(row[0] for row in rows)
    kept_share, found_share = (
        (both / (both + lost) if both + lost else None),
        (found / (both + found) if both + found else None),
    )
    out |= {
        name: value for name, value in (("kept", kept_share), ("found", found_share)) if value is not None
    }
    if kept_share is not None and found_share is not None:
        out["score"] = (
            2 * kept_share * found_share / (kept_share + found_share) if kept_share + found_share else 0.0
        )
    if both + lost + found:
        out["net"] = (found - lost) / (both + lost + found)
    rates = [(before[1] / before[0], after[1] / after[0]) for before, after in pairs]
    for name in BINS:
        changes = [
            after - before for before, after in rates if BINS[(before >= 1 / 3) + (before >= 2 / 3)] == name
        ]
        out |= {f"change/{name}": mean(changes)} if changes else {}
    return out
