"""What the surrogates share that see a rollout as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlrl.registry import ConfigError
from vlrl.stages import Surrogate

if TYPE_CHECKING:
    from vlrl.run import Run


@dataclass(frozen=True)
class WholeRollout(Surrogate):
    """Its gradient is the same for all tokens of a rollout, so credit that differs along it would be lost."""

    def check(self, run: Run) -> None:
        if run.credit.name != "uniform":
            raise ConfigError(
                f"surrogate {self.name} moves all tokens of a rollout alike, so what credit {run.credit.name!r} gives to single tokens is lost; "
                "use credit: {name: uniform}, or a surrogate per token (ppo_clip, gspo with token_level: true)"
            )
