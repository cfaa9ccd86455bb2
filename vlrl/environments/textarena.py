"""Games of the package textarena, against nobody, against random moves, or against oneself."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

from vlrl.plugins.contexts import PhaseContext, StageContext
from vlrl.plugins.episodes import Action, EnvironmentFailure, Episode, Observation
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Environment
from vlrl.services.third_party import pip_install
from vlrl.types import Row

MOVES = re.compile(r"'(\[[^\]']{1,80}\])'")  # legal moves, as the games list them
SEEDING = threading.Lock()  # the games draw from Python's global generator when they are seeded
MAX_MOVE = 4000  # characters
MAX_MOVES = 10_000  # of all players in one game


@register("textarena")
@dataclass(frozen=True, kw_only=True)
class TextArena(Environment):
    """A game of textarena (extra `textarena`): moves are written in square brackets, [4].

    The policy is player 0. The reward, stated at the end, is the game's for player 0; part `invalid` is 1
    where player 0 lost by an invalid move, `turns` is the game's count of its turns. A policy that writes
    nothing in brackets makes an invalid move by the game's own rules. vlrl original; interface of Guertler et
    al. 2025 (TextArena), arXiv:2504.11442, textarena 0.7. Edge: `row.meta["seed"]` (source `episodes`) is the
    game's seed; a game that lists no moves cannot be played against "random" and fails as an environment.

    Attributes:
        opponent: "random" plays the other seats by a random one of the moves that the game lists; "self" lets
            the policy play every seat in one conversation, each turn being told whose it is (reward: mean
            over players).
    """

    game: str = "GuessTheNumber-v0"
    players: int = 1
    opponent: Literal["random", "self"] = "random"

    def __post_init__(self) -> None:
        if self.players < 1:
            raise ValueError(f"players={self.players} must be at least 1")

    def check(self, phase: PhaseContext) -> None:
        if find_spec("textarena") is None:
            raise ConfigError(f"environment: textarena is not installed; {pip_install('textarena')}")

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        import_module("textarena")  # takes seconds: not within the first episode's deadline

    def episode(self) -> Episode:
        return TextArenaEpisode(self)


class TextArenaEpisode(Episode):
    """One game."""

    def __init__(self, settings: TextArena) -> None:
        self.settings = settings
        self.game: Any = None
        self.rng = random.Random(0)
        self.shown = ""  # what was shown of the game so far

    def reset(self, row: Row, seed: int) -> Observation:
        import textarena

        seed = int(row.meta.get("seed", seed))
        self.rng = random.Random(f"opponent {seed}")
        with SEEDING:
            before = random.getstate()
            try:
                self.game = textarena.make(self.settings.game)
                self.game.reset(num_players=self.settings.players, seed=seed)
            finally:
                random.setstate(before)
        ended, text = self.until_the_policys_turn()
        if ended:
            raise EnvironmentFailure(f"game {self.settings.game!r} ended before the first move")
        return Observation(text)

    def step(self, action: Action) -> Observation:
        done, _ = self.game.step(action.text[:MAX_MOVE])
        ended, text = (True, "") if done else self.until_the_policys_turn()
        return self.ended() if ended else Observation(text)

    def until_the_policys_turn(self) -> tuple[bool, str]:
        """Opponents move until it is the policy's turn. Returns (whether the game is over, what is new to
        see)."""
        for _ in range(MAX_MOVES):
            player, observation = self.game.get_observation()
            text = (
                observation
                if isinstance(observation, str)
                else "\n".join(str(part[1]) for part in observation)
            )
            if player == 0 or self.settings.opponent == "self":
                new = text.removeprefix(self.shown) if self.settings.players == 1 else text
                self.shown = text
                return (
                    False,
                    f"You play for player {player}.\n{new.strip()}"
                    if self.settings.opponent == "self"
                    else new.strip(),
                )
            moves = MOVES.findall(text)
            if not moves:
                raise EnvironmentFailure(
                    f"game {self.settings.game!r} lists no moves for player {player}; use opponent: self"
                )
            listed = text.rpartition("vailable")[2]
            done, _ = self.game.step(self.rng.choice(MOVES.findall(listed) or moves))
            if done:
                return True, ""
        raise EnvironmentFailure(f"game {self.settings.game!r}: more than {MAX_MOVES} moves")

    def ended(self) -> Observation:
        """The end: the game's rewards."""
        rewards, info = self.game.close()
        known: Mapping[int, float] = {int(player): float(value) for player, value in (rewards or {}).items()}
        mine = (
            sum(known.values()) / len(known) if self.settings.opponent == "self" and known else known.get(0)
        )
        told = (info or {}).get(0) or {}
        parts = {
            "invalid": float(bool(told.get("invalid_move"))),
            "turns": float(told.get("turn_count") or 0),
        }
        return Observation(done=True, reward=mine, parts=parts)
