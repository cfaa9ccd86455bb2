"""AnytimeReasoner: optimises the answers at several thinking budgets; a thought is cut at each budget and
answered from there.

`anytimereasoner` is the rollout strategy that cuts and answers, `anytimereasoner.budget_relative` the
advantage estimator (BRPO) that turns the answers' rewards into advantages per token of the thought, for
`token_credit: {name: per_token}`.

Paper: Qi et al. 2025 (AnytimeReasoner, BRPO), arXiv:2505.13438, eq. 6 to 10; released script: 4 budgets, 4
summaries. Deviates: the paper's thoughts have no tokens after them in their own rollout; here these have
Dr.GRPO's advantage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from vlrl.functional.exact import centred, mean
from vlrl.methods.core.rollout import Independent
from vlrl.methods.core.token_credit import check_token_credit
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.contexts import PhaseContext, SamplingContext, StageContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import TOKEN_ADVANTAGES, AdvantageEstimator
from vlrl.types import Group, Prompt, Request, Rollout

HINT = "rollout: {name: anytimereasoner}"
THOUGHT_LENGTH: Annotation[int] = Annotation(
    "anytimereasoner.thought_length", int, hint=HINT, doc="of a thought: its length in tokens"
)
CUTS: Annotation[list[int]] = Annotation(
    "anytimereasoner.cuts", list, hint=HINT, doc="of a thought: where each budget cuts it, in tokens"
)
SUMMARY_OF: Annotation[tuple[int, int]] = Annotation(
    "anytimereasoner.summary_of",
    (tuple, list),
    hint=HINT,
    doc="of an answer: place of its thought in the group, and the cut in tokens",
)


@register("anytimereasoner")
@dataclass(frozen=True)
class Anytimereasoner(Independent):
    """AnytimeReasoner's truncated thinking: every rollout's thought is cut at m = `budgets` budgets, closed
    by `closing`, and answered.

    The budgets are 1/m, 2/m, ... of the longest thought, `longest` tokens (0: three quarters of the
    sampling's `max_tokens`). `summaries` answers of at most `tokens` tokens are sampled for each cut; they
    are rollouts of source "summary", trained on their own tokens, with the annotation SUMMARY_OF. The thought
    has the annotations CUTS and THOUGHT_LENGTH. A thought ends before `end`; one that ends before a budget is
    answered once for all later budgets. Edge: an empty thought is answered too.
    """

    budgets: int = 4
    summaries: int = 4
    longest: int = 0
    tokens: int = 32
    end: str = "</think>"
    closing: str = "</think>"
    provides = (THOUGHT_LENGTH, CUTS, SUMMARY_OF)

    def __post_init__(self) -> None:
        if self.budgets < 1 or self.summaries < 1 or self.tokens < 1:
            raise ValueError(
                f"budgets={self.budgets}, summaries={self.summaries} and tokens={self.tokens} must be at "
                "least 1"
            )

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        tokenizer = run.policy.tokenizer
        closing = tuple(tokenizer.encode(self.closing, add_special_tokens=False))
        requests = []
        for group in groups:
            for place, rollout in enumerate(list(group)):
                for cut in self.cut(rollout, run, tokenizer):
                    prefix = (*rollout.ids[:cut], *closing)
                    sampling = replace(
                        run.sampling(group.prompt, place), max_tokens=len(prefix) + self.tokens
                    )
                    seed = self.seeds(run, group.prompt)
                    requests.append(
                        Request(group.prompt, sampling, self.summaries, seed, prefix, (group, place, cut))
                    )
        for completion in run.engine.generate(requests):
            group, place, cut = completion.request.tag
            rollout = run.make_rollout(completion)
            given = len(completion.request.prefix_ids)
            rollout.source = "summary"
            SUMMARY_OF.set(rollout, (place, cut))
            rollout.loss_mask = [t >= given for t in range(len(rollout))]
            group.rollouts.append(rollout)
        return groups

    def cut(self, rollout: Rollout, run: StageContext, tokenizer: Any) -> list[int]:
        """The different places where a thought is cut; annotates the thought."""
        longest = self.longest or max(self.budgets, 3 * run.sampling(rollout.prompt, 0).max_tokens // 4)
        length = thought_length(rollout.ids, tokenizer, self.end)
        cuts = [min(length, longest * j // self.budgets) for j in range(1, self.budgets + 1)]
        THOUGHT_LENGTH.set(rollout, length)
        CUTS.set(rollout, cuts)
        return sorted(set(cuts))


def thought_length(ids: Sequence[int], tokenizer: Any, end: str) -> int:
    """Tokens before the one in which `end` begins; all of them without `end`."""
    text = ""
    starts = []
    for token in ids:
        starts.append(len(text))
        text += tokenizer.decode([token])
    at = text.find(end)
    return len(ids) if at < 0 else sum(start <= at for start in starts) - 1


@register("anytimereasoner.budget_relative")
@dataclass(frozen=True)
class AnytimereasonerBudgetRelative(AdvantageEstimator):
    """BRPO, budget relative policy optimisation: the advantage of a thought's tokens between budgets t-1 and
    t.

        A_t = R_t - V_t,  R_t = sum_{j >= t} P_j r_j,  r_j the mean reward of its answers at budget j
        V_t = (t - 1) / m W_t V1 + (m - t + 1) / m mean_group R_t,  W_t = sum_{j >= t} P_j

    P_j is the `prior` over the m budgets (uniform, linear, base), V1 the mean of r_1 .. r_{t-1} with weights
    lam^(t - j): what the thought was worth before; mean_group R_t: what thoughts about this question are
    worth. Answers: reward less the mean of the same thought and cut; tokens after a thought: the rollout's
    reward less the group's mean (Dr.GRPO). Eq. 6 to 10. Edge: one budget: V is the group's mean.
    """

    provides = (TOKEN_ADVANTAGES,)
    requires = (CUTS, SUMMARY_OF)
    prior: Literal["uniform", "linear", "base"] = "linear"
    lam: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.lam <= 1:
            raise ValueError(f"lam={self.lam} must be in (0, 1]")

    def check(self, phase: PhaseContext) -> None:
        check_token_credit(phase, self.name)

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        return [self.of_group(group) for group in groups]

    def of_group(self, group: Group) -> list[float]:
        """One number per rollout; thoughts also get theirs per token."""
        answers: dict[tuple[int, int], list[Rollout]] = defaultdict(list)
        thoughts = []
        for rollout in group:
            if SUMMARY_OF.on(rollout):
                place, cut = SUMMARY_OF[rollout]
                answers[place, cut].append(rollout)
            else:
                thoughts.append(rollout)
        advantage: dict[int, float] = {}
        for rollouts in (*answers.values(), thoughts):
            advantage.update(zip(map(id, rollouts), centred([r.reward for r in rollouts], 1.0)))
        budget_rewards = {
            place: [mean([r.reward for r in answers[place, cut]]) for cut in cuts]
            for place, rollout in enumerate(thoughts)
            if (cuts := CUTS.get(rollout)) and all(answers.get((place, cut)) for cut in cuts)
        }
        for place, values in zip(budget_rewards, self.of_thoughts(list(budget_rewards.values()))):
            write_token_advantages(thoughts[place], values, advantage[id(thoughts[place])])
        return [advantage[id(rollout)] for rollout in group]

    def of_thoughts(self, rewards: Sequence[Sequence[float]]) -> list[list[float]]:
        """A_1 .. A_m of every thought, from its r_1 .. r_m."""
        if not rewards:
            return []
        m = len(rewards[0])
        prior = prior_of(self.prior, m)
        returns = [[sum(p * r for p, r in zip(prior[t:], row[t:])) for t in range(m)] for row in rewards]
        mean_returns = [mean(column) for column in zip(*returns, strict=True)]
        out = []
        for row, own_returns in zip(rewards, returns, strict=True):
            values = []
            for t in range(m):
                weights = [self.lam ** (t - j) for j in range(t)]
                before = sum(w * r for w, r in zip(weights, row)) / sum(weights) if t else 0.0
                values.append(
                    own_returns[t] - t / m * sum(prior[t:]) * before - (m - t) / m * mean_returns[t]
                )
            out.append(values)
        return out


def prior_of(name: str, m: int) -> list[float]:
    """P_1 .. P_m over budgets: uniform, growing linearly, or all on the last one (base)."""
    weights = {
        "uniform": [1.0] * m,
        "linear": [float(j) for j in range(1, m + 1)],
        "base": [0.0] * (m - 1) + [1.0],
    }[name]
    return [w / sum(weights) for w in weights]


def write_token_advantages(thought: Rollout, values: Sequence[float], after: float) -> None:
    """Each token of the thought gets the value of its segment; tokens beyond the last cut, and after the
    thought, get `after`."""
    tokens: list[float] = []
    for end, value in zip(CUTS[thought], values, strict=True):
        tokens += [value] * (end - len(tokens))
    TOKEN_ADVANTAGES.set(thought, tokens + [after] * (len(thought) - len(tokens)))
