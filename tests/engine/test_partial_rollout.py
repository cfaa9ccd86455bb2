"""Partial rollouts: segments are continued in later steps with the log-probs and versions they were sampled
with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_loops import Bomb, metrics_of, weights_of
from test_loops import config as loop_config

from vlrl.methods.papers.kimi_k1_5 import KimiK15PartialRollout
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.plan import Plan
from vlrl.trainer.session import Session
from vlrl.trainer.views import StepView
from vlrl.training import train


def config(folder: Path, segment: int, *more: str, steps: int = 8) -> Any:
    partial = [
        f"rollout={{name: kimi_k1_5.partial_rollout, segment: {segment}}}",
        "sampling.max_tokens=8",
        "token_weights=null",
    ]
    return loop_config(folder, "synchronous", *partial, *more, steps=steps)


def run_of(folder: Path, segment: int, *more: str) -> StepView:
    session = Session(Plan.of(config(folder, segment, *more)))
    session.open()
    session.enter(0)
    return StepView.between_steps(session)


def sampled(run: StepView, calls: int) -> list[Any]:
    """All groups of the first two rows, sampled in `calls` calls under one policy; no call but the first
    brings prompts."""
    prompts = [run.prompt_template(row) for row in list(run.rows["mine"])[:2]]
    groups = list(run.rollout(prompts, [4, 4], run))
    for _ in range(calls - 1):
        groups += run.rollout([], [], run)
    return sorted(groups, key=lambda group: group.row.id)


def without_zeros(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A counter that has not counted yet may be absent."""
    return [{name: value for name, value in row.items() if value} for row in rows]


def test_segments_under_one_policy_are_the_whole_rollouts(tmp_path: Path) -> None:
    whole, parts = sampled(run_of(tmp_path / "whole", 8), 1), sampled(run_of(tmp_path / "parts", 3), 3)
    assert [len(group) for group in whole] == [len(group) for group in parts] == [4, 4]
    for one, other in zip((r for g in whole for r in g), (r for g in parts for r in g), strict=True):
        assert one.ids == other.ids and one.finish == other.finish and one.text == other.text
        assert other.logp == pytest.approx(one.logp, abs=1e-5)


def test_tokens_keep_the_version_and_the_log_prob_of_their_step(tmp_path: Path) -> None:
    run = run_of(tmp_path, 3, "rollout.mask_earlier=true")
    prompts = [run.prompt_template(row) for row in list(run.rows["mine"])[:1]]
    first = run.rollout(prompts, [4], run)
    assert not first and run.rollout.metrics()["partial/groups"] == 1
    (kept,) = run.rollout.state.groups
    before = [(list(r["ids"]), list(r["logp"])) for r in kept["rollouts"]]
    for parameter in run.policy.model.parameters():
        parameter.data += 0.05
    run.policy.advance()
    (group,) = [group for _ in range(2) for group in run.rollout([], [], run)]
    assert any(len(rollout) > 3 for rollout in group)
    for rollout, (ids, logp) in zip(group, before, strict=True):
        assert rollout.ids[: len(ids)] == ids and rollout.logp[: len(ids)] == logp
        if len(rollout) > 3:
            assert rollout.version == [0] * 3 + [1] * (len(rollout) - 3) and rollout.loss_mask == [
                False
            ] * 3 + [True] * (len(rollout) - 3)
        rescored = run.engine.score(rollout.prompt, rollout.ids)
        assert rescored[len(ids) :] == pytest.approx(rollout.logp[len(ids) :], abs=1e-4)
    assert run.rollout.metrics()["partial/groups"] == 0 and not run.rollout.state.prompts


def test_a_run_trains_on_late_groups_and_resumes_with_the_unfinished(tmp_path: Path) -> None:
    train(config(tmp_path / "whole", 3), live=False)
    Bomb.armed = True
    try:
        with pytest.raises(KeyboardInterrupt):
            train(config(tmp_path / "stopped", 3), live=False)
    finally:
        Bomb.armed = False
    train(config(tmp_path / "stopped", 3), resume=True, live=False)
    rows = metrics_of(tmp_path / "whole")
    assert without_zeros(metrics_of(tmp_path / "stopped")) == without_zeros(rows)
    assert weights_of(tmp_path / "stopped") == weights_of(tmp_path / "whole")
    assert sum(row.get("partial/continued", 0) for row in rows) > 0 and rows[0]["partial/groups"] > 0, (
        "unfinished groups wait"
    )


def test_a_segment_has_tokens() -> None:
    with pytest.raises((ValueError, ConfigError), match="segment is 0"):
        KimiK15PartialRollout(segment=0)
