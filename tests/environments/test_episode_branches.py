"""Branches of episodes: the trunk's actions are repeated exactly or not at all, and an environment that
answers otherwise fails the branch."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import verifiers_kit
from PIL import Image
from run_kit import View

from vlrl.environments.browser import Browser
from vlrl.environments.gymnasium import Gymnasium
from vlrl.environments.image_tools import ImageTools
from vlrl.environments.mcp import MCP
from vlrl.environments.sql import Sql
from vlrl.environments.textarena import TextArena
from vlrl.environments.verifiers import Verifiers
from vlrl.plugins.episode_pool import EpisodePool
from vlrl.plugins.episodes import Action, Episode, Observation, Past, Picture, ReplayDiverged
from vlrl.plugins.registry import build
from vlrl.plugins.stages import Environment, Source
from vlrl.types import CoordinateSpace, Row

SPACE = CoordinateSpace((448, 336), (448, 336), "per_mille")


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def play(pool, handle, turns, first=1, **more):
    """Carry out turns; the answer to the last one."""
    for number, text in enumerate(turns, first):
        pool.step(handle, Action(text, number, **more))
        pool.collect(60.0)
        assert handle.error is None, handle.error
    return handle.observation


def branched(environment, row, turns, after, **more):
    """The answers of trunk and branch to the turn `after`, which both play after `turns`."""
    with EpisodePool(environment) as pool:
        trunk = pool.start("trunk", row, 3)
        pool.collect(120.0)
        assert trunk.error is None, trunk.error
        play(pool, trunk, turns, **more)
        branch = pool.branch("branch", trunk)
        pool.collect(120.0)
        assert branch.error is None, branch.error
        return [play(pool, handle, [after], len(turns) + 1, **more) for handle in (trunk, branch)]


def test_a_slippery_lake_is_repeated_by_its_seed():
    pytest.importorskip("gymnasium")
    lake = Gymnasium(
        id="FrozenLake-v1", options={"is_slippery": True}, actions=("left", "down", "right", "up")
    )
    for seed in range(4):
        trunk, branch = branched(lake, Row("r", "q", meta={"seed": seed}), ["left", "left", "up"], "left")
        assert trunk.equals(branch) and trunk.calls == 1


@pytest.mark.slow
def test_a_game_is_repeated_by_its_seed():
    pytest.importorskip("textarena")
    trunk, branch = branched(
        TextArena(game="GuessTheNumber-v0"), Row("r", "q", meta={"seed": 5}), ["[3]", "[9]"], "[4]"
    )
    assert trunk.equals(branch) and trunk.text


def test_a_database_is_asked_nothing_twice():
    row = Row("r", "q", meta={"schema": "CREATE TABLE t (x INTEGER); INSERT INTO t VALUES (7);"})
    trunk, branch = branched(
        Sql(), row, [call("sql", query="SELECT random()")], call("sql", query="SELECT x FROM t")
    )
    assert trunk.text == branch.text == "x\n7", "what a random query said need not come again"


@pytest.mark.slow
def test_an_mcp_server_is_asked_again_only_if_it_is_the_episodes_own():
    pytest.importorskip("mcp")
    server = (sys.executable, str(Path(__file__).with_name("mcp_server.py")))
    environment = MCP(command=server, allow=("add",), call_seconds=20.0, start_seconds=60.0, isolated=True)
    try:
        trunk, branch = branched(environment, Row("r", "q"), [call("add", a=1, b=2)], call("add", a=20, b=22))
    finally:
        environment.close()
    assert trunk.equals(branch) and branch.text == "42"
    assert not environment.episode().stateless and MCP(command=server).episode().stateless


def test_a_conversation_of_verifiers_is_repeated(tmp_path):
    folder = verifiers_kit.write(tmp_path, verifiers_kit.PACKAGE)
    environment = Verifiers(id="towns", path=(folder,))
    row = next(iter(build(Source, {"name": "verifiers", "id": "towns", "path": [folder], "count": 1})()))
    try:
        trunk, branch = branched(environment, row, [call("neighbour", town="Arlen")], "It is Birk.")
    finally:
        environment.close()
    assert trunk.equals(branch) and branch.done and branch.reward == 1.0, "the look before the branch counts"


def test_pictures_and_coordinates_come_with_a_repeated_action():
    picture = Picture.of(Image.new("RGB", (448, 336)))
    seen = []

    @dataclass(frozen=True)
    class Looking(Environment):
        name = "looking"

        def episode(self):
            return Look()

    class Look(Episode):
        def step(self, action):
            seen.append((action.turn, action.images, action.spaces))
            return Observation("ok")

    branched(Looking(), Row("r", "q"), ["a", "b"], "c", images=(picture,), spaces=(SPACE,))
    assert seen == [(turn, (picture,), (SPACE,)) for turn in (1, 2, 1, 2, 3, 3)]
    assert ImageTools().episode().stateless


@pytest.mark.needs("chromium")
@pytest.mark.slow
def test_a_browser_is_led_to_the_same_page():
    pytest.importorskip("playwright")
    desk = Browser(site="desk", size=(448, 336), call_seconds=20.0, start_seconds=120.0, turn_seconds=240.0)
    try:
        turns = [call("click", x=500, y=400), call("press", key="Tab")]
        trunk, branch = branched(
            desk, Row("r", "q", meta={"seed": 3}), turns, call("press", key="Tab"), spaces=(SPACE,)
        )
    finally:
        desk.close()
    assert trunk.equals(branch) and branch.media


class Moody(Episode):
    """Numbers its answers over all episodes, so that nothing can be repeated; `what` says whether resets,
    steps, pictures or rewards do."""

    def __init__(self, settings):
        self.settings = settings
        settings.made.append(self)

    def reset(self, row, seed):
        return Observation(f"hello {len(self.settings.made)}" if self.settings.what == "reset" else "hello")

    def step(self, action):
        number = len(self.settings.made)
        what = self.settings.what
        text, reward = (
            (f"answer {number}" if what == "step" else "answer"),
            float(number if what == "reward" else 0),
        )
        media = (Picture(bytes([number])),) if what == "picture" else ()
        return Observation(text, media, reward=reward)


@dataclass(frozen=True)
class Moods(Environment):
    """Episodes of `Moody`."""

    name = "moods"
    what: str = ""
    retries: int = 0
    made: list = field(default_factory=list)

    def episode(self):
        return Moody(self)


@pytest.mark.parametrize(
    ("what", "said"),
    [("reset", "repeated reset"), ("step", "action 1"), ("picture", "action 1"), ("reward", "action 1")],
)
def test_an_answer_that_differs_fails_the_branch_and_is_counted(what, said):
    world = Moods(what=what)
    run = View(environment=world)
    with run.episodes() as pool:
        trunk = pool.start("trunk", Row("r", "q"), 3)
        pool.collect(5.0)
        play(pool, trunk, ["a", "b"])
        branch = pool.branch("branch", trunk)
        assert (
            pool.collect(5.0) == [branch]
            and isinstance(branch.error, ReplayDiverged)
            and said in str(branch.error)
        )
        assert play(pool, trunk, ["c"], 3).text.startswith("answer"), "the trunk goes on"
    assert run.counts["environment/replays_diverged"] == run.counts["environment/end/error"] == 1


def test_a_past_known_by_its_states_is_compared_by_them():
    world = Moods()
    with EpisodePool(world) as pool:
        handle = pool.start(
            "probe",
            Row("r", "q"),
            3,
            Past(Observation("hello").state_key, ((Action("a"), Observation("answer").state_key),)),
        )
        assert pool.collect(5.0) == [handle] and handle.error is None
        other = pool.start(
            "probe", Row("r", "q"), 3, Past(Observation("hello").state_key, ((Action("a"), "else"),))
        )
        assert pool.collect(5.0) == [other] and isinstance(other.error, ReplayDiverged)
