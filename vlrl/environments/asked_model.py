"""A model that environments ask from the threads of their episodes: a simulated user, a search engine, a
member of a pool."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from vlrl.plugins.contexts import StageContext
from vlrl.plugins.registry import build
from vlrl.plugins.stages import Engine
from vlrl.types import Completion, Prompt, Request, Row, Sampling


class AskedModel:
    """An engine behind a lock: engines in this process answer one call at a time, endpoints (without the
    policy's parts) several.

    Args:
        spec: Config of the engine. Raises ConfigError as `build` does.
        where: Path of that config, for messages.
    """

    def __init__(self, spec: Mapping[str, Any], run: StageContext, where: str) -> None:
        self.engine: Any = build(Engine, spec, where)
        self.engine.setup(run)
        self.one_at_a_time = bool(getattr(self.engine, "needs_policy", True))
        self.lock = threading.Lock()

    def answer(self, text: str, sampling: Sampling, seed: int, name: str, gold: Any = None) -> Completion:
        """The answer to a text as the user's message. `name` and `gold` are id and answer of the row that it
        is asked for."""
        return self.reply(
            Request(Prompt(Row(name, text, gold), ({"role": "user", "content": text},)), sampling, seed=seed)
        )

    def reply(self, request: Request) -> Completion:
        """The first completion of a request."""
        if not self.one_at_a_time:
            return self._first(request)
        with self.lock:
            return self._first(request)

    def _first(self, request: Request) -> Completion:
        (completion,) = self.engine.generate([request])
        return completion
