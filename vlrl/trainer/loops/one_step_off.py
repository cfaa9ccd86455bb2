"""One step off-policy: while the trainer works on a batch, the next one is sampled with the weights that this update started from.

Paper: Noukhovitch et al. 2024, arXiv:2410.18252 (asynchronous RLHF; one step of staleness, in lockstep). At step k the policy is updated on the batch
that was sampled under the weights of step k - 1 (the first step's batch is on-policy); then both sides meet, so that a seed gives the same run
whether or not the engine can work at the same time. Correct for the staleness with `weights: {engine: {name: tis}}`.
`loop_options` takes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlrl.registry import ConfigError
from vlrl.trainer.pipeline import Pipeline, remember, report, train_on

if TYPE_CHECKING:
    from vlrl.context import RunContext


def train_step(run: RunContext) -> dict[str, float]:
    """Train on the batch in stock while the next is collected."""
    if run.settings.loop_options:
        raise ConfigError(f"loop_options: loop 'one_step_off' takes none, got {dict(run.settings.loop_options)}")
    pipeline = Pipeline.of(run, ahead=1)
    run.step += 1
    batch = pipeline.take(run)
    pipeline.order(run, run.step + 1)
    metrics = train_on(run, batch, before_sync=pipeline.receive)
    report(run, batch, pipeline)
    remember(run, pipeline)
    return metrics
