"""Drawn scenes of coloured shapes whose answers are boxes, points or a scene graph."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.generators.scenes import COLOURS, SHAPES, Shapes, Thing, draw_scene
from vlrl_data.lab.base import IN_PIXELS, tagged_answer
from vlrl_data.media.images import GeneratedImage

KINDS = [(colour, shape) for colour in COLOURS for shape in SHAPES]
ASKS = ("grounding", "detection", "pointing", "salient_detection", "scene_graph")
Units = Literal["policy", "pixels", "unit", "per_mille"]


def box_of(thing: Thing) -> list[int]:
    """[x1, y1, x2, y2] of an object, in pixels."""
    _, _, left, top, side = thing
    return [left, top, left + side, top + side]


def in_units(target: Any, size: int, units: Units) -> Any:
    """A demonstrated answer with its coordinates in pixels, as fractions of the picture's side (two decimals)
    or as thousandths of it.

    "policy" leaves pixels, which the trainer converts.
    """
    if units in ("policy", "pixels") or isinstance(target, str):
        return target
    if isinstance(target, dict):
        return {key: in_units(value, size, units) for key, value in target.items()}
    if isinstance(target, list):
        return [in_units(value, size, units) for value in target]
    return round(target / size, 2) if units == "unit" else round(1000 * target / size)


def name_of(thing: Thing) -> str:
    """For example "red circle"."""
    return f"{thing[0]} {thing[1]}"


def reading_order(things: list[Thing]) -> list[Thing]:
    """From top to bottom, then from left to right."""
    return sorted(things, key=lambda thing: (thing[3], thing[2]))


def labelled(things: list[Thing]) -> list[dict[str, Any]]:
    """Boxes with their labels, in reading order."""
    return [{"bbox_2d": box_of(thing), "label": name_of(thing)} for thing in reading_order(things)]


def relation(first: Thing, second: Thing) -> str:
    """The predicate of `first` to `second`: "left of", "right of", "above" or "below", by the larger
    difference of their centres."""
    (ax, ay), (bx, by) = ((left + side / 2, top + side / 2) for _, _, left, top, side in (first, second))
    if abs(ax - bx) >= abs(ay - by):
        return "left of" if ax < bx else "right of"
    return "above" if ay < by else "below"


@register("gen_boxes")
@dataclass(frozen=True, kw_only=True)
class GenBoxes(Shapes):
    """Where objects of a scene are. `ask` names the questions; each is a task of its own:

        grounding           one box of the only object of a colour and shape: [x1, y1, x2, y2]
        detection           boxes and labels ("red circle") of a shape: [{"bbox_2d", "label"}, ...]
        pointing            a point on every object of a colour; gold: their boxes
        salient_detection   an object, weighed `salience` times, and its neighbours; `meta.paths`: two orders
        scene_graph         objects with ids ("circle.1") and relations: {"objects", "relationships"}

    vlrl original, for `iou`, `detection`, `points`, `scene_graph`. Gold answers are in pixels, demonstrations
    in `units`: policy (as the model family writes them), pixels, unit (fractions of the side) or per_mille.
    Harder with more `others`.
    """

    ask: tuple[str, ...] = ("grounding",)
    others: int = 3
    salience: float = 4.0
    units: Units = "policy"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.ask:
            if name not in ASKS:
                raise ConfigError(f"ask: {name!r} is unknown. Known: {', '.join(ASKS)}.")
        if not self.ask or not 1 <= self.others < len(KINDS) or self.salience <= 1:
            limit = len(KINDS) - 1
            raise ConfigError(
                f"ask={list(self.ask)} names a question, others={self.others} is 1 to {limit}, "
                f"salience={self.salience} above 1"
            )

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        ask = rng.choice(self.ask)
        things = list(self.things(rng, rng.sample(KINDS, 1 + self.others)))
        make = {
            "grounding": grounding,
            "detection": detection,
            "pointing": pointing,
            "scene_graph": scene_graph,
        }
        question, answer, target, meta = make[ask](things) if ask in make else salient(things, self.salience)
        image = GeneratedImage(draw_scene, (self.size, tuple(things)))
        thought = " ".join(f"{step}." for step in meta["paths"][0]) if "paths" in meta else ""
        said = (f"<think>{thought}</think>" if thought else "") + tagged_answer(
            json.dumps(in_units(target, self.size, self.units))
        )
        meta = {**meta, "size": [self.size, self.size], **(IN_PIXELS if self.units == "policy" else {})}
        return Row(self.id(index), question, answer, images=(image,), task=ask, target=said, meta=meta)


Question = tuple[str, Any, Any, dict[str, Any]]  # question, gold answer, demonstrated answer, meta


def grounding(things: list[Thing]) -> Question:
    """One box of the first object."""
    return (
        f"Where is the {name_of(things[0])}? Answer with its box [x1, y1, x2, y2].",
        box_of(things[0]),
        box_of(things[0]),
        {},
    )


def detection(things: list[Thing]) -> Question:
    """Every object of the first one's shape."""
    found = labelled([thing for thing in things if thing[1] == things[0][1]])
    question = (
        f'Find every {things[0][1]}. Answer with a list of {{"bbox_2d": [x1, y1, x2, y2], "label": "colour '
        f'{things[0][1]}"}}.'
    )
    return question, found, found, {}


def pointing(things: list[Thing]) -> Question:
    """Every object of the first one's colour."""
    found = reading_order([thing for thing in things if thing[0] == things[0][0]])
    points = [{"point_2d": [left + side // 2, top + side // 2]} for _, _, left, top, side in found]
    question = f'Point at every {things[0][0]} object. Answer with a list of {{"point_2d": [x, y]}}.'
    return question, [box_of(thing) for thing in found], points, {}


def salient(things: list[Thing], weight: float) -> Question:
    """The first object, which matters most, and the next two."""
    chosen = things[:3]
    found = labelled(chosen)
    names = ", ".join(f"the {name_of(thing)}" for thing in chosen[1:])
    question = (
        f'Find the {name_of(chosen[0])}; also find {names}. Answer with a list of {{"bbox_2d": [x1, y1, '
        f'x2, y2], "label": "colour shape"}}.'
    )
    salience = [weight if item["label"] == name_of(chosen[0]) else 1.0 for item in found]
    seen = [[f"I see the {name_of(thing)}" for thing in order] for order in (chosen, reading_order(chosen))]
    return question, found, found, {"salience": salience, "paths": seen}


def scene_graph(things: list[Thing]) -> Question:
    """All objects, numbered per shape in reading order, and the relation of each to the next."""
    ordered, seen, ids = reading_order(things), dict.fromkeys(SHAPES, 0), []
    for _, shape, *_ in ordered:
        seen[shape] += 1
        ids.append(f"{shape}.{seen[shape]}")
    objects = [{"id": name, "bbox": box_of(thing)} for name, thing in zip(ids, ordered, strict=True)]
    pairs = zip(ids, ids[1:], ordered, ordered[1:])
    relations = [{"subject": a, "predicate": relation(x, y), "object": b} for a, b, x, y in pairs]
    question = (
        'Describe the picture as a scene graph: {"objects": [{"id": "shape.number", "bbox": [x1, y1, x2, '
        'y2]}], "relationships": [{"subject", '
        '"predicate", "object"}]}. Number each shape from top to bottom; relate every object to the next '
        "by left of, right of, above or below."
    )
    graph = {"objects": objects, "relationships": relations}
    return question, graph, graph, {}


@register("gen_image_grounding")
@dataclass(frozen=True, kw_only=True)
class GenImageGrounding(Shapes):
    """The object of the first picture in one of `pictures` others; the answer is its box there,
    `meta.picture` the number of that picture from 0.

    Paper: multi-image grounding of UniVG-R1 (arXiv:2505.14231) and MIG-RL (arXiv:2507.00748), with drawn
    shapes. Reward: `iou`. The question names the picture, so that an answer is one box. `rated`:
    `meta.pass_rate`, from 0 for the smallest object to 1 for the largest, in place of a measured one. Units:
    pixels of that picture.
    """

    pictures: int = 2
    others: int = 2
    rated: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pictures < 1 or not 0 <= self.others < len(KINDS):
            raise ConfigError(
                f"pictures={self.pictures} must be at least 1 and others={self.others} 0 to {len(KINDS) - 1}"
            )

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        wanted = rng.choice(KINDS)
        where = rng.randrange(self.pictures)
        scenes = [self.things(rng, [wanted])]
        for _ in range(self.pictures):
            scenes.append(
                self.things(
                    rng, [wanted, *rng.sample([kind for kind in KINDS if kind != wanted], self.others)]
                )
            )
        images = tuple(GeneratedImage(draw_scene, (self.size, things)) for things in scenes)
        box = box_of(scenes[where + 1][0])
        question = (
            f"The first picture shows one object. Where is the same object in picture {where + 2}? Answer "
            "with its box [x1, y1, x2, y2]."
        )
        meta = {"picture": where + 1, **IN_PIXELS}
        if self.rated:
            size = (box[2] - box[0] - self.least) / max(1, self.most - self.least)
            meta["pass_rate"] = min(8, max(0, round(10 * size) - 1)) / 8
        return Row(
            self.id(index),
            question,
            box,
            images=images,
            task="grounding",
            target=tagged_answer(json.dumps(box)),
            meta=meta,
        )
