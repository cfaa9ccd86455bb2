"""MiniGrid with its state as plain values: what a program over the environment's state reads, and what a text
policy sees."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vlrl.environments.gymnasium import Gymnasium, GymnasiumEpisode
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.episodes import DESCRIBED_STATES, Action, Episode, Observation
from vlrl.plugins.registry import register
from vlrl.types import Row

DIRECTIONS = ("right", "down", "left", "up")
ARROWS = ">v<^"
LETTERS = {"wall": "#", "goal": "G", "door": "D", "key": "K", "ball": "B", "box": "X", "lava": "L"}
DESCRIPTION = """class State(dict):
    # one step of a room of cells; x grows to the right, y downwards, (0, 0) is a wall
    state["agent"]: [int, int]        # x and y of the agent
    state["direction"]: str           # where it looks: "right", "down", "left" or "up"
    state["front"]: str               # type of the object in the cell before it; "empty" for none
    state["carrying"]: str            # "COLOUR TYPE" of what it carries; "" for nothing
    state["goal"]: [int, int] | None  # x and y of the goal
    state["objects"]: list[dict]      # {"type", "color", "x", "y", "open", "locked"} of all but walls
    state["width"], state["height"]: int
"""


def described(world: Any) -> dict[str, Any]:
    """The state of a MiniGrid world as plain values, in the form of `DESCRIPTION`."""
    cells = [(x, y, world.grid.get(x, y)) for y in range(world.height) for x in range(world.width)]
    objects = [
        {
            **{"type": cell.type, "color": cell.color, "x": x, "y": y},
            "open": bool(getattr(cell, "is_open", False)),
            "locked": bool(getattr(cell, "is_locked", False)),
        }
        for x, y, cell in cells
        if cell is not None and cell.type != "wall"
    ]
    front = world.grid.get(*map(int, world.front_pos))
    carried = world.carrying
    return {
        "agent": [int(place) for place in world.agent_pos],
        "direction": DIRECTIONS[int(world.agent_dir)],
        "front": "empty" if front is None else str(front.type),
        "carrying": "" if carried is None else f"{carried.color} {carried.type}",
        "goal": next(([one["x"], one["y"]] for one in objects if one["type"] == "goal"), None),
        "objects": objects,
        "width": int(world.width),
        "height": int(world.height),
    }


def drawn(world: Any) -> str:
    """The room as lines of letters: # wall, G goal, D door, K key, B ball, X box, L lava, > v < ^ the
    agent."""
    rows = []
    for y in range(world.height):
        cells = [world.grid.get(x, y) for x in range(world.width)]
        rows.append(["." if cell is None else LETTERS.get(cell.type, "?") for cell in cells])
    x, y = (int(place) for place in world.agent_pos)
    rows[y][x] = ARROWS[int(world.agent_dir)]
    return "\n".join("".join(row) for row in rows)


@register("minigrid")
@dataclass(frozen=True, kw_only=True)
class MiniGrid(Gymnasium):
    """A MiniGrid world: environment `gymnasium`, whose observations also carry the state as plain values.

        environment: {name: minigrid, id: "minigrid:MiniGrid-Empty-5x5-v0", actions: [left, right, forward]}

    vlrl original; worlds: Minigrid (Chevalier-Boisvert et al. 2023, arXiv:2306.13831). The state of an
    observation (`TURN_STATES`, `END_STATE`) is JSON: `DESCRIPTION`, and "action", the name of the action that
    led there: "" at the beginning, "invalid" for none. With `observation: text` the policy sees the room as
    lines of letters (`drawn`), with "picture" as pixels. Edge: a world that is no MiniGrid raises
    AttributeError at its reset, which is the environment's failure.
    """

    @property
    def provides(self) -> Sequence[Capability]:
        return (*super().provides, DESCRIBED_STATES)

    @property
    def state_description(self) -> str:
        """What a state holds, as a class in Python, for a model that writes a program over states."""
        return DESCRIPTION

    def episode(self) -> Episode:
        return MiniGridEpisode(self)


class MiniGridEpisode(GymnasiumEpisode):
    """One world, with its state."""

    def reset(self, row: Row, seed: int) -> Observation:
        return self.with_state(super().reset(row, seed), "")

    def step(self, action: Action) -> Observation:
        known, value = self.parsed(action.text)
        names = {number: name for name, number in self.names.items()}
        return self.with_state(super().step(action), names.get(value, str(value)) if known else "invalid")

    def with_state(self, observation: Observation, action: str) -> Observation:
        """The observation with the world's state, and the action that led there."""
        state = {**described(self.world.unwrapped), "action": action}
        return replace(observation, state=json.dumps(state, sort_keys=True))

    def shown(
        self,
        observation: Any,
        text: str,
        reward: float | None = None,
        done: bool = False,
        parts: Mapping[str, float] | None = None,
    ) -> Observation:
        if self.settings.observation == "text":
            text = "\n".join(filter(None, (drawn(self.world.unwrapped), text)))
            return Observation(
                text, reward=reward, done=done, parts=parts or {}, calls=int(reward is not None)
            )
        return super().shown(observation, text, reward, done, parts)
