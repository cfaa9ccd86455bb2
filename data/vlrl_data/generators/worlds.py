"""A small household: the next state of the world after an action, and plans for a picture of it."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageDraw

from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.generators.drawn_text import write_centred
from vlrl_data.generators.scenes import COLOURS
from vlrl_data.lab.base import GeneratedSource, tagged_answer
from vlrl_data.media.images import GeneratedImage

PLACES = ("table", "shelf", "bed", "sofa", "desk")
OBJECTS = ("cup", "book", "ball", "box")
SIZE = (168, 168)
Things = tuple[tuple[str, str, int], ...]  # colour, object, number of its place


def draw_room(places: tuple[str, ...], things: Things) -> Image.Image:
    """Places from top to bottom, each with the objects on it."""
    image = Image.new("RGB", SIZE, (240, 238, 230))
    pen = ImageDraw.Draw(image)
    tall = SIZE[1] // len(places)
    for i, place in enumerate(places):
        pen.rectangle((4, tall * i + 4, SIZE[0] - 5, tall * (i + 1) - 4), fill=(222, 214, 196))
        write_centred(pen, (4, tall * i, 60, tall * (i + 1)), place, 14)
        for k, (colour, name, _) in enumerate(thing for thing in things if thing[2] == i):
            box = (64 + 50 * k, tall * i + 8, 110 + 50 * k, tall * (i + 1) - 8)
            pen.rectangle(box, fill=COLOURS[colour])
            write_centred(pen, box, name, 13, (255, 255, 255) if colour != "yellow" else (20, 20, 20))
    return image


@dataclass(frozen=True, kw_only=True)
class Household(GeneratedSource):
    """`objects` coloured objects on `places` places."""

    places: int = 3
    objects: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.places <= len(PLACES) or not 1 <= self.objects <= len(OBJECTS):
            raise ConfigError(
                f"places={self.places} must be 2 to {len(PLACES)}, and objects={self.objects} 1 to "
                f"{len(OBJECTS)}"
            )

    def room(self, rng: random.Random) -> tuple[tuple[str, ...], Things]:
        """Places, and objects on them; at most two on a place."""
        places = tuple(rng.sample(PLACES, self.places))
        spots = rng.sample([i for i in range(self.places) for _ in range(2)], self.objects)
        return places, tuple(
            (rng.choice(sorted(COLOURS)), name, spot)
            for name, spot in zip(rng.sample(OBJECTS, self.objects), spots, strict=True)
        )


@register("gen_world")
@dataclass(frozen=True, kw_only=True)
class GenWorld(Household):
    """The state of a household after an action: a JSON object with the agent's place, what it holds, and the
    place of each object; task `world`.

    Text only. Actions: go to a place, pick up an object here, put down the held object; a quarter of them
    cannot be done and change nothing. Paper: the text worlds of RLVR-World (arXiv:2505.13934), reduced to one
    room. Reward: `extraction` with `f1`. Gold: the whole next state.
    """

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        places, things = self.room(rng)
        state: dict[str, Any] = {
            "agent": rng.choice(places),
            "holding": "nothing",
            **{name: places[spot] for _, name, spot in things},
        }
        held = rng.choice([None, *(name for _, name, _ in things)])
        if held:
            state |= {"holding": held, held: "hand"}
        action, after = self.act(rng, places, state)
        question = (
            f"State: {json.dumps(state)}\nAction: {action}\nGive the next state as one JSON object with "
            "the same keys."
        )
        return Row(self.id(index), question, after, task="world", target=tagged_answer(json.dumps(after)))

    def act(
        self, rng: random.Random, places: tuple[str, ...], state: dict[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        """An action and the state after it."""
        here, held = state["agent"], state["holding"]
        if rng.random() < 0.25:  # an action that cannot be done
            if held == "nothing":
                return "put down", dict(state)
            return f"pick up {held}", dict(state)
        around = [name for name in OBJECTS if state.get(name) == here]
        if held != "nothing" and rng.random() < 0.5:
            return "put down", {**state, "holding": "nothing", held: here}
        if held == "nothing" and around and rng.random() < 0.7:
            name = rng.choice(around)
            return f"pick up {name}", {**state, "holding": name, name: "hand"}
        goal = rng.choice([place for place in places if place != here])
        return f"go to {goal}", {**state, "agent": goal}


@register("gen_plan")
@dataclass(frozen=True, kw_only=True)
class GenPlan(Household):
    """A plan that brings objects of a pictured room to another place: four steps for each of `goals` objects;
    task `plan`.

    Gold: the steps as texts, "find the cup", "pick up the cup", "find the table", "put down the cup".
    `meta.actions` lists all possible steps; the prompt numbers them.
    Paper: the plans of Reinforced Reasoning for Embodied Planning (arXiv:2505.22050), on a drawn room.
    Rewards: `plan`, `plan_format`. The objects are named by their colour, so that the plan needs the picture.
    """

    goals: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.goals <= self.objects:
            raise ConfigError(f"goals={self.goals} must be 1 to objects={self.objects}")

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        places, things = self.room(rng)
        colours = rng.sample(sorted(COLOURS), self.objects)
        things = tuple((colour, name, spot) for colour, (_, name, spot) in zip(colours, things, strict=True))
        moved = rng.sample(things, self.goals)
        steps, wishes = [], []
        for colour, name, spot in moved:
            goal = rng.choice([place for i, place in enumerate(places) if i != spot])
            wishes.append(f"the {colour} thing to the {goal}")
            steps += [f"find the {name}", f"pick up the {name}", f"find the {goal}", f"put down the {name}"]
        actions = [f"find the {name}" for name in (*OBJECTS, *PLACES)] + [
            f"{verb} the {name}" for verb in ("pick up", "put down") for name in OBJECTS
        ]
        numbered = ", ".join(f"{i} {action}" for i, action in enumerate(actions))
        question = (
            f"Bring {' and '.join(wishes)}. Actions: {numbered}.\nReply with one JSON object with the keys "
            "reasoning_and_reflection, "
            'visual_state_description, language_plan and executable_plan, the last a list of {"action_id": '
            'number, "action_name": "..."}.'
        )
        plan = [{"action_id": actions.index(step), "action_name": step} for step in steps]
        said = {
            "reasoning_and_reflection": "I move what is asked.",
            "visual_state_description": f"There is a {moved[0][1]} on the {places[moved[0][2]]}.",
            "language_plan": ", then ".join(steps),
            "executable_plan": plan,
        }
        image = GeneratedImage(draw_room, (places, things))
        return Row(
            self.id(index),
            question,
            steps,
            images=(image,),
            task="plan",
            target=json.dumps(said),
            meta={"actions": actions},
        )
