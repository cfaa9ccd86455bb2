"""Fixtures: a tiny Qwen2.5-VL and a tiny text model with random weights."""

import sys
from pathlib import Path

import pytest
import torch

from vlrl.engine.hf.engine import HF

sys.path.insert(0, str(Path(__file__).parent))
import engine_kit  # noqa: E402


@pytest.fixture(scope="module")
def policy():
    torch.set_num_threads(1)
    return engine_kit.make_policy("qwen2_5_vl")


@pytest.fixture(scope="module")
def text_policy():
    torch.set_num_threads(1)
    return engine_kit.make_policy("text", kind="qwen3")


@pytest.fixture
def engine(policy):
    return HF().attach(policy)


@pytest.fixture
def tools():
    """The helpers of engine_kit, for test files."""
    import types

    return types.SimpleNamespace(
        Noise=engine_kit.Noise,
        prompt=engine_kit.make_prompt,
        request=engine_kit.make_request,
        policy=engine_kit.make_policy,
    )
