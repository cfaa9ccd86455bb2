"""ReTool: a cold start on conversations with code, then reinforcement whose wrong answers gain by the number of calls.

    retool.expert_turns   rollout strategy: demonstrated turns, played with the environment, for the cold start
    retool.call_bonus     reward shaping: outcome of +1 or -1, with a bonus for calls

Paper: Feng et al. 2025 (ReTool), arXiv:2504.11536 (outcome reward +1 or -1 alone). The bonus is that of its reproductions: THUDM/slime at 624b824a,
examples/retool/generate_with_retool.py (reward_func), which adapts recipe/retool/retool.py of volcengine/verl at cb809d66.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from vlrl.capabilities import NO_POLICY_GRADIENT
from vlrl.context import RunContext
from vlrl.methods.common.conversation import CALLS
from vlrl.methods.core.rollout import MultiTurn
from vlrl.registry import ConfigError, register
from vlrl.stages import RewardShaping
from vlrl.types import Completion, Group, Prompt, Request, Rollout


@register("retool.call_bonus")
@dataclass(frozen=True)
class RetoolCallBonus(RewardShaping):
    """ReTool's outcome reward with a bonus for calls: +1 if correct, else min(cap, -1 + slope (calls - 2) / 2).

    Calls are those that were answered, errors included. Other rewards are replaced. `cap` keeps every wrong answer below a right one however many
    calls it makes. Source: THUDM/slime at 624b824a, examples/retool/generate_with_retool.py, reward_func (cap -0.6, slope 0.1).
    Edge: a wrong answer without calls gets -1 - slope. Units: reward.
    """

    slope: float = 0.1
    cap: float = -0.6
    requires = (CALLS,)

    def __post_init__(self) -> None:
        if not -1 <= self.cap < 1 or self.slope < 0:
            raise ValueError(f"cap={self.cap} must be in [-1, 1) and slope={self.slope} must not be negative")

    def __call__(self, group: Group) -> list[float]:
        return [self.reward(rollout) for rollout in group]

    def reward(self, rollout: Rollout) -> float:
        """The reward of one rollout."""
        return 1.0 if rollout.correct else min(self.cap, -1.0 + self.slope * (CALLS[rollout] - 2) / 2)


@register("retool.expert_turns")
@dataclass(frozen=True)
class RetoolExpertTurns(MultiTurn):
    """Supervised conversations with tools: the turns of `row.meta["turns"]` in place of samples, answered by the environment itself.

    One rollout per prompt, source "expert", for the loss term `nll` with policy_loss `zero_loss`. Each turn ends with EOS. What the environment says
    carries no loss, as in `multi_turn`, and is what it says in training later on. The engine is not used.
    Paper: Feng et al. 2025 (ReTool), arXiv:2504.11536, sec. 2.2 (cold start on traces with code and its results). Edge: a row without turns raises
    ValueError; turns behind the one that ends the episode are left out; one that ends with a call gets an empty last turn.
    Units: log-probs are 0 (the expert is taken as certain).
    """

    samples: ClassVar[bool] = False

    def check(self, run: RunContext) -> None:
        super().check(run)
        if not run.has(NO_POLICY_GRADIENT):
            raise ConfigError(
                f"rollout: {self.name!r} gives demonstrations; use policy_loss: {{name: zero_loss}} and loss_terms: {{nll: {{name: nll}}}}"
            )

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        for prompt in prompts:
            if not prompt.row.meta.get("turns"):
                raise ValueError(f"row {prompt.row.id!r} has no meta['turns'], the list of the demonstrated turns, which rollout {self.name!r} needs")
        groups = super().__call__(prompts, [1] * len(prompts), run)
        for rollout in (rollout for group in groups for rollout in group):
            rollout.source = "expert"
        return groups

    def turns(self, requests: Sequence[Request], run: RunContext) -> Iterable[Completion]:
        for request in requests:
            demonstrated = list(request.prompt.row.meta["turns"])
            text = demonstrated[request.tag.turns] if request.tag.turns < len(demonstrated) else ""
            ids = [*request.prefix_ids, *run.policy.encode_text(text), run.policy.tokenizer.eos_token_id]
            yield Completion(request, 0, ids, [0.0] * len(ids), text, "stop", run.policy.version)
