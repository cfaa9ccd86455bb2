"""T-GRPO: the condition, who gets the bonus, shuffled frames, nothing trained on them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from make import group, run
from tiny import vision_run

from vlrl.methods.core.group_filter import AccuracyRange
from vlrl.methods.papers.t_grpo import (
    ShuffledFrames,
    TGrpo,
    TGrpoContrast,
    TGrpoLengthReward,
    TGrpoTemporalBonus,
)
from vlrl.plugins.registry import ConfigError
from vlrl.types import Clip, Completion, Media, Rollout, Sampling


@dataclass(frozen=True)
class Counting(Media):
    """A video whose frame t is filled with t."""

    frames: int = 8
    kind = "video"

    @property
    def key(self):
        return f"counting{self.frames}"

    def load(self):
        return Clip(
            np.arange(self.frames, dtype=np.uint8)[:, None, None, None]
            .repeat(2, 1)
            .repeat(2, 2)
            .repeat(3, 3),
            2.0,
        )


def contrast(ordered, shuffled, reward=None):
    scores = [*ordered, *shuffled]
    source = ["policy"] * len(ordered) + ["shuffled"] * len(shuffled)
    return group(
        *(reward or scores), raw={"accuracy": scores}, source=source, trained=[s == "policy" for s in source]
    )


BONUS = TGrpoTemporalBonus()


@pytest.mark.parametrize(
    ("ordered", "shuffled", "earned"),
    [
        ((1, 0), (0.5, 0.5), True),
        ((1, 1, 1, 1, 0), (1, 1), True),
        ((1, 0), (1, 1), False),
        ((0, 0), (0, 0), True),
        ((1, 1), (0,), True),
    ],
)
def test_condition_and_recipients(ordered, shuffled, earned):
    g = contrast(ordered, shuffled)
    assert BONUS(g) == [*(r + 0.3 * (earned and r > 0.1) for r in ordered), *shuffled]
    untouched = group(1, 0, raw={"accuracy": [1, 0]})
    p, p_shuffled = sum(ordered) / len(ordered), sum(shuffled) / len(shuffled)
    assert (
        TGrpoContrast()([untouched, g]) == {"ordered": p, "shuffled": p_shuffled, "earned": earned}
        and TGrpoContrast()([untouched]) == {}
    )


def test_the_threshold_is_inclusive_and_accuracy_is_raw():
    g = contrast((0.8, 0.05), (0.53125, 0.53125), reward=[5.0, 5.0, 5.0, 5.0])  # p = 0.425 = 0.8 * 0.53125
    assert BONUS(g) == [5.3, 5.0, 5.0, 5.0]


def test_pictures_are_untouched():
    assert BONUS(group(1, 0, raw={"accuracy": [1, 0]})) == [1, 0]


def test_the_pieces_require_each_other():
    for words, missing in (
        (["rollout={name: independent}"], "requires 't_grpo.shuffled_frames'.*set rollout: .name: t_grpo"),
        (["reward_shaping=null", "metrics=null"], "requires 't_grpo.contrast'.*t_grpo.temporal_bonus"),
        (["reward_shaping=null", "rollout={name: independent}"], "no phase's reward shaping writes"),
    ):
        with pytest.raises(ConfigError, match=missing):
            vision_run(["methods/video_r1"], words)


def test_correct_from_which_outcome_on():
    g = contrast((0.1, 0.5, 1.0), (0.0,))  # as in the release, 0.1 itself is not above 0.1
    assert BONUS(g) == [0.1, 0.8, 1.3, 0.0]
    assert TGrpoTemporalBonus(correct_at=None)(g) == [0.1, 0.5, 1.3, 0.0]  # the reward's own: 1


def test_frames_are_permuted_and_nothing_else():
    clip, again = ShuffledFrames(Counting(), 3).load(), ShuffledFrames(Counting(), 3).load()
    order = clip.frames_THWC[:, 0, 0, 0].tolist()
    assert sorted(order) == list(range(8)) and order != list(range(8)) and clip.fps == 2.0
    assert (clip.frames_THWC == again.frames_THWC).all() and ShuffledFrames(Counting(), 4).load().frames_THWC[
        :, 0, 0, 0
    ].tolist() != order
    assert ShuffledFrames(Counting(), 3).key != Counting().key


class Engine:
    def __init__(self):
        self.requests = []

    def generate(self, requests):
        self.requests += requests
        for request in requests:
            for index in range(request.n):
                yield Completion(request, index, [1], [-1.0], "x", "stop")


@pytest.mark.parametrize(("count", "extra"), [(8, 4), (5, 2), (1, 0), (0, 0)])
def test_half_as_many_shuffled_rollouts_that_are_not_trained(count, extra):
    engine = Engine()
    parts = run(
        engine=engine,
        seed=0,
        step=1,
        phase="rl",
        sampling=lambda p, a: Sampling(),
        make_rollout=lambda c: Rollout(c.request.prompt, c.ids),
    )
    still = group(0, name="still").prompt
    video = replace(group(0, name="moving").prompt, videos=(Counting(),))
    moving, picture = TGrpo()([video, still], [count, 4], parts)
    assert [r.trained for r in moving] == [True] * count + [False] * extra and all(r.trained for r in picture)
    shuffled = [r for r in moving if not r.trained]
    assert all(
        r.source == "shuffled" and r.row is moving.row and isinstance(r.prompt.videos[0], ShuffledFrames)
        for r in shuffled
    )
    moving.set_untrained_aside()
    assert len(moving) == count and len(moving.untrained) == extra


def test_share_is_checked():
    with pytest.raises(ValueError, match="share"):
        TGrpo(share=0.0)


def test_middle_length():
    shape = TGrpoLengthReward(low=2, high=3)
    g = group(1, 1, 1, 0, lengths=[1, 2, 3, 2], raw={"accuracy": [1, 1, 1, 0]})
    assert shape(g) == [1, 1.2, 1.2, 0]
    assert shape(group(1, 0, lengths=[2, 2], raw={"accuracy": [1, 0]})) == [
        1,
        0,
    ]  # one right rollout is not enough


@pytest.mark.parametrize(
    ("scores", "reason"),
    [([1, 0], ""), ([1, 1], "too easy"), ([0, 0], "too hard"), ([1] * 9 + [0], ""), ([], "empty group")],
)
def test_accuracy_range(scores, reason):
    g = group(*[0.0] * len(scores), raw={"accuracy": scores})
    assert AccuracyRange()(g) == (not reason, reason)
