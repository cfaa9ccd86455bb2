"""Off-policy adversarial imitation whose reward is kept locally Lipschitz-continuous.

    lipschitz_off_policy_gail    reward shaping: pays each turn by a discriminator of the expert's turns

Paper: Blondé, Strasser and Kalousis 2020, "Lipschitzness Is All You Need To Tame Off-policy Generative
Adversarial Imitation Learning", arXiv:2006.16785; checked against lionelblonde/liayn-pytorch at 5c8a31e9:
agents/sam_agent.py, tasks/train_mujoco_sam.yaml.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vlrl.environments.recorded import read_trajectories
from vlrl.methods.common.text_scorer import features_of, text_scorer
from vlrl.methods.common.turn_pay import add_pay, decisions, decisions_of
from vlrl.methods.core.turn_advantage import episodes_of
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import PhaseContext, StageContext, StepContext
from vlrl.plugins.episodes import (
    ACTIONS,
    DESCRIBED_STATES,
    END_STATE,
    TURN_REWARDS,
    TURN_STATES,
    Action,
    Observation,
)
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import RewardShaping, State, StepCounts, transient
from vlrl.services.lazy import nn, torch
from vlrl.types import Group, Row

if TYPE_CHECKING:
    from torch import Tensor

MAX_TURNS = 200  # of an expert's episode


@dataclass
class GAILState(State):
    """`memory` are turns of the policy, the newest last; `weights` and `moments` the discriminator's and its
    optimizer's; `drawn` counts updates."""

    memory: list[str] = field(default_factory=list)
    weights: dict[str, Any] = field(default_factory=dict)
    moments: dict[str, Any] = field(default_factory=dict)
    drawn: int = 0
    expert: list[str] = transient(factory=list)
    scorer: Any = transient()
    optimizer: Any = transient()
    step: StepCounts = transient(factory=StepCounts)

    def state_dict(self) -> dict[str, Any]:
        if self.scorer is not None:
            self.weights = dict(self.scorer.state_dict())
            self.moments = {str(k): dict(v) for k, v in self.optimizer.state_dict()["state"].items()}
        return super().state_dict()

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        super().load_state_dict(values)
        self.restore()

    def restore(self) -> None:
        """Put saved weights into the discriminator."""
        if self.scorer is not None and self.weights:
            self.scorer.load_state_dict(self.weights)
            moments = {int(k): v for k, v in self.moments.items()}
            self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})


@register("lipschitz_off_policy_gail")
@dataclass(frozen=True)
class LipschitzOffPolicyGAIL(RewardShaping):
    """The reward of adversarial imitation, r_k = -log(1 - sigma(D(s_k, a_k))), by a discriminator that is
    kept locally Lipschitz:

        L = CE(D; expert 1, policy 0) - entropy H(sigma(D)) + scale E max(0, |grad_x D(x)| - target)^2

    x lies between a turn of the expert and one of the policy. Paper: arXiv:2006.16785, sec. 5 and 6; numbers
    of the release. Deviates: x are hashed words of state and action, where it has vectors. Logs both sides of
    D, the penalty, the mean pay.

    Attributes:
        expert: A trajectories.jsonl of `environment.record`; "": the environment's own expert plays the
            first `episodes` rows.
        share: How much of the environment's pay stays.
        pessimistic: Multiplies a turn's pay by exp(-max(0, |grad D| - target)^2) at that turn (the paper's
            reward preconditioning).
        smooth: Labels of the expert are uniform in this range.
        memory: Turns of the policy that updates draw from, so that the discriminator learns off-policy.
    """

    state_class = GAILState
    expert: str = ""
    episodes: int = 16
    share: float = 0.0
    scale: float = 10.0
    target: float = 1.0
    pessimistic: bool = False
    entropy: float = 0.001
    smooth: tuple[float, float] = (0.7, 1.2)
    lr: float = 5e-4
    updates: int = 10
    batch: int = 64
    memory: int = 100_000
    features: int = 512
    width: int = 64
    requires: ClassVar[tuple[Capability, ...]] = (
        *(TURN_REWARDS, TURN_STATES, END_STATE, ACTIONS),
        DESCRIBED_STATES,
    )

    def __post_init__(self) -> None:
        if min(self.episodes, self.updates, self.batch, self.memory) < 1:
            raise ValueError(
                f"episodes={self.episodes}, updates={self.updates}, batch={self.batch} and "
                f"memory={self.memory} must be at least 1"
            )

    def check(self, phase: PhaseContext) -> None:
        if self.expert and not Path(self.expert).expanduser().is_file():
            raise ConfigError(f"reward_shaping: {self.name!r}: expert={self.expert!r} is no file")

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if run.ranks > 1:
            raise ConfigError(
                f"reward_shaping: {self.name!r} trains one discriminator, and {run.ranks} processes would "
                "each train their own; train in one process"
            )
        state = self.state
        state.expert = self.recorded() if self.expert else self.played(run)
        if not state.expert:
            raise ConfigError(
                f"reward_shaping: {self.name!r} imitates an expert, and there is none: set `expert` to a "
                "trajectories.jsonl (environment.record writes one), or environment.expert_depth"
            )
        state.scorer = text_scorer(self.features, self.width, run.seed)
        state.optimizer = torch.optim.Adam(state.scorer.parameters(), lr=self.lr)
        state.restore()

    # --- the expert -----------------------------------------------------------------------------------------

    def recorded(self) -> list[str]:
        """The turns of the recorded episodes. Raises ConfigError for a line that is no trajectory."""
        found = []
        for trajectory in read_trajectories(self.expert, f"reward_shaping: {self.name!r}: expert"):
            found += turns_of(trajectory.opening, trajectory.steps)
        return found

    def played(self, run: StageContext) -> list[str]:
        """The turns of the environment's expert on the first `episodes` training rows."""
        rows = [row for rows in run.rows.values() for row in rows[: self.episodes]][: self.episodes]
        environment: Any = run.environment
        return [turn for row in rows for turn in expert_turns(environment, row, run.seed)]

    # --- paying ---------------------------------------------------------------------------------------------

    def __call__(self, group: Group) -> list[float]:
        state, pays = self.state, []
        for episode in episodes_of(group):
            turns = decisions_of(episode[-1])
            state.memory += turns
            pays.append(self.pay(turns))
        del state.memory[: -self.memory]
        state.step.add(paid=sum(map(sum, pays)), turns=sum(map(len, pays)))
        return add_pay(group, pays, self.share)

    def pay(self, turns: Sequence[str]) -> list[float]:
        """r of each turn."""
        if not turns:
            return []
        x = features_of(turns, self.features)
        score = self.state.scorer(x).detach()
        reward = nn.functional.softplus(score)  # -log(1 - sigma(D))
        if self.pessimistic:
            reward = reward * torch.exp(-self.excess(x).detach())
        return reward.tolist()

    def excess(self, x_NF: Tensor) -> Tensor:
        """max(0, |grad D| - target)^2 at each x, with gradient into D."""
        x_NF = x_NF.clone().requires_grad_(True)
        with torch.enable_grad():
            score = self.state.scorer(x_NF).sum()
            (slope,) = torch.autograd.grad(score, x_NF, create_graph=True)
        return (slope.norm(dim=-1) - self.target).clamp(min=0.0) ** 2

    # --- learning -------------------------------------------------------------------------------------------

    def end_step(self, run: StepContext) -> None:
        super().end_step(run)
        state = self.state
        for _ in range(self.updates if state.memory else 0):
            rng = random.Random(f"{run.seed} {state.drawn}")
            state.drawn += 1
            expert, policy = (rng.choices(turns, k=self.batch) for turns in (state.expert, state.memory))
            loss = self.loss(expert, policy, state.drawn)
            state.optimizer.zero_grad()
            loss.backward()
            state.optimizer.step()
        state.step.roll()

    def loss(self, expert: Sequence[str], policy: Sequence[str], seed: int) -> Tensor:
        """L on as many turns of each side."""
        draw = torch.Generator().manual_seed(seed)
        with torch.enable_grad():
            x_e, x_p = features_of(expert, self.features), features_of(policy, self.features)
            d_e, d_p = self.state.scorer(x_e), self.state.scorer(x_p)
            low, high = self.smooth
            real = low + (high - low) * torch.rand(len(d_e), generator=draw)
            entropy_of = nn.functional.binary_cross_entropy_with_logits
            told = entropy_of(d_e, real) + entropy_of(d_p, torch.zeros_like(d_p))
            both = torch.cat([d_p, d_e])
            mix = torch.rand(len(x_e), 1, generator=draw)
            steep = self.excess(mix * x_p + (1 - mix) * x_e).mean()
            self.state.step.add(
                expert=float(d_e.detach().mean()),
                policy=float(d_p.detach().mean()),
                steep=float(steep.detach()),
                updates=1,
            )
            return told - self.entropy * entropy_of(both, torch.sigmoid(both)) + self.scale * steep

    def metrics(self) -> dict[str, float | tuple[float, float]]:
        step = self.state.step
        if not step.logged:
            return {}
        named = {f"gail/{name}": step.share(name, "updates") for name in ("expert", "policy", "steep")}
        return {"gail/pay": step.share("paid", "turns"), **named}


def turns_of(opening: Observation, steps: Sequence[tuple[str, Observation]]) -> list[str]:
    """The turns of a recorded episode, as texts."""
    states = [opening.state_key, *(observation.state_key for _, observation in steps)]
    return decisions(states, [text for text, _ in steps])


def expert_turns(environment: Any, row: Row, seed: int) -> list[str]:
    """The turns of an environment's expert on a row, as texts; [] without an expert."""
    episode = environment.episode()
    try:
        opening = episode.reset(row, seed)
        steps: list[tuple[str, Observation]] = []
        while len(steps) < MAX_TURNS and not (steps and steps[-1][1].done):
            view = Action("", turn=len(steps) + 1)
            if (text := episode.expert(view)) is None:
                break
            steps.append((text, episode.step(Action(text, turn=len(steps) + 1))))
        return turns_of(opening, steps)
    finally:
        episode.close()
