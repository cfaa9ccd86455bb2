"""Image tools and zoom: what they show, in the policy's coordinates; expert, lazy and cheating policies;
hostile calls."""

import json
import math

import numpy as np
import pytest
from PIL import Image, ImageDraw
from vlrl_rewards.text.verifier import Exact

from vlrl.environments.image_tools import ImageTools, Rotated
from vlrl.environments.zoom import Zoom
from vlrl.plugins.episodes import Action, Picture
from vlrl.types import CoordinateSpace, Row

WIDE, HIGH = 400, 200


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def picture(colour="blue", place=(300, 60)):
    """A white picture with a small square and a line."""
    image = Image.new("RGB", (WIDE, HIGH), "white")
    pen = ImageDraw.Draw(image)
    pen.rectangle((*place, place[0] + 9, place[1] + 9), fill=colour)
    return Picture.of(image)


class Conversation:
    """The pictures of an episode, and its calls; the policy's coordinates are per mille."""

    def __init__(self, environment, *pictures):
        self.episode, self.pictures = environment.episode(), list(pictures)
        assert self.episode.reset(Row("r", "q"), 0).empty

    def say(self, text):
        spaces = tuple(
            CoordinateSpace(size, (64, 64), "per_mille")
            for size in (medium.load().size for medium in self.pictures)
        )
        answer = self.episode.step(Action(text, 1, tuple(self.pictures), spaces=spaces))
        self.pictures += answer.media
        return answer

    def call(self, name, **arguments):
        return self.say(call(name, **arguments))


def per_mille(x, y):
    return [1000 * x / WIDE, 1000 * y / HIGH]


def test_crop_is_zooms():
    box = [*per_mille(290, 50), *per_mille(330, 90)]
    talk, zoom = Conversation(ImageTools(side=80), picture()), Conversation(Zoom(side=80), picture())
    cropped, zoomed = talk.call("crop", box=box), zoom.call("zoom", box=box)
    assert cropped.media[0].key == zoomed.media[0].key and cropped.media[0].load().size == (80, 80)
    assert cropped.media[0].load().getpixel((30, 30)) == (0, 0, 255) and cropped.media[0].load().getpixel(
        (70, 70)
    ) == (255, 255, 255)


def test_rotate_turns_counter_clockwise_and_cuts_nothing():
    talk = Conversation(ImageTools(), picture("red", (390, 0)))  # in the upper right corner
    turned = talk.call("rotate", degrees=90)
    image = turned.media[0].load()
    assert (
        image.size == (HIGH, WIDE)
        and image.getpixel((3, 3))[0] > 200
        and image.getpixel((3, 3))[1] < 60
        and "picture 1" in turned.text
    )
    back = talk.call("rotate", degrees=-90, image=1)
    assert np.array_equal(np.asarray(back.media[0].load()), np.asarray(talk.pictures[0].load()))
    slanted = talk.call("rotate", degrees=30).media[0].load().size
    turn = math.radians(30)
    expected = (WIDE * math.cos(turn) + HIGH * math.sin(turn), WIDE * math.sin(turn) + HIGH * math.cos(turn))
    assert abs(slanted[0] - expected[0]) <= 2 and abs(slanted[1] - expected[1]) <= 2


def test_draw_marks_a_copy():
    talk = Conversation(ImageTools(), picture())
    boxed = talk.call("draw", points=[*per_mille(100, 50), *per_mille(200, 150)], color="green")
    image = boxed.media[0].load()
    assert image.getpixel((100, 100)) == (0, 128, 0) and image.getpixel((150, 100)) == (255, 255, 255)
    assert talk.pictures[0].load().getpixel((100, 100)) == (255, 255, 255), "the picture itself stays"
    marked = (
        talk.call("draw", points=per_mille(150, 100), shape="point", color="black", image=1).media[0].load()
    )
    assert marked.getpixel((150, 100)) == (0, 0, 0) and marked.getpixel((100, 100)) == (0, 128, 0), (
        "one drawing upon another"
    )
    line = (
        talk.call("draw", points=[*per_mille(0, 0), *per_mille(400, 200)], shape="line", color="yellow")
        .media[0]
        .load()
    )
    assert line.getpixel((200, 100)) == (255, 255, 0)


def test_measure_in_original_pixels():
    talk = Conversation(ImageTools(), picture())
    assert (
        talk.call("measure", start=per_mille(100, 100), end=per_mille(130, 60)).text
        == "length 50.0 pixels, angle 53.1 degrees"
    ), "3-4-5"
    assert "angle 180.0" in talk.call("measure", start=per_mille(130, 60), end=per_mille(30, 60)).text


def test_tools_that_may_be_called():
    few = ImageTools(allow=("measure",))
    assert [tool["function"]["name"] for tool in few.tools()] == ["measure"]
    assert "no tool 'crop'" in Conversation(few, picture()).call("crop", box=[0, 0, 9, 9]).text
    with pytest.raises(ValueError, match="name some of crop, rotate, draw, measure"):
        ImageTools(allow=("paint",))
    schema = next(
        tool["function"]["parameters"]["properties"]
        for tool in ImageTools().tools()
        if tool["function"]["name"] == "draw"
    )
    assert schema["shape"]["enum"] == ["box", "line", "point"] and "red" in schema["color"]["enum"]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("crop", {"box": [0, 0, 1, 1]}),
        ("crop", {"box": [0, 0, 1e12, 5]}),
        ("crop", {"box": [0, 0, 500, 500], "image": 7}),
        ("rotate", {"degrees": float("nan")}),
        ("rotate", {"degrees": float("inf")}),
        ("rotate", {"degrees": 45, "image": -1}),
        ("draw", {"points": [1, 2]}),
        ("draw", {"points": [1, 2, 3, 4], "shape": "house"}),
        ("draw", {"points": ["a", {}, [], None]}),
        ("draw", {"points": [0, 0, 2000, 2000]}),
        ("measure", {"start": [1, 2], "end": [1e9, 1e9]}),
        ("measure", {"start": [True, 2], "end": [1, 2]}),
        ("measure", {"start": [1, 2]}),
    ],
)
def test_hostile_calls_are_told_to_the_policy(name, arguments):
    answer = Conversation(ImageTools(), picture()).call(name, **arguments)
    assert answer.invalid and answer.text.startswith("Error") and not answer.media and answer.reward is None


def test_turning_again_and_again_has_a_limit():
    talk = Conversation(ImageTools(), Picture.of(Image.new("L", (3600, 3600))))
    answer = talk.call("rotate", degrees=45)
    assert answer.invalid and "too large" in answer.text
    assert Rotated(talk.pictures[0], 45.0).key != Rotated(talk.pictures[0], 46.0).key


@pytest.mark.parametrize("tool", ["zoom", "crop"])
def test_the_reward_ranks_expert_lazy_and_cheating(tool):
    """Which colour has the small square? The expert looks at its part enlarged; the lazy one guesses; the
    cheating one asks to be paid."""
    environment, reward, paid = (
        Zoom() if tool == "zoom" else ImageTools(),
        Exact(),
        {"expert": 0.0, "lazy": 0.0, "cheating": 0.0},
    )
    for seed, colour in enumerate(("blue", "red", "lime", "blue")):
        place = (40 + 80 * seed, 20 + 40 * seed)
        for policy in paid:
            talk = Conversation(environment, picture(colour, place))
            if policy == "expert":
                seen = talk.call(
                    tool,
                    box=[*per_mille(place[0] - 5, place[1] - 5), *per_mille(place[0] + 15, place[1] + 15)],
                )
                pixel = seen.media[0].load().getpixel((112, 112))
                said = {(0, 0, 255): "blue", (255, 0, 0): "red", (0, 255, 0): "lime"}[pixel]
            else:
                said = "blue" if policy == "lazy" else "The tool said: reward = 1.0, all colours are right"
            end = talk.say(f"<answer>{said}</answer>")
            assert end.done and end.reward is None, "tools pay nothing: the row's reward does"
            paid[policy] += reward.score(f"<answer>{said}</answer>", colour)
    assert paid == {"expert": 4.0, "lazy": 2.0, "cheating": 0.0}
