"""Skywork R1V3: the entropy of critical reasoning tokens, a measure that tells reasoning from imitation and
picks checkpoints.

`skywork_r1v3` is a callback. Paper: Skywork R1V3, arXiv:2507.06167.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.plugins.contexts import CallbackContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Callback, State, transient
from vlrl.plugins.views import PolicyView
from vlrl.types import Group


@dataclass
class SkyworkR1v3State(State):
    """Whether a token id is critical, for the ids that occurred so far."""

    critical: dict[int, bool] = transient(factory=dict)


@register("skywork_r1v3")
@dataclass(frozen=True)
class SkyworkR1v3(Callback):
    """Skywork R1V3's critical-token entropy: the mean entropy (nats) of the tokens that begin with one of
    `words`, and their share of all tokens.

    Paper: Skywork R1V3, arXiv:2507.06167: the entropy of critical reasoning tokens tells reasoning from
    imitation, and picks checkpoints. Deviates: the list of words is ours. A token counts if its text, without
    leading spaces, begins with the first word of an entry, in any case. Edge: no such token in a step: no
    entropy. The entropies are those of the policy that the step began with.
    """

    state_class = SkyworkR1v3State
    words: tuple[str, ...] = ("wait", "alternatively", "however", "but", "hmm", "actually", "let me")
    needs = ("entropy",)

    def __post_init__(self) -> None:
        if not self.words or not all(word.strip() for word in self.words):
            raise ConfigError(f"words: {self.words!r} must name at least one word, none of them empty")

    def is_critical(self, token: int, policy: PolicyView) -> bool:
        """Whether a token's text begins with one of the words."""
        known = self.state.critical
        if token not in known:
            words = "|".join(re.escape(word.split()[0]) for word in self.words)
            known[token] = (
                re.match(rf"\s*(?:{words})\b", policy.tokenizer.decode([token]), re.IGNORECASE) is not None
            )
        return known[token]

    def __call__(self, run: CallbackContext, groups: Sequence[Group]) -> dict[str, Any]:
        tokens, entropies = 0, []
        for group in run.groups:
            for rollout in group:
                tokens += rollout.trained_tokens
                for token, trained, h in zip(
                    rollout.ids, rollout.trained_mask, rollout.signals.get("entropy", ())
                ):
                    if trained and self.is_critical(token, run.policy):
                        entropies.append(h)
        count = float(len(entropies))
        return {"share": (count, max(tokens, 1.0))} | (
            {"entropy": (sum(entropies), count)} if entropies else {}
        )
