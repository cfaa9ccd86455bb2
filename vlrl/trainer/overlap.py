"""What collecting ahead saved, summed over a run from its timings."""

from __future__ import annotations

import json
from pathlib import Path


def overlap(folder: Path) -> dict[str, float]:
    """Seconds over all steps of `timings.jsonl` that have a collected batch: both sides busy and idle, and how much of the collecting was hidden.

    The engine is busy while a batch is collected, the trainer idle while it waits for one; `saved` = engine_busy - trainer_idle (a synchronous loop
    waits all the time that is collected: 0). {} for a run without such steps. Edge: with both sides on the same cores, collecting takes longer
    while the trainer works, so `saved` is more than the wall-clock time that is gained.
    """
    path = folder / "timings.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    steps = [seconds for seconds in (json.loads(line)["seconds"] for line in lines) if "collect" in seconds]
    if not steps:
        return {}
    wall, collect, waited = (sum(seconds[name] for seconds in steps) for name in ("step", "collect", "waited"))
    values = {
        "engine_busy": collect, "engine_idle": max(0.0, wall - collect), "trainer_busy": wall - waited, "trainer_idle": waited,
        "saved": max(0.0, collect - waited),
    }  # fmt: skip
    return {name: round(value, 2) for name, value in values.items()}
