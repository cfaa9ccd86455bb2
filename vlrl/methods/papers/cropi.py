"""CROPI: prompts are chosen by the influence of their offline trajectories on a validation objective.

    cropi             callback: keeps trajectories, and computes every row's influence at the current weights
    cropi.influence   prompt sampler: as `shuffle`, over the share of rows with the highest influence

    g(x) = sum_i A_i grad log pi(y_i | x);   influence(x) = cos(P g(x), P g_val),  P a sparse random
    projection

Paper: Data-Efficient RLVR via Off-Policy Influence Guidance (CROPI), arXiv:2510.26491, sec. 3. No released
code was opened.

Shapes: D dimensions of the sketch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.methods.core.prompt_sampler import Shuffle, ShuffleState
from vlrl.plugins.contexts import CallbackContext, StageContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Callback, transient
from vlrl.services.lazy import Tensor, torch
from vlrl.types import Group, Rollout, Row

KEY, SCORE = "trajectories", "influence"  # in a row's memory (`run.history`)


class Sketch:
    """A sparse random projection to D numbers: each entry of a gradient is added, with a random sign, to one
    place (count sketch). Inner products are kept in expectation."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed = size, seed
        self.places: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, gradients: Sequence[Tensor]) -> Tensor:
        """(D,) of the gradients, flattened one after the other."""
        out_D = torch.zeros(self.size)
        for number, gradient in enumerate(gradients):
            flat = gradient.detach().float().flatten().cpu()
            if number not in self.places:
                made = torch.Generator().manual_seed(self.seed + number)
                place = torch.randint(self.size, (len(flat),), generator=made)
                sign = torch.randint(2, (len(flat),), generator=made).float() * 2 - 1
                self.places[number] = place, sign
            place, sign = self.places[number]
            out_D.index_add_(0, place, flat * sign)
        return out_D


def influence_of(memory: Mapping[str, Any]) -> float:
    """The influence in a row's memory; -inf without one."""
    return float(memory.get(SCORE, -math.inf))


def cosine(a_D: Tensor, b_D: Tensor) -> float:
    """The cosine of two sketches; 0 where one of them is 0."""
    norm = float(a_D.norm() * b_D.norm())
    return float(a_D @ b_D) / norm if norm else 0.0


@register("cropi")
@dataclass(frozen=True)
class Cropi(Callback):
    """CROPI's influences: keeps up to `kept` rollouts of every row that is sampled (tokens and centred
    rewards, in the run's history), and at the end of every `every`-th step of the phase, and of its last
    one, computes each row's influence on the rows of the source `validation`.

    Paper: arXiv:2510.26491, sec. 3.2-3.3: gradients of the objective on pre-collected trajectories at the
    current checkpoint, compressed by a sparse random projection, compared by their cosine. Deviates: count
    sketch; rewards are centred by the row's mean, not divided. Edge: a row whose rewards are equal has
    influence 0. Logs the rows and the mean influence. Every rank keeps its own rows.

    Attributes:
        parts: Weights whose names contain one of these; their gradients are taken ("": all).
        size: Numbers of a sketch.
    """

    validation: str = "validation"
    every: int = 50
    kept: int = 8
    size: int = 4096
    parts: tuple[str, ...] = ("",)

    def __post_init__(self) -> None:
        if self.every < 1 or self.kept < 2 or self.size < 2:
            raise ValueError(
                f"every={self.every} must be at least 1, kept={self.kept} and size={self.size} at least 2"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if self.validation not in run.rows:
            raise ConfigError(
                f"callbacks: 'cropi': no source {self.validation!r} under data.train; there are "
                f"{', '.join(run.rows)}"
            )

    def __call__(self, run: CallbackContext, groups: Sequence[Group]) -> dict[str, float]:
        for group in groups:
            mean = sum(group.rewards) / max(len(group), 1)
            pairs = [[list(r.ids), r.reward - mean] for r in group if r.source == "policy"]
            if pairs:
                run.history.setdefault(group.row.id, {})[KEY] = pairs[: self.kept]
        done = run.phase_step + 1
        if done % self.every and done < run.settings.steps:
            return {}
        return self.score(run)

    def score(self, run: CallbackContext) -> dict[str, float]:
        """Write every row's influence into its memory."""
        sketch = Sketch(self.size, run.seed)
        found = {
            source: {row.id: self.gradient(run, row, sketch) for row in self.known(run, rows)}
            for source, rows in run.rows.items()
        }
        wanted = list(found.pop(self.validation).values())
        target_D = torch.stack(wanted).mean(0) if wanted else torch.zeros(self.size)
        scores = []
        for sketches in found.values():
            for row, own_D in sketches.items():
                run.history[row][SCORE] = cosine(own_D, target_D)
                scores.append(run.history[row][SCORE])
        return {"rows": float(len(scores)), "influence": sum(scores) / max(len(scores), 1)}

    def known(self, run: CallbackContext, rows: Sequence[Row]) -> Iterator[Row]:
        """The rows that have trajectories."""
        return (row for row in rows if run.history.get(row.id, {}).get(KEY))

    def gradient(self, run: CallbackContext, row: Row, sketch: Sketch) -> Tensor:
        """The sketch (D,) of a row's policy gradient on its trajectories."""
        prompt = run.prompt_template(row)
        pairs = [(ids, advantage) for ids, advantage in run.history[row.id][KEY] if advantage]
        if not pairs:
            return torch.zeros(self.size)
        rollouts = [Rollout(prompt, list(ids), logp=[0.0] * len(ids)) for ids, _ in pairs]
        batch = run.batch([Group(prompt, rollouts)])
        weights = [
            weight
            for name, weight in run.policy.model.named_parameters()
            if weight.requires_grad and any(part in name for part in self.parts)
        ]
        with torch.enable_grad():
            logp_BT = run.policy.forward(batch)["logp"]
            advantage_B = logp_BT.new_tensor([advantage for _, advantage in pairs])
            total = (logp_BT.sum(1) * advantage_B).sum()
            grads = torch.autograd.grad(total, weights, allow_unused=True)
        return sketch([torch.zeros_like(w) if g is None else g for g, w in zip(grads, weights, strict=True)])


@dataclass
class CropiInfluenceState(ShuffleState):
    """`drawn` is the mean influence of the rows that were drawn last."""

    drawn: float = transient(0.0)


@register("cropi.influence")
@dataclass(frozen=True)
class CropiInfluence(Shuffle):
    """CROPI's sampler: as `shuffle`, over the `share` of rows with the highest influence, by callback
    `cropi`; rows of the source `validation`, and rows without an influence, are not drawn.

    Paper: arXiv:2510.26491, sec. 3.4: 10% of the prompts in each stage. Edge: raises ConfigError where no row
    has an influence.
    """

    state_class = CropiInfluenceState
    share: float = 0.1
    validation: str = "validation"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share <= 1:
            raise ValueError(f"share={self.share} must be in (0, 1]")

    def threshold(self) -> float:
        """The influence from which on a row is drawn."""
        known = [memory for memory in self.run.history.values() if SCORE in memory]
        scores = sorted(map(influence_of, known), reverse=True)
        if not scores:
            raise ConfigError(
                "prompt_sampler: 'cropi.influence' found no influences; give an earlier phase "
                "callbacks: {influence: "
                "{name: cropi}}"
            )
        return float(scores[math.ceil(self.share * len(scores)) - 1])

    def __call__(self, n: int) -> list[Row]:
        self.threshold()
        rows = super().__call__(n)
        drawn = [self.run.history[row.id][SCORE] for row in rows]
        self.state.drawn = sum(drawn) / max(len(drawn), 1)
        return rows

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), "cropi/drawn_influence": self.state.drawn}

    def usable_row(self, position: int) -> Row | None:
        row = super().usable_row(position)
        if row is None:
            return None
        memory = self.run.history.get(row.id, {})
        return row if SCORE in memory and influence_of(memory) >= self.threshold() else None
