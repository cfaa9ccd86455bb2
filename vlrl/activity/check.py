"""`check`: train a config for a few steps and judge every slot of every phase."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vlrl.activity.config_findings import config_findings
from vlrl.activity.figures import Figures, Finding
from vlrl.activity.findings import findings
from vlrl.activity.observer import Activity
from vlrl.activity.report import BAD, lines
from vlrl.config import Config
from vlrl.trainer.data.check_tools import check_tools
from vlrl.trainer.data.rows import check_lengths
from vlrl.trainer.pipeline.loops import open_loop
from vlrl.trainer.plan import Plan
from vlrl.trainer.session import Session
from vlrl.trainer.step.step import Step

QUIET = {"rollouts_every": 0, "checkpoint_every": 0, "heldout_every": 0, "trackers": [], "live": False}


@dataclass
class PhaseCheck:
    """The check of one phase. `log` has the metrics of each step."""

    phase: str
    findings: list[Finding]
    lines: list[str]
    figures: Figures
    log: list[dict[str, float]] = field(default_factory=list)

    @property
    def bad(self) -> list[Finding]:
        """Dead and contradictory slots."""
        return [finding for finding in self.findings if finding.level in BAD]


def check(
    config: Config,
    steps: int = 3,
    after_step: Callable[[Session, Step, Activity], None] | None = None,
    keep_gradients: bool = False,
    rows: int = 2000,
) -> list[PhaseCheck]:
    """Train up to `steps` steps of each phase, without checkpoints, held-out rows and evaluation, and judge
    every slot.

    Schedules are judged by the phase's own number of steps, and the learning rate follows it. `after_step` is
    called after each step. `rows`: how many rows of each source are validated beforehand.
    Raises ConfigError for a config that cannot run.
    """
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan.of(_small(config, folder))
        plan.check(rows, golds=False)
        refused = check_tools(plan.phases)
        session = Session(plan)
        session.open()
        try:
            checks = [
                _check_phase(
                    session, index, min(steps, phase.settings.steps), rows, after_step, keep_gradients
                )
                for index, phase in enumerate(plan.phases)
            ]
        finally:
            session.close()
    for tool, why in refused.items():
        finding = Finding("environment", "dead", f"tool {tool!r} was never carried out: {why}")
        checks[0].findings.append(finding)
        checks[0].lines.append(f"  {finding}")
    return checks


def _check_phase(
    session: Session,
    index: int,
    steps: int,
    rows: int,
    after_step: Callable[[Session, Step, Activity], None] | None,
    keep_gradients: bool,
) -> PhaseCheck:
    session.enter(index)
    phase = session.current
    activity = Activity(session, keep_gradients)
    session.observers.members[:] = [activity]
    check_lengths(session.policy, phase, min(64, rows))
    session.engine.sync(session.policy)
    loop = open_loop(session)
    for _ in range(steps):
        step = loop.step()
        if after_step is not None:
            after_step(session, step, activity)
    found = [*config_findings(phase), *findings(phase, activity)]
    return PhaseCheck(phase.phase, found, lines(phase, activity, found), activity.figures, activity.log)


def whole_batches(config: Config) -> list[str]:
    """The override that small batches need: prompts_per_step as num_minibatches, where so few prompts are not
    divided by that; [] where they are."""
    prompts, parts = config.tree.get("prompts_per_step"), config.tree.get("num_minibatches")
    divides = not isinstance(prompts, int) or not isinstance(parts, int) or parts < 1 or prompts % parts == 0
    return [] if divides else [f"prompts_per_step={parts}"]


def _small(config: Config, folder: str) -> Config:
    """The config without what a check does not need; its values of the training stay as they are."""
    tree: dict[str, Any] = copy.deepcopy(config.tree)
    tree["output"] = folder
    tree.pop("eval", None)
    for part in (tree, *(own for own in (tree.get("phases") or {}).values() if isinstance(own, dict))):
        if "watch" in part or part is tree:
            part["watch"] = {**(part.get("watch") or {}), **QUIET}
    return Config(tree, config.origins, config.kept)
