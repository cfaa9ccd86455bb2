"""ReMax: REINFORCE with the reward of the greedy completion as the baseline.

    remax.greedy_baseline   rollout strategy: adds the greedy completion of each prompt, scored and not
    trained on
    remax                   advantage: reward minus that of the greedy completion

Paper: Li et al. 2023 (ReMax), arXiv:2310.10505, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vlrl.functional import remax_advantages
from vlrl.methods.core.advantage import as_rows, reward_tensors, set_token_advantages
from vlrl.methods.core.reward_shaping import READS_TOKEN_REWARDS, TOKEN_REWARDS
from vlrl.methods.core.rollout import Independent
from vlrl.methods.core.token_credit import check_token_credit
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import PhaseContext, SamplingContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import TOKEN_ADVANTAGES, AdvantageEstimator
from vlrl.services.lazy import torch
from vlrl.types import Group, Prompt, Request

GREEDY_BASELINE = Capability("remax.greedy_baseline", hint="rollout: {name: remax.greedy_baseline}")
READS_GREEDY = Capability(
    "remax.reads_greedy", hint="advantage: {name: remax}"
)  # of plug-ins that read the greedy rollout


@register("remax.greedy_baseline")
@dataclass(frozen=True)
class RemaxGreedyBaseline(Independent):
    """ReMax's rollouts: y_1 .. y_n ~ pi(. | x), and the greedy completion y_0.

    y_0 (source "greedy") is scored like the others and is not trained on. Paper: Li et al. 2023 (ReMax),
    arXiv:2310.10505, algorithm 1. Edge: a prompt with count 0 gets no greedy completion either.
    """

    provides = (GREEDY_BASELINE,)

    def check(self, phase: PhaseContext) -> None:
        if not phase.has(READS_GREEDY):
            raise ConfigError(
                "rollout: 'remax.greedy_baseline' samples a greedy completion that no plug-in of this "
                "config reads; use advantage: {name: remax}, "
                "group_filters: {greedy: {name: self}}, or rollout: {name: independent}"
            )

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        sampled = [group for group in groups if len(group)]
        requests = []
        for place, group in enumerate(sampled):
            greedy = replace(run.sampling(group.prompt, 0), temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)
            requests.append(
                Request(
                    prompt=group.prompt, sampling=greedy, n=1, seed=self.seeds(run, group.prompt), tag=place
                )
            )
        for completion in run.engine.generate(requests):
            rollout = run.make_rollout(completion)
            rollout.source, rollout.trained = "greedy", False
            sampled[completion.request.tag].rollouts.append(rollout)
        return groups


@register("remax")
@dataclass(frozen=True)
class ReMax(AdvantageEstimator):
    """ReMax's advantage: A_i = r_i - r(greedy completion of the same prompt).

    With `gamma` below 1 or `token_rewards`, per token: A_t = sum_{s >= t} gamma^(s - t) r_s - r(greedy), with
    the reward at the last token and TOKEN_REWARDS (reward shaping `kl_token_reward`) at every one; for token
    credit `per_token`.
    Paper: Li et al. 2023, arXiv:2310.10505, eq. 5 and algorithm 1; rewards per token:
    compute_remax_outcome_advantage of verl-project/verl 1dda039b. Raises ValueError for a group without a
    greedy rollout.
    """

    gamma: float = 1.0
    token_rewards: bool = False

    @property
    def per_token(self) -> bool:
        """Whether the tokens of a rollout have advantages of their own."""
        return self.token_rewards or self.gamma != 1

    @property
    def provides(self) -> tuple[Capability, ...]:
        own = (READS_GREEDY, *((TOKEN_ADVANTAGES,) if self.per_token else ()))
        return (*own, READS_TOKEN_REWARDS) if self.token_rewards else own

    @property
    def requires(self) -> tuple[Capability, ...]:
        return (GREEDY_BASELINE, TOKEN_REWARDS) if self.token_rewards else (GREEDY_BASELINE,)

    def check(self, phase: PhaseContext) -> None:
        if self.per_token:
            check_token_credit(phase, self.name)

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        greedy = [self.baseline(group) for group in groups]
        if not self.per_token or not groups:
            return [
                [r - baseline for r in group.rewards] for group, baseline in zip(groups, greedy, strict=True)
            ]
        reward_BT, mask_BT = reward_tensors(groups, self.token_rewards)
        baseline_B = torch.tensor(
            [b for group, b in zip(groups, greedy, strict=True) for _ in group], dtype=torch.float64
        )
        return set_token_advantages(
            groups, as_rows(remax_advantages(reward_BT, baseline_B, mask_BT, gamma=self.gamma), groups)
        )

    def baseline(self, group: Group) -> float:
        """The reward of the group's greedy completion."""
        greedy = [rollout.reward for rollout in group.untrained if rollout.source == "greedy"]
        if not greedy:
            raise ValueError(
                f"row {group.row.id!r}: no greedy rollout in the group; use rollout: {{name: "
                f"remax.greedy_baseline}}"
            )
        return greedy[0]
