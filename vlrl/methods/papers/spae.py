"""SPAE: step potential advantage estimation, where each reasoning step is credited with the rise of the
answer's potential after it.

    spae.probing   rollout strategy: samples, then probes the policy's answer after each step, which gives the
    step's potential spae           advantage: group-relative advantage, faded once the potential is
    saturated, plus the rise of the potential

Paper: Wu et al. 2026 (SPAE), arXiv:2601.03823; of the code the probing was released, as an example.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from vlrl.functional.exact import centred, mean
from vlrl.methods.common.step_scores import STEP_SCORES, step_ends
from vlrl.methods.core.advantage import GroupRelative, set_token_advantages, whiten_rows
from vlrl.methods.core.rollout import Independent
from vlrl.methods.core.token_credit import check_token_credit
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import PhaseContext, SamplingContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import TOKEN_ADVANTAGES
from vlrl.types import Group, Prompt, Request, Rollout

POTENTIALS = Capability(
    "spae.potentials", hint="rollout: {name: spae.probing}"
)  # the step scores are potentials Phi in [-1, 1]


@register("spae.probing")
@dataclass(frozen=True)
class SpaeProbing(Independent):
    """SPAE's probing: after each step of a rollout, `n` continuations of `probe` give a potential  Phi = 1.5
    Acc Conf + 0.5 Acc - Conf  in [-1, 1].

    Conf = mean over continuations of exp(-mean entropy of their tokens); Acc = mean probability of the gold
    answer's tokens after the probe. STEP_SCORES are (end of the step in tokens, Phi) pairs, for advantages
    `spae` and `pure`. Paper: Wu et al. 2026, arXiv:2601.03823, sec. 3 (n 5, 10 tokens); entropies (nats) are
    of the `alternatives` most likely tokens, 20 in the released example. Deviates from that example: it takes
    exp of sums over the gold answer's tokens. Acc needs a scoring engine. Edge: a rollout of one step has no
    potentials.

    Attributes:
        delimiter: End of a step; where it is empty, steps end every `every` tokens.
    """

    probe: str = "**Final Answer**\n\\boxed{"
    delimiter: str = "\n\n"
    every: int = 4
    n: int = 5
    tokens: int = 10
    alternatives: int = 20
    provides = (STEP_SCORES, POTENTIALS)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        tokenizer = run.policy.tokenizer
        probe = tuple(tokenizer.encode(self.probe, add_special_tokens=False))
        requests, gold = [], {}
        for group in groups:
            gold[group.row.id] = run.policy.encode_text(str(group.row.answer))
            for rollout in group:
                STEP_SCORES.set(rollout, [])
                for end in step_ends(
                    [tokenizer.decode([token]) for token in rollout.ids], self.delimiter, self.every
                ):
                    prefix = (*rollout.ids[:end], *probe)
                    sampling = replace(
                        run.sampling(group.prompt, 0),
                        max_tokens=len(prefix) + self.tokens,
                        top_logprobs=self.alternatives,
                    )
                    requests.append(
                        Request(
                            group.prompt,
                            sampling,
                            self.n,
                            self.seeds(run, group.prompt),
                            prefix,
                            (rollout, end),
                        )
                    )
        confidences: dict[tuple[int, int], list[float]] = {}
        for completion in run.engine.generate(requests):
            rollout, end = completion.request.tag
            if completion.top_logprobs is None:
                raise ConfigError(
                    f"rollout: {self.name!r} reads entropies, which engine {run.engine.name!r} does not "
                    "give; use engine hf or vllm"
                )
            new = completion.top_logprobs[len(completion.request.prefix_ids) :]
            confidences.setdefault((id(rollout), end), []).append(confidence(new))
        for request in requests:
            rollout, end = request.tag
            gold_logp = run.engine.score(request.prompt, [*request.prefix_ids, *gold[rollout.row.id]])[
                len(request.prefix_ids) :
            ]
            STEP_SCORES[rollout].append((end, potential(confidences[id(rollout), end], gold_logp)))
        return groups


def confidence(alternatives: Sequence[Mapping[int, float]]) -> float:
    """exp(-mean entropy) of tokens, from the log-probs of their most likely alternatives; 1 without
    tokens."""
    entropies = [-math.fsum(math.exp(v) * v for v in token.values()) for token in alternatives]
    return math.exp(-math.fsum(entropies) / len(entropies)) if entropies else 1.0


def potential(confidences: Sequence[float], gold_logp: Sequence[float]) -> float:
    """Phi from the continuations' confidences and the gold answer's log-probs."""
    conf = math.fsum(confidences) / len(confidences)
    acc = math.fsum(math.exp(v) for v in gold_logp) / max(len(gold_logp), 1)
    return 1.5 * acc * conf + 0.5 * acc - conf


@register("spae")
@dataclass(frozen=True)
class SPAE(GroupRelative):
    """SPAE: A_{i,t} = (r_i - mean_G r) f + xi g for token t in step k, then mean 0 and variance 1 over all
    tokens of the batch.

        f = 1 - alpha (1 - exp(-n)),   n the earlier steps whose potential Phi is above `saturated`
        g = exp(d) - mean exp(d),      d the rise Phi_k - Phi_{k-1}, scaled to 0..1 over the batch's steps

    Potentials are those of rollout `spae.probing`; token_credit `per_token` reads the advantages. Paper: Wu
    et al. 2026, arXiv:2601.03823, its SPAE advantage; alpha = xi = 0.5; saturation 0.9 and no rise at the
    first step as in the released example. Edge: tokens after the last boundary have no rise (g = 0). Without
    steps in the batch, or with all rises equal, g is 0.
    """

    xi: float = 0.5
    alpha: float = 0.5
    saturated: float = 0.9
    provides = (TOKEN_ADVANTAGES,)
    requires = (POTENTIALS,)

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        check_token_credit(phase, self.name)

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        all_rises = [rise for group in groups for rollout in group for rise in rises(rollout)]
        low, width = min(all_rises, default=0.0), max(all_rises, default=0.0) - min(all_rises, default=0.0)
        centre = mean([math.exp((rise - low) / width) for rise in all_rises]) if width else 0.0
        rows = []
        for group in groups:
            for a, rollout in zip(centred(group.rewards, 1.0), group, strict=True):
                row: list[float] = []
                start, saturated_steps = 0, 0
                gains = [math.exp((rise - low) / width) - centre if width else 0.0 for rise in rises(rollout)]
                for (end, phi), g in zip(
                    [*STEP_SCORES.get(rollout, []), (len(rollout), 0.0)], [*gains, 0.0], strict=True
                ):
                    factor = 1 - self.alpha * (1 - math.exp(-saturated_steps))
                    row += [a * factor + self.xi * g] * (end - start)
                    start, saturated_steps = end, saturated_steps + (phi > self.saturated)
                rows.append(row)
        whiten_rows(rows, [rollout for group in groups for rollout in group])
        return set_token_advantages(groups, rows)


def rises(rollout: Rollout) -> list[float]:
    """By how much each step of a rollout raised the potential; 0 for the first step."""
    values = [phi for _, phi in STEP_SCORES.get(rollout, [])]
    return [after - before for before, after in zip(values[:1] + values, values)]
