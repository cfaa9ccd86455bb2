"""What the policy would answer if its thinking were cut off here, and here.

Credit for what thinking is worth at every budget.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from vlrl.functional.exact import centred, mean
from vlrl.methods.core.rollout import Independent
from vlrl.registry import ConfigError, register
from vlrl.stages import AdvantageEstimator
from vlrl.types import Group, Request, Rollout

if TYPE_CHECKING:
    from vlrl.context import RunContext
    from vlrl.types import Prompt


def thought_length(ids: Sequence[int], tokenizer: Any, end: str) -> int:
    """Tokens before the one in which `end` begins; all of them where it does not come."""
    text = ""
    starts = []
    for token in ids:
        starts.append(len(text))
        text += tokenizer.decode([token])
    at = text.find(end)
    return len(ids) if at < 0 else sum(start <= at for start in starts) - 1


@register("anytimereasoner")
@dataclass(frozen=True)
class Anytimereasoner(Independent):
    """After budgets of 1/m, 2/m .. of the longest thought, m = `budgets`, a rollout's thinking is cut, closed by `closing`, and answered.

    `summaries` answers for each cut. The longest thought is `longest` tokens (0: three quarters of the decoding's `max_tokens`). A thought that
    ends before a budget is answered once for all budgets beyond. The answers are rollouts of source "summary", trained on their own tokens;
    `info["anytime"]` is (place of the thought in the group, cut in tokens), and the thought's `info["cuts"]` the cut of every budget,
    `info["thought"]` its length.
    Paper: Qi et al. 2025 (AnytimeReasoner), arXiv:2505.13438; released script: 4 budgets, 4 summaries. Edge: an empty thought is answered too.
    """

    budgets: int = 4
    summaries: int = 4
    longest: int = 0
    tokens: int = 32
    end: str = "</think>"
    closing: str = "</think>"

    def __post_init__(self) -> None:
        if self.budgets < 1 or self.summaries < 1 or self.tokens < 1:
            raise ValueError(f"budgets, summaries, tokens: must be at least 1, got {self.budgets}, {self.summaries} and {self.tokens}")

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        tokenizer = run.policy.tokenizer
        probe = tuple(tokenizer.encode(self.closing, add_special_tokens=False))
        requests = []
        for group in groups:
            for place, rollout in enumerate(list(group)):
                for cut in self.cut(rollout, run, tokenizer):
                    prefix = (*rollout.ids[:cut], *probe)
                    sampling = replace(run.sampling(group.prompt, place), max_tokens=len(prefix) + self.tokens)
                    seed = self.seeds(run, group.prompt)
                    requests.append(Request(group.prompt, sampling, self.summaries, seed, prefix, (group, place, cut)))
        for completion in run.engine.generate(requests):
            group, place, cut = completion.request.tag
            rollout = run.make_rollout(completion)
            given = len(completion.request.prefix_ids)
            rollout.source, rollout.info["anytime"] = "summary", (place, cut)
            rollout.loss_mask = [t >= given for t in range(len(rollout))]
            group.rollouts.append(rollout)
        return groups

    def cut(self, rollout: Rollout, run: RunContext, tokenizer: Any) -> list[int]:
        """The different places where a thought is cut; notes the cut of every budget."""
        longest = self.longest or max(self.budgets, 3 * run.sampling(rollout.prompt, 0).max_tokens // 4)
        thought = thought_length(rollout.ids, tokenizer, self.end)
        cuts = [min(thought, longest * j // self.budgets) for j in range(1, self.budgets + 1)]
        rollout.info["thought"], rollout.info["cuts"] = thought, cuts
        return sorted(set(cuts))


def prior_of(name: str, m: int) -> list[float]:
    """P_1 .. P_m over budgets: all alike, growing in line, or all at the last."""
    weights = {"uniform": [1.0] * m, "linear": [float(j) for j in range(1, m + 1)], "base": [0.0] * (m - 1) + [1.0]}[name]
    return [w / sum(weights) for w in weights]


@register("anytimereasoner.budget_relative")
@dataclass(frozen=True)
class AnytimereasonerBudgetRelative(AdvantageEstimator):
    """A thought's tokens between budgets t-1 and t:  A_t = R_t - V_t,  R_t = sum_{j >= t} P_j r_j, r_j the mean reward of its answers at budget j.

    V_t = (t - 1) / m W_t V1 + (m - t + 1) / m mean_group R_t: V1 the mean of r_1 .. r_{t-1}, weighed by lam^(t - j), W_t = sum_{j >= t} P_j: what
    the thought was worth before, and what thoughts about this question are worth. Answers: reward less the mean of the same thought and cut; the
    tokens behind a thought: the rollout's reward less the group's mean. For strategy `anytime`, with credit `per_token`. `prior`: uniform,
    linear, base.
    Paper: Qi et al. 2025 (AnytimeReasoner, BRPO), arXiv:2505.13438, eq. 6 to 10; answers as in Dr.GRPO. Deviates: the paper's thoughts have no tokens
    behind them. Edge: one budget: V is the group's mean.
    """

    writes_tokens = True
    prior: Literal["uniform", "linear", "base"] = "linear"
    lam: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.lam <= 1:
            raise ValueError(f"lam={self.lam} must be in (0, 1]")

    def check(self, run: RunContext) -> None:
        if run.rollout.name != "anytimereasoner" or run.token_credit.name != "per_token":
            raise ConfigError(
                "advantage anytime needs strategy: {name: anytime} and credit: {name: per_token}, "
                f"got {run.rollout.name!r} and {run.token_credit.name!r}"
            )

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        return [self.of_group(group) for group in groups]

    def of_group(self, group: Group) -> list[float]:
        """One number per rollout; thoughts also get theirs per token."""
        answers: dict[tuple[int, int], list[Rollout]] = defaultdict(list)
        for rollout in group:
            if "anytime" in rollout.info:
                answers[tuple(rollout.info["anytime"])].append(rollout)
        found = {}
        for rollouts in answers.values():
            found.update(zip(map(id, rollouts), centred([r.reward for r in rollouts], 1.0)))
        thoughts = [rollout for rollout in group if "anytime" not in rollout.info]
        found.update(zip(map(id, thoughts), centred([r.reward for r in thoughts], 1.0)))
        worths = {
            place: [mean([r.reward for r in answers[place, cut]]) for cut in rollout.info["cuts"]]
            for place, rollout in enumerate(thoughts)
            if rollout.info.get("cuts") and all(answers.get((place, cut)) for cut in rollout.info["cuts"])
        }
        segments = dict(zip(worths, self.of_thoughts(list(worths.values()))))
        for place, values in segments.items():
            self.spread(thoughts[place], values, found[id(thoughts[place])])
        return [found[id(rollout)] for rollout in group]

    def of_thoughts(self, worths: Sequence[Sequence[float]]) -> list[list[float]]:
        """A_1 .. A_m of every thought, from its r_1 .. r_m."""
        if not worths:
            return []
        m = len(worths[0])
        prior = prior_of(self.prior, m)
        returns = [[sum(p * r for p, r in zip(prior[t:], row[t:])) for t in range(m)] for row in worths]
        usual = [mean(column) for column in zip(*returns, strict=True)]
        out = []
        for row, ahead in zip(worths, returns, strict=True):
            values = []
            for t in range(m):
                weights = [self.lam ** (t - j) for j in range(t)]
                before = sum(w * r for w, r in zip(weights, row)) / sum(weights) if t else 0.0
                values.append(ahead[t] - t / m * sum(prior[t:]) * before - (m - t) / m * usual[t])
            out.append(values)
        return out

    def spread(self, rollout: Rollout, values: Sequence[float], behind: float) -> None:
        """Each token of the thought gets its segment's advantage; beyond the last budget, and behind the thought, `behind`."""
        tokens = []
        for end, value in zip(rollout.info["cuts"], values, strict=True):
            tokens += [value] * (end - len(tokens))
        rollout.info["token_advantages"] = tokens + [behind] * (len(rollout) - len(tokens))
