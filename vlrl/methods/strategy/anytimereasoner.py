"""What the policy would answer if its thinking were cut off here, and here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vlrl.methods.strategy.independent import Independent
from vlrl.registry import register
from vlrl.types import Group, Request, Rollout

if TYPE_CHECKING:
    from vlrl.run import Run
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


@register("anytime")
@dataclass(frozen=True)
class Anytime(Independent):
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

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: Run) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        tokenizer = run.policy.tokenizer
        probe = tuple(tokenizer.encode(self.closing, add_special_tokens=False))
        requests = []
        for group in groups:
            for place, rollout in enumerate(list(group)):
                for cut in self.cut(rollout, run, tokenizer):
                    prefix = (*rollout.ids[:cut], *probe)
                    sampling = replace(run.decode(group.prompt, place), max_tokens=len(prefix) + self.tokens)
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

    def cut(self, rollout: Rollout, run: Run, tokenizer: Any) -> list[int]:
        """The different places where a thought is cut; notes the cut of every budget."""
        longest = self.longest or max(self.budgets, 3 * run.decode(rollout.prompt, 0).max_tokens // 4)
        thought = thought_length(rollout.ids, tokenizer, self.end)
        cuts = [min(thought, longest * j // self.budgets) for j in range(1, self.budgets + 1)]
        rollout.info["thought"], rollout.info["cuts"] = thought, cuts
        return sorted(set(cuts))
