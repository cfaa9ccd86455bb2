"""A tool that runs Python in the sandbox."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.environments.tools import ToolEnvironment
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.registry import ConfigError, home_of, register
from vlrl.plugins.stages import Reward


def sandbox() -> Any:
    """The sandbox of the rewards' package (the one that judges code): `run(code, tests, ...)`,
    `available()`."""
    return home_of(Reward, "code.sandbox")


@register("python")
@dataclass(frozen=True)
class Python(ToolEnvironment):
    """ToRL's code interpreter: answers {"name": "python", "arguments": {"code": "..."}} with what the program
    prints.

    Paper: Li et al. 2025 (ToRL), arXiv:2503.23383, sec. 2 (a code interpreter inside the rollout). Deviates:
    every call is a fresh process. Edge: the model is told about errors, time-outs and calls that cannot be
    parsed; a turn without a call ends the conversation; on a machine without a sandbox the run is refused at
    start-up, unless `mode` is "unsafe" (limits only). Units: `seconds` of wall clock per call, `max_output`
    characters.
    """

    seconds: float = 4.0
    memory_mb: int = 512
    max_output: int = 2000
    mode: str = "bubblewrap"

    def __post_init__(self) -> None:
        if self.seconds <= 0 or self.memory_mb < 16 or self.max_output < 1:
            raise ValueError(
                f"seconds={self.seconds}, memory_mb={self.memory_mb} (16 or more) and "
                f"max_output={self.max_output} must be positive"
            )

    def check(self, phase: PhaseContext) -> None:
        box = sandbox()
        if self.mode not in box.MODES:
            raise ConfigError(f"environment.mode: {self.mode!r} is not one of {', '.join(box.MODES)}")
        if self.mode != "unsafe" and box.available():
            raise ConfigError(
                f"environment: 'python' needs a sandbox: {box.available()}. Install it, or set "
                "environment.mode: unsafe (limits only)"
            )
        box.require(self.mode)

    def functions(self) -> Sequence[Callable[..., Any]]:
        return [self.python]

    def python(self, code: str) -> str:
        """Runs a Python program and returns what it prints."""
        if not code.strip():
            raise ValueError('call {"name": "python", "arguments": {"code": "..."}}')
        box = sandbox()
        limits = box.SandboxLimits(
            seconds=self.seconds,
            total_seconds=self.seconds + 5.0,
            memory=self.memory_mb << 20,
            output=4 * self.max_output,
        )
        results = box.run(code, [""], limits=limits, sandbox=self.mode)
        if not results:
            return "Error: the program did not finish."
        status, out = results[0]
        return (
            out[: self.max_output] or "(no output)"
            if status == "ok"
            else f"Error ({status}): {out[: self.max_output]}"
        )
