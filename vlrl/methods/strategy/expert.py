"""Demonstrations in place of samples: the cold start's strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vlrl.methods.advantage.grpo import GroupRelative
from vlrl.registry import ConfigError, register
from vlrl.stages import Strategy
from vlrl.types import Group, Prompt, Rollout

if TYPE_CHECKING:
    from vlrl.run import Run


@register("expert")
@dataclass(frozen=True)
class Expert(Strategy):
    """y = tokens(row.target) + EOS, one rollout per prompt with source "expert"; no engine is asked.

    vlrl original (supervised fine-tuning as a strategy, with the loss `nll`). Edge: a prompt's `prefix` that opens the target is not repeated
    in the completion; a row without a target raises ValueError. `max_tokens` 0 keeps all; a longer target is refused, never cut.
    Units: `max_tokens` in tokens; log-probs of the sampler are 0 (the expert is taken as certain).
    """

    samples: ClassVar[bool] = False
    max_tokens: int = 0

    def check(self, run: Run) -> None:
        if run.objective.surrogate.name != "none" and isinstance(run.advantage, GroupRelative):
            raise ConfigError(
                f"strategy {self.name} gives one demonstration per prompt, which advantage {run.advantage.name!r} has nothing to compare with; "
                "use surrogate: {name: none} and terms: {nll: {name: nll}}"
            )

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: Run) -> list[Group]:
        return [Group(prompt=prompt, rollouts=[self.demonstrate(prompt, run)]) for prompt in prompts]

    def demonstrate(self, prompt: Prompt, run: Run) -> Rollout:
        """The rollout of a row's `target`. Raises ValueError where there is none or it is too long."""
        target = prompt.row.target
        if not target:
            raise ValueError(
                f"row {prompt.row.id!r} has no `target`: strategy 'expert' needs demonstrations; use strategy 'independent' for this data"
            )
        rollout = written(prompt, target, run)
        if self.max_tokens and len(rollout) > self.max_tokens:
            raise ValueError(
                f"row {prompt.row.id!r}: its target has {len(rollout)} tokens, strategy.max_tokens is {self.max_tokens}; raise it or drop the row"
            )
        rollout.logp = [0.0] * len(rollout)
        return rollout


def written(prompt: Prompt, text: str, run: Run) -> Rollout:
    """A text that somebody else wrote, and EOS, as a rollout of source "expert" without log-probs of its writer."""
    text = text.removeprefix(prompt.prefix)
    tokenizer = run.policy.tokenizer
    return Rollout(
        prompt=prompt, ids=[*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id], text=prompt.prefix + text, source="expert",
        spaces=tuple(run.policy.spaces(prompt)), version=getattr(run.policy, "version", 0),
    )  # fmt: skip
