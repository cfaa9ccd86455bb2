"""RLFR: flow rewards: tokens whose states lie off the flow field of good responses are penalised.

    rlfr            reward shaping: the velocity deviation of each token as a small negative reward
    rlfr.returns    advantage: the group-normalised reward and the returns of the token rewards
    rlfr.flow       callback: trains the flow field on the states of correct rollouts

Paper: Zhang et al. 2025 (RLFR), arXiv:2510.10201; released code: Jinghaoleven/RLFR at 1589879.

Shapes: B rollouts, T completion tokens, H hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from vlrl.methods.common.flow_field import FlowField, decoder, states_of
from vlrl.methods.core.advantage import GRPO, set_token_advantages
from vlrl.methods.core.critic import CriticState, has_trained_tokens
from vlrl.methods.core.reward_shaping import READS_TOKEN_REWARDS, TOKEN_REWARDS
from vlrl.methods.core.token_credit import check_token_credit
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import CallbackContext, PhaseContext, StageContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import TOKEN_ADVANTAGES, Callback, RewardShaping, StepCounts
from vlrl.services.lazy import Tensor, nn, torch
from vlrl.types import Group

FLOW = Capability("rlfr.flow", hint="callbacks: {flow: {name: rlfr.flow}}")


@dataclass(frozen=True)
class Flow:
    """The run's flow field: the network, the layers whose states it reads, their number, its timesteps."""

    field: FlowField
    layers: tuple[int, ...]
    depth: int
    seed: int

    def deviations(self, run: StageContext, group: Group, times: Sequence[float], draw: int) -> Tensor:
        """(B, T) the deviation of each token's state, the mean over layers and timesteps, each times t / (1 -
        t); 0 for the last token, whose state no other token reads."""
        batch = run.batch([group])
        total_BT = torch.zeros(batch.ids_BT.shape, device=batch.ids_BT.device)
        for place, states_BTH in enumerate(states_of(run.policy, batch, self.layers)):
            size = states_BTH.shape[-1]
            x_NH, context_NH = states_BTH[:, 1:].reshape(-1, size), states_BTH[:, :-1].reshape(-1, size)
            for number, time in enumerate(times):
                generator = torch.Generator().manual_seed(
                    (self.seed * 1_000_003 + draw * 1009 + 31 * place + number) % 2**63
                )
                noise_NH = torch.randn(x_NH.shape, generator=generator).to(x_NH.device)
                t_N = torch.full((len(x_NH),), time, device=x_NH.device)
                depth = self.layers[place] / self.depth
                loss_N = self.field.deviation(x_NH, context_NH, t_N, depth, noise_NH)
                loss_BT = nn.functional.pad(loss_N.view(len(states_BTH), -1), (0, 1))
                total_BT = total_BT + loss_BT * time / (1 - time)
        scale = len(self.layers) * len(times)
        return total_BT / scale


def flow_of(run: StageContext, percentiles: Sequence[float] = (), blocks: int = 0) -> Flow:
    """The run's flow field. Raises ConfigError where no callback has made it."""

    def make() -> Flow:
        if not percentiles:
            raise ConfigError(f"reward_shaping: 'rlfr' needs a flow field; add {FLOW.hint}")
        count = len(decoder(run.policy.model).layers)
        layers = tuple(min(round(share * count), count - 1) for share in percentiles)
        size = run.policy.model.get_output_embeddings().weight.shape[-1]
        field = FlowField(size, blocks, run.seed, run.policy.device)
        return Flow(field, layers, count, run.seed)

    return run.shared("rlfr", make)


@register("rlfr")
@dataclass(frozen=True)
class Rlfr(RewardShaping):
    """RLFR's flow rewards: r_t = -coef s_t for the tokens that deviate most, as TOKEN_REWARDS.

        s = (d - min d) / (max d - min d) over the response,  0 where s <= `threshold`,  the `top` largest

    d is the velocity deviation at the timesteps `times`. Rewards of the rollouts stay. Paper: Zhang et al.
    2025 (RLFR), arXiv:2510.10201, sec. 3; released code: openrlhf/models/utils.py:70-130 (the minimum is the
    second smallest value there, since masked tokens are 0; here it is that of the tokens). Deviates: the last
    token has no deviation. Edge: a response whose deviations are equal has no flow reward. Logs the share of
    penalised tokens.
    """

    state_class = StepCounts
    coef: float = 0.01
    threshold: float = 0.6
    top: int = 15
    times: tuple[float, ...] = (0.8,)
    provides = (TOKEN_REWARDS,)
    requires = (FLOW, READS_TOKEN_REWARDS)

    def __post_init__(self) -> None:
        if not self.times or not all(0 < time < 1 for time in self.times):
            raise ValueError(f"times={self.times} must be between 0 and 1")

    def __call__(self, group: Group) -> list[float]:
        usable = [rollout for rollout in group if len(rollout) > 1]
        if usable:
            part = Group(group.prompt, usable, group.id)
            with torch.no_grad():
                deviation_BT = flow_of(self.run).deviations(self.run, part, self.times, self.run.step)
            for rollout, row_T in zip(usable, deviation_BT.cpu().tolist(), strict=True):
                values = self.penalties(row_T[: len(rollout) - 1], rollout.trained_mask)
                before = TOKEN_REWARDS.get(rollout, [0.0] * len(rollout))
                TOKEN_REWARDS.set(rollout, [a + b for a, b in zip(before, [*values, 0.0], strict=True)])
                self.state.add(tokens=len(rollout), penalised=sum(value != 0 for value in values))
        for rollout in group:
            if not TOKEN_REWARDS.on(rollout):
                TOKEN_REWARDS.set(rollout, [0.0] * len(rollout))
        return group.rewards

    def penalties(self, deviations: Sequence[float], mask: Sequence[bool]) -> list[float]:
        """The rewards of a response's tokens, from their deviations."""
        seen = [d for d, trained in zip(deviations, mask) if trained]
        low, width = min(seen, default=0.0), max(seen, default=0.0) - min(seen, default=0.0)
        if width <= 0:
            return [0.0] * len(deviations)
        scores = [(d - low) / width if trained else 0.0 for d, trained in zip(deviations, mask)]
        high = [place for place, score in enumerate(scores) if score > self.threshold]
        chosen = set(sorted(high, key=lambda place: -scores[place])[: self.top])
        return [-self.coef * score if place in chosen else 0.0 for place, score in enumerate(scores)]

    def metrics(self) -> Mapping[str, float | tuple[float, float]]:
        return {"rlfr/penalised": self.state.share("penalised", "tokens")}


@register("rlfr.returns")
@dataclass(frozen=True)
class RlfrReturns(GRPO):
    """RLFR's advantage, per token: A_i,t = GRPO's A_i + sum over s >= t of TOKEN_REWARDS.

    The token rewards are added after the group's normalisation. Paper: Zhang et al. 2025 (RLFR),
    arXiv:2510.10201, eq. of sec. 3.3; released code: experience_maker.py:283-309 (returns with gamma 1).
    Edge: tokens that are not trained on have no reward of their own.
    """

    provides = (TOKEN_ADVANTAGES, READS_TOKEN_REWARDS)
    requires = (TOKEN_REWARDS,)

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        check_token_credit(phase, self.name)

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        rows = []
        for group, advantages in zip(groups, super().__call__(groups), strict=True):
            for rollout, advantage in zip(group, advantages, strict=True):
                own = [r if t else 0.0 for r, t in zip(TOKEN_REWARDS[rollout], rollout.trained_mask)]
                rows.append([advantage + left for left in list(accumulate(reversed(own)))[::-1]])
        return set_token_advantages(groups, rows)


@register("rlfr.flow")
@dataclass(frozen=True)
class RlfrFlow(Callback):
    """Trains RLFR's flow field after each step on the states of the step's correct rollouts, demonstrations
    among them:

        L = mean over tokens, layers and timesteps of |f(x_t, t, c, l) - (x - e)|^2

    x is a token's state at a layer, c the state before it, e noise. `percentiles` are the layers by depth.
    The field stays from phase to phase, so that a phase with rollout `expert` is the offline start. AdamW
    without weight decay. Paper: Zhang et al. 2025 (RLFR), arXiv:2510.10201, sec. 3.2; released code:
    openrlhf/models/actor_flow.py:105-155, trainer/ppo_trainer.py:488-520 (correct rollouts, the rewarding
    timesteps), config/flow_config_7B.json. Edge: a step without correct rollouts leaves it as it is. Logs
    the loss.
    """

    state_class = CriticState
    percentiles: tuple[float, ...] = (0.25, 0.5, 0.75)
    blocks: int = 6
    times: tuple[float, ...] = (0.8,)
    lr: float = 1e-4
    clip: float = 1.0
    provides = (FLOW,)

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if run.params_sharded:
            raise ConfigError("callbacks: 'rlfr.flow' reads states of inner layers, which need whole weights")
        self.state.module = flow_of(run, self.percentiles, self.blocks).field.net
        self.state.optimizer = torch.optim.AdamW(self.state.module.parameters(), lr=self.lr, weight_decay=0.0)

    def __call__(self, run: CallbackContext, groups: Sequence[Group]) -> dict[str, tuple[float, float]]:
        own = [
            Group(group.prompt, kept, group.id)
            for group in run.groups
            if (kept := [r for r in group if r.correct and len(r) > 1 and has_trained_tokens(r)])
        ]
        tokens = sum(len(rollout) - 1 for group in own for rollout in group)
        everywhere, total = sum(run.gather([tokens])), 0.0
        if everywhere:
            module: Any = self.state.module
            flow = flow_of(run)
            self.state.optimizer.zero_grad()
            weight = sum(time / (1 - time) for time in self.times) / len(self.times)
            for number, group in enumerate(own):
                deviation_BT = (
                    flow.deviations(run, group, self.times, run.step + 7919 * (number + 1)) / weight
                )
                lengths = torch.tensor([len(r) - 1 for r in group], device=deviation_BT.device)
                places = torch.arange(deviation_BT.shape[1], device=deviation_BT.device)
                loss = (deviation_BT * (places < lengths[:, None])).sum()
                loss.backward()
                total += float(loss.detach())
            for p in module.parameters():
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                p.grad = run.sum_tensor(p.grad) / everywhere
            nn.utils.clip_grad_norm_(module.parameters(), self.clip)
            self.state.optimizer.step()
        return {"loss": (total, float(tokens))}
