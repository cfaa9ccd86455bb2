"""Scene graphs, transcription, forms and evidence."""

from __future__ import annotations

import json
import random
from decimal import localcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vlrl_rewards.graphs.graph import GraphAnswer
from vlrl_rewards.graphs.scene_graph import SceneGraph
from vlrl_rewards.graphs.triples import Triples
from vlrl_rewards.recognition.labels import MultiLabel
from vlrl_rewards.recognition.ocr import Ocr, error_rate
from vlrl_rewards.text.documents import Evidence, Fields

from vlrl.types import CoordinateSpace


def tag(text):
    return f"<answer>{text if isinstance(text, str) else json.dumps(text)}</answer>"


JUNK = [
    "",
    "<answer></answer>",
    "<answer>???</answer>",
    "<answer>[[[</answer>",
    "<answer>{}</answer>",
    "<answer>None</answer>",
    "I do not know.",
]
TRIPLES = [["man", "rides", "horse"], ["horse", "on", "beach"]]


@pytest.mark.parametrize(
    ("text", "f1", "recall"),
    [
        (TRIPLES, 1, 1),
        ("(man, rides, horse), (horse, on, beach)", 1, 1),
        ([{"subject": "man.1", "predicate": "rides", "object": "horse.2"}], 2 / 3, 0.5),
        ("(Man, rides, the horse)", 2 / 3, 0.5),
        (TRIPLES[:1] * 4, 2 / 6, 0.5),
        ("(horse, rides, man)", 0, 0),
        ([["a", "b"]], 0, 0),
        ("(man, looks at, horse)", 0, 0),
    ],
)
def test_triples(text, f1, recall):
    assert Triples().verify(TRIPLES, tag(text)).score == pytest.approx(f1)
    assert Triples(metric="recall").verify(TRIPLES, tag(text)).score == pytest.approx(recall)


SAYS_NONE = ["none", "None.", "[]", "nothing", "No objects found"]
SAYS_NOTHING = [".", "?", "...", "-", "()", '""', "*", "and", ",", "\u200b.", "<br>", "cat"]


@pytest.mark.parametrize("text", SAYS_NOTHING)
def test_an_empty_gold_answer_asks_for_a_word(text):
    for reward in (Triples(), MultiLabel(), GraphAnswer()):
        assert reward.verify([], tag(text)).score == 0 and not reward.verify([], tag(text)).correct, (
            reward.name
        )


@pytest.mark.parametrize("text", SAYS_NONE)
def test_an_empty_gold_answer_is_said(text):
    for reward in (Triples(), MultiLabel(), GraphAnswer()):
        assert reward.verify([], tag(text)).score == 1 and reward.verify([], tag(text)).correct, reward.name


def test_triples_spam_and_nothing():
    spam = [[a, "on", b] for a in "abcdefgh" for b in "abcdefgh"] + TRIPLES
    assert (
        Triples(metric="recall").verify(TRIPLES, tag(spam)).score == 0
    )  # the right ones come after the fiftieth
    assert Triples().verify([], tag("none")).score == 1
    for text in JUNK:
        assert Triples().verify(TRIPLES, text).score == 0
    with pytest.raises(ValueError, match="triples"):
        Triples().verify("a man", "")


GRAPH = {
    "objects": [{"id": "person.1", "bbox": [0, 0, 50, 100]}, {"id": "dog.2", "bbox": [50, 50, 100, 100]}],
    "relationships": [{"subject": "person.1", "predicate": "holding", "object": "dog.2"}],
}
SIZE = {"meta": {"size": (100, 100)}}


def test_scene_graph_by_hand():
    reward = SceneGraph()
    assert reward.verify(GRAPH, tag(GRAPH), **SIZE).score == pytest.approx(1)
    assert reward.verify(GRAPH, tag(GRAPH), **SIZE).correct
    renamed = json.dumps(GRAPH).replace("person.1", "person.7")
    assert reward.verify(GRAPH, tag(renamed), **SIZE).score == pytest.approx(1)
    other = json.dumps(GRAPH).replace("holding", "eating")
    assert reward.verify(GRAPH, tag(other), **SIZE).score == pytest.approx(4 / 9)
    one = {"objects": GRAPH["objects"][:1], "relationships": []}
    assert reward.verify(GRAPH, tag(one), **SIZE).score == pytest.approx((2 * 0.5 + 2 * 0.5) / 9)
    spam = {
        **GRAPH,
        "objects": GRAPH["objects"] + [{"id": f"tree.{i}", "bbox": [i, 0, i + 1, 1]} for i in range(3, 9)],
    }
    assert reward.verify(GRAPH, tag(spam), **SIZE).score == pytest.approx((2 * 0.25 + 2 * 0.25 + 5) / 9)
    scaled = json.dumps(GRAPH).replace("100", "10").replace("50", "5")
    assert reward.verify(
        GRAPH, tag(scaled), spaces=(CoordinateSpace((100, 100), (10, 10), "seen"),)
    ).score == pytest.approx(1)


@pytest.mark.parametrize(
    "text",
    [
        *JUNK,
        tag({"objects": [], "relationships": []}),
        tag({**GRAPH, "relationships": [{"subject": "cow.1", "predicate": "on", "object": "dog.2"}]}),
        tag({**GRAPH, "objects": GRAPH["objects"] * 2}),
        tag(json.dumps(GRAPH) * 2),
        f"<think>{json.dumps(GRAPH)}</think>",
        tag({"objects": [{"id": "sky", "bbox": [200, 200, 300, 300]}]}),
    ],
)
def test_scene_graph_refuses(text):
    assert SceneGraph().verify(GRAPH, text, **SIZE).score == 0


def test_relations_of_misplaced_objects_do_not_count():
    far = {
        **GRAPH,
        "objects": [{"id": "person.1", "bbox": [60, 0, 90, 20]}, {"id": "dog.2", "bbox": [0, 80, 20, 100]}],
    }
    grade = SceneGraph().verify(GRAPH, tag(far), **SIZE)
    assert (
        grade.reason == "node 1.00, box 0.00, edge 0.00"
        and grade.score == pytest.approx(2 / 9)
        and not grade.correct
    )
    assert SceneGraph(iou_threshold=0).verify(GRAPH, tag(far), **SIZE).score == pytest.approx(7 / 9)
    one_off = {**GRAPH, "objects": [GRAPH["objects"][0], far["objects"][1]]}
    assert "edge 0.00" in SceneGraph().verify(GRAPH, tag(one_off), **SIZE).reason
    near = {
        **GRAPH,
        "objects": [{"id": "person.1", "bbox": [0, 0, 45, 100]}, {"id": "dog.2", "bbox": [50, 55, 100, 100]}],
    }
    assert "edge 1.00" in SceneGraph().verify(GRAPH, tag(near), **SIZE).reason


def test_scene_graph_gold_and_names():
    assert (
        SceneGraph(similarity="ratio")
        .verify(GRAPH, tag(json.dumps(GRAPH).replace("dog", "dogs")), **SIZE)
        .score
        > 0.9
    )
    for gold, scene in (
        (GRAPH, {}),
        ({}, SIZE),
        ({"objects": [{"id": "a", "bbox": [5, 5, 1, 1]}]}, SIZE),
    ):
        with pytest.raises(ValueError):
            SceneGraph().verify(gold, "", **scene)


# --- reading ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "cer", "wer", "edit", "anls"),
    [
        (tag("hello world"), 1, 1, 1, 1),
        (tag("hello  world\n"), 1, 1, 1, 1),
        (tag("hello word"), 10 / 11, 0.5, 10 / 11, 10 / 11),
        (tag("world"), 5 / 11, 0.5, 5 / 11, 0),
        (tag("xyz"), 0, 0, 0, 0),
        ("", 0, 0, 0, 0),
        (tag("hello world " * 50), 0, 0, 11 / 599, 0),
        ("<think>hello world</think>", 0, 0, 0, 0),
    ],
)
def test_ocr(text, cer, wer, edit, anls):
    for metric, expected in (
        ("cer", cer),
        ("wer", wer),
        ("edit", edit),
        ("anls", anls),
        ("exact", float(cer == 1)),
    ):
        assert Ocr(metric=metric).verify("hello world", text).score == pytest.approx(expected), metric


def test_ocr_options():
    assert Ocr(case=False, punctuation=False).verify("Hello, World!", tag("hello world")).score == 1
    assert Ocr().verify(["first", "second"], tag("second")).score == 1
    assert Ocr().verify("x", tag("y" * 30_000)).score == 0
    for broken in ("", None, [], [" "]):
        with pytest.raises(ValueError, match="empty"):
            Ocr().verify(broken, "")


def test_error_rates_agree_with_jiwer():
    jiwer = pytest.importorskip("jiwer")
    rng = random.Random(0)
    for _ in range(1000):
        said, meant = (
            " ".join("".join(rng.choices("abc", k=rng.randint(1, 4))) for _ in range(rng.randint(1, 8)))
            for _ in range(2)
        )
        assert error_rate(said, meant, "word") == pytest.approx(jiwer.wer(meant, said), abs=1e-12)
        assert error_rate(said, meant, "char") == pytest.approx(jiwer.cer(meant, said), abs=1e-12)


FORM = {"name": "Ann Lee", "age": 31, "tests": [{"item": "FEV1", "result": "1.61"}]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FORM, 1),
        ({"name": "ann  lee", "age": "31", "tests": [{"item": "FEV1", "result": 1.610}]}, 1),
        ({"name": "Ann Lee"}, 0.5 * 1 + 0.5 * 0.25),
        ({**FORM, "extra": "x", "more": "y", "most": "z", "last": "w"}, 0.5 * 0.5 + 0.5),
        ({"name": "Bob"}, 0),
        ("Ann Lee", 0),
        ('{"name": "Ann Lee"} {"name": "Bob"}', 0),
    ],
)
def test_fields(text, expected):
    assert Fields().verify(FORM, tag(text)).score == pytest.approx(expected)


@pytest.mark.parametrize(
    ("said", "score"),
    [("4915112345678", 1), (4915112345678.0, 1), ("4915112345679", 0), ("4915112399999", 0), ("-0", 0)],
)
def test_numbers_of_fields_are_compared_with_all_their_digits(said, score):
    assert Fields().verify({"phone": "4915112345678"}, tag({"phone": said})).score == pytest.approx(score)
    with localcontext(prec=6):  # a library may have set it
        assert Fields().verify({"phone": "4915112345678"}, tag({"phone": said})).score == pytest.approx(score)


def test_fields_options():
    said = {"name": "Ann Leo", "age": 31, "tests": []}
    assert Fields(f1=True).verify(FORM, tag(said)).score == pytest.approx(2 * 1 / (2 + 4))
    assert Fields(f1=True, fuzzy=0.8).verify(FORM, tag(said)).score == pytest.approx(2 * 2 / (2 + 4))
    assert Fields(lists="bag").verify({"a": [1, 2]}, tag({"a": [2, 1]})).score == 1
    assert Fields().verify({"a": [1, 2]}, tag({"a": [2, 1]})).score == 0
    assert (
        Fields(alpha=1).verify(FORM, tag({"age": 31})).score == 1
        and Fields(alpha=0).verify(FORM, tag({"age": 31})).score == 0.25
    )
    for text in JUNK:
        assert Fields().verify(FORM, text).score == 0
    with pytest.raises(ValueError, match="alpha"):
        Fields(alpha=2)
    with pytest.raises(ValueError, match="fields"):
        Fields().verify({}, "")


def test_evidence():
    gold = {"answer": "42 kg", "bbox": [0, 0, 10, 10]}
    full = {"rephrase_question": "?", "bbox_2d": [0, 0, 10, 5], "final_answer": "42 KG"}
    assert Evidence().verify(gold, tag(full)).score == pytest.approx(0.75)
    wrong = {**full, "final_answer": "41 kg"}
    assert (
        Evidence().verify(gold, tag(wrong)).score == pytest.approx(0.25)
        and Evidence(needs_answer=True).verify(gold, tag(wrong)).score == 0
    )
    assert Evidence().verify(gold, tag({**full, "bbox_2d": [[0, 0, 10, 10], [1, 1, 2, 2]]})).score == 0.5
    for text in JUNK:
        assert Evidence().verify(gold, text).score == 0
    with pytest.raises(ValueError, match="bbox"):
        Evidence().verify({"answer": "x"}, "")


@settings(max_examples=60, deadline=None)
@given(
    st.text(alphabet="ab c", min_size=1, max_size=20),
    st.text(alphabet="ab c", max_size=20),
    st.sampled_from(["wer", "cer", "edit", "anls"]),
)
def test_reading_bounds(gold, said, metric):
    if not gold.strip():
        return
    assert 0 <= Ocr(metric=metric).verify(gold, tag(said)).score <= 1
    assert Ocr(metric=metric).verify(gold, tag(gold)).score == 1


@pytest.mark.parametrize(
    ("said", "score"),
    [
        ({"final_answer": "42", "bbox_2d": [20, 20, 40, 40]}, 1),
        ({"final_answer": "42", "answer": "42", "bbox": [20, 20, 40, 40], "bbox_2d": [20, 20, 40, 40]}, 1),
        ({"final_answer": "42", "answer": "7", "bbox_2d": [20, 20, 40, 40]}, 0.5),
        ({"final_answer": "42", "bbox_2d": [20, 20, 40, 40], "bbox": [60, 60, 90, 90]}, 0.5),
        ('{"answer": "7", "answer": "42", "box": [20, 20, 40, 40]}', 0.5),
        ('{"answer": "42", "box": [60, 60, 90, 90], "box": [20, 20, 40, 40]}', 0.5),
    ],
)
def test_evidence_under_two_keys(said, score):
    assert Evidence().verify({"answer": "42", "bbox": [20, 20, 40, 40]}, tag(said)).score == score
