"""Plug points of rollouts: decoding, budgets, engines, strategies, environments."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from vlrl.stages.base import Stage
from vlrl.types import Completion, Group, Message, Prompt, Request, Rollout, Sampling

if TYPE_CHECKING:
    from vlrl.policy import Policy
    from vlrl.run import Run


class Decode(Stage):
    """How a prompt's `attempt`-th completion is sampled."""

    kind: ClassVar[str] = "decode"
    home: ClassVar[str] = "vlrl.methods.decode"

    @abstractmethod
    def __call__(self, prompt: Prompt, attempt: int) -> Sampling: ...


class Budget(Stage):
    """How many rollouts each prompt gets; the counts sum to `total`."""

    kind: ClassVar[str] = "budget"
    home: ClassVar[str] = "vlrl.methods.budget"

    @abstractmethod
    def __call__(self, prompts: Sequence[Prompt], total: int) -> list[int]: ...


class Engine(Stage):
    """Samples completions. `version` counts the policy updates it has received."""

    kind: ClassVar[str] = "engine"
    home: ClassVar[str] = "vlrl.engine"

    @abstractmethod
    def generate(self, requests: Sequence[Request]) -> Iterable[Completion]:
        """Completions as they finish, in any order; every request yields exactly its `n`."""

    @abstractmethod
    def sync(self, policy: Policy) -> None:
        """Take over the policy's weights."""

    def score(self, prompt: Prompt, ids: Sequence[int]) -> list[float]:
        """Log-probs (nats) of `ids` after `prompt` at temperature 1."""
        raise NotImplementedError(f"engine {self.name!r} cannot score; use engine 'hf'")

    def score_all(self, pairs: Sequence[tuple[Prompt, Sequence[int]]]) -> list[list[float]]:
        """`score` of many; engines that can, batch it."""
        return [self.score(prompt, ids) for prompt, ids in pairs]

    def close(self) -> None:
        """Free what the engine holds."""


class Strategy(Stage):
    """Prompts to groups of rollouts, through an engine."""

    kind: ClassVar[str] = "strategy"
    home: ClassVar[str] = "vlrl.methods.strategy"
    samples: ClassVar[bool] = True  # False: makes its rollouts without an engine

    @abstractmethod
    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: Run) -> list[Group]: ...


class Env(Stage):
    """Answers a rollout with further messages (a tool's result), or None when the conversation is over."""

    kind: ClassVar[str] = "env"
    home: ClassVar[str] = "vlrl.methods.env"

    @abstractmethod
    def reply(self, rollout: Rollout) -> Sequence[Message] | None: ...
