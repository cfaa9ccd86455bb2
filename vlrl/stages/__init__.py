"""The plug points: one abstract class per stage of a step. A plug-in is a frozen dataclass: its fields are its config, `__call__` is the method.

`needs` names the extra tensors a plug-in reads, `check` refuses impossible runs at start-up, `setup` is called once when the run is built,
`state_dict` / `load_state_dict` carry what was learned over a restart. Learned state lives in fields made with `field(init=False)`.

A plug-in imports no part of the trainer. What it needs of it, the run that it is handed does (`vlrl/toolbox.py`): `run.batch(groups)` and
`run.micros(groups)` for forwards of its own, `run.score(groups)` for rewards before the loop asks for them, `run.gather(values)` and
`run.summed(tensor)` for what all ranks must agree on, `run.accuracy()` for the held-out rows.
"""

from __future__ import annotations

from vlrl.stages.base import Stage
from vlrl.stages.data import Sampler, Scaffold, Select, Source
from vlrl.stages.loss import Denominators, Field, Reduce, Surrogate, Term, Weight
from vlrl.stages.rollout import Budget, Decode, Engine, Env, Strategy
from vlrl.stages.signal import Advantage, Credit, Gate, Replay, Reward, Shape
from vlrl.stages.training import Callback, Probe, Tune

__all__ = [
    "STAGES",
    "Advantage",
    "Budget",
    "Callback",
    "Credit",
    "Decode",
    "Denominators",
    "Engine",
    "Env",
    "Field",
    "Gate",
    "Probe",
    "Reduce",
    "Replay",
    "Reward",
    "Sampler",
    "Scaffold",
    "Select",
    "Shape",
    "Source",
    "Stage",
    "Strategy",
    "Surrogate",
    "Term",
    "Tune",
    "Weight",
]

STAGES: dict[str, type[Stage]] = {
    stage.kind: stage
    for stage in (
        Source, Select, Sampler, Scaffold, Decode, Budget, Engine, Strategy, Env, Reward, Shape, Gate, Replay, Advantage, Credit,
        Field, Surrogate, Weight, Term, Reduce, Tune, Callback, Probe,
    )
}  # fmt: skip
