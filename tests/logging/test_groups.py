"""The group view: what a card says of each answer, and which filters keep it."""

import json

import pytest

from vlrl.logging.browse import sample
from vlrl.logging.recorder import Recorder
from vlrl.logging.report import report_text


def card_of(folder, group, decode=None):
    recorder = Recorder(folder, {"watch": {}}, decode=decode)
    recorder.step(1, "rl", {"loss": 1.0}, {"step": 0.1}, [group])
    recorder.close()
    (card,) = sample(folder / "rollouts")
    return card


def flags(card):
    return {rollout["index"]: rollout["flags"] for rollout in card["rollouts"]}


def test_answers_stand_best_first_with_their_outcome(tmp_path, make_group):
    group = make_group([0.25, 1.0, 0.5])
    for rollout, outcome in zip(group, (0.0, 1.0, 0.0)):
        rollout.outcome, rollout.correct = outcome, outcome == 1.0
    card = card_of(tmp_path, group)
    assert [(r["index"], r["correct"]) for r in card["rollouts"]] == [(1, True), (2, False), (0, False)]
    assert (card["right"], card["low"], card["high"], card["parts"]) == (1, 0.25, 1.0, ["accuracy", "format"])
    page = report_text(tmp_path)
    assert "<b>1</b> of 3 right" in page and "✓ right" in page and page.count("✗ wrong") == 2


def test_filters_by_hand(tmp_path, make_group):
    texts = ["it is 7", "no gold here", "<answer>7</answer>", "cut"]
    group = make_group([0.1, 1.0, 1.0, 0.0], texts, answer=7)
    for rollout, right in zip(group, (True, True, True, False)):
        rollout.outcome, rollout.correct = float(right), right
    group.rollouts[3].finish = "length"
    group.rollouts[2].info["verdict"] = {"extracted": "7", "span": [8, 9], "route": "tag", "reason": "equal"}
    group.rollouts[0].info["verdict"] = {"extracted": None, "span": None, "route": "", "reason": "no tags"}
    assert flags(card_of(tmp_path, group)) == {
        0: ["underpaid", "failed"],  # right, below the mean of 0.525; nothing was read
        1: ["ungrounded"],  # paid, without the gold 7 in its text
        2: [],
        3: ["disagree", "failed"],  # format 1 and accuracy 0; cut off
    }


def test_the_part_that_was_read_is_marked(tmp_path, make_group):
    group = make_group([1.0], ["<answer>7</answer> done"])
    group.rollouts[0].info["verdict"] = {"extracted": "7", "span": [8, 9], "route": "tag", "reason": "equal"}
    (rollout,) = card_of(tmp_path, group)["rollouts"]
    assert [(piece["text"], piece["kind"]) for piece in rollout["pieces"]] == [
        ("<answer>", ""),
        ("7", "read"),
        ("</answer> done", ""),
    ]
    assert rollout["verdict"] == {"extracted": "7", "reason": "equal"}


def test_replies_of_tools_and_the_shift_against_the_reference(tmp_path, make_group):
    """Tokens 1, 2, 3 are a, b, c; b is a tool's reply. log p - log p_ref is 1.1, 0 and -0.1 nats: 1, 0 and 0
    to half a nat."""
    group = make_group([1.0], ["abc"])
    (rollout,) = group
    rollout.loss_mask = [True, False, True]
    rollout.signals = {"old_logp": [-0.1, -0.2, -0.3], "ref_logp": [-1.2, -0.2, -0.2]}
    card = card_of(tmp_path, group, decode=lambda ids: "".join(chr(96 + i) for i in ids))
    pieces = card["rollouts"][0]["pieces"]
    assert [(p["text"], p["shift"], p["kind"]) for p in pieces] == [
        ("a", 1.0, ""),
        ("b", 0.0, "reply"),
        ("c", 0.0, ""),
    ]
    assert pieces[0]["shift_style"] == "background:rgba(34,160,90,0.10)" and pieces[1]["shift_style"] == ""
    page = report_text(tmp_path)
    assert 'class="reply"' in page and '<option value="shift">' in page


def test_a_conversation_with_tool_calls_is_shown_turn_by_turn(tmp_path, make_group):
    group = make_group([1.0])
    call = {"function": {"name": "zoom", "arguments": {"x": 1}}}
    messages = (
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "seen"},
    )
    object.__setattr__(group.prompt, "messages", messages)
    turns = card_of(tmp_path, group)["turns"]
    assert [turn["role"] for turn in turns] == ["user", "assistant", "tool", "assistant"]
    assert json.loads(turns[1]["text"]) == call and turns[2]["text"] == "seen"


def test_video_frames_have_their_times(tmp_path, make_group, picture):
    (medium,) = card_of(tmp_path, make_group([1.0], videos=[picture(frames=9)]))["media"]
    assert medium["times"] == pytest.approx([0.0, 0.75, 1.25, 2.0])  # frames 0, 3, 5, 8 at 4 a second
    assert "<span>1.25 s</span>" in report_text(tmp_path)


def test_a_mask_lies_over_the_picture(tmp_path, make_group, picture):
    gold = {"size": [64, 96], "counts": [0, 64 * 96]}
    card = card_of(tmp_path, make_group([1.0], ["<answer>no</answer>"], answer=gold, images=[picture()]))
    ((mark, kind, _),) = card["marks"]
    assert kind == "gold" and mark["uri"].startswith("data:image/png;base64,")


def test_files_of_older_versions_are_shown(tmp_path, make_group):
    import pyarrow.parquet as pq

    card_of(tmp_path, make_group([1.0, 0.0]))
    path = tmp_path / "rollouts" / "step-000001.parquet"
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["turns", "verdict", "correct", "outcome"]), path)
    (card,) = sample(tmp_path / "rollouts")
    assert card["right"] is None and card["turns"][0]["text"].startswith("user: ")
