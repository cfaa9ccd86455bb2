"""RL4LMs' NLPO: PPO whose actions at every token are the likeliest ones of a masking policy, a copy of the
policy that is renewed now and then.

    rl4lms.kl         reward shaping: the KL of every token, with a coefficient that follows its mean
    rl4lms            sampling: tokens outside of the masking policy's set are never drawn
    rl4lms.log_mass   auxiliary tensor: log of the policy's probability of that set, with gradient
    rl4lms.clip       policy loss: PPO's clip on the ratio of the masked policies

Paper: Ramamurthy et al. 2022 (RL4LMs), arXiv:2210.01241, sec. 4 (NLPO); allenai/RL4LMs at 97df0bd2:
rl4lms/algorithms/common/maskable/logits_processor.py:102-142, rl4lms/algorithms/nlpo/nlpo.py:338-367,
rl4lms/envs/text_generation/kl_controllers.py:10-17,
rl4lms/envs/text_generation/policy/causal_policy.py:386-475.

Shapes: B rollouts, T completion tokens, N scored tokens, V vocabulary.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vlrl.methods.common.side_models import Continuation, SideModel
from vlrl.methods.core.policy_loss import PPOClip
from vlrl.methods.core.reward_shaping import KLTokenReward, token_kl
from vlrl.methods.core.sampling import Plain
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import StageContext, StepContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import AuxTensor, StepCounts, transient
from vlrl.plugins.views import PolicyView
from vlrl.services.lazy import Tensor, torch
from vlrl.types import LossInputs, Prompt, Rollout, Sampling, TokenBatch, UnreducedLoss

LOG_MASS = "rl4lms.log_mass"
MASKED_ACTIONS = Capability("rl4lms.masked_actions", hint="sampling: {name: rl4lms}")


def likeliness(logits_NV: Tensor) -> Tensor:
    """What the masking policy ranks tokens by."""
    return logits_NV


def kept_tokens(
    logits_NV: Tensor,
    top_mask: float,
    min_kept: int,
    special: Sequence[int] = (),
    rank: Callable[[Tensor], Tensor] = likeliness,
) -> Tensor:
    """NLPO's mask (N, V): True on tokens before which at most `top_mask` of the probability stands, on the
    first `min_kept`, and on `special` ids.

    >>> kept_tokens(torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log(), 0.75, 1).tolist()
    [[True, True, True, False]]
    """
    order_NV = rank(logits_NV).argsort(dim=-1, descending=True, stable=True)
    p_NV = logits_NV.softmax(-1).gather(-1, order_NV)
    kept_NV = p_NV.cumsum(-1) - p_NV <= top_mask
    kept_NV[..., :min_kept] = True
    mask_NV = torch.zeros_like(kept_NV).scatter_(-1, order_NV, kept_NV)
    mask_NV[..., list(special)] = True
    return mask_NV


def packed(mask_NV: Tensor) -> Tensor:
    """A mask (N, V) as bits, (N, ceil(V / 8)) uint8."""
    bits_NKE = torch.nn.functional.pad(mask_NV, (0, -mask_NV.shape[-1] % 8)).unflatten(-1, (-1, 8))
    return (bits_NKE * (1 << torch.arange(8, device=mask_NV.device))).sum(-1).to(torch.uint8)


def unpacked(bits_NK: Tensor, width: int) -> Tensor:
    """Undo `packed` for a vocabulary of `width`."""
    return (bits_NK[..., None] >> torch.arange(8, device=bits_NK.device) & 1).flatten(-2)[..., :width] > 0


@dataclass(frozen=True, kw_only=True)
class KeptBits(AuxTensor):
    """The mask of the model that is run, as bits; part of the masking policy's forward pass."""

    name = "rl4lms.kept_bits"
    masking: Masking
    in_forward = True
    no_grad = True

    def from_logits(self, logits_NV: Tensor, ids_N: Tensor) -> Tensor:
        return packed(self.masking.mask(logits_NV))


class Masking:
    """The masking policy of a run: a copy of the weights, and how it masks."""

    def __init__(self, policy: PolicyView) -> None:
        self.policy = policy.with_model(copy.deepcopy(policy.model).eval().requires_grad_(False))
        self.top_mask, self.min_kept = 1.0, 1

    def mask(self, logits_NV: Tensor, rank: Callable[[Tensor], Tensor] = likeliness) -> Tensor:
        """(N, V), True on the allowed tokens."""
        special = self.policy.tokenizer.all_special_ids
        return kept_tokens(logits_NV, self.top_mask, self.min_kept, special, rank)

    def bits(self, batch: TokenBatch) -> Tensor:
        """The masks of a batch as bits (B, T, ceil(V / 8))."""
        with torch.no_grad():
            return self.policy.forward(batch, [KeptBits(masking=self)])[KeptBits.name]

    def renew(self, policy: PolicyView) -> None:
        """Copy the policy's weights as they are now."""
        self.policy.model.load_state_dict(policy.model.state_dict())


def masking_policy(run: StageContext) -> Masking:
    """The run's masking policy, made at the first call. Raises ConfigError for sharded weights."""
    if run.params_sharded:
        raise ConfigError(
            "sampling: 'rl4lms' keeps a copy of whole weights, and FSDP and ZeRO-3 shard them; use DDP "
            "or ZeRO-2"
        )
    return run.shared("rl4lms", lambda: Masking(run.policy))


@dataclass
class Rl4lmsState(StepCounts):
    """The steps since the masking policy was renewed, and its weights (of a checkpoint)."""

    age: int = 0
    masking: Any = transient()

    def state_dict(self) -> dict[str, Any]:
        weights = {} if self.masking is None else dict(self.masking.policy.model.state_dict())
        return {"age": self.age, "weights": weights}

    def load_state_dict(self, values: Any) -> None:
        self.age = values["age"]
        if values["weights"]:
            self.masking.policy.model.load_state_dict(values["weights"])


@register("rl4lms")
@dataclass(frozen=True)
class Rl4lms(Plain):
    """NLPO's masked sampling: y_t ~ pi(. | V_t), V_t the top-`top_mask` set of the masking policy, a copy of
    the policy renewed every `every` steps.

    V_t has at least `min_kept` tokens, and all special ones. Paper: arXiv:2210.01241, alg. 1. Deviates: in
    the release the logits processor keeps the first copy (causal_policy.py:376, 604), so that its renewed one
    is not asked; here it is, as in the paper. One token at a time for each completion. Edge: rows with
    pictures are a RowError. Raises ConfigError for sharded weights. Logs the policy's mean probability of V_t
    and the share of the vocabulary in it. Engines: hf, vllm in the process. Memory: a copy of the weights.
    """

    state_class = Rl4lmsState
    top_mask: float = 0.9
    min_kept: int = 100
    every: int = 20
    provides = (MASKED_ACTIONS,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.top_mask <= 1 or self.min_kept < 1 or self.every < 1:
            raise ValueError(
                f"top_mask={self.top_mask} must be in (0, 1], min_kept={self.min_kept} and "
                f"every={self.every} at least 1"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        masking = self.state.masking = masking_policy(run)
        masking.top_mask, masking.min_kept = self.top_mask, self.min_kept

    def __call__(self, prompt: Prompt, attempt: int) -> Sampling:
        plain = super().__call__(prompt, attempt)
        if not self.is_set_up:
            return plain
        model = Continuation(SideModel.of(self.state.masking.policy), prompt, self.run)
        return replace(plain, processors=(MaskLogits(model, self.state, likeliness),))

    def end_step(self, run: StepContext) -> None:
        super().end_step(run)
        self.state.age += 1
        if self.state.age >= self.every:
            self.state.masking.renew(run.policy)
            self.state.age = 0

    def metrics(self) -> dict[str, tuple[float, float]]:
        return {f"rl4lms/{name}": self.state.share(name, "tokens") for name in ("mass", "kept")}


class MaskLogits:
    """The logits processor of one prompt: -inf outside of the masking policy's set."""

    def __init__(self, model: Continuation, state: Rl4lmsState, rank: Callable[[Tensor], Tensor]) -> None:
        self.model, self.state, self.rank = model, state, rank

    def __call__(self, ids: Sequence[int], logits_V: Tensor) -> Tensor:
        own_V = self.model(ids).to(logits_V.device)[: len(logits_V)].clone()
        own_V[torch.isneginf(logits_V)] = -math.inf  # what the policy may never say is no part of a top-p set
        kept_V = self.state.masking.mask(own_V, self.rank)
        mass = float(logits_V.softmax(-1)[kept_V].sum())
        self.state.add(mass=mass, kept=float(kept_V.float().mean()), tokens=1.0)
        return logits_V.masked_fill(~kept_V, -math.inf)


@register(LOG_MASS)
@dataclass(frozen=True, kw_only=True)
class Rl4lmsLogMass(AuxTensor):
    """log pi(V_t): the log-probability (nats) that the policy gives to the masking policy's set, so that
    log pi(y_t | V_t) = log pi(y_t) - log pi(V_t).

    Paper: arXiv:2210.01241, alg. 1; the masked distribution of causal_policy.py:450-457. The sets are those
    of the masking policy that sampled, computed again in one pass; the drawn token always counts as part of
    its set. Shapes: (N, V) to (N,), with gradient. Edge: 0 where the set is the vocabulary.
    """

    in_forward = True
    at_start = True

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        masking_policy(run)

    def token_values(self, batch: TokenBatch) -> Tensor:
        """The masks of the batch's tokens, as bits."""
        return masking_policy(self.run).bits(batch)

    def from_values(self, logits_NV: Tensor, ids_N: Tensor, values_NK: Tensor) -> Tensor:
        """(N,)"""
        mask_NV = unpacked(values_NK, logits_NV.shape[-1]).scatter(-1, ids_N[:, None], True)
        return logits_NV.log_softmax(-1).masked_fill(~mask_NV, -math.inf).logsumexp(-1)


@register("rl4lms.clip")
@dataclass(frozen=True)
class Rl4lmsClip(PPOClip):
    """NLPO's loss: PPO's clip with r = pi(y_t | V_t) / pi_old(y_t | V_t), both renormalised on the masking
    policy's set V_t.

    Paper: arXiv:2210.01241, alg. 1; nlpo.py:338-367. Needs the sampling `rl4lms`, which masks. Edge: with
    sets that are the vocabulary it is `ppo_clip`.
    """

    needs = (LOG_MASS,)
    requires = (MASKED_ACTIONS,)

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        mass_BT = x[LOG_MASS]
        old_BT = mass_BT.detach().clone()
        for b, rollout in enumerate(x.batch.rollouts):
            if LOG_MASS in rollout.signals:
                values = torch.tensor(rollout.signals[LOG_MASS]).to(old_BT)
                old_BT[b, : len(values)] = values
        masked = replace(x, logp_BT=x.logp_BT - mass_BT, old_logp_BT=x.old_logp_BT - old_BT)
        return super().__call__(masked)


@register("rl4lms.kl")
@dataclass(frozen=True)
class Rl4lmsKl(KLTokenReward):
    """RL4LMs' KL reward: as `kl_token_reward`, of the unmasked policies; after each step beta <- beta (1 +
    0.1 clip(KL / target - 1, -0.2, 0.2)) with KL the mean of k1 over the step's tokens.

    Paper: arXiv:2210.01241, sec. 3.1; kl_controllers.py:10-17, alg_wrappers.py:237-239. Units: nats per
    token. `target` 0: a fixed coefficient; `horizon` is not used.
    """

    beta: float = 0.01
    target: float = 1.0

    def token_kl(self, rollout: Rollout) -> list[float]:
        values = token_kl(rollout, self.estimator)
        self.state.step += values
        return values

    def end_step(self, run: StepContext) -> None:
        state, everyone = self.state, run.gather_and_clear(self.state.step)
        state.kl = math.fsum(everyone) / len(everyone) if everyone else None
        if self.target and state.kl is not None:
            error = min(max(state.kl / self.target - 1, -0.2), 0.2)
            state.beta = self.coefficient * (1 + 0.1 * error)
