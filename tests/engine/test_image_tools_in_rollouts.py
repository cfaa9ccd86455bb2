"""Pictures made by tools, and frames of a video, in whole rollouts: they are shown, numbered and encoded as
the policy's own pictures are."""

import json

import numpy as np
from test_episodes_in_rollouts import make_run

from vlrl.environments.image_tools import ImageTools
from vlrl.environments.video_frames import VideoFrames
from vlrl.methods.core.rollout import MultiTurn
from vlrl.plugins.episodes import FrameSequence, Picture
from vlrl.types import Prompt, Row


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_a_turned_and_a_drawn_picture_are_the_next_numbers(policy, tools):
    turns = [
        call("rotate", degrees=90),
        call("draw", points=[5, 5, 30, 30], image=1),
        call("measure", start=[0, 0], end=[10, 0], image=2),
        "done",
    ]
    run = make_run(policy, ImageTools(), lambda request, index: turns[request.tag.turns], max_tokens=200)
    group = list(MultiTurn(max_turns=9)([tools.prompt("Look", tools.Noise(1, (112, 84)))], [1], run)[0])
    last = group[-1]
    assert [picture.load().size for picture in last.prompt.images] == [(112, 84), (84, 112), (84, 112)]
    assert last.text.endswith("done") and "angle 0.0 degrees" in last.info["transcript"], last.info
    assert len(policy.encode(last.prompt).ids) > len(policy.encode(group[0].prompt).ids)


def test_frames_of_a_video_that_is_not_in_the_prompt(policy, tools):
    video = FrameSequence(
        tuple(Picture.of(np.full((56, 56, 3), 12 * n, np.uint8)) for n in range(20)), fps=2.0
    )
    prompt = Prompt(
        Row("v", "When?", videos=(video,)),
        ({"role": "user", "content": [{"type": "text", "text": "When?"}]},),
    )
    turns = [call("frames", seconds=[0, 4.5]), "<answer>9</answer>"]
    run = make_run(policy, VideoFrames(), lambda request, index: turns[request.tag.turns], max_tokens=200)
    group = list(MultiTurn(max_turns=3)([prompt], [1], run)[0])
    assert "10.0 seconds" in group[0].prompt.text and not group[0].prompt.images
    assert [picture.load().getpixel((0, 0))[0] for picture in group[-1].prompt.images] == [0, 108]
