"""Rollouts without a policy."""

from collections.abc import Callable
from typing import Any

import pytest
from vlrl_rewards.math import pool

from vlrl.types import Prompt, Rollout, Row


@pytest.fixture(scope="module")
def warm_pool() -> None:
    """The processes of the math verifier, started."""
    pool.warm(wait=True)


@pytest.fixture
def rollout() -> Callable[..., Rollout]:
    """Make a rollout from a gold answer and a text."""

    def make(gold: Any, text: str, ids: int = 0, finish: str = "stop", **row: Any) -> Rollout:
        prompt = Prompt(Row(id="r", question="q", answer=gold, **row), ())
        return Rollout(prompt, list(range(ids or len(text.split()))), text=text, finish=finish)  # type: ignore[arg-type]

    return make
