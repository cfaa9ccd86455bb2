"""The moving average of the weights, by hand."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from run_kit import View

from vlrl.config import load
from vlrl.methods.core.callback import EMA
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.plan import Plan
from vlrl.trainer.session import Session


def run_of(model: torch.nn.Module, steps: int) -> View:
    synced: list[int] = []
    engine = SimpleNamespace(sync=lambda policy: synced.append(1))
    return View(
        policy=SimpleNamespace(model=model),
        engine=engine,
        synced=synced,
        settings=SimpleNamespace(steps=steps),
    )


def test_average_and_swap() -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    run, ema = run_of(model, steps=3), EMA(decay=0.5)
    said = []
    for step, weight in enumerate((1.0, 3.0, 5.0)):
        model.weight.data.fill_(weight)
        run.phase_step = step
        said.append(ema(run, [])["distance"])
    assert said == [0.0, 1.0, 1.5]  # averages 1, 2, 3.5
    assert model.weight.item() == 3.5 and run.synced == [1]


def test_frozen_weights_are_left_out_and_state_survives() -> None:
    model = torch.nn.Linear(1, 1)
    model.bias.requires_grad_(False)
    ema = EMA(swap_at_end=False)
    ema(run_of(model, 1), [])
    assert list(ema.state.average) == ["weight"]
    again = EMA(swap_at_end=False)
    again.load_state_dict(ema.state_dict())
    assert torch.equal(again.state.average["weight"], model.weight)


@pytest.mark.parametrize(
    ("kind", "stage", "fine"),
    [
        ("NO", 0, True),
        ("MULTI_GPU", 0, True),
        ("DEEPSPEED", 2, True),
        ("DEEPSPEED", 3, False),
        ("FSDP", 0, False),
    ],
)
def test_weights_spread_over_ranks_are_refused(kind: str, stage: int, fine: bool) -> None:
    run = Session(Plan.of(load(["quickstart"])))
    state = SimpleNamespace(
        deepspeed_plugin=SimpleNamespace(zero_stage=stage) if kind == "DEEPSPEED" else None
    )
    run.accelerator = SimpleNamespace(distributed_type=SimpleNamespace(value=kind), state=state)
    run.is_connected = True
    with nullcontext() if fine else pytest.raises(ConfigError, match="ZeRO-2"):
        EMA().setup(run)


def test_a_decay_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"decay must be in \[0, 1\)"):
        EMA(decay=1.0)
