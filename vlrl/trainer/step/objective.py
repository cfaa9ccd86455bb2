"""loss = aggregate(policy_loss * token_weights) + sum_i coef_i * aggregate(loss_term_i), with the
denominators of the whole optimizer step.

Shapes: B rollouts, T completion tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vlrl.plugins.stages import LossAggregation, LossTerm, PolicyLoss, TokenWeight
from vlrl.services.lazy import Tensor, torch
from vlrl.trainer.step.observer import RunObserver
from vlrl.types import Denominators, LossInputs, UnreducedLoss

Sums = dict[str, tuple[float, float]]  # name -> (sum, count)


@dataclass(frozen=True)
class Objective:
    """The loss of a phase, composed of its plug-ins."""

    policy_loss: PolicyLoss
    loss_aggregation: LossAggregation
    token_weights: Mapping[str, TokenWeight]
    loss_terms: Mapping[str, LossTerm]

    @property
    def parts(self) -> list[PolicyLoss | TokenWeight | LossTerm | LossAggregation]:
        return [
            self.policy_loss,
            self.loss_aggregation,
            *self.token_weights.values(),
            *self.loss_terms.values(),
        ]

    @property
    def needs(self) -> list[str]:
        """Names of all extra tensors, in a stable order."""
        return sorted({name for part in self.parts for name in part.needs})

    @property
    def skips_zero(self) -> bool:
        """Whether a group whose advantages are all zero has no gradient and can be skipped."""
        return not self.loss_terms and self.policy_loss.zero_without_advantage

    def __call__(
        self, x: LossInputs, totals: Denominators, observer: RunObserver | None = None
    ) -> tuple[Tensor, Sums]:
        """The scalar loss of one micro-batch (its share of the step's) and metric sums. Raises
        FloatingPointError if it is not finite."""
        sums: Sums = {}
        main = self.policy_loss(x)
        factor = torch.ones_like(x.mask_BT)
        weights = {name: weight(x).detach() for name, weight in self.token_weights.items()}
        for name, value in weights.items():
            _add(sums, f"token_weight/{name}", value.expand_as(x.mask_BT), x)
            factor = factor * value
        loss = self._aggregate(main, factor, x, totals)
        sums["loss/policy"] = (loss.item(), 0.0)
        for key, value in main.metrics.items():
            _add(sums, key, value, x)
        terms = {name: term(x) for name, term in self.loss_terms.items()}
        for name, term in self.loss_terms.items():
            result = terms[name]
            part = self._aggregate(result, torch.ones_like(factor), x, totals)
            sums[f"loss/{name}"] = (part.item(), 0.0)
            for key, value in result.metrics.items():
                _add(sums, key, value, x)
            if term.coef:
                loss = loss + term.coef * part
        sums["loss"] = (loss.item(), 0.0)
        if observer is not None and observer.reads_loss:
            aggregation = self.loss_aggregation.weights(x, totals) if main.loss.dim() == 2 else None
            weighted = {name: (self.loss_terms[name].coef, term) for name, term in terms.items()}
            observer.loss_computed(x, main, weights, weighted, aggregation, loss)
        if not torch.isfinite(loss):
            rows = sorted({group.row.id for group in x.batch.groups})
            raise FloatingPointError(
                f"the loss is {loss.item()} (rows {rows[:8]}); parts: "
                f"{ {k: v[0] for k, v in sums.items() if k.startswith('loss')} }"
            )
        return loss, sums

    def _aggregate(
        self, result: UnreducedLoss, factor_BT: Tensor, x: LossInputs, totals: Denominators
    ) -> Tensor:
        if result.loss.dim() == 1:  # a loss per sequence: its mean over the step's sequences
            return (result.loss * _sequence_factor(factor_BT, x)).sum() / totals.sequences
        weights = self.loss_aggregation.weights(x, totals)
        # where() and not a product: a masked token's infinity must not become NaN
        return torch.where(
            x.mask_BT > 0, weights * factor_BT * result.loss, torch.zeros_like(result.loss)
        ).sum()


def _sequence_factor(factor_BT: Tensor, x: LossInputs) -> Tensor:
    return (factor_BT * x.mask_BT).sum(-1) / x.length_B


def _add(sums: Sums, name: str, value: Tensor, x: LossInputs) -> None:
    """Token means for (B, T), sequence means for (B,), plain means for scalars: kept as sums, so that
    micro-batches add up."""
    value = value.detach().float()
    if value.dim() == 2:
        mask = x.mask_BT.expand_as(value)
        total, count = torch.where(mask > 0, value, torch.zeros_like(value)).sum().item(), mask.sum().item()
    else:
        total, count = value.sum().item(), float(value.numel())
    before = sums.get(name, (0.0, 0.0))
    sums[name] = (before[0] + total, before[1] + count)


def add_sums(into: Sums, more: Sums) -> None:
    """Accumulate metric sums over micro-batches."""
    for name, (total, count) in more.items():
        before = into.get(name, (0.0, 0.0))
        into[name] = (before[0] + total, before[1] + count)


def means(sums: Sums) -> dict[str, float]:
    """Sums to numbers for the log: a count of 0 marks a quantity that adds up (a loss)."""
    return {name: total / count if count else total for name, (total, count) in sums.items()}
