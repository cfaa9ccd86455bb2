"""ArCHer's critic of utterances: two Q and two V on the hidden states of a model of its own.

Shapes: B rollouts, N scored tokens, H hidden size; a leading 2 stands for the two critics.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vlrl.plugins.contexts import StageContext
from vlrl.plugins.stages import AuxTensor
from vlrl.types import Group


class LastHidden(AuxTensor):
    """h, with gradient, at the positions of the loss mask. Shapes: (N, H)."""

    name = "last_hidden"
    in_forward = True
    reads_hidden = True

    def from_hidden(self, hidden_NH: Tensor, ids_N: Tensor) -> Tensor:
        return hidden_NH.float()


class DoubleCritic(nn.Module):
    """Q_1, Q_2 of (state, utterance) and V_1, V_2 of states, on the hidden states of a model of its own that
    starts as a copy of the policy's.

    A state is read behind its last token, an utterance behind its own last one. Q_i = MLP([h(s), h(s, u)]),
    V_i = MLP(h(s)), both with two hidden layers of width H and ReLU, as in the release (there the encoder is
    RoBERTa, and reads the utterance without its state).
    """

    def __init__(self, model: Any, seed: int) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).requires_grad_(True)
        size = model.get_output_embeddings().weight.shape[-1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.q = nn.ModuleList([perceptron(2 * size, size) for _ in range(2)])
            self.v = nn.ModuleList([perceptron(size, size) for _ in range(2)])
        self.to(next(model.parameters()).device)

    def forward(self, run: StageContext, groups: Sequence[Group]) -> tuple[Tensor, Tensor]:
        """(2, B) of Q and of V for groups of `marked` rollouts, in order; Q is 0 for a rollout without an
        utterance."""
        rollouts = [rollout for group in groups for rollout in group]
        hidden_BTH = run.policy.with_model(self.model).forward(run.batch(groups), [LastHidden()])[
            "last_hidden"
        ]
        first = [rollout.trained_mask.index(True) for rollout in rollouts]
        rows = torch.arange(len(rollouts), device=hidden_BTH.device)
        state_BH = hidden_BTH[rows, torch.tensor(first, device=rows.device)]
        last_BH = hidden_BTH[
            rows, torch.tensor([len(rollout) - 1 for rollout in rollouts], device=rows.device)
        ]
        said_B = torch.tensor(
            [float(at < len(r) - 1) for at, r in zip(first, rollouts, strict=True)], device=rows.device
        )
        pair_BH = torch.cat([state_BH, last_BH], -1)
        return torch.stack([q(pair_BH)[:, 0] * said_B for q in self.q]), torch.stack(
            [v(state_BH)[:, 0] for v in self.v]
        )

    @torch.no_grad()
    def values(self, run: StageContext, groups: Sequence[Group]) -> tuple[Tensor, Tensor]:
        """`forward` without gradient, in micro-batches."""
        place = {id(group): index for index, group in enumerate(groups)}
        device = next(self.parameters()).device
        q_2B, v_2B = torch.zeros(2, len(groups), device=device), torch.zeros(2, len(groups), device=device)
        for part in run.micro_batches(groups):
            where = torch.tensor([place[id(group)] for group in part], device=device)
            q_2B[:, where], v_2B[:, where] = self(run, part)
        return q_2B, v_2B


def perceptron(size: int, width: int) -> nn.Sequential:
    """An MLP with two hidden layers and one output."""
    return nn.Sequential(
        nn.Linear(size, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    )
