"""Groups to the inputs of the loss: token batches, mini- and micro-batches, auxiliary tensors, and signals
that are needed before the loss.

Shapes: B rollouts (whole groups, in order), T the longest completion of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from vlrl.methods.core.token_weight import engine_mask
from vlrl.plugins.stages import AuxTensor
from vlrl.services.lazy import Tensor, torch
from vlrl.trainer.phase import PhasePlan
from vlrl.trainer.step.objective import Sums
from vlrl.types import Denominators, Group, LossInputs, Prompt, Rollout, TokenBatch

if TYPE_CHECKING:
    from vlrl.policy.policy import Policy

LOGGED_NUMBERS = 1 << 22  # logits that a logged tensor is computed from at a time

# --- batches ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MiniBatch:
    """One optimizer step: its micro-batches, and the denominators of all of them together over all ranks."""

    micro_batches: list[list[Group]]
    loss_denominators: Denominators


def make_batch(
    groups: Sequence[Group],
    pad_id: int,
    device: torch.device | str = "cpu",
    logp_temperature: Literal["sampling"] | float = "sampling",
) -> TokenBatch:
    """Pad the completions of whole groups to one rectangle. Raises ValueError for an empty completion or
    batch."""
    groups = list(groups)
    rollouts = [rollout for group in groups for rollout in group]
    if not rollouts:
        raise ValueError("a batch needs at least one rollout")
    longest = max(len(rollout) for rollout in rollouts)
    ids_BT = torch.full((len(rollouts), longest), pad_id, dtype=torch.long)
    mask_BT = torch.zeros(len(rollouts), longest, dtype=torch.bool)
    loss_mask_BT = torch.zeros(len(rollouts), longest, dtype=torch.bool)
    temperature_BT = torch.ones(len(rollouts), longest)
    prompts: list[Prompt] = []
    index_of: dict[str, int] = {}
    index_B = []
    for b, rollout in enumerate(rollouts):
        n = len(rollout)
        if n == 0:
            raise ValueError(
                f"row {rollout.row.id!r}: a rollout has no tokens; engines end every completion with at "
                "least one"
            )
        ids_BT[b, :n] = torch.tensor(rollout.ids)
        mask_BT[b, :n] = True
        loss_mask_BT[b, :n] = True if rollout.loss_mask is None else torch.tensor(rollout.loss_mask)
        temperature_BT[b, :n] = sampled_at(rollout) if logp_temperature == "sampling" else logp_temperature
        prompt = rollout.prompt.for_training
        if prompt.key not in index_of:
            index_of[prompt.key] = len(prompts)
            prompts.append(prompt)
        index_B.append(index_of[prompt.key])
    tensors = [
        tensor.to(device) for tensor in (torch.tensor(index_B), ids_BT, mask_BT, loss_mask_BT, temperature_BT)
    ]
    return TokenBatch(groups, prompts, *tensors)


def sampled_at(rollout: Rollout) -> Tensor:
    """The temperature of the rollout's tokens: a number, or (T,)."""
    return torch.as_tensor(rollout.temperature, dtype=torch.float32)


def per_token(
    rollouts: Sequence, values: Callable[..., Sequence[float] | None], like_BT: Tensor, default_BT: Tensor
) -> Tensor:
    """Lists of floats, one per rollout and token, as a (B, T) tensor; a rollout without a list gets its row
    of `default_BT`."""
    out_BT = default_BT.detach().clone().to(like_BT.device, torch.float32)
    for b, rollout in enumerate(rollouts):
        row = values(rollout)
        if row is not None and len(row):
            out_BT[b, : len(row)] = torch.tensor(row, dtype=torch.float32, device=out_BT.device)
    return out_BT


def trained_tokens(group: Group) -> int:
    """Number of a group's tokens that carry loss."""
    return sum(rollout.trained_tokens for rollout in group)


def denominators_of(groups: Sequence[Group]) -> tuple[float, float, float]:
    """Tokens that carry loss, and sequences and groups that have any: rollouts that are left out whole do not
    count."""
    tokens = [[rollout.trained_tokens for rollout in group] for group in groups]
    sequences = sum(n > 0 for row in tokens for n in row)
    return float(sum(map(sum, tokens))), float(sequences), float(sum(any(row) for row in tokens))


def split_micro_batches(
    groups: Sequence[Group], micro_batch_tokens: int, cost: Callable[[Group], int]
) -> list[list[Group]]:
    """Whole groups into micro-batches of at most `micro_batch_tokens` (a larger group is alone in its own),
    longest first."""
    out: list[list[Group]] = []
    room = 0
    for group in sorted(groups, key=cost, reverse=True):
        tokens = cost(group)
        if not out or tokens > room:
            out.append([])
            room = micro_batch_tokens
        out[-1].append(group)
        room -= tokens
    return out


def split_mini_batches(
    groups: Sequence[Group], num_minibatches: int, order: Sequence[int]
) -> Iterator[list[Group]]:
    """Groups in the given order, as `num_minibatches` parts of nearly equal size (empty parts are left
    out)."""
    shuffled = [groups[i] for i in order]
    bounds = [round(k * len(shuffled) / num_minibatches) for k in range(num_minibatches + 1)]
    for start, end in zip(bounds, bounds[1:]):
        if end > start:
            yield shuffled[start:end]


def cost(policy: Policy, group: Group) -> int:
    """Tokens that a group adds to a micro-batch, in the policy's layout."""
    if policy.packed:
        return policy.row_tokens(group.rollouts) + len(group)
    return len(group) * max(
        len(policy.encode(rollout.prompt.for_training)) + len(rollout) for rollout in group
    )


# --- inputs of the loss -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NoGradTensor(AuxTensor):
    """An auxiliary tensor that is only logged: the same values, without gradient.

    It is computed for a few rows at a time: an entropy holds four more tensors as large as its logits, which
    would be the step's highest point.
    """

    tensor: AuxTensor
    in_forward: ClassVar[bool] = True
    no_grad: ClassVar[bool] = True

    @property
    def name(self) -> str:  # type: ignore[override]  # the name of the tensor it stands for, not of a registered class
        return self.tensor.name

    def from_logits(self, logits_NV: Tensor, ids_N: Tensor) -> Tensor:
        """The tensor's values without gradient."""
        rows = max(1, LOGGED_NUMBERS // logits_NV.shape[-1])
        with torch.no_grad():
            parts = zip(logits_NV.detach().split(rows), ids_N.split(rows))
            return torch.cat([self.tensor.from_logits(logits, ids) for logits, ids in parts])


def loss_inputs(
    policy: Policy, phase: PhasePlan, groups: Sequence[Group], keep_logp: bool = False
) -> LossInputs:
    """Log-probs with gradient, and every auxiliary tensor that the objective (or the log) reads.

    `keep_logp`: the weights are those that the step starts from, so that these log-probs become "old_logp" of
    rollouts that have none yet.
    """
    known = phase.aux_tensors
    batch = make_batch(groups, policy.pad_id, policy.device, phase.settings.logp_temperature)
    rollouts = batch.rollouts
    needs = [name for name in phase.objective.needs if name in known]
    in_forward = {name: known[name] for name in needs if known[name].in_forward}
    logged = (
        {"entropy": NoGradTensor(known["entropy"])}
        if phase.settings.watch.entropy and "entropy" not in in_forward
        else {}
    )
    tensors = {
        name: _own_pass(policy, batch, name, known[name]) for name in needs if not known[name].in_forward
    }
    out = policy.forward(batch, [*in_forward.values(), *logged.values()])
    logp_BT = out["logp"]
    tensors.update({name: out[tensor.name] for name, tensor in (in_forward | logged).items()})
    if keep_logp:
        _store(
            [r for r in rollouts if "old_logp" not in r.signals],
            "old_logp",
            logp_BT[["old_logp" not in r.signals for r in rollouts]],
        )
    old_logp_BT = per_token(rollouts, lambda r: r.signals.get("old_logp"), logp_BT, logp_BT)
    sampled_logp_BT = per_token(rollouts, lambda r: r.logp, logp_BT, old_logp_BT)
    tensors["old_logp"], tensors["sampled_logp"] = old_logp_BT, sampled_logp_BT
    zeros_BT = torch.zeros_like(logp_BT)
    group_B = torch.tensor(
        [index for index, group in enumerate(batch.groups) for _ in group], device=logp_BT.device
    )
    return LossInputs(
        batch=batch,
        logp_BT=logp_BT,
        old_logp_BT=old_logp_BT,
        sampled_logp_BT=sampled_logp_BT,
        advantage_BT=per_token(rollouts, lambda r: r.advantages, logp_BT, zeros_BT),
        reward_B=torch.tensor([r.reward for r in rollouts], device=logp_BT.device),
        mask_BT=batch.loss_mask_BT.float(),
        group_B=group_B,
        aux_tensors=tensors,
    )


def dummy_batch(policy: Policy, phase: PhasePlan) -> LossInputs:
    """A micro-batch without loss, for a rank that has fewer than the others: every rank must run the same
    collectives."""
    prompt = phase.prompt_template(next(iter(phase.rows("train").values()))[0])
    rollout = Rollout(
        prompt, [policy.tokenizer.eos_token_id], loss_mask=[False], logp=[0.0], advantages=[0.0]
    )
    return loss_inputs(policy, phase, [Group(prompt, [rollout], id="dummy")])


def engine_metrics(x: LossInputs) -> Sums:
    """Sums for the log: over trained tokens the entropy (nats); over those that the engine sampled at the
    temperature of the trainer's log-probs its distance from the trainer (k3 KL, mean |log ratio|)."""
    mask_BT = x.mask_BT > 0
    count = float(mask_BT.sum())
    sums: Sums = {}
    if "entropy" in x.aux_tensors:
        sums["entropy"] = (x.aux_tensors["entropy"].detach()[mask_BT].sum().item(), count)
    sampled_BT = engine_mask(x)
    for b, rollout in enumerate(x.batch.rollouts):
        sampled_BT[b, : len(rollout)] &= x.batch.temperature_BT[b, : len(rollout)] == sampled_at(rollout).to(
            sampled_BT.device
        )
    if sampled_BT.any():
        log_ratio, count = (x.old_logp_BT - x.sampled_logp_BT).detach()[sampled_BT], float(sampled_BT.sum())
        sums["engine/kl"] = ((torch.expm1(log_ratio) - log_ratio).sum().item(), count)
        sums["engine/logp_diff"] = (log_ratio.abs().sum().item(), count)
    routed = [rollout.routing is not None for rollout in x.batch.rollouts]
    if any(routed):
        sums["router/replayed"] = (float(sum(routed)), float(len(routed)))
    return sums


# --- signals: auxiliary tensors that are read before the loss -----------------------------------------------


def add_signals(policy: Policy, phase: PhasePlan, groups: Sequence[Group], names: Sequence[str]) -> None:
    """One pass without gradient that writes the named auxiliary tensors (and "old_logp") into the rollouts
    that lack them."""
    wanted = [name for name in names if name not in ("old_logp", "sampled_logp")]
    todo = [
        group
        for group in groups
        if len(group) and not all({*wanted, "old_logp"} <= set(r.signals) for r in group)
    ]
    known = phase.aux_tensors
    for micro in split_micro_batches(todo, phase.settings.micro_batch_tokens, partial(cost, policy)):
        batch = make_batch(micro, policy.pad_id, policy.device, phase.settings.logp_temperature)
        in_forward = [name for name in wanted if known[name].in_forward]
        with torch.no_grad():
            out = policy.forward(batch, [known[name] for name in in_forward])
            _store(batch.rollouts, "old_logp", out["logp"])
            for name in wanted:
                value = out[known[name].name] if name in in_forward else known[name](policy, batch)
                _store(batch.rollouts, name, value)


def _own_pass(policy: Policy, batch: TokenBatch, name: str, tensor: AuxTensor) -> Tensor:
    """A tensor that has a pass of its own: read from the rollouts where it was computed before, else computed
    and stored there."""
    rollouts = batch.rollouts
    if not all(name in rollout.signals for rollout in rollouts):
        with torch.no_grad():
            _store(rollouts, name, tensor(policy, batch))
    rows = [torch.tensor(rollout.signals[name], dtype=torch.float32) for rollout in rollouts]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(batch.ids_BT.device)


def _store(rollouts: Sequence[Rollout], name: str, values: Tensor) -> None:
    values = values.detach().float().cpu()
    for b, rollout in enumerate(rollouts):
        rollout.signals[name] = values[b, : len(rollout)].tolist()
