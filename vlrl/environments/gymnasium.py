"""Any environment of gymnasium, with text or pictures as observations."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.episodes import PICTURE_REPLIES, Action, Episode, Observation, Picture
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Environment
from vlrl.plugins.tool_calls import last_tagged
from vlrl.services.third_party import pip_install
from vlrl.types import Row

_MARKED = re.compile(r"\x1b\[4\dm(.*?)\x1b\[0m")  # on a coloured ground: where the player is
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_MOST = 4000  # characters of an observation that is printed


def package() -> Any:
    """The package gymnasium. Raises ConfigError where it is not installed."""
    try:
        import gymnasium
    except ImportError as error:
        raise ConfigError(
            f"environment 'gymnasium' needs the package gymnasium ({error}); install it: "
            f"{pip_install('gymnasium')}"
        ) from None
    return gymnasium


@register("gymnasium")
@dataclass(frozen=True, kw_only=True)
class Gymnasium(Environment):
    """An environment of gymnasium: one turn is one step.

        environment: {name: gymnasium, id: "minigrid:MiniGrid-Empty-5x5-v0", observation: picture,
                      actions: [left, right, forward]}

    vlrl original; API: gymnasium 1.x (Towers et al. 2024, arXiv:2407.17032). The policy writes an action as
    <action>...</action>, or as a bare word where it writes one. In a space of texts an action is any text, in
    other spaces than discrete ones a JSON value. The reward of a turn is the environment's;
    `row.meta["seed"]` is the seed of the reset (source `episodes`), so that the rollouts of a row begin
    alike. Edge: what names no action is answered with the actions, is `invalid`, costs a turn and pays
    `invalid_reward`; `terminated` and `truncated` end the episode.

    Attributes:
        id: Name of `gymnasium.make`, with the module that registers it before a colon; `options` are its
            keyword arguments.
        observation: "text" shows what the environment prints (render mode "ansi", a coloured ground as
            brackets), else its observation as JSON; "picture" what it renders ("rgb_array").
        side: Pixels of a picture's shorter side at least; pictures are enlarged by whole factors.
        actions: Names of the actions 0, 1, ... of a discrete space (default: the names that the environment
            has, else numbers).
        expert_depth: The expert (rollout `expert_turns`) tries all sequences of up to so many named actions
            in a second environment of the same seed and takes the shortest one that pays; 0: no expert.
            Steps: at most actions ** depth. What it found is kept for the run, so the environment must be
            deterministic.
    """

    id: str
    options: Mapping[str, Any] = field(default_factory=dict)
    observation: Literal["text", "picture"] = "text"
    actions: tuple[str, ...] = ()
    side: int = 56
    invalid_reward: float = 0.0
    expert_depth: int = 0

    @cached_property
    def _found(self) -> dict[tuple[int, tuple[int, ...]], str]:
        """(Seed, actions so far) -> the expert's next action."""
        return {}

    @property
    def provides(self) -> Sequence[Capability]:
        return (PICTURE_REPLIES,) if self.observation == "picture" else ()

    def check(self, phase: PhaseContext) -> None:
        self.make().close()

    def make(self) -> Any:
        """A new environment. Raises ConfigError for an unknown name, fields that it does not take, and a
        space of actions that has no text."""
        gymnasium = package()
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws without a display
        try:
            rendered = {"render_mode": self._render_mode} if self._render_mode else {}
            made = gymnasium.make(self.id, **{**rendered, **self.options})
        except (gymnasium.error.Error, ImportError, TypeError) as error:
            raise ConfigError(
                f"environment.id: gymnasium cannot make {self.id!r} with {dict(self.options)}: {error}"
            ) from None
        size = getattr(made.action_space, "n", None)
        if self.actions and (size is None or len(self.actions) > int(size)):
            raise ConfigError(
                f"environment.actions: {len(self.actions)} names, but the actions of {self.id!r} are "
                f"{made.action_space}"
            )
        return made

    @cached_property
    def _render_mode(self) -> str | None:
        """What gymnasium is asked to render: pictures, text, or None where the environment prints nothing."""
        if self.observation == "picture":
            return "rgb_array"
        made = package().make(self.id, **self.options)
        made.close()
        return "ansi" if "ansi" in (made.metadata.get("render_modes") or ()) else None

    def episode(self) -> Episode:
        return GymnasiumEpisode(self)


class GymnasiumEpisode(Episode):
    """One environment, from its reset to its end."""

    def __init__(self, settings: Gymnasium) -> None:
        self.settings = settings
        self.world: Any = None
        self.scratch: Any = None  # of the expert
        self.taken: list[Any] = []

    def reset(self, row: Row, seed: int) -> Observation:
        self.world = self.settings.make()
        self.names = action_names(self.world, self.settings.actions)
        self.seed = int(row.meta.get("seed", seed)) % 2**31
        observation, _ = self.world.reset(seed=self.seed)
        mission = observation.get("mission", "") if isinstance(observation, Mapping) else ""
        return self.shown(observation, f"{mission}\n{self.asked()}".strip())

    def asked(self) -> str:
        """What an action looks like, for the policy."""
        if self.names:
            return (
                f"Actions: {', '.join(self.names)}. Write one as <action>{next(iter(self.names))}</action>."
            )
        return "Write an action as <action>...</action>."

    def step(self, action: Action) -> Observation:
        known, value = self.parsed(action.text)
        if not known:
            return Observation(
                f"Error: this is no action. {self.asked()}", reward=self.settings.invalid_reward, invalid=True
            )
        self.taken.append(value)
        observation, reward, terminated, truncated, _ = self.world.step(value)
        parts = {"terminated": float(terminated), "truncated": float(truncated and not terminated)}
        return self.shown(observation, "", float(reward), bool(terminated or truncated), parts)

    def parsed(self, text: str) -> tuple[bool, Any]:
        """(whether the turn holds an action, the action)."""
        tagged = last_tagged(text, "action")
        said = (text if tagged is None else tagged).strip()
        if self.names:
            if said in self.names:
                return True, self.names[said]
            words = [word for word in re.findall(r"[\w-]+", said) if word in self.names]
            return (True, self.names[words[-1]]) if len(set(words)) == 1 else (False, None)
        return space_value(self.world.action_space, said)

    def shown(
        self,
        observation: Any,
        text: str,
        reward: float | None = None,
        done: bool = False,
        parts: Mapping[str, float] | None = None,
    ) -> Observation:
        """What the policy sees of the environment."""
        if self.settings.observation == "picture":
            media: tuple[Picture, ...] = (picture_of(self.world.render(), self.settings.side),)
        else:
            media = ()
            text = "\n".join(filter(None, (printed(self.world, observation), text)))
        return Observation(
            text, media, reward=reward, done=done, parts=parts or {}, calls=int(reward is not None)
        )

    def expert(self, view: Action) -> str | None:
        if not self.settings.expert_depth or not self.names:
            return None
        found, past = self.settings._found, tuple(self.taken)
        if (self.seed, past) not in found:
            for step, name in enumerate(
                plan := self.search()
            ):  # the rest of a shortest plan is a shortest plan of where it leads
                found[self.seed, (*past, *(self.names[one] for one in plan[:step]))] = name
        return found.get((self.seed, past))

    def search(self) -> tuple[str, ...]:
        """The shortest sequence of actions that pays from here, the first of these; () where none of up to
        `expert_depth` does."""
        if self.scratch is None:
            self.scratch = self.settings.make()
        plans = itertools.chain.from_iterable(
            itertools.product(self.names, repeat=depth) for depth in range(1, self.settings.expert_depth + 1)
        )
        return next((plan for plan in plans if self.pays([self.names[name] for name in plan])), ())

    def pays(self, plan: Sequence[int]) -> bool:
        """Whether the last of these actions, behind those that were taken, is the first that pays."""
        self.scratch.reset(seed=self.seed)
        over, reward = False, 0.0
        for action in (*self.taken, *plan):
            if over:
                return False
            _, reward, terminated, truncated, _ = self.scratch.step(action)
            over = bool(terminated or truncated)
        return float(reward) > 0

    def close(self) -> None:
        worlds, self.world, self.scratch = (self.world, self.scratch), None, None
        for world in worlds:
            if world is not None:
                world.close()


def action_names(world: Any, given: Sequence[str]) -> dict[str, int]:
    """Name -> number of the actions of a discrete space; {} for another space."""
    size = getattr(world.action_space, "n", None)
    if size is None:
        return {}
    first = int(getattr(world.action_space, "start", 0))
    own: Any = getattr(world.unwrapped, "actions", None)
    named = (
        [str(one.name) for one in own]
        if hasattr(own, "__members__")
        else [str(first + i) for i in range(int(size))]
    )
    names = list(given) or named
    return {name: first + i for i, name in enumerate(names)}


def space_value(space: Any, said: str) -> tuple[bool, Any]:
    """(whether the text is a member of the space, the member)."""
    import numpy as np

    value: Any = said
    if not hasattr(space, "characters"):  # of gymnasium.spaces.Text
        try:
            value = json.loads(said)
            value = np.asarray(value, dtype=space.dtype) if space.dtype is not None else value
        except (ValueError, TypeError, OverflowError, RecursionError):
            return False, None
    return bool(space.contains(value)), value


def printed(world: Any, observation: Any) -> str:
    """The environment as text: what it prints, else its observation as JSON."""
    if world.render_mode == "ansi":
        return _COLOURS.sub("", _MARKED.sub(r"[\1]", str(world.render()))).strip()
    if isinstance(observation, str):
        return observation
    return json.dumps(
        observation, default=lambda value: value.tolist() if hasattr(value, "tolist") else str(value)
    )[:_MOST]


def picture_of(pixels: Any, side: int) -> Picture:
    """A rendered picture, its pixels repeated until the shorter side has at least `side`."""
    factor = max(1, -(-side // min(pixels.shape[:2])))
    return Picture.of(pixels.repeat(factor, 0).repeat(factor, 1) if factor > 1 else pixels)
