"""`vlrl data mixture`: the fit over runs with different mixtures, and its maximum."""

import json

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner
from vlrl_data.cli import app
from vlrl_data.tools.mixture import best, fit, propose

from vlrl.plugins.registry import ConfigError

NAMES = ("boxes", "counts", "math")
CORNERS_AND_EDGES = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1], [1, 1, 1]]


def surface(w):
    """Sources 0 and 1 help each other, 2 does not: the best mixture is (1/2, 1/2, 0), by hand."""
    return 0.2 * w[0] + 0.2 * w[1] + 0.1 * w[2] + 0.8 * w[0] * w[1]


def runs(noise=0.0):
    rng = np.random.default_rng(0)
    for mixture in CORNERS_AND_EDGES:
        score = surface(np.array(mixture) / sum(mixture)) + noise * rng.normal()
        yield (
            {name: float(w) for name, w in zip(NAMES, mixture, strict=True) if w},
            {"all": score, "other": 1.0},
        )


def test_a_quadratic_surface_is_found_again():
    shares = np.array(CORNERS_AND_EDGES, float)
    scores = np.array([surface(w) for w in shares / shares.sum(1, keepdims=True)])
    made = fit(NAMES, shares, scores, ridge=1e-9)
    assert made.linear_M == pytest.approx([0.2, 0.2, 0.1], abs=1e-4) and made.crossed_P == pytest.approx(
        [0.8, 0, 0], abs=1e-3
    )
    mixture, value = best(made)
    assert mixture == pytest.approx([0.5, 0.5, 0], abs=1e-3) and value == pytest.approx(0.4, abs=1e-3)
    assert best(made, floor=0.2)[0] == pytest.approx([0.4, 0.4, 0.2], abs=1e-3)


def test_proposal_from_runs():
    found = propose(list(runs()), {"all": 1.0})
    assert found.shares == pytest.approx(
        {"boxes": 0.5, "counts": 0.5, "math": 0}, abs=0.01
    ) and found.best_seen == pytest.approx(0.4)
    assert propose(list(runs())).best_seen == pytest.approx(
        0.7
    )  # the mean with a task on which all runs are equal
    assert propose(list(runs(noise=0.05)), {"all": 1.0}).error > found.error


def test_too_few_runs_and_unknown_tasks():
    with pytest.raises(ConfigError, match="tell 3 sources apart"):
        propose(
            [*list(runs())[:2], ({"boxes": 1.0, "counts": 1.0, "math": 0.0}, {"all": 0.3, "other": 1.0})]
        )  # math is never trained on
    with pytest.raises(ConfigError, match="Known: all, other"):
        propose(list(runs()), {"al": 1.0})


def test_command(tmp_path):
    folders = []
    for i, (weights, scores) in enumerate(runs()):
        folder = tmp_path / str(i)
        folder.mkdir()
        train = {
            name: {"name": "lab_counting", "weight": weights[name]} if name in weights else None
            for name in NAMES
        }
        (folder / "config.yaml").write_text(yaml.safe_dump({"data": {"train": train}}))
        (folder / "summary.json").write_text(json.dumps({"heldout": {"final": scores}}))
        folders.append(str(folder))
    told = CliRunner().invoke(app, ["mixture", *folders, "--tasks", "all=1", "--json"])
    assert told.exit_code == 0 and json.loads(told.stdout)["shares"] == pytest.approx(
        {"boxes": 0.5, "counts": 0.5, "math": 0}, abs=0.01
    )
    plain = CliRunner().invoke(app, ["mixture", *folders, "--tasks", "all=1"])
    assert "data.train.boxes.weight=0.5" in plain.stdout
    broken = CliRunner().invoke(app, ["mixture", str(tmp_path)])
    assert isinstance(broken.exception, ConfigError) and "config.yaml" in str(broken.exception)
