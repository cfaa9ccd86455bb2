"""Mixture weights of data sources from a quadratic fit over a few short runs (MoDoMoDo)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vlrl.plugins.registry import ConfigError


class Fit(NamedTuple):
    """Held-out result ~ sum_i b_i w_i + sum_{i<j} c_ij w_i w_j on the simplex. `error`: leave-one-out root
    mean squared error."""

    names: tuple[str, ...]
    linear_M: np.ndarray
    pairs: tuple[tuple[int, int], ...]
    crossed_P: np.ndarray
    error: float

    def __call__(self, share_RM: np.ndarray) -> np.ndarray:
        return features(share_RM, self.pairs) @ np.concatenate([self.linear_M, self.crossed_P])


class MixtureProposal(NamedTuple):
    """A mixture: shares by source (they sum to 1), the fit's prediction for it, the best measured run, and
    the fit's error."""

    shares: dict[str, float]
    predicted: float
    best_seen: float
    error: float


def features(share_RM: np.ndarray, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """(R, M + P): the shares, and their products by pairs."""
    return np.concatenate(
        [
            share_RM,
            np.stack([share_RM[:, i] * share_RM[:, j] for i, j in pairs], 1) if pairs else share_RM[:, :0],
        ],
        1,
    )


def fit(names: Sequence[str], share_RM: np.ndarray, heldout_R: np.ndarray, ridge: float = 1e-3) -> Fit:
    """A quadratic surface over mixtures, by ridge regression (the ridge penalises the products of shares, not
    the shares).

    Paper: MoDoMoDo, arXiv:2505.24871 (a quadratic surrogate from mixture to result). Deviates: on the simplex
    a full quadratic equals this form, Scheffe's, which has no redundant terms; `ridge` is ours.
    Raises ConfigError with fewer runs than sources, or if the mixtures do not span them.
    """
    share_RM = share_RM / share_RM.sum(1, keepdims=True)
    if len(heldout_R) < len(names) or np.linalg.matrix_rank(share_RM) < len(names):
        raise ConfigError(
            f"runs: {len(heldout_R)} runs cannot tell {len(names)} sources apart ({', '.join(names)}); "
            "give at least as many runs as sources, "
            "with mixtures that differ in every source"
        )
    pairs = tuple(itertools.combinations(range(len(names)), 2))
    values = _solve(share_RM, heldout_R, pairs, ridge)
    left_out = [
        i for i in range(len(heldout_R)) if np.linalg.matrix_rank(np.delete(share_RM, i, 0)) == len(names)
    ]
    errors = []
    for i in left_out:
        others = _solve(np.delete(share_RM, i, 0), np.delete(heldout_R, i), pairs, ridge)
        errors.append(features(share_RM[i : i + 1], pairs) @ others - heldout_R[i])
    error = float(np.sqrt(np.mean(np.square(errors)))) if errors else float("nan")
    return Fit(tuple(names), values[: len(names)], pairs, values[len(names) :], error)


def _solve(
    share_RM: np.ndarray, heldout_R: np.ndarray, pairs: Sequence[tuple[int, int]], ridge: float
) -> np.ndarray:
    x_RF = features(share_RM, pairs)
    penalty_F = np.array([1e-9] * share_RM.shape[1] + [ridge] * len(pairs))
    return np.linalg.solve(x_RF.T @ x_RF + np.diag(penalty_F), x_RF.T @ heldout_R)


def best(surface: Fit, floor: float = 0.0) -> tuple[np.ndarray, float]:
    """The maximum of the surface with each share at least `floor`, and its value. SLSQP from the corners, the
    middle and 64 random starts."""
    from scipy.optimize import minimize

    count = len(surface.names)
    if not 0 <= floor * count <= 1:
        raise ConfigError(f"floor: {floor} for each of {count} sources is not between 0 and 1 in all")
    starts = [
        *np.eye(count),
        np.full(count, 1 / count),
        *np.random.default_rng(0).dirichlet(np.ones(count), 64),
    ]
    found = []
    for start in starts:
        inner = floor + (1 - floor * count) * start
        whole = {"type": "eq", "fun": lambda w: w.sum() - 1}
        result = minimize(
            lambda w: -surface(w[None])[0],
            inner,
            bounds=[(floor, 1)] * count,
            constraints=[whole],
            method="SLSQP",
        )
        found.append(np.clip(result.x, floor, 1) / np.clip(result.x, floor, 1).sum())
    top = max(found, key=lambda w: surface(w[None])[0])
    return top, float(surface(top[None])[0])


def read_run(folder: Path) -> tuple[dict[str, float], dict[str, float]]:
    """(weight by training source, final held-out result by task) of a finished run. Raises ConfigError if it
    has none."""
    import yaml

    try:
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(
            f"{folder}: no {Path(error.filename).name}; give folders of finished runs"
        ) from None
    weights = {
        name: float(source.get("weight", 0.0)) for name, source in config["data"]["train"].items() if source
    }
    results = summary.get("heldout", {}).get("final", {})
    if not results or not all(w > 0 for w in weights.values()):
        raise ConfigError(
            f"{folder}: needs final held-out results ({results or 'none'}) and a weight above 0 on every "
            f"source, got {weights}"
        )
    return weights, {task: float(value) for task, value in results.items()}


def propose(
    runs: Sequence[tuple[dict[str, float], dict[str, float]]],
    tasks: dict[str, float] | None = None,
    floor: float = 0.0,
) -> MixtureProposal:
    """The best mixture by a fit over `runs` (see `read_run`). `tasks`: the weight of each held-out task
    (default: all equal)."""
    names = sorted({name for weights, _ in runs for name in weights})
    known = sorted(set.intersection(*(set(results) for _, results in runs)))
    counts: dict[str, Any] = tasks or dict.fromkeys(known, 1.0)
    missing = sorted(set(counts) - set(known))
    if missing or not counts:
        raise ConfigError(
            f"tasks: {', '.join(missing) or 'none'}: not a held-out task of every run. Known: "
            f"{', '.join(known) or 'none'}"
        )
    share_RM = np.array([[weights.get(name, 0.0) for name in names] for weights, _ in runs])
    heldout_R = np.array(
        [
            sum(results[task] * count for task, count in counts.items()) / sum(counts.values())
            for _, results in runs
        ]
    )
    surface = fit(names, share_RM, heldout_R)
    shares, predicted = best(surface, floor)
    return MixtureProposal(
        {name: round(float(share), 4) for name, share in zip(names, shares)},
        predicted,
        float(heldout_R.max()),
        surface.error,
    )
