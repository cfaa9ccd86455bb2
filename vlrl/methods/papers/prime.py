"""PRIME: an implicit process reward model, trained beside the policy on outcomes alone, rewards every token.

    prime          advantage: RLOO of the outcome plus RLOO of the token rewards, whitened
    prime.logp     aux tensor: log-probs of the implicit process reward model
    prime.model    callback: trains it on the outcomes

Paper: Cui et al. 2025 (PRIME), arXiv:2502.01456; released code: PRIME-RL/PRIME at 18ad596f,
training/verl/workers/actor/dp_prime.py and training/verl/trainer/ppo/core_algos.py.

Shapes: B rollouts, T completion tokens.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from vlrl.methods.core.advantage import GroupRelative, set_token_advantages, whiten_rows
from vlrl.methods.core.critic import CriticState, has_trained_tokens
from vlrl.methods.core.token_credit import check_token_credit
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import CallbackContext, PhaseContext, StageContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import TOKEN_ADVANTAGES, AuxTensor, Callback
from vlrl.plugins.views import PolicyView
from vlrl.services.lazy import Tensor, nn, torch
from vlrl.types import Group, Rollout, TokenBatch

PRIME_MODEL = Capability("prime.model", hint="callbacks: {prime: {name: prime.model}}")


def implicit_model(run: StageContext) -> Any:
    """The run's implicit process reward model: at first a copy of the policy's, made at the first call."""
    return run.shared("prime", lambda: copy.deepcopy(run.policy.model).requires_grad_(True))


@register("prime.logp")
@dataclass(frozen=True, kw_only=True)
class PrimeLogp(AuxTensor):
    """log pi_phi(y_t) of the implicit process reward model, in nats, without gradient.

    Paper: Cui et al. 2025 (PRIME), arXiv:2502.01456, eq. 3. Edge: zero outside the loss mask. Shapes:
    (B, T).
    """

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        implicit_model(run)

    def __call__(self, policy: PolicyView, batch: TokenBatch) -> Tensor:
        view: Any = policy
        with torch.no_grad():
            logp_BT: Tensor = view.with_model(implicit_model(self.run)).forward(batch)["logp"]
        return logp_BT


@register("prime")
@dataclass(frozen=True)
class Prime(GroupRelative):
    """PRIME's advantage: returns of the outcome and of the implicit process rewards, each against its own
    leave-one-out baseline, whitened over all tokens of the step.

        q_t = log pi_phi(y_t) - log pi_ref(y_t),  r_t = q_t / max |sum_{s >= t} q_s|
        A_i,t = c_o (o_i - mean_{j != i} o_j) + c_p sum_{s >= t} [ n r_i,s - sum_j mean_s r_j,s ] / (n - 1)

    The maximum is over all tokens of the step (there of each process); o is the rollout's reward.
    Paper: Cui et al. 2025 (PRIME), arXiv:2502.01456, eq. 5; division and whitening are the release's
    (core_algos.py:108-150, dp_prime.py:240), whose coefficients, both 5, reach its metrics alone. Edge: a
    rollout alone in its group has advantage 0 before whitening.
    """

    outcome: float = 5.0
    process: float = 5.0
    needs = ("prime.logp", "ref_logp")
    provides = (TOKEN_ADVANTAGES,)
    requires = (PRIME_MODEL,)

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        check_token_credit(phase, self.name)

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        rollouts = [rollout for group in groups for rollout in group]
        if not rollouts:
            return [[] for _ in groups]
        token_rewards = {id(rollout): log_ratios(rollout) for rollout in rollouts}
        largest = max(abs(value) for row in token_rewards.values() for value in returns_of(row) or [0.0])
        rows = []
        for group in groups:
            scaled = [[q / (largest + 1e-6) for q in token_rewards[id(rollout)]] for rollout in group]
            rows += self.returns(group, scaled)
        whiten_rows(rows, rollouts)
        return set_token_advantages(groups, rows)

    def returns(self, group: Group, token_rewards: Sequence[Sequence[float]]) -> list[list[float]]:
        """The returns of a group's rollouts per token, over their baselines."""
        n = len(group)
        if n < 2:
            return [[0.0] * len(rollout) for rollout in group]
        means = [
            math.fsum(row) / max(1, rollout.trained_tokens) for row, rollout in zip(token_rewards, group)
        ]
        found = []
        for rollout, row in zip(group, token_rewards, strict=True):
            outcome = (n * rollout.reward - math.fsum(group.rewards)) / (n - 1)
            centred = [
                (n * r - math.fsum(means)) / (n - 1) if trained else 0.0
                for r, trained in zip(row, rollout.trained_mask, strict=True)
            ]
            found.append([self.outcome * outcome + self.process * g for g in returns_of(centred)])
        return found


def log_ratios(rollout: Rollout) -> list[float]:
    """q_t of a rollout's tokens; 0 at those that are not trained on."""
    pairs = zip(rollout.signals["prime.logp"], rollout.signals["ref_logp"], strict=True)
    return [a - b if t else 0.0 for (a, b), t in zip(pairs, rollout.trained_mask, strict=True)]


def returns_of(row: Sequence[float]) -> list[float]:
    """Sums from each place to the end."""
    return list(accumulate(reversed(row)))[::-1]


@register("prime.model")
@dataclass(frozen=True)
class PrimeModel(Callback):
    """Trains PRIME's implicit process reward model after each step, on the step's rollouts:

        L = CE( sigma(beta sum_t q_t), o ),   o in [0, 1] the outcome, as graded

    `updates` updates on parts of the groups, AdamW without weight decay, gradients clipped at `clip`. The
    step's rewards are those from before them (`prime_model.update=after` of the released script, which takes
    those of a part after the updates on earlier parts).
    Paper: Cui et al. 2025 (PRIME), arXiv:2502.01456, eq. 4; run_prime_main.sh: beta 0.05, lr 1e-6, clip 10,
    256 of 1024 rollouts an update. Groups are whole: at most as many updates as groups.
    Memory: a second model of the policy's size with its optimizer. Logs the loss and the share of rollouts
    on the right side of 1/2.
    """

    state_class = CriticState
    beta: float = 0.05
    lr: float = 1e-6
    clip: float = 10.0
    updates: int = 1
    needs = ("ref_logp",)
    provides = (PRIME_MODEL,)

    def __post_init__(self) -> None:
        if self.updates < 1:
            raise ValueError(f"updates={self.updates} must be at least 1")

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if run.state_sharded or run.policy.has_adapter:
            raise ConfigError(
                "callbacks: 'prime.model' copies the whole policy, which adapters and sharded weights do not "
                "allow; train all weights, under DDP"
            )
        self.state.module = implicit_model(run)
        # training/verl/trainer/config/ppo_trainer.yaml:154: 0, where the policy has 0.01
        self.state.optimizer = torch.optim.AdamW(self.state.module.parameters(), lr=self.lr, weight_decay=0.0)

    def __call__(self, run: CallbackContext, groups: Sequence[Group]) -> dict[str, tuple[float, float]]:
        own = [
            Group(g.prompt, kept, g.id)
            for g in run.groups
            if (kept := [r for r in g if "ref_logp" in r.signals and has_trained_tokens(r)])
        ]
        model, total, right, count = self.state.module, 0.0, 0.0, 0
        updates = max(1, *run.gather([min(self.updates, len(own))]))
        for index in range(updates):
            self.state.optimizer.zero_grad()
            items = 0
            for part in run.micro_batches(own[index::updates]):
                batch = run.batch(part)
                loss, hits = self.loss(model, run.policy, batch)
                loss.backward()
                total, right, items = total + float(loss.detach()), right + hits, items + len(batch.rollouts)
            everywhere = max(sum(run.gather([items])), 1)
            for p in model.parameters():
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                p.grad = run.sum_tensor(p.grad) / everywhere
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)
            self.state.optimizer.step()
            count += items
        return {"loss": (total, float(count)), "accuracy": (right, float(count))}

    def loss(self, model: Any, policy: PolicyView, batch: TokenBatch) -> tuple[Tensor, float]:
        """The sum of the cross-entropy over rollouts, and how many are on the right side."""
        view: Any = policy
        logp_BT = view.with_model(model).forward(batch)["logp"]
        ref_BT = nn.utils.rnn.pad_sequence(
            [torch.tensor(r.signals["ref_logp"]) for r in batch.rollouts], batch_first=True
        ).to(logp_BT.device)
        mask_BT = (batch.loss_mask_BT & batch.mask_BT).to(logp_BT.device)
        score_B = self.beta * ((logp_BT - ref_BT) * mask_BT).sum(-1)
        target_B = torch.tensor([target_of(r) for r in batch.rollouts], device=logp_BT.device)
        loss = nn.functional.binary_cross_entropy_with_logits(score_B, target_B, reduction="sum")
        return loss, float(((score_B > 0) == (target_B > 0.5)).sum())


def target_of(rollout: Rollout) -> float:
    """The outcome that the model learns: its score, within [0, 1]; 1 or 0 for a rollout without one."""
    return min(max(float(rollout.correct if rollout.outcome is None else rollout.outcome), 0.0), 1.0)
