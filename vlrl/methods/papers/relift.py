"""ReLIFT: reinforcement learning interleaved with supervised fine-tuning on demonstrations of the prompts
that all rollouts fail.

`relift` is a callback: a buffer of failed prompts, which takes a supervised step of its own once it is full.

Paper: Ma et al. 2025 (ReLIFT), arXiv:2506.07527, algorithm 1; checked against the release: TheRoadQaQ/ReLIFT
at eb95454f, relift/verl/verl/relift/trainer.py, actor.py (sft_update_policy) and core_algos.py
(compute_sft_loss).
Deviates: one token mean over all demonstrations, where the release averages the token means of micro-batches;
rows without a demonstration never enter the buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vlrl.methods.common.correctness import success_rate
from vlrl.methods.common.demonstrations import check_demonstrations, demonstrations
from vlrl.methods.common.hard_prompts import demonstration_group, restore_prompts
from vlrl.methods.core.aux_tensor import Entropy
from vlrl.plugins.contexts import CallbackContext, PhaseContext, StageContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Callback, State, transient
from vlrl.services.lazy import Tensor, torch
from vlrl.types import Group, Prompt


@dataclass
class ReliftState(State):
    """The waiting prompts by row id (None: after a restart, until the prompt is made again), and Adam's
    moments.

    Saved are the row ids of the first rank, and the moments.
    """

    waiting: dict[str, Prompt | None] = field(default_factory=dict)
    optimizer: Any = transient()
    moments: dict[str, Any] = transient(factory=dict)  # of a checkpoint, until the optimizer is made

    def state_dict(self) -> dict[str, Any]:
        optimizer = self.optimizer.state_dict()["state"] if self.optimizer is not None else {}
        return {
            "waiting": list(self.waiting),
            "adam": {str(k): dict(v) for k, v in optimizer.items()} or self.moments,
        }

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        self.waiting = dict.fromkeys(values["waiting"])
        self.moments, self.optimizer = dict(values.get("adam", {})), None


@register("relift")
@dataclass(frozen=True)
class Relift(Callback):
    """ReLIFT's buffer of hard prompts: once `size` prompts have failed, one supervised step on their
    demonstrations follows the step of RL.

        L = mean over tokens of -log pi(y_t) - entropy H(pi(. | y_<t))

    A prompt has failed if none of its rollouts is correct. The newest `size` prompts are used, each with its
    first demonstration; the rest stays. Edge: a failed row without a demonstration is counted and does not
    enter the buffer. Each rank has its own buffer, of ceil(size / ranks) prompts; the step is taken when all
    are full, and gradients are averaged by tokens. Logs failed prompts (own rank's trained groups), those
    without a demonstration, demonstrations used, the buffer's prompts, and of a supervised step mean -log pi
    and gradient norm. Raises ConfigError where weights are sharded.

    Attributes:
        lr: Rate of an AdamW of its own (0: the run's present one), with decay 0.01.
        max_grad_norm: Norm to which gradients are clipped.
    """

    state_class = ReliftState
    size: int = 128
    lr: float = 0.0
    entropy: float = 0.001
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        if self.size < 1 or self.lr < 0:
            raise ValueError(
                f"size={self.size} must be at least 1 (demonstrations per supervised step), and "
                f"lr={self.lr} not negative"
            )

    def check(self, phase: PhaseContext) -> None:
        if phase.settings.loop != "synchronous":
            raise ConfigError(
                f"callbacks: 'relift' updates the policy between steps, which loop {phase.settings.loop!r} "
                "may be sampling; use synchronous"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if run.state_sharded:
            raise ConfigError(
                "callbacks: 'relift' has an optimizer of its own, which sharded weights do not allow; use "
                "neither FSDP nor ZeRO"
            )
        check_demonstrations(run, self.name)
        self.state.optimizer = None

    @property
    def rank_size(self) -> int:
        """This rank's part of `size`."""
        return -(-self.size // self.run.ranks)

    def __call__(self, run: CallbackContext, groups: Sequence[Group]) -> dict[str, float]:
        restore_prompts(self.state.waiting, run)
        waiting = self.state.waiting
        failed = {
            group.row.id: group.prompt
            for group in run.groups
            if len(group) and not success_rate(group.rollouts)
        }
        new = {key: prompt for key, prompt in failed.items() if demonstrations(prompt.row)}
        self.state.waiting = waiting = {
            **new,
            **{key: prompt for key, prompt in waiting.items() if key not in new},
        }
        counts = {"failed": float(len(failed)), "without": float(len(failed) - len(new)), "used": 0.0}
        if min(run.gather([len(waiting)])) >= self.rank_size:
            used = {key: waiting.pop(key) for key in list(waiting)[: self.rank_size]}
            counts |= self.supervised_step(
                [demonstration_group(prompt, run) for prompt in used.values() if prompt is not None], run
            )
            counts["used"] = float(len(used))
        return {**counts, "waiting": float(len(waiting))}

    def supervised_step(self, groups: Sequence[Group], run: CallbackContext) -> dict[str, float]:
        """One update on demonstrations. Returns the mean -log pi (nats per token) and the gradient's norm
        before clipping."""
        weights = [p for p in run.policy.model.parameters() if p.requires_grad]
        optimizer = self.optimizer(weights)
        tokens = max(
            run.mean(float(sum(r.trained_tokens for group in groups for r in group)), 1.0) * run.ranks, 1.0
        )
        total, nll = [torch.zeros_like(p) for p in weights], 0.0
        for part in run.micro_batches(groups):
            with torch.enable_grad():
                out = run.policy.forward(run.batch(part), [Entropy()])
                loss, part_nll = supervised_loss(out["logp"], out["entropy"], self.entropy)
            for sum_, grad in zip(
                total, torch.autograd.grad(loss / tokens, weights, allow_unused=True), strict=True
            ):
                if grad is not None:
                    sum_ += grad
            nll += float(part_nll)
        for p, grad in zip(weights, total, strict=True):
            p.grad = run.sum_tensor(grad)
        norm = torch.nn.utils.clip_grad_norm_(weights, self.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = self.lr or run.learning_rate
        optimizer.step()
        for p in weights:
            p.grad = None
        run.policy.advance()
        run.engine.sync(run.policy)
        return {"nll": run.mean(nll, tokens / run.ranks), "grad_norm": float(norm)}

    def optimizer(self, weights: Sequence[Tensor]) -> Any:
        """The optimizer of the supervised steps, made at the first one."""
        state: ReliftState = self.state
        if state.optimizer is None:
            state.optimizer = torch.optim.AdamW(list(weights), lr=self.lr or 1e-6, weight_decay=0.01)
            if state.moments:
                state.optimizer.load_state_dict(
                    {**state.optimizer.state_dict(), "state": {int(k): v for k, v in state.moments.items()}}
                )
        return state.optimizer


def supervised_loss(logp_BT: Tensor, entropy_BT: Tensor, coef: float) -> tuple[Tensor, Tensor]:
    """sum (-log pi - coef H) and sum -log pi over tokens; both tensors are zero outside the loss mask."""
    nll = -logp_BT.sum()
    return nll - coef * entropy_BT.sum(), nll.detach()
