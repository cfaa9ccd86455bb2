"""How open the policy is where it turns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlrl.registry import ConfigError, register
from vlrl.stages import Callback
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("skywork_r1v3")
@dataclass(frozen=True)
class SkyworkR1v3(Callback):
    """The mean entropy (nats) of the tokens that open a turn of thought (`words` at their beginning), and their share of all tokens.

    Paper: Skywork R1V3, arXiv:2507.06167: the entropy of critical reasoning tokens tells reasoning from imitation, and picks checkpoints.
    Deviates: the list of words is ours. A token counts if its text, without spaces before it, begins with a word, in any case.
    Edge: no such token in a step: no entropy. The entropies are those of the policy that the step began with.
    """

    words: tuple[str, ...] = ("wait", "alternatively", "however", "but", "hmm", "actually", "let me")
    needs = ("entropy",)
    known: dict[int, bool] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.words or not all(word.strip() for word in self.words):
            raise ConfigError(f"words: {self.words!r} must name at least one word, none of them empty")

    def critical(self, token: int, policy: Any) -> bool:
        """Whether a token opens a turn."""
        if token not in self.known:
            first = "|".join(re.escape(word.split()[0]) for word in self.words)
            self.known[token] = re.match(rf"\s*(?:{first})\b", policy.tokenizer.decode([token]), re.IGNORECASE) is not None
        return self.known[token]

    def __call__(self, run: RunContext, groups: Sequence[Group]) -> dict[str, tuple[float, float]]:  # type: ignore[override]
        tokens, entropies = 0, []
        for group in run.groups:
            for rollout in group:
                tokens += len(rollout)
                entropies += [h for token, h in zip(rollout.ids, rollout.signals.get("entropy", ())) if self.critical(token, run.policy)]
        found = float(len(entropies))
        return {"share": (found, max(tokens, 1.0))} | ({"entropy": (sum(entropies), found)} if entropies else {})
