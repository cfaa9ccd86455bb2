"""Environments of gymnasium: the expert earns, the lazy and the cheating policy do not; pictures, seeds,
spaces, faults."""

import json
from dataclasses import replace

import numpy as np
import pytest

from vlrl.environments.gymnasium import Gymnasium, GymnasiumEpisode, picture_of, space_value
from vlrl.plugins.episode_pool import EpisodePool
from vlrl.plugins.episodes import Action
from vlrl.plugins.registry import ConfigError
from vlrl.types import Row

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("minigrid")

LAKE = Gymnasium(id="FrozenLake-v1", options={"is_slippery": False}, actions=("left", "down", "right", "up"))
GRID = Gymnasium(
    id="minigrid:MiniGrid-Empty-5x5-v0", observation="picture", actions=("left", "right", "forward")
)
EXPERT = {
    "lake": ["down", "down", "right", "right", "down", "right"],
    "grid": ["forward", "forward", "right", "forward", "forward"],
}


def play(environment, turns, seed=3):
    """(return, observations) of an episode in which these turns are written until it is over."""
    said = []
    with EpisodePool(environment) as pool:
        handle = pool.start("x", Row("r", "q", meta={"seed": seed}), 0)
        pool.collect(10.0)
        said.append(handle.observation)
        for number, text in enumerate(turns, 1):
            pool.step(handle, Action(text, number))
            pool.collect(10.0)
            assert handle.error is None, handle.error
            said.append(handle.observation)
            if handle.observation.done:
                break
    return sum(one.reward or 0.0 for one in said), said


@pytest.mark.parametrize(("name", "environment"), [("lake", LAKE), ("grid", GRID)])
def test_the_expert_earns_and_others_do_not(name, environment):
    expert, said = play(environment, [f"I go <action>{word}</action>" for word in EXPERT[name]])
    lazy, _ = play(environment, ["<action>left</action>"] * 8)
    cheating, lies = play(
        environment,
        [
            '<answer>goal</answer> {"reward": 1, "terminated": true}',
            "reward = 1.0; done",
            "left right forward down",
        ]
        * 3,
    )
    assert expert > 0.9 > lazy == cheating == 0.0 and said[-1].done and said[-1].parts["terminated"] == 1.0
    assert all(one.invalid and not one.done and "Actions: left" in one.text for one in lies[1:])


def test_text_shows_where_the_player_is():
    _, said = play(LAKE, ["right"])
    assert said[0].text.startswith("[S]FFF\nFHFH") and "Actions: left, down, right, up" in said[0].text
    assert said[1].text.endswith("S[F]FF\nFHFH\nFFFH\nHFFG") and said[1].reward == 0.0


def test_pictures_are_those_that_it_renders():
    _, said = play(GRID, ["forward"])
    picture, after = said[0].media[0], said[1].media[0]
    assert (
        picture.load().size == (160, 160)
        and picture.key != after.key
        and "get to the green goal square" in said[0].text
    )
    world = gymnasium.make(GRID.id, render_mode="rgb_array")
    world.reset(seed=3)
    assert np.array_equal(np.asarray(picture.load()), world.render())
    small = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    assert np.array_equal(np.asarray(picture_of(small, 6).load()), small.repeat(3, 0).repeat(3, 1))


def test_a_seed_begins_alike():
    random_lake = replace(
        LAKE,
        id="minigrid:MiniGrid-FourRooms-v0",
        options={},
        actions=("left", "right", "forward"),
        observation="picture",
    )
    keys = [play(random_lake, [], seed)[1][0].media[0].key for seed in (1, 1, 2)]
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize(
    ("space", "said", "expected"),
    [
        (gymnasium.spaces.Box(-1, 1, (2,)), "[0.5, -0.5]", [0.5, -0.5]),
        (gymnasium.spaces.Box(-1, 1, (2,)), "[0.5, 7]", None),
        (gymnasium.spaces.Box(-1, 1, (2,)), "[0.5]", None),
        (gymnasium.spaces.Box(-1, 1, (2,)), "[" * 9999, None),
        (gymnasium.spaces.MultiDiscrete([3, 2]), "[2, 1]", [2, 1]),
        (gymnasium.spaces.MultiDiscrete([3, 2]), "[3, 1]", None),
        (gymnasium.spaces.Text(5), "hello", "hello"),
        (gymnasium.spaces.Text(5), "too long", None),
    ],
)
def test_spaces(space, said, expected):
    known, value = space_value(space, said)
    assert known == (expected is not None) and (
        not known or np.array_equal(np.asarray(value), np.asarray(expected))
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<action></action>",
        "<action>" * 5000,
        "\x00",
        "lefts\ud800",
        "right left",
        json.dumps({"action": 9}),
    ],
)
def test_whatever_is_written_is_answered(text):
    earned, said = play(replace(LAKE, invalid_reward=-0.1), [text])
    assert said[1].invalid and earned == -0.1


def test_faults_are_said_before_a_run():
    with pytest.raises(ConfigError, match="cannot make 'NoSuch-v0'"):
        replace(LAKE, id="NoSuch-v0", observation="picture", options={}).check(None)
    with pytest.raises(ConfigError, match="5 names"):
        replace(LAKE, actions=tuple("abcde")).check(None)
    GRID.check(None)


def test_a_world_that_breaks_or_hangs_is_no_wrong_answer():
    class Broken(gymnasium.Env):
        action_space, observation_space, metadata = (
            gymnasium.spaces.Discrete(2),
            gymnasium.spaces.Discrete(2),
            {"render_modes": []},
        )

        def reset(self, *, seed=None, options=None):
            return 0, {}

        def step(self, action):
            if action == 0:
                raise RuntimeError("the simulator died")
            import time

            time.sleep(1.0)

    gymnasium.register("Broken-v0", entry_point=Broken)
    with EpisodePool(Gymnasium(id="Broken-v0", turn_seconds=0.3)) as pool:
        handles = [pool.start(n, Row("r", "q"), 0) for n in range(2)]
        pool.collect(10.0)
        for handle in handles:
            assert isinstance(handle.episode, GymnasiumEpisode)
            pool.step(handle, Action(str(handle.owner), 1))
        while pool.busy:
            pool.collect(5.0)
        assert "the simulator died" in str(handles[0].error) and "within 0.3 seconds" in str(handles[1].error)


@pytest.mark.parametrize(
    ("name", "environment", "steps"),
    [("lake", replace(LAKE, expert_depth=3), 6), ("grid", replace(GRID, expert_depth=2), 5)],
)
def test_the_expert_finds_the_shortest_way_from_where_it_is(name, environment, steps):
    """The search begins near the goal: its depth is that of the last steps."""
    episode = environment.episode()
    try:
        episode.reset(Row("r", "q", meta={"seed": 3}), 0)
        begun = EXPERT[name][: steps - environment.expert_depth]
        assert episode.expert(Action("", 1)) is None, "the goal is farther away than it looks ahead"
        for turn, word in enumerate(begun, 1):
            episode.step(Action(word, turn))
        for turn in range(len(begun) + 1, steps + 1):
            answer = episode.step(Action(episode.expert(Action("", turn)), turn))
            assert answer.done == (turn == steps)
        assert answer.reward > 0.9 and len(episode.taken) == steps
    finally:
        episode.close()
    assert episode.scratch is None, "the second environment is closed too"


def test_without_a_depth_or_names_there_is_no_expert():
    for environment in (GRID, replace(LAKE, expert_depth=0)):
        episode = environment.episode()
        episode.reset(Row("r", "q", meta={"seed": 3}), 0)
        assert episode.expert(Action("", 1)) is None and episode.scratch is None
        episode.close()
