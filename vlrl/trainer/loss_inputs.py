"""Groups through the policy: the inputs of the loss, and the signals that are needed before it.

Shapes: B rollouts (whole groups, in order), T the longest completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from vlrl.stages import AuxTensor
from vlrl.trainer.batch import make_batch, per_token, split_micros
from vlrl.trainer.loss import Sums
from vlrl.types import Group, LossInputs, Rollout, TokenBatch

if TYPE_CHECKING:
    from vlrl.context import RunContext


@dataclass(frozen=True)
class NoGradTensor(AuxTensor):
    """A field that is only looked at: the same numbers, without gradient."""

    field: AuxTensor
    in_forward: ClassVar[bool] = True

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.field.name

    def from_logits(self, logits_NV: Tensor, ids_N: Tensor) -> Tensor:
        with torch.no_grad():
            return self.field.from_logits(logits_NV.detach(), ids_N)


def cost(run: RunContext, group: Group) -> int:
    """Tokens that a group puts into a micro-batch, in the policy's layout."""
    prompt = len(run.policy.encode(group.rollouts[0].prompt.for_training))
    if run.policy.packed:
        return prompt + sum(map(len, group))
    return len(group) * (prompt + max(map(len, group)))


def loss_inputs(run: RunContext, groups: Sequence[Group]) -> LossInputs:
    """Log-probs with gradient, and every field that the objective (or the log) reads."""
    policy, objective = run.policy, run.objective
    batch = make_batch(groups, policy.pad_id, policy.device)
    rollouts = batch.rollouts
    needs = [name for name in objective.needs if name in run.aux_tensors]
    inside = {name: run.aux_tensors[name] for name in needs if run.aux_tensors[name].in_forward}
    engine_metrics = {"entropy": NoGradTensor(run.aux_tensors["entropy"])} if run.settings.watch.entropy and "entropy" not in inside else {}
    fields = {name: _pass(run, batch, name, run.aux_tensors[name]) for name in needs if not run.aux_tensors[name].in_forward}
    out = policy.forward(batch, [*inside.values(), *engine_metrics.values()])
    logp_BT = out["logp"]
    fields.update({name: out[field.name] for name, field in (inside | engine_metrics).items()})
    old_logp_BT = per_token(rollouts, lambda r: r.signals.get("old_logp"), logp_BT, logp_BT)
    sampled_logp_BT = per_token(rollouts, lambda r: r.logp, logp_BT, old_logp_BT)
    fields["old_logp"], fields["sampled_logp"] = old_logp_BT, sampled_logp_BT
    zeros_BT = torch.zeros_like(logp_BT)
    group_B = torch.tensor([index for index, group in enumerate(batch.groups) for _ in group], device=logp_BT.device)
    return LossInputs(
        batch=batch,
        logp_BT=logp_BT,
        old_logp_BT=old_logp_BT,
        sampled_logp_BT=sampled_logp_BT,
        advantage_BT=per_token(rollouts, lambda r: r.advantages, logp_BT, zeros_BT),
        reward_B=torch.tensor([r.reward for r in rollouts], device=logp_BT.device),
        mask_BT=batch.loss_mask_BT.float(),
        group_B=group_B,
        fields=fields,
    )


def _pass(run: RunContext, batch: TokenBatch, name: str, field: AuxTensor) -> Tensor:
    """A field of a pass of its own: taken from the rollouts where it was computed before the advantages, else computed and kept there."""
    rollouts = batch.rollouts
    if not all(name in rollout.signals for rollout in rollouts):
        with torch.no_grad():
            _keep(rollouts, name, field(run.policy, batch))
    return _stacked(rollouts, name, batch)


def _keep(rollouts: Sequence[Rollout], name: str, values: Tensor) -> None:
    values = values.detach().float().cpu()
    for b, rollout in enumerate(rollouts):
        rollout.signals[name] = values[b, : len(rollout)].tolist()


def _stacked(rollouts: Sequence[Rollout], name: str, batch: TokenBatch) -> Tensor:
    rows = [torch.tensor(rollout.signals[name], dtype=torch.float32) for rollout in rollouts]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(batch.ids_BT.device)


def add_signals(run: RunContext, groups: Sequence[Group], names: Sequence[str]) -> None:
    """One pass without gradient that writes the named fields (and "old_logp") into the rollouts that lack them."""
    wanted = [name for name in names if name not in ("old_logp", "sampled_logp")]
    todo = [group for group in groups if len(group) and not all({*wanted, "old_logp"} <= set(r.signals) for r in group)]
    policy = run.policy
    for micro in split_micros(todo, run.settings.micro_batch_tokens, partial(cost, run)):
        batch = make_batch(micro, policy.pad_id, policy.device)
        inside = [name for name in wanted if run.aux_tensors[name].in_forward]
        with torch.no_grad():
            out = policy.forward(batch, [run.aux_tensors[name] for name in inside])
            _keep(batch.rollouts, "old_logp", out["logp"])
            for name in wanted:
                value = out[run.aux_tensors[name].name] if name in inside else run.aux_tensors[name](policy, batch)
                _keep(batch.rollouts, name, value)


def engine_metrics(x: LossInputs) -> Sums:
    """Sums over trained tokens for the log: entropy (nats), and how far the trainer is from the engine that sampled (k3 KL, mean |log ratio|)."""
    mask_BT = x.mask_BT > 0
    count = float(mask_BT.sum())
    sums: Sums = {}
    if "entropy" in x.fields:
        sums["entropy"] = (x.fields["entropy"].detach()[mask_BT].sum().item(), count)
    if any(r.logp and r.source == "policy" for r in x.batch.rollouts):
        log_ratio = (x.old_logp_BT - x.sampled_logp_BT).detach()[mask_BT]
        sums["engine/kl"] = ((torch.expm1(log_ratio) - log_ratio).sum().item(), count)
        sums["engine/logp_diff"] = (log_ratio.abs().sum().item(), count)
    return sums


def dummy_batch(run: RunContext) -> LossInputs:
    """A micro-batch that weighs nothing, for a rank that has fewer than the others: every rank must run the same collectives."""
    if not hasattr(run, "filler"):
        rows = next(iter(run.rows.values()))
        prompt = run.prompt_template(rows[0])
        eos = run.policy.tokenizer.eos_token_id
        run.filler = Group(prompt, [Rollout(prompt, [eos], loss_mask=[False], logp=[0.0])], id="filler")
    run.filler.rollouts[0].advantages = [0.0]
    run.filler.rollouts[0].signals.clear()
    return loss_inputs(run, [run.filler])
