"""Frames on demand: which frames a clip gets, ratings by hand, experts above lazy and cheating policies,
texts that must not raise."""

from dataclasses import replace

import numpy as np
import pytest
from vlrl_data.generators.video_evidence import GenVideoEvidence, difficulty

from vlrl.methods.papers.conan import (
    ConanVideoClips,
    clock,
    evidence_difficulty,
    identification,
    retrieval,
    shares,
    spread,
    well_formed,
)
from vlrl.plugins.episodes import Action, Observation
from vlrl.types import Clip, Media, Row, RowError

EMPTY = "<score></score><think>so</think><clip>{}</clip><answer>{}</answer>"


class Film(Media):
    """Ten frames at one per second."""

    kind = "video"
    key = "film"

    def load(self):
        return Clip(
            np.arange(10, dtype=np.uint8)[:, None, None, None] * np.ones((1, 28, 28, 3), np.uint8), 1.0
        )


SCORES = [1, 1, 3, 5, 5, 3, 1, 1, 4, 1]
ROW = Row(
    "a",
    "Which?",
    "B",
    videos=(Film(),),
    meta={"frame_scores": SCORES, "descriptions": [f"frame {i}" for i in range(10)]},
)
GOLD = dict(enumerate(SCORES))


def started(row=ROW, **settings):
    episode = ConanVideoClips(**{"first": 4, "more": 3, **settings}).episode()
    return episode, episode.reset(row, 0)


def test_frames_are_spread_and_shared():
    assert (
        spread(range(10), 4) == [0, 3, 6, 9]
        and spread([1, 2], 4) == [1, 2]
        and spread(range(5), 1) == [0]
        and spread([], 3) == []
    )
    assert shares([6, 2], 8) == [6, 2], "one each, 6 left: 4 and 1, the rest to the largest"
    assert shares([1, 1, 1], 2) == [1, 1, 1] and shares([], 4) == []
    assert clock(59.6) == "00:00:59" and clock(3601) == "01:00:01"


def test_identification_by_hand():
    assert identification({3: 5, 4: 4, 6: 4}, GOLD, [3, 4, 6]) == pytest.approx(2 / 3), (
        "evidence 3, 4 of 3, 4, 6"
    )
    assert identification({2: 3, 3: 3}, GOLD, [0, 2, 3]) == 1.0, (
        "no evidence was named: evidence and context together"
    )
    assert identification({0: 5}, GOLD, [0, 1]) == 0.0 and identification({}, GOLD, [3]) == 0.0
    assert identification({}, GOLD, [0, 1]) is None, "distractors, taken for such"


def test_retrieval_by_hand():
    assert retrieval([3, 6], GOLD, [8], 8) == 1 / 2, "of the unseen evidence 3 and 4"
    assert retrieval([3, 4], GOLD, [], 2) == 1.0, "at most two can be had"
    assert retrieval([2, 6], GOLD, [], 8) == 1 / 5, (
        "no evidence: one of the five frames of evidence and context"
    )
    assert retrieval([0, 1], GOLD, [], 8) == 0.0 and retrieval([2], GOLD, [2], 8) == 0.0


def test_a_clip_gets_frames_that_were_not_seen():
    episode, opening = started()
    assert (
        opening.text == "Frames, in this order: 00:00:00, 00:00:03, 00:00:06, 00:00:09."
        and len(opening.media) == 4
    )
    new = episode.step(Action(EMPTY.format("00:00:02-00:00:05", "")))
    assert new.text.startswith("New frames, in this order: 00:00:02, 00:00:04, 00:00:05.") and not new.done
    assert new.parts == {
        "identified": 0.0,
        "identified_rounds": 1.0,
        "retrieved": 0.5,
        "retrieved_rounds": 1.0,
    }, "4 of the unseen 4 and 8"
    assert new.reward is None and new.calls == 1
    end = episode.step(
        Action(
            "<score>00:00:04: 5, 00:00:02-00:00:05: 3</score><think>a</think><clip></clip><answer>B</answer>"
        )
    )
    assert end.done and not end.invalid and end.parts == {"identified": 1.0, "identified_rounds": 1.0}, (
        "all rated 3 by the last one: context counts"
    )


def test_seen_and_impossible_clips_end_the_episode():
    for clip in ("", "00:00:00-00:00:00", "00:00:05-00:00:02", "99:99", "soon"):
        episode, _ = started()
        assert episode.step(Action(EMPTY.format(clip, "B"))).done
    episode, _ = started()
    assert episode.step(Action("I do not know")).invalid
    episode, _ = started(more=3)
    many = episode.step(Action(EMPTY.format("00:00:01-00:00:02, 00:00:04-00:00:08", "")))
    assert many.text.startswith("New frames, in this order: 00:00:01, 00:00:04, 00:00:08."), (
        "one of each clip, the third of the longer one"
    )


def test_random_frames():
    first, second = (started()[0].step(Action(EMPTY.format("random", ""))) for _ in range(2))
    assert (
        first == second
        and len(first.media) == 3
        and not {"00:00:00", "00:00:03"} & set(first.text.split(": ")[1].strip(".").split(", "))
    )


def test_text_in_place_of_frames():
    _, told = started(show="text")
    assert not told.media and "00:00:03: frame 3" in told.text and ConanVideoClips(show="text").provides == ()
    _, both = started(show="both")
    assert len(both.media) == 4 and "frame 3" in both.text


def test_broken_rows_are_refused():
    for row, what in (
        (replace(ROW, videos=()), "no video"),
        (replace(ROW, meta={"frame_scores": [1, 2]}), "2 entries"),
        (replace(ROW, meta={"frame_scores": ["x"] * 10}), "whole number"),
    ):
        with pytest.raises(RowError, match=what):
            started(row)
    with pytest.raises(RowError, match="descriptions"):
        started(replace(ROW, meta={}), show="text")
    assert started(replace(ROW, meta={}))[0].step(Action(EMPTY.format("", "B"))).parts == {}, (
        "no ratings: no parts"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\udcff<clip>",
        "<clip>" * 5000 + "</clip>" * 5000,
        EMPTY.format("00:00:01-" * 20_000, ""),
        EMPTY.format("99:99:99-99:99:99", ""),
        "<score>" + "00:00:03: 5, " * 20_000 + "</score>",
        "<score>٠٠:٠٠:٠٣: ٥</score><clip>٠٠:٠٠:٠٣</clip>",
    ],
)
def test_what_the_policy_writes_never_raises(text):
    seen = started()[0].step(Action(text))
    assert isinstance(seen, Observation) and seen.reward is None and len(seen.media) <= 3
    well_formed(text)


def test_rating_every_frame_as_evidence_earns_less_than_the_truth():
    every, truth = dict.fromkeys(range(10), 5), {3: 5, 4: 5, 8: 5, 2: 3, 5: 3}
    assert (
        identification(every, GOLD, range(10)) == pytest.approx(3 / 10)
        and identification(truth, GOLD, range(10)) == 1.0
    )


def test_rows_have_ratings_and_demonstrations_that_find_the_evidence():
    source = GenVideoEvidence(count=12)
    for row in source():
        scores, turns = row.meta["frame_scores"], row.meta["turns"]
        assert len(row.videos[0].load()) == len(scores) == 24 and 5 in scores
        assert all(well_formed(turn) for turn in turns) and "".join(turns) == row.target
        assert row.meta["edi"] == pytest.approx(evidence_difficulty(scores))
        episode = ConanVideoClips(first=4, more=4).episode()
        episode.reset(row, 0)
        seen = [episode.step(Action(turn)) for turn in turns]
        assert (
            seen[-1].done
            and not seen[-1].invalid
            and [s.done for s in seen[:-1]] == [False] * (len(turns) - 1)
        )
        assert all(s.parts.get("identified", 1.0) == 1.0 for s in seen[:1]), "the expert rates what it sees"
        assert all(s.parts["retrieved"] > 0 for s in seen[:-1])
    assert difficulty([], 5) == 0.0 and difficulty([0, 4], 5) == pytest.approx(0.6 * 0.25)
