"""Faults of released perception rewards, one test each: what went wrong there, and that it does not here."""

from __future__ import annotations

import json

import pytest
from vlrl_rewards.audit.perception import SEEDS
from vlrl_rewards.boxes.detection import Detection, DetectionConfidence, DetectionMap, DetectionWeighted
from vlrl_rewards.boxes.group import IouHard
from vlrl_rewards.boxes.iou import Iou
from vlrl_rewards.graphs.scene_graph import SceneGraph
from vlrl_rewards.gui.actions import GuiAction
from vlrl_rewards.gui.grounding import Blink
from vlrl_rewards.math.closeness import Closeness
from vlrl_rewards.puzzles.jigsaw import Jigsaw, JigsawQuestion
from vlrl_rewards.puzzles.plans import PlanSteps
from vlrl_rewards.recognition.classification import Classification
from vlrl_rewards.recognition.counting import Counting
from vlrl_rewards.recognition.ocr import Ocr
from vlrl_rewards.text.mentions import Keywords
from vlrl_rewards.verification import verify

from vlrl.types import CoordinateSpace

BOX = [10, 10, 30, 30]
TWO = [{"bbox": [0, 0, 10, 10], "label": "cat"}, {"bbox": [20, 20, 40, 40], "label": "dog"}]
BOTH = "[{'bbox_2d': [0,0,10,10], 'label': 'cat'}, {'bbox_2d': [20,20,40,40], 'label': 'dog'}]"
GRAPH = SEEDS["scene_graph"].gold
CROWD = (
    "["
    + ", ".join(
        [BOTH[1:-1], *(f"{{'bbox_2d': [{900 + i},900,{905 + i},905], 'label': 'cat'}}" for i in range(198))]
    )
    + "]"
)
CLICK = SEEDS["gui_action"].gold
EXTRA = json.dumps({**GRAPH, "objects": [*GRAPH["objects"], {"id": "tree.3", "bbox": [0, 0, 9, 9]}]})
HALF = {"spaces": (CoordinateSpace((100, 100), (200, 200), "seen"),)}
SIZE = {"meta": {"size": (100, 100)}}


def tag(text):
    return f"<answer>{text}</answer>"


# (released code, its fault, reward, gold, response, scene, our score)
FAULTS = [
    (
        "VLM-R1",
        "identical boxes in unit coordinates have IoU 0",
        Iou(),
        [0.1, 0.1, 0.6, 0.6],
        tag("[0.1, 0.1, 0.6, 0.6]"),
        None,
        1,
    ),
    ("VLM-R1", "a box of one pixel has IoU 0 with itself", Iou(), [5, 5, 6, 6], tag("[5, 5, 6, 6]"), None, 1),
    ("VLM-R1", "floats in the answer are not read", Iou(), BOX, tag("[10.0, 10.0, 30.0, 30.0]"), None, 1),
    (
        "VLM-R1",
        "the first box counts, whatever follows",
        Iou(),
        BOX,
        tag("[10,10,30,30] or [0,0,5,5] or [7,7,9,9]"),
        None,
        0,
    ),
    (
        "VLM-R1",
        "detection gives 1 where neither side has a fence",
        Detection(),
        TWO,
        "no fence, no boxes",
        None,
        0,
    ),
    (
        "VLM-R1",
        "... nor for a gold without boxes, if nothing was said",
        Detection(),
        [],
        "I like turtles",
        None,
        0,
    ),
    (
        "VLM-R1",
        "a predicted box without a label raises",
        DetectionWeighted(),
        TWO,
        tag("[[0,0,10,10],[20,20,40,40]]"),
        None,
        0.3,
    ),
    (
        "VLM-R1",
        "invented classes cost nothing in mAP",
        DetectionMap(length_penalty=False),
        TWO,
        tag(BOTH[:-1] + ", {'bbox_2d': [0,0,9,9], 'label': 'gnu'}]"),
        None,
        2 / 3,
    ),
    (
        "VLM-R1",
        "false alarms after the right boxes cost nothing in mAP",
        DetectionMap(),
        TWO,
        tag(BOTH[:-1] + ", [50,50,60,60], [70,70,80,80]]"),
        None,
        1 / 3,
    ),
    (
        "VLM-R1",
        "near strings earn partial credit by edit ratio",
        Classification(),
        "Boeing 737",
        tag("Boeing 747"),
        None,
        0,
    ),
    ("VLM-R1", "none where there is something", Detection(), TWO, tag("None"), None, 0),
    ("Visual-RFT", "an empty label is contained in every gold", Classification(), "cat", tag(""), None, 0),
    (
        "Visual-RFT",
        "a list of all classes contains the gold",
        Classification(),
        "cat",
        tag("cat, dog, bird"),
        None,
        0,
    ),
    ("Visual-RFT", "one letter is contained in the gold", Classification(), "cat", tag("c"), None, 0),
    (
        "Visual-RFT",
        "far boxes of confidence 0 earn the whole confidence reward",
        DetectionConfidence(),
        TWO,
        SEEDS["boxes"].own["far boxes of no confidence"],
        None,
        0,
    ),
    (
        "Visual-RFT",
        "the answer may stand anywhere in the response",
        Iou(),
        BOX,
        "[10,10,30,30] " + tag("I do not know"),
        None,
        0,
    ),
    ("Video-R1", "7.0 is not 7 because only one has a point", Counting(), 7, tag("7.0"), None, 1),
    (
        "Video-R1",
        "the first answer counts, not the last",
        Counting(),
        7,
        tag(7) + " wait, " + tag(8),
        None,
        0,
    ),
    (
        "Jigsaw-R1",
        "a constant answer hits one place of every puzzle",
        Jigsaw(),
        "2 1 4 3",
        tag("1 1 1 1"),
        None,
        0,
    ),
    (
        "Jigsaw-R1",
        "the last capital is the answer",
        JigsawQuestion(kind_of="letter"),
        "B",
        tag("I choose option A, not B"),
        None,
        0,
    ),
    (
        "Jigsaw-R1",
        "the first digits are the answer",
        JigsawQuestion(kind_of="digit"),
        3,
        tag("3 or 4"),
        None,
        0,
    ),
    (
        "Jigsaw-R1",
        "identical boxes in unit coordinates have IoU 0",
        JigsawQuestion(kind_of="box"),
        [0.1, 0.1, 0.6, 0.6],
        tag("[0.1,0.1,0.6,0.6]"),
        None,
        1,
    ),
    ("Perception-R1", "text that starts with '<' has the right form", Iou(), BOX, "<", None, 0),
    (
        "GUI-R1",
        "one letter is a substring of the gold text",
        GuiAction(),
        {"action": "type", "text": "shoes"},
        tag("{'action': 'type', 'input_text': 's'}"),
        None,
        0,
    ),
    (
        "GUI-R1",
        "the answer is evaluated as code",
        GuiAction(),
        SEEDS["gui_action"].gold,
        tag("[{'action': 'click', 'point': [exit(), 30]}]"),
        None,
        0,
    ),
    (
        "BTL-UI",
        "a fenced JSON block is never read",
        GuiAction(),
        SEEDS["gui_action"].gold,
        tag('```json\n[{"action": "click", "point": [30, 30]}]\n```'),
        None,
        1,
    ),
    (
        "BTL-UI",
        "a grid of boxes always holds a hit",
        Blink(),
        [0, 0, 10, 10],
        f"<blink>{[[12 * i, 0, 12 * i + 10, 10] for i in range(40)]}</blink>",
        None,
        0,
    ),
    (
        "R1-SGG",
        "a well-formed graph never counts as such",
        SceneGraph(),
        GRAPH,
        tag(SEEDS["scene_graph"].right),
        SIZE,
        1,
    ),
    ("Fact-R1", "'no' is found in 'know'", Classification(), "no", tag("I know"), None, 0),
    (
        "Fact-R1",
        "key words in a row are paid",
        Keywords(),
        ["because", "so"],
        tag("because so because so because so"),
        None,
        0,
    ),
    (
        "CLS-RL",
        "case and blanks matter without thinking",
        Classification(),
        "Siamese Cat",
        " siamese cat\n",
        None,
        1,
    ),
    ("Video-R1", "a text of any length is compared", Ocr(metric="wer"), "exit", "exit " * 9000, None, 0),
    ("Video-R1", "numbers are cut to two places", Closeness(mode="relative"), 0.001, tag("0.004"), None, 0),
    (
        "VLM-R1",
        "hundreds of boxes around the right ones still earn 0.85 of weighted_sum",
        DetectionWeighted(),
        TWO,
        tag(CROWD),
        None,
        0.7 / 100 + 0.3 * (0.5 + 1 / 200),
    ),
    (
        "VLM-R1",
        "numbers with a minus sign are read without it",
        Iou(),
        BOX,
        tag("[10, -10, 30, 30]"),
        None,
        0.5,
    ),
    (
        "VLM-R1",
        "a digit in the label is a coordinate",
        Iou(),
        BOX,
        tag('{"label": "dog 7", "bbox_2d": [10, 10, 30, 30]}'),
        None,
        1,
    ),
    (
        "Visual-RFT",
        "missed objects cost nothing: the mean is over the boxes that were said",
        Detection(),
        TWO,
        tag(BOTH.split(", {")[0] + "]"),
        None,
        0.5,
    ),
    (
        "Visual-RFT",
        "boxes said twice are taken out, so that saying them twice is free",
        Detection(),
        TWO,
        tag(BOTH[:-1] + ", " + BOTH[1:]),
        None,
        0.5,
    ),
    (
        "Visual-RFT",
        "a confidence above 1 is paid as it stands",
        DetectionConfidence(),
        [BOX],
        tag("[{'Position': [10,10,30,30], 'Confidence': 50}]"),
        None,
        1,
    ),
    ("R1-SGG", "extra objects cost nothing", SceneGraph(edge=0), GRAPH, tag(EXTRA), SIZE, 2 / 3),
    (
        "PeBR-R1",
        "a keyword is found inside another word",
        Keywords(),
        ["art", "bus"],
        tag("A busy party stands in the street."),
        None,
        0,
    ),
    (
        "Reinforced Planner",
        "steps after the goal are free",
        PlanSteps(),
        ["find cup", "take cup"],
        tag('["find cup", "take cup", "dance"]'),
        None,
        0.75,
    ),
    (
        "GUI-R1",
        "the point of a list of points is the first",
        GuiAction(),
        CLICK,
        tag("{'action': 'click', 'point': [[30, 30], [90, 90]]}"),
        None,
        0,
    ),
    (
        "UI-R1",
        "coordinates of the resized picture are compared with the original",
        GuiAction(),
        CLICK,
        tag("{'action': 'click', 'point': [60, 60]}"),
        HALF,
        1,
    ),
    (
        "Jigsaw-R1",
        "an order of another length is compared as far as it goes",
        Jigsaw(),
        "2 1 4 3",
        tag("2 1 4"),
        None,
        0,
    ),
]


@pytest.mark.parametrize(
    ("source", "fault", "reward", "gold", "response", "scene", "ours"),
    FAULTS,
    ids=[f"{f[0]}: {f[1]}" for f in FAULTS],
)
def test_ours_does_not(source, fault, reward, gold, response, scene, ours):
    assert reward.verify(gold, response, **scene or {}).score == pytest.approx(ours), f"{source}: {fault}"


@pytest.mark.parametrize("kind", sorted(SEEDS))
@pytest.mark.parametrize(
    "gold", ["\ufffd", float("nan"), None, object()], ids=["text", "nan", "none", "object"]
)
def test_a_broken_gold_raises_and_is_never_paid(kind, gold):
    """MM-Eureka and LMM-R1 give everyone 1.0 where the gold cannot be read, R1-Reward where anything
    raises."""
    options = SEEDS[kind].options
    for response in ("", "<answer>anything</answer>", f"<answer>{gold}</answer>"):
        try:
            verdict = verify(gold, response, kind=kind, **options)
        except ValueError:
            continue
        # A text that is a label or a transcription is a legal gold.
        assert not verdict.correct or (kind in TEXTS and str(gold) in response)


TEXTS = {"label", "classification", "labels", "multi_label", "ocr", "open_set", "plan"}


def test_weights_of_a_group_come_from_that_group(group):
    """UniVG-R1 averages over the batch of a device, so that other prompts change a prompt's weight."""
    easy = group(BOX, [tag("[10,10,30,30]")] * 2)
    hard = group(BOX, [tag("[10,10,30,30]"), ""])
    assert IouHard().score_group(easy) == pytest.approx([1, 1]) and IouHard().score_group(hard)[0] > 1.5


def test_rewards_of_a_mixed_batch_are_their_own(rollout):
    """Video-R1 takes the question's type from the first row of the batch."""
    rows = [
        rollout("B", tag("B"), answer_type="letter"),
        rollout(3, tag("3"), answer_type="digit"),
        rollout("left", tag("left"), answer_type="relation"),
    ]
    assert [JigsawQuestion()(r) for r in rows] == [1, 1, 1]
