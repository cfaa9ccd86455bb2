"""What several plug-ins ask of the run's decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlrl.registry import ConfigError

if TYPE_CHECKING:
    from vlrl.context import RunContext


def completion_limit(run: RunContext, own: int, where: str) -> int:
    """`own`, or the `max_tokens` of the run's decoding where `own` is 0. Raises ConfigError if neither is known."""
    limit = own or int(getattr(run.sampling, "max_tokens", 0) or 0)
    if limit <= 0:
        raise ConfigError(f"{where}: the longest completion is not known; set it (tokens), or use a decode with a `max_tokens`")
    return limit
