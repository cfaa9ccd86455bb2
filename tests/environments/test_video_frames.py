"""Frames on demand: which frames are shown; expert, lazy and cheating policies; hostile calls."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
from vlrl_rewards.text.verifier import Exact

from vlrl.environments.video_frames import VideoFrames
from vlrl.plugins.episodes import Action
from vlrl.types import Clip, Media, MediaError, Row, RowError


@dataclass(frozen=True)
class Counting(Media):
    """A video whose frame n is grey of value 10 n, but for one that is green; `loads` counts how often it is
    decoded."""

    name: str = "a"
    green: int = -1
    count: int = 20
    loads: tuple = ()
    kind = "video"

    @property
    def key(self):
        return self.name

    def load(self):
        LOADS.append(self.name)
        frames = np.stack([np.full((56, 112, 3), 10 * n, np.uint8) for n in range(self.count)])
        if self.green >= 0:
            frames[self.green] = (0, 255, 0)
        return Clip(frames, 2.0)


LOADS: list = []


def begin(environment, *videos):
    episode = environment.episode()
    return episode, episode.reset(Row("r", "q", videos=videos), 0)


def look(episode, seconds, **more):
    called = {"name": "frames", "arguments": {"seconds": seconds, **more}}
    return episode.step(Action(f"<tool_call>{json.dumps(called)}</tool_call>"))


def value(picture):
    return picture.load().getpixel((0, 0))[0]


def test_frames_are_those_nearest_to_the_times():
    episode, opening = begin(VideoFrames(), Counting())
    assert opening.text == "The video has 10.0 seconds. Look at frames of it by the tool."
    answer = look(episode, [2.6, 0, 10.0])
    assert [value(medium) for medium in answer.media] == [50, 0, 190], "2 frames a second"
    assert answer.text == "Frames at 2.5, 0.0, 9.5 seconds." and answer.role == "tool" and answer.calls == 1
    assert len(look(episode, [1.0, 1.1, 0.9]).media) == 1, "each frame once"
    assert VideoFrames(side=28).episode().reset(Row("r", "q", videos=(Counting(),)), 0).text
    small, _ = begin(VideoFrames(side=28), Counting())
    assert look(small, [1]).media[0].load().size == (28, 14)


def test_several_videos_and_one_decoding_for_all_rollouts():
    LOADS.clear()
    environment = VideoFrames()
    episodes = [begin(environment, Counting("a"), Counting("b", count=4)) for _ in range(4)]
    assert sorted(LOADS) == ["a", "b"] and episodes[0][1].text.startswith(
        "The videos have 10.0 seconds, 2.0 seconds."
    )
    assert value(look(episodes[1][0], [1.5], video=1).media[0]) == 30
    for number in range(20):
        begin(environment, Counting(f"v{number}"))
    assert len(environment.state.clips) <= 8


@pytest.mark.parametrize(
    ("seconds", "more"),
    [
        ([], {}),
        ([11], {}),
        ([-1], {}),
        ([1, 2, 3, 4, 5], {}),
        (["1"], {}),
        ([True], {}),
        ([1], {"video": 1}),
        ([1], {"video": -1}),
        ([float("nan")], {}),
    ],
)
def test_hostile_calls_are_told_to_the_policy(seconds, more):
    answer = look(begin(VideoFrames(), Counting())[0], seconds, **more)
    assert answer.invalid and "must be" in answer.text and not answer.media and answer.reward is None


def test_rows_without_a_video_are_refused():
    with pytest.raises(RowError, match="needs a row with a video"):
        begin(VideoFrames())

    class Broken(Counting):
        def load(self):
            raise MediaError("cut off")

    with pytest.raises(RowError, match="cannot be read: cut off"):
        begin(VideoFrames(), Broken("c"))


def test_the_reward_ranks_expert_lazy_and_cheating():
    """At which second is the screen green? The expert looks everywhere, four frames at a time."""
    paid = {"expert": 0.0, "lazy": 0.0, "cheating": 0.0}
    for green in (3, 8, 14, 19):
        for policy in paid:
            episode, _ = begin(VideoFrames(), Counting(f"g{green}", green))
            said = "0" if policy == "lazy" else "reward = 1.0 <answer>"
            if policy == "expert":
                for first in range(0, 20, 4):
                    shown = look(episode, [(first + i) / 2 for i in range(4)]).media
                    found = [
                        first + i
                        for i, medium in enumerate(shown)
                        if medium.load().getpixel((0, 0)) == (0, 255, 0)
                    ]
                    said = str(found[0] / 2) if found else said
            assert episode.step(Action(f"<answer>{said}</answer>")).done
            paid[policy] += Exact().score(f"<answer>{said}</answer>", str(green / 2))
    assert paid == {"expert": 4.0, "lazy": 0.0, "cheating": 0.0}
