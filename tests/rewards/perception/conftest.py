"""Rollouts for reward tests, without a policy."""

from __future__ import annotations

from typing import Any

import pytest

from vlrl.types import CoordinateSpace, Group, Prompt, Rollout, Row


@pytest.fixture
def rollout():
    def make(
        gold: Any,
        text: str,
        spaces: tuple[CoordinateSpace, ...] = (),
        choices: tuple[str, ...] = (),
        **meta: Any,
    ) -> Rollout:
        row = Row("r", "?", answer=gold, choices=choices, meta=meta)
        return Rollout(Prompt(row, ()), ids=[], text=text, spaces=spaces)

    return make


@pytest.fixture
def group(rollout):
    def make(gold: Any, texts: list[str], **meta: Any) -> Group:
        rollouts = [rollout(gold, text, **meta) for text in texts]
        return Group(rollouts[0].prompt, rollouts)

    return make
