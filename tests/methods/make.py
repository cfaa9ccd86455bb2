"""Small rollouts, groups and loss inputs for the tests of methods."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from run_kit import View

from vlrl.types import Group, LossInputs, Prompt, Rollout, Row, TokenBatch


def group(*rewards: float, lengths=None, raw=None, name="q", texts=None, **fields) -> Group:
    """A group of rollouts with these rewards; `raw` maps slots to scores per rollout; other fields are lists
    per rollout.

    `outcome` is the raw score of the first slot (without `raw`, the reward), and an outcome of 1 is correct.
    """
    prompt = Prompt(row=Row(id=name, question=name), messages=({"role": "user", "content": name},))
    lengths = lengths or [3] * len(rewards)
    rollouts = []
    for i, reward in enumerate(rewards):
        rollout = Rollout(
            prompt,
            ids=list(range(10, 10 + lengths[i])),
            reward=reward,
            text=(texts or [""] * len(rewards))[i],
        )
        rollout.rewards = {slot: scores[i] for slot, scores in (raw or {}).items()}
        rollout.outcome = float(next(iter(rollout.rewards.values()), reward))
        rollout.correct = rollout.outcome >= 1.0
        for key, values in fields.items():
            setattr(rollout, key, values[i])
        rollouts.append(rollout)
    return Group(prompt, rollouts, id=name)


def inputs(
    logp,
    old=None,
    advantage=1.0,
    lengths=None,
    reward=0.0,
    group_of=None,
    groups=None,
    sampled=None,
    grad=True,
    **fields,
) -> LossInputs:
    """Loss inputs from nested lists (float64). `old` defaults to the current log-probs (on-policy)."""
    logp_BT = torch.tensor(logp, dtype=torch.float64).requires_grad_(grad)
    B, T = logp_BT.shape

    def tensor(value):
        return torch.as_tensor(value, dtype=torch.float64)

    mask_BT = (torch.arange(T)[None] < torch.tensor(lengths or [T] * B)[:, None]).double()
    group_B = torch.tensor(group_of or [0] * B)
    reward_B = tensor(reward).expand(B).clone()
    if groups is None:
        groups = [
            group(
                *(reward_B[group_B == g].tolist()),
                lengths=mask_BT.sum(-1)[group_B == g].long().tolist(),
                name=f"q{g}",
            )
            for g in group_B.unique()
        ]
    old_BT = logp_BT.detach().clone() if old is None else tensor(old)
    advantage_T = tensor(advantage)
    advantage_BT = (advantage_T[:, None] if advantage_T.ndim == 1 else advantage_T).expand(B, T) * mask_BT
    zeros = torch.zeros(B, T)
    batch = TokenBatch(
        groups, [g.prompt for g in groups], group_B, zeros.long(), mask_BT.bool(), mask_BT.bool(), zeros + 1
    )
    sampled_BT = old_BT if sampled is None else tensor(sampled)
    return LossInputs(
        batch,
        logp_BT,
        old_BT,
        sampled_BT,
        advantage_BT,
        reward_B,
        mask_BT,
        group_B,
        {k: tensor(v) for k, v in fields.items()},
    )


class Parts(View):
    """A context of given parts. `capabilities` are those that its plug-ins provide."""

    def has(self, capability) -> bool:
        return capability in vars(self).get("capabilities", ())

    def outcome_slot(self, row) -> str:
        """The first reward slot."""
        return next(iter(self.rewards))


def run(**parts) -> Parts:
    """What a plug-in reads of a run."""
    defaults = {
        "sampling": SimpleNamespace(max_tokens=16),
        "history": {},
        "phase": "",
        "step": 0,
        "group_size": 4,
        "reward_shaping": {},
    }
    return Parts(**{**defaults, **parts})


def base_run(**parts) -> Parts:
    """A run whose policy gives every token the log-prob -0.1."""

    def batch(part):
        return SimpleNamespace(rollouts=[rollout for group in part for rollout in group])

    policy = SimpleNamespace(
        forward=lambda batch: {"logp": torch.full((len(batch.rollouts), 5), -0.1, dtype=torch.float64)},
        spaces=lambda prompt: (),
    )
    return run(phase_step=0, policy=policy, batch=batch, micro_batches=lambda groups: [groups], **parts)


def gradient(loss_BT: torch.Tensor, x: LossInputs) -> torch.Tensor:
    """d sum(loss * mask) / d logp."""
    mask = x.mask_BT if loss_BT.ndim == 2 else 1.0
    (grad,) = torch.autograd.grad((loss_BT * mask).sum(), x.logp_BT)
    return grad


def end_step(plugin, groups) -> None:
    """What the trainer does after a step that sampled these groups; in the run that the plug-in was set up
    with, if it was."""
    at = plugin.run if plugin.is_set_up else run()
    at.sampled_groups = at.answered_groups = at.trained_groups = groups
    plugin.end_step(at)
