"""The path of the weights: R^2 against numbers worked out by hand, extrapolation, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from vlrl.cli.weights import app
from vlrl.eval.weight_path import checkpoints, extrapolate, linearity
from vlrl.plugins.registry import ConfigError

CURVE = [
    0.0,
    1.0,
    0.5,
    2.0,
]  # against 0, 10, 20, 30: products 27.5, squares 500 and 2.1875, so R^2 = 27.5^2 / (500 * 2.1875)


def a_run(
    folder: Path,
    columns: list[list[float]],
    name: str = "layers.0.weight",
    dtype: torch.dtype = torch.float32,
) -> Path:
    """A run with a checkpoint every ten steps; `columns` holds the values that each weight takes."""
    for index, values in enumerate(zip(*columns)):
        at = folder / "checkpoints" / f"step-{10 * index:06d}"
        (at / "trainer").mkdir(parents=True)
        (at / "trainer" / "state.json").write_text(json.dumps({"step": 10 * index}))
        for other in (
            "config.json",
            "tokenizer_config.json",
            "trainer/optimizer.pt",
            "trainer/plugins.pt",
        ):  # without them it would be incomplete
            (at / other).write_text("{}")
        weight = torch.tensor([values], dtype=dtype)
        save_file(
            {name: weight, "norm.weight": weight.clone(), "count": torch.tensor([index])},
            at / "model.safetensors",
            metadata={"format": "pt"},
        )
    return folder


def test_r2_of_each_weight_and_their_mean(tmp_path: Path) -> None:
    path = checkpoints([a_run(tmp_path, [[0.0, 1.0, 2.0, 3.0], CURVE])])
    assert [c.step for c in path] == [0, 10, 20, 30]
    r2, weights = linearity(path)["layers.0.weight"]
    assert weights == 2 and r2 == pytest.approx((1 + 756.25 / 1093.75) / 2)


@pytest.mark.parametrize(
    "still",
    [[1.0, 1.0, 1.0, 1.0], [1.0, 1.00002, 1.00004, 1.00006], [0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 1.0, 2.0]],
)
def test_what_hardly_moves_or_takes_few_values_is_left_out(tmp_path: Path, still: list[float]) -> None:
    assert linearity(checkpoints([a_run(tmp_path / "one", [still])])) == {}
    assert linearity(checkpoints([a_run(tmp_path / "two", [still, CURVE])]))["layers.0.weight"] == (
        pytest.approx(756.25 / 1093.75),
        1,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extrapolation_is_the_line_through_both(tmp_path: Path, dtype: torch.dtype) -> None:
    _, old, _, new = checkpoints(
        [
            a_run(
                tmp_path / "run",
                [[0.0, 1.0, 9.0, 2.0], [0.0, 4.0, 9.0, 3.0], [0.0, 5.0, 9.0, 5.0]],
                dtype=dtype,
            )
        ]
    )
    assert (
        extrapolate(old, new, 50, tmp_path / "far") == 1
    )  # (50 - 10) / (30 - 10) = 2 times the way from step 10 to 30
    there = load_file(tmp_path / "far" / "model.safetensors")
    assert there["layers.0.weight"].dtype == dtype and there["layers.0.weight"].tolist() == [[3.0, 2.0, 5.0]]
    assert there["norm.weight"].tolist() == [[2.0, 3.0, 5.0]] and there["count"].tolist() == [
        3
    ]  # norms stay, integers too
    assert (tmp_path / "far" / "config.json").is_file() and not (tmp_path / "far" / "trainer").exists()
    with pytest.raises(ConfigError, match="exists"):
        extrapolate(old, new, 50, tmp_path / "far")


def test_what_cannot_be_judged_is_refused(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", [CURVE])
    with pytest.raises(ConfigError, match=r"3 checkpoints.*watch.keep"):
        linearity(checkpoints([run])[:3])
    with pytest.raises(ConfigError, match="no \\*.safetensors"):
        checkpoints([tmp_path])
    with pytest.raises(ConfigError, match="both of step 10"):
        checkpoints([run, run / "checkpoints" / "step-000010"])
    with pytest.raises(ConfigError, match="has 'layers"):
        checkpoints(
            [
                run / "checkpoints" / "step-000010",
                a_run(tmp_path / "other", [CURVE], name="other") / "checkpoints" / "step-000020",
            ]
        )


def test_the_commands(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", [CURVE])
    shown = CliRunner().invoke(app, ["linearity", str(run)])
    assert shown.exit_code == 0 and "layers.*.weight" in shown.output and "0.691" in shown.output
    told = json.loads(CliRunner().invoke(app, ["linearity", str(run), "--json"]).output)
    assert told["layers.0.weight"] == {"r2": pytest.approx(0.691429, abs=1e-6), "weights": 1}
    ends = [str(run / "checkpoints" / f"step-0000{s}") for s in (10, 30)]
    done = CliRunner().invoke(app, ["extrapolate", *ends, "--step", "40", "-o", str(tmp_path / "far")])
    assert done.exit_code == 0 and "1 of 3 tensors" in done.output
    assert (
        load_file(tmp_path / "far" / "model.safetensors")["layers.0.weight"].item() == 2.5
    )  # 1 + 1.5 * (2 - 1)
    back = CliRunner().invoke(app, ["extrapolate", *ends, "--step", "20", "-o", str(tmp_path / "back")])
    assert isinstance(back.exception, ConfigError) and "not beyond 30" in str(back.exception)
