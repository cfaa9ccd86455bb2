"""Kimi k1.5: a policy loss from online mirror descent, a length reward that prefers shorter correct rollouts,
and partial rollouts.

Paper: Kimi Team 2025 (k1.5), arXiv:2501.12599. Curriculum and prioritised sampling are prompt samplers of
their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vlrl.functional import kimi_length_reward, mirror_descent_loss
from vlrl.methods.common.schedule import check_begins, steps_of
from vlrl.methods.core.policy_loss import SequencePolicyLoss
from vlrl.methods.core.reward_shaping import check_single_length_penalty
from vlrl.methods.core.rollout import SampledStrategy
from vlrl.plugins.contexts import PhaseContext, SamplingContext, StageContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import RewardShaping, State, transient
from vlrl.services.lazy import torch
from vlrl.types import Completion, Group, LossInputs, Prompt, Request, Rollout, UnreducedLoss


@register("kimi_k1_5.length_reward")
@dataclass(frozen=True)
class KimiK15LengthReward(RewardShaping):
    """Kimi k1.5's length reward: r + factor * l,  l = 0.5 - (n - min n) / (max n - min n); a wrong rollout
    gets min(0, l).

    n is the number of sampled tokens; min and max are over the group. The reward is unchanged in the first
    `warmup` steps of the phase (below 1: a share of the phase's steps).
    Paper: Kimi Team 2025 (k1.5), arXiv:2501.12599, sec. 2.3.3.  Edge: in a group of equal lengths nothing
    changes.
    """

    factor: float = 1.0
    warmup: float = 0
    punishes_length = True

    def check(self, phase: PhaseContext) -> None:
        check_begins(phase, f"reward_shaping: {self.name!r} warmup", self.warmup)
        check_single_length_penalty(phase)

    def __call__(self, group: Group) -> list[float]:
        if self.warmup and self.run.phase_step < steps_of(self.warmup, self.run):
            return group.rewards
        length_B, correct_B = (
            torch.tensor([rollout.sampled_tokens for rollout in group]),
            torch.tensor([rollout.correct for rollout in group]),
        )
        bonuses = kimi_length_reward(length_B, correct_B, torch.zeros_like(length_B)).tolist()
        return [r + self.factor * bonus for r, bonus in zip(group.rewards, bonuses, strict=True)]


@register("kimi_k1_5")
@dataclass(frozen=True)
class KimiK15(SequencePolicyLoss):
    """Kimi k1.5's mirror descent loss: L_i = -A_i log pi(y_i) + tau / 2 * (log pi(y_i) - log pi_old(y_i))^2,
    A_i = r_i - mean r.

    Log-probs are sums over the rollout, in nats; tau is per nat squared. The loss is per sequence.
    Paper: Kimi Team 2025 (k1.5), arXiv:2501.12599, eq. 3: its gradient.  The reference is the policy at the
    start of the step. Use advantage grpo with scale "none".
    """

    tau: float = 0.1

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        return mirror_descent_loss(x.logp_BT, x.old_logp_BT, x.advantage_BT, x.mask_BT, self.tau)


@dataclass
class PartialRolloutState(State):
    """`groups` are the unfinished groups, oldest first: {"row", "prompt" (key), "rollouts"}; see
    `KimiK15PartialRollout`."""

    groups: list[dict[str, Any]] = field(default_factory=list)
    prompts: dict[str, Prompt] = transient(factory=dict)  # of `groups`, by key; made again after a restart
    logged: dict[str, float] = transient(factory=dict)


@register("kimi_k1_5.partial_rollout")
@dataclass(frozen=True)
class KimiK15PartialRollout(SampledStrategy):
    """Partial rollouts: a rollout samples at most `segment` tokens per step, and is continued in the next
    step, under its weights, where it ended.

    A group is trained on in the step in which its last rollout ends. Tokens keep the log-probs and the policy
    version that they were sampled with; `token_weights: {engine: {name: tis}}` corrects for older ones. With
    unchanged weights the samples are those of whole rollouts. Paper: Kimi Team 2025 (k1.5), arXiv:2501.12599,
    sec. 2.6.2. Deviates: repetitions do not end a rollout early. Edge: a step in which no group is complete
    learns nothing; `max_refill_rounds` above 1 samples more in the same step. State: unfinished groups; those
    whose prompt differs after a restart are dropped with a warning.

    Attributes:
        segment: Tokens per step and rollout.
        mask_earlier: Leaves earlier segments out of the loss (only the present one is on-policy data).
    """

    state_class = PartialRolloutState
    segment: int = 1024
    mask_earlier: bool = False

    def __post_init__(self) -> None:
        if self.segment < 1:
            raise ValueError(f"segment is {self.segment}; it must be positive (tokens)")

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        state = self.state
        self._recall_prompts(run)
        for prompt, count in zip(prompts, counts, strict=True):
            rollouts = [
                {
                    "attempt": a,
                    "seed": self.seeds(run, prompt),
                    "ids": [],
                    "logp": [],
                    "version": [],
                    "finish": "",
                }
                for a in range(count)
            ]
            state.groups.append({"row": prompt.row.id, "prompt": prompt.key, "rollouts": rollouts})
            state.prompts[prompt.key] = prompt
        unfinished = [
            (group, rollout)
            for group in state.groups
            for rollout in group["rollouts"]
            if not rollout["finish"]
        ]
        requests = [
            self._request(run, state.prompts[group["prompt"]], rollout) for group, rollout in unfinished
        ]
        for completion in run.engine.generate(requests):
            self._extend(run, completion)
        ended = [group for group in state.groups if all(rollout["finish"] for rollout in group["rollouts"])]
        out = [
            Group(prompt, [self._rollout(run, prompt, r) for r in g["rollouts"]])
            for g in ended
            for prompt in [state.prompts[g["prompt"]]]
        ]
        state.groups = [
            group for group in state.groups if not all(rollout["finish"] for rollout in group["rollouts"])
        ]
        state.prompts = {
            key: prompt
            for key, prompt in state.prompts.items()
            if any(group["prompt"] == key for group in state.groups)
        }
        continued = sum(
            bool(rollout["ids"]) and len(set(rollout["version"])) > 1
            for group in ended
            for rollout in group["rollouts"]
        )
        state.logged = {"partial/groups": float(len(state.groups)), "partial/continued": float(continued)}
        return out

    def _request(self, run: StageContext, prompt: Prompt, rollout: Any) -> Request:
        sampling = run.sampling(prompt, rollout["attempt"])
        limit = min(sampling.max_tokens, len(rollout["ids"]) + self.segment)
        given = tuple(rollout["ids"])
        return Request(
            prompt,
            replace(sampling, max_tokens=limit),
            1,
            rollout["seed"],
            given,
            (rollout, sampling.max_tokens),
            score_prefix=False,
        )

    @staticmethod
    def _extend(run: StageContext, completion: Completion) -> None:
        """Add a segment to its rollout. Given tokens keep what they were sampled with."""
        rollout, limit = completion.request.tag
        known, ids = len(rollout["ids"]), list(completion.ids)
        versions = (
            completion.version if isinstance(completion.version, list) else [completion.version] * len(ids)
        )
        rollout["logp"] += completion.logp[known:]
        rollout["version"] += versions[known:]
        rollout["ids"] = ids
        if completion.finish != "length" or len(ids) >= limit:
            rollout["finish"] = completion.finish

    def _rollout(self, run: SamplingContext, prompt: Prompt, rollout: Mapping[str, Any]) -> Rollout:
        """The finished rollout."""
        versions = rollout["version"]
        version = versions if len(set(versions)) > 1 else (versions or [run.policy.version])[-1]
        request = Request(prompt, run.sampling(prompt, rollout["attempt"]))
        text = run.policy.decode(rollout["ids"])
        made = run.make_rollout(
            Completion(
                request, 0, list(rollout["ids"]), list(rollout["logp"]), text, rollout["finish"], version
            )
        )
        if self.mask_earlier:
            made.loss_mask = [value == run.policy.version for value in versions]
        return made

    def _recall_prompts(self, run: StageContext) -> None:
        """After a restart: make the prompts of the unfinished groups again."""
        state = self.state
        wanted = {group["row"] for group in state.groups if group["prompt"] not in state.prompts}
        if not wanted:
            return
        rows = [row for source in run.rows.values() for row in source if row.id in wanted]
        state.prompts |= {prompt.key: prompt for prompt in map(run.prompt_template, rows)}
        lost = [group for group in state.groups if group["prompt"] not in state.prompts]
        if lost:
            run.warn(
                f"rollout: the prompts of {len(lost)} unfinished groups are not what they were; these "
                "groups are dropped"
            )
            state.groups = [group for group in state.groups if group["prompt"] in state.prompts]

    def metrics(self) -> dict[str, float]:
        """Groups that wait for their last rollout, and rollouts of this step that began under earlier
        weights."""
        return self.state.logged
