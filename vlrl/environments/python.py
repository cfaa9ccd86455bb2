"""A tool that runs Python in the sandbox."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vlrl.environments.tool_calls import STOP, last_call
from vlrl.registry import ConfigError, home_of, register
from vlrl.stages import Environment, Reward
from vlrl.types import Message, Rollout

if TYPE_CHECKING:
    from vlrl.context import RunContext


def sandbox() -> Any:
    """The sandbox of the rewards' package (the one that judges code): `run(code, tests, ...)`, `available()`."""
    return home_of(Reward, "code.sandbox")


@register("python")
@dataclass(frozen=True)
class Python(Environment):
    """Answers {"name": "python", "arguments": {"code": "..."}} with what the program prints.

    Paper: Li et al. 2025 (ToRL), arXiv:2503.23383, sec. 2 (a code interpreter inside the rollout). Deviates: every call is a fresh process. Edge:
    errors, time-outs and calls that cannot be read are told to the model; a turn without a call ends the conversation; a machine without a sandbox
    refuses the run at start-up, unless `mode` is "unsafe" (limits only). Units: `seconds` of wall clock per call, `most` characters of output.
    """

    shows: ClassVar[bool] = False
    stops: ClassVar[tuple[str, ...]] = (STOP,)
    seconds: float = 4.0
    memory_mb: int = 512
    most: int = 2000
    mode: str = "bubblewrap"

    def __post_init__(self) -> None:
        if self.seconds <= 0 or self.memory_mb < 16 or self.most < 1:
            raise ValueError(f"seconds={self.seconds}, memory_mb={self.memory_mb} (16 or more) and most={self.most} must be positive")

    def check(self, run: RunContext) -> None:
        box = sandbox()
        if self.mode not in box.MODES:
            raise ConfigError(f"env.mode: {self.mode!r} is none of {', '.join(box.MODES)}")
        if self.mode != "unsafe" and box.available():
            raise ConfigError(f"env 'python' needs a sandbox: {box.available()}. Install it, or set env.mode to unsafe (limits only)")

    def reply(self, rollout: Rollout) -> Sequence[Message] | None:
        call = last_call(rollout.info["turn_text"])
        if call is None:
            return None
        return [{"role": "user", "content": [{"type": "text", "text": call if isinstance(call, str) else self._answer(*call)}]}]

    def _answer(self, name: str, arguments: dict[str, Any]) -> str:
        code = arguments.get("code")
        if name != "python" or not isinstance(code, str) or not code.strip():
            return 'Error: call {"name": "python", "arguments": {"code": "..."}}.'
        box = sandbox()
        limits = box.Limits(seconds=self.seconds, total_seconds=self.seconds + 5.0, memory=self.memory_mb << 20, output=4 * self.most)
        ran = box.run(code, [""], limits=limits, sandbox=self.mode)
        if not ran:
            return "Error: the program did not finish."
        status, out = ran[0]
        return out[: self.most] or "(no output)" if status == "ok" else f"Error ({status}): {out[: self.most]}"
