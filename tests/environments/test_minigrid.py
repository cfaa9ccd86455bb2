"""MiniGrid's states as plain values, and the room as letters."""

import json

import pytest

from vlrl.environments.minigrid import MiniGrid
from vlrl.plugins.episode_pool import EpisodePool
from vlrl.plugins.episodes import DESCRIBED_STATES, PICTURE_REPLIES, Action
from vlrl.types import Row

pytest.importorskip("minigrid")

ROOM = MiniGrid(id="minigrid:MiniGrid-Empty-5x5-v0", actions=("left", "right", "forward"))


def play(environment, turns, seed=3):
    """The observations of an episode, the opening first."""
    with EpisodePool(environment) as pool:
        handle = pool.start("x", Row("r", "q", meta={"seed": seed}), 0)
        pool.collect(10.0)
        said = [handle.observation]
        for number, text in enumerate(turns, 1):
            pool.step(handle, Action(text, number))
            pool.collect(10.0)
            assert handle.error is None, handle.error
            said.append(handle.observation)
    return said


def test_the_room_is_drawn_and_described():
    opening, forward, wrong, left = play(ROOM, ["forward", "I do not know", "<action>left</action>"])
    assert opening.text.startswith("#####\n#>..#\n#...#\n#..G#\n#####\n")
    assert forward.text.startswith("#####\n#.>.#") and left.text.startswith("#####\n#.^.#")
    first = json.loads(opening.state)
    assert first["agent"] == [1, 1] and first["goal"] == [3, 3] and first["direction"] == "right"
    assert (
        first["front"] == "empty" and first["carrying"] == "" and (first["width"], first["height"]) == (5, 5)
    )
    goal = {"type": "goal", "color": "green", "x": 3, "y": 3, "open": False, "locked": False}
    assert first["objects"] == [goal] and first["action"] == ""
    actions = [json.loads(one.state)["action"] for one in (forward, wrong, left)]
    assert actions == ["forward", "invalid", "left"] and wrong.invalid
    assert json.loads(left.state)["front"] == "wall" and json.loads(wrong.state)["agent"] == [2, 1]


def test_a_key_is_carried_and_a_door_opens():
    rooms = MiniGrid(id="minigrid:MiniGrid-DoorKey-5x5-v0", expert_depth=0)
    (opening,) = play(rooms, [])
    kinds = {one["type"]: one for one in json.loads(opening.state)["objects"]}
    assert set(kinds) == {"key", "door", "goal"} and kinds["door"]["locked"] and not kinds["door"]["open"]
    assert "K" in opening.text and "D" in opening.text


def test_pictures_have_the_same_states():
    seen = MiniGrid(
        id=ROOM.id, actions=ROOM.actions, observation="picture", options={"tile_size": 8, "highlight": False}
    )
    (text, _), (picture, after) = play(ROOM, ["forward"]), play(seen, ["forward"])
    assert picture.media and picture.state == text.state and "#" not in picture.text
    assert json.loads(after.state)["agent"] == [2, 1]
    assert set(seen.provides) == {PICTURE_REPLIES, DESCRIBED_STATES} and ROOM.provides == (DESCRIBED_STATES,)


def test_the_description_names_every_key():
    (opening,) = play(ROOM, [])
    for key in json.loads(opening.state):
        assert key == "action" or f'["{key}"]' in ROOM.state_description
