"""Questions that mostly fail are asked again without the few tokens that the policy has come to read otherwise than the reference does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlrl.methods.strategy._derived import accuracy
from vlrl.methods.strategy._prompt_tokens import asked, cut, prompt_logp, spans_of, with_text
from vlrl.methods.strategy.independent import Independent
from vlrl.registry import ConfigError, register
from vlrl.types import Group, Prompt

if TYPE_CHECKING:
    from vlrl.run import Run


@register("lens")
@dataclass(frozen=True)
class Purified(Independent):
    """Where less than `below` of n rollouts are right, n more of the purified prompt; if more of them are, wrong rollouts make room for right ones
    (source "purified"), one for one, which are trained on under the prompt as it was.

    Purified: without the ceil(gamma m) of the question's m tokens of largest |log pi(x_t) - log pi_ref(x_t)|; pictures and the template stay.
    `info["crpo"]`, for weight `lens`: a for the prompt's own right rollouts, 1 - a for all others of a group with purified ones, a its success rate.
    Paper: Guo et al. 2026 (LENS), arXiv:2601.21244, sec. 2, as in published notes on it (interference score, gamma 1 to 5%, replacement); the code
    could not be read, `below` is ours. The reference is that of a KL term. Edge: a question that the chat template alters stays as it is.
    """

    gamma: float = 0.03
    below: float = 0.25
    least: float = 0.5
    slot: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.gamma < 1 or not 0 < self.below <= 1:
            raise ValueError(f"gamma={self.gamma} and below={self.below} must be in (0, 1]")

    def check(self, run: Run) -> None:
        if run.settings.loop != "synchronous":
            raise ConfigError(f"strategy lens looks at prompts through the policy, which loop {run.settings.loop!r} may be training; use synchronous")
        if "ref_logp" not in run.fields:
            raise ConfigError("strategy lens compares the policy with a reference, which nothing keeps; add terms: {kl: {name: kl, coef: 0.001}}")
        if run.objective.surrogate.name != "crpo":
            raise ConfigError("strategy lens samples from another prompt than it trains on; use surrogate: {name: crpo}, which corrects for it")

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: Run) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        run.score(groups)
        poor = [(group, count) for group, count in zip(groups, counts) if len(group) and self.rate(group, run) < self.below]
        pairs = [(group, count, self.purified(group.prompt, run)) for group, count in poor]
        pairs = [(group, count, prompt) for group, count, prompt in pairs if prompt.messages != group.prompt.messages]
        again = super().__call__([prompt for *_, prompt in pairs], [count for _, count, _ in pairs], run)
        run.score(again)
        for (group, *_), more in zip(pairs, again, strict=True):
            if len(more) and self.rate(more, run) > self.rate(group, run):
                self.exchange(group, more, run)
        return groups

    def rate(self, group: Group, run: Run) -> float:
        """The share of right rollouts."""
        return sum(accuracy(run, rollout, self.slot) > self.least for rollout in group) / len(group)

    def exchange(self, group: Group, more: Group, run: Run) -> None:
        """Right rollouts of the purified prompt take the places of wrong ones, from the first on."""
        rate = self.rate(group, run)
        right = [rollout for rollout in more if accuracy(run, rollout, self.slot) > self.least]
        wrong = [place for place, rollout in enumerate(group) if accuracy(run, rollout, self.slot) <= self.least]
        for rollout in group:
            rollout.info["crpo"] = rate if accuracy(run, rollout, self.slot) > self.least else 1 - rate
        for place, rollout in zip(wrong, right):
            rollout.source, rollout.info["crpo"] = "purified", 1 - rate
            group.rollouts[place] = rollout

    def purified(self, prompt: Prompt, run: Run) -> Prompt:
        """The prompt without its interfering tokens."""
        at, part, text = asked(prompt)
        spans = spans_of(run.policy, prompt, text)
        with run.policy.reference() as reference:
            usual = prompt_logp(reference, prompt)
        apart = [abs(a - b) for a, b in zip(prompt_logp(run.policy, prompt), usual, strict=True)]
        worst = sorted(spans, key=lambda t: -apart[t])[: math.ceil(self.gamma * len(spans) - 1e-9)]
        return with_text(prompt, at, part, cut(text, [spans[t] for t in worst])) if worst else prompt
