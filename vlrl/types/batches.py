"""Groups as tensors: what a loss reads and returns.

Shape legend: B rollouts of a micro-batch (whole groups, in order), T the longest completion of the
micro-batch,
V the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from vlrl.services.lazy import torch
from vlrl.types.rollouts import Group, Prompt, Rollout
from vlrl.types.rows import Row

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class TokenBatch:
    """Completions of whole groups as one rectangle; prompts are kept once per group.

    `prompt_B[b]` indexes `prompts`. `mask_BT` marks real tokens, `loss_mask_BT` those that are trained on.
    """

    groups: list[Group]
    prompts: list[Prompt]
    prompt_B: Tensor
    ids_BT: Tensor
    mask_BT: Tensor
    loss_mask_BT: Tensor
    temperature_BT: Tensor

    @property
    def rollouts(self) -> list[Rollout]:
        return [rollout for group in self.groups for rollout in group.rollouts]


@dataclass(frozen=True)
class Denominators:
    """Counts over one optimizer step, all its micro-batches and all ranks: tokens that carry loss; sequences
    and groups with at least one of them."""

    tokens: float
    sequences: float
    groups: float


class PerToken(NamedTuple):
    """An unreduced loss, `(B, T)`, or `(B,)` for a loss per sequence, and numbers for the log (`(B, T)`
    tensors or scalars)."""

    loss: Tensor
    metrics: dict[str, Tensor]


@dataclass
class LossInputs:
    """What a loss stage may read. Auxiliary tensors are read as `x["ref_logp"]`, and only if declared in
    `needs`."""

    batch: TokenBatch
    logp_BT: Tensor  # with gradient
    old_logp_BT: Tensor  # of the policy that the step started from; equals logp_BT.detach() on-policy
    sampled_logp_BT: Tensor  # of the engine that sampled
    advantage_BT: Tensor
    reward_B: Tensor
    mask_BT: Tensor  # the loss mask, as float
    group_B: Tensor  # 0 .. number of groups - 1
    aux_tensors: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def from_tensors(
        cls,
        logp_BT: Tensor,
        advantages: Tensor,
        mask_BT: Tensor | None = None,
        *,
        old_logp_BT: Tensor | None = None,
        sampled_logp_BT: Tensor | None = None,
        reward_B: Tensor | None = None,
        group_B: Tensor | None = None,
        aux_tensors: Mapping[str, Tensor] | None = None,
        groups: Sequence[Group] | None = None,
    ) -> LossInputs:
        """Loss inputs from tensors alone, to write, call or test a loss plug-in outside a run.

        Args:
            logp_BT: (B, T) log-probs of the trained policy, with gradient.
            advantages: (B, T), or (B,) for one number per rollout.
            mask_BT: (B, T) 1 or True on trained tokens; None for all.
            old_logp_BT: (B, T) log-probs of the policy that the step started from; None is on-policy.
            sampled_logp_BT: (B, T) log-probs of the engine that sampled; None takes `old_logp_BT`.
            reward_B: (B,) rewards; None for zeros.
            group_B: (B,) group numbers, rising from 0 without gaps; None is one group.
            aux_tensors: tensors that the loss reads by name, for instance {"ref_logp": ref_logp_BT}.
            groups: the groups themselves, for a loss that reads rollouts; None makes placeholders with token
                ids of 0.

        Raises:
            ValueError: for shapes that differ, or group numbers that do not rise from 0 without gaps.
        """
        if logp_BT.dim() != 2:
            raise ValueError(f"logp_BT has shape {tuple(logp_BT.shape)}; it must be (B, T)")
        rows, length = logp_BT.shape
        mask_BT = torch.ones_like(logp_BT).detach() if mask_BT is None else (mask_BT > 0).to(logp_BT.dtype)
        advantage_BT = advantages[:, None].expand(-1, length) if advantages.dim() == 1 else advantages
        old_logp_BT = logp_BT.detach() if old_logp_BT is None else old_logp_BT.detach()
        sampled_logp_BT = old_logp_BT if sampled_logp_BT is None else sampled_logp_BT.detach()
        reward_B = logp_BT.new_zeros(rows) if reward_B is None else reward_B
        group_B = torch.zeros(rows, dtype=torch.long, device=logp_BT.device) if group_B is None else group_B
        per_token = {
            "mask_BT": mask_BT,
            "advantages": advantage_BT,
            "old_logp_BT": old_logp_BT,
            "sampled_logp_BT": sampled_logp_BT,
        }
        _check_shapes(per_token, (rows, length), "(B, T)")
        _check_shapes({"reward_B": reward_B, "group_B": group_B}, (rows,), "(B,)")
        numbers = group_B.tolist()
        if any(after - before not in (0, 1) for before, after in zip([0, *numbers], numbers)):
            raise ValueError(
                f"group_B={numbers} must rise from 0 without gaps: the rows of a group stand together"
            )
        made = (
            list(groups)
            if groups is not None
            else _placeholder_groups(mask_BT.tolist(), reward_B.tolist(), numbers)
        )
        if [number for number, group in enumerate(made) for _ in group] != numbers:
            raise ValueError(
                f"groups has {[len(group) for group in made]} rollouts per group, which group_B={numbers} "
                "does not say"
            )
        ids_BT = torch.zeros(rows, length, dtype=torch.long, device=logp_BT.device)
        prompts, kept = [group.prompt for group in made], mask_BT > 0
        batch = TokenBatch(made, prompts, group_B, ids_BT, kept, kept, torch.ones_like(mask_BT))
        advantage_BT = torch.where(kept, advantage_BT.detach(), 0.0)
        logps = logp_BT, old_logp_BT, sampled_logp_BT
        return cls(batch, *logps, advantage_BT, reward_B, mask_BT, group_B, dict(aux_tensors or {}))

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.aux_tensors:
            raise KeyError(
                f"tensor {name!r} was not computed: declare it in `needs` (here: "
                f"{sorted(self.aux_tensors) or 'none'})"
            )
        return self.aux_tensors[name]

    @property
    def length_B(self) -> Tensor:
        """Trained tokens of each rollout, at least 1."""
        return self.mask_BT.sum(-1).clamp(min=1)

    @property
    def log_ratio_BT(self) -> Tensor:
        """log pi_theta - log pi_old, zero outside the mask."""
        return (self.logp_BT - self.old_logp_BT) * self.mask_BT


def _check_shapes(tensors: Mapping[str, Tensor], shape: tuple[int, ...], legend: str) -> None:
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != shape:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}; it must be {legend} = {shape}, as logp_BT is (B, T)"
            )


def _placeholder_groups(
    mask: Sequence[Sequence[float]], rewards: Sequence[float], numbers: Sequence[int]
) -> list[Group]:
    """Groups of rollouts with token ids and log-probs of 0, as long as the last trained token says, for
    `LossInputs.from_tensors`."""
    groups: list[Group] = []
    for kept, reward, number in zip(mask, rewards, numbers, strict=True):
        if number == len(groups):
            prompt = Prompt(Row(id=f"row{number}", question=""), messages=())
            groups.append(Group(prompt, [], id=f"row{number}"))
        length = max((place + 1 for place, value in enumerate(kept) if value), default=0)
        rollout = Rollout(
            groups[-1].prompt,
            ids=[0] * length,
            logp=[0.0] * length,
            loss_mask=[value > 0 for value in kept[:length]],
            reward=reward,
        )
        groups[-1].rollouts.append(rollout)
    return groups
