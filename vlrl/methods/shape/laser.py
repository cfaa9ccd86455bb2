"""One more token behind every finished answer, whose probability says what the policy thinks of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlrl.registry import ConfigError, register
from vlrl.stages import Shape
from vlrl.types import Group, Rollout

if TYPE_CHECKING:
    from vlrl.run import Run


@register("last_token")
@dataclass(frozen=True)
class LastToken(Shape):
    """Rewards stay. Every finished rollout y gets the token z behind it: term and advantage `laser` read log pi(z | x, y) there.

    `rollout.info["self_reward_at"]` is its place; it is taken at temperature 1, and its advantage is 0 (advantage `laser`). `token`: one that the
    tokenizer knows as a single, special one and that no answer uses.
    Paper: Yang et al. 2025 (LaSeR), arXiv:2510.14943 (last-token self-rewarding); released script: <|vision_start|> of Qwen's. Edge: truncated
    rollouts get none. Put it last: lengths, and the tokens that a loss is a mean of, grow by one.
    """

    token: str = "<|vision_start|>"
    held: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def setup(self, run: Run) -> None:
        self.held["run"] = run

    def token_id(self) -> int:
        """The id of z. Raises ConfigError for a text that is not one token, or that ends answers."""
        tokenizer = self.held["run"].policy.tokenizer
        ids = tokenizer.encode(self.token, add_special_tokens=False)
        if len(ids) != 1 or ids[0] in (tokenizer.eos_token_id, tokenizer.pad_token_id):
            known = ", ".join(tokenizer.all_special_tokens)
            raise ConfigError(f"shape.last_token.token: {self.token!r} is not one unused token of this tokenizer; special ones: {known}")
        return ids[0]

    def __call__(self, group: Group) -> list[float]:
        token = self.token_id()
        for rollout in group:
            if not rollout.truncated and "self_reward_at" not in rollout.info:
                self.append(rollout, token)
        return group.rewards

    def append(self, rollout: Rollout, token: int) -> None:
        """z behind y; what was computed per token before is dropped."""
        n = len(rollout)
        temperature = rollout.temperature if isinstance(rollout.temperature, list) else [float(rollout.temperature)] * n
        rollout.info["self_reward_at"] = n
        rollout.loss_mask = [*(rollout.loss_mask or [True] * n), True]
        rollout.ids, rollout.temperature = [*rollout.ids, token], [*temperature, 1.0]
        rollout.logp = [*rollout.logp, 0.0] if rollout.logp else []
        rollout.signals.clear()
