"""Asynchronous collection with bounded staleness: the sampler never waits for the trainer, nor the trainer for the sampler, while there is stock.

Paper: Fu et al. 2025 (AReaL), arXiv:2505.24298. Submission control keeps floor((N - 1) / B) <= i + eta for N submitted rollouts, batch size B and
update i: here at most `staleness` = eta batches beyond the one being trained on. Generation is interruptible: an engine that is given new weights in
mid-sequence recomputes its keys and values and goes on, with a `version` per token. The objective is decoupled PPO: the ratio is taken against the
present policy, and weight `tis` carries pi_prox / pi_behaviour. With an engine that shares the trainer's weights ('hf') the same staleness is played
in turn, reproducibly; with one that has its own, batches are collected in a thread, and timing decides which weights sampled what.
`loop_options`: {staleness: 2}.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlrl.registry import ConfigError
from vlrl.trainer.pipeline import Pipeline, due, remember, report, train_on

if TYPE_CHECKING:
    from vlrl.context import RunContext


def train_step(run: RunContext) -> dict[str, float]:
    """Train on the oldest batch in stock; see that the next `staleness` ones are being collected."""
    ahead = _staleness(run)
    pipeline = Pipeline.of(run, ahead)
    run.step += 1
    pipeline.order(run, run.step + ahead)
    batch = pipeline.take(run)
    metrics = train_on(run, batch, lock=pipeline.lock)
    if due(run):
        pipeline.receive()  # a checkpoint must know every row that was drawn
    report(run, batch, pipeline)
    remember(run, pipeline)
    return metrics


def _staleness(run: RunContext) -> int:
    options = dict(run.settings.loop_options)
    ahead = options.pop("staleness", 2)
    if options or not isinstance(ahead, int) or ahead < 1:
        raise ConfigError(f"loop_options: loop 'asynchronous' takes `staleness` (batches, 1 or more), got {dict(run.settings.loop_options)}")
    return ahead
