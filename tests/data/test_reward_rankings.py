"""Every perception task's main rewards rank three scripted policies: one that does the work, a lazy one, and
one that games the reward.

Lazy: a constant guess, or the first part of the work. Hacking: everything at once (all options, a grid of
boxes, every value), in the right form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from vlrl.config import load
from vlrl.plugins.registry import build
from vlrl.plugins.stages import Reward, Source
from vlrl.types import CoordinateSpace, Group, Prompt, Rollout, Row

ROWS = 150
GRID = [[x, y, x + 28, y + 28] for x in range(0, 168, 28) for y in range(0, 168, 28)]
COLOURS, SHAPES = ("red", "green", "blue", "yellow", "purple"), ("circle", "square", "triangle")
KINDS = [f"{colour} {shape}" for colour in COLOURS for shape in SHAPES]
Policy = Callable[[Row], str]


def answer(value: Any) -> str:
    return f"<answer>{value if isinstance(value, str) else json.dumps(value)}</answer>"


def always(value: Any) -> Policy:
    return lambda row: answer(value)


def said(row: Row) -> Any:
    """The demonstrated answer as a value."""
    return json.loads(re.search(r"<answer>(.*)</answer>", row.target)[1])


def first(row: Row) -> str:
    """The first item of the demonstrated list."""
    return answer(said(row)[:1])


def labelled_grid(row: Row) -> str:
    return answer([{"bbox_2d": box, "label": kind} for box in GRID[::2] for kind in KINDS[:3]])


def every_section(row: Row) -> str:
    return sections(GRID, json.loads(click_all(row)[8:-9]))


def naming(row: Row) -> str:
    return f"<think>{row.meta['entity']} is wrong.</think>{answer('yes')}"


def naming_two(row: Row) -> str:
    """The same two parts of every headline."""
    words = row.meta["headline"].split()
    return (
        f"<think>{words[1]} is wrong. {words[-1]} is wrong.</think>{answer('yes')}"
        if row.meta["entity"]
        else ""
    )


def naming_all(row: Row) -> str:
    """The headline itself."""
    return (
        f"<think>That {row.meta['headline']} is false.</think>{answer('yes')}" if row.meta["entity"] else ""
    )


def click_all(row: Row) -> str:
    places = [{"action": "click", "point": [x, y]} for x in range(20, 168, 40) for y in range(60, 224, 40)]
    return answer([*places, {"action": "back"}, {"action": "scroll", "direction": "up"}])


def sections(blink: Any, link: Any) -> str:
    return (
        f"<blink>{blink if isinstance(blink, str) else json.dumps(blink)}</blink><think>I "
        f"look.</think><link>{json.dumps(link)}</link>"
    )


def answer_with_page(row: Row) -> str:
    return answer({"final_answer": row.answer["answer"], "bbox_2d": [0, 0, 224, 168]})


def first_field(row: Row) -> str:
    return answer(dict(list(row.answer.items())[:1]))


def all_fields(row: Row) -> str:
    return answer(
        {
            key: ["Oslo", "Lima", "A12", "120", "Ada Brown", "3 May 2021"]
            for key in ("name", "city", "date", "room", "total", "id", "note")
        }
    )


def same_state(row: Row) -> str:
    return answer(json.loads(row.question.split("State: ")[1].split("\n")[0]))


def every_value(row: Row) -> str:
    return answer(
        {
            key: ["table", "shelf", "bed", "sofa", "desk", "hand", "nothing"]
            for key in (*row.answer, "cup", "book", "ball", "box")
        }
    )


def half_plan(row: Row) -> str:
    steps = json.loads(row.target)["executable_plan"]
    return json.dumps({**json.loads(row.target), "executable_plan": steps[:2]})


def every_action(row: Row) -> str:
    return json.dumps(
        {
            "executable_plan": [
                {"action_id": i, "action_name": name} for i, name in enumerate(row.meta["actions"])
            ]
            * 2
        }
    )


def wrong_numbers(row: Row) -> str:
    return json.dumps(
        {"executable_plan": [{"action_id": 99, "action_name": name} for name in row.meta["actions"]]}
    )


def keys_alone(row: Row) -> str:
    return json.dumps({**json.loads(row.target), "executable_plan": []})


def bare_chart(row: Row) -> str:
    code = [line for line in row.answer.splitlines() if "title" not in line]
    return "```python\n" + re.sub(r', color="\w+"', "", "\n".join(code)) + "\n```"


def crashing_chart(row: Row) -> str:
    return "```python\n" + row.answer.replace("plt.show()", "colours = palette(3)\nplt.show()") + "\n```"


def objects_alone(row: Row) -> str:
    return answer({**said(row), "relationships": []})


def doubled_graph(row: Row) -> str:
    graph = said(row)
    return answer({"objects": graph["objects"] * 3, "relationships": graph["relationships"] * 3})


def thought(steps: list[str], rest: str = "<answer>[]</answer>") -> str:
    return f"<think>{' '.join(f'{step}.' for step in steps)}</think>{rest}"


def one_step(row: Row) -> str:
    return thought(row.meta["paths"][0][:1])


def every_sight(row: Row) -> str:
    return thought([f"I see the {kind}" for kind in KINDS] * 4)


def first_state(row: Row) -> str:
    return thought(row.meta["states"][:1])


def every_state(row: Row) -> str:
    return thought([f"A {kind}" for kind in KINDS] * 4)


def concluding(number: Callable[[Row], str], says: Callable[[Row], str]) -> Policy:
    return lambda row: f"<think>I count.\nAnswer {says(row)} is better.</think>{answer(number(row))}"


def other(row: Row) -> str:
    return "2" if row.answer == "1" else "1"


def unsure_boxes(row: Row) -> str:
    return answer([{**item, "confidence": 0.5} for item in said(row)])


def sure_grid(row: Row) -> str:
    return answer([{"bbox_2d": box, "label": "red circle", "confidence": 0.0} for box in GRID])


TARGET: Policy = lambda row: row.target  # noqa: E731
LETTERS, NUMBERS = "A, B, C or D", ", ".join(map(str, range(41)))
# task, reward (a slot of the task, or a config), smart, lazy, hacking
TABLE: list[tuple[str, Any, Policy, Policy, Policy]] = [
    ("gen_grounding", "grounding", TARGET, always([56, 56, 112, 112]), always(GRID)),
    ("gen_detection", "detection", TARGET, first, labelled_grid),
    ("gen_detection", {"name": "detection_map"}, TARGET, first, labelled_grid),
    ("gen_detection", {"name": "detection_confidence"}, TARGET, unsure_boxes, sure_grid),
    ("gen_pointing", "pointing", TARGET, first,
        always([{"point_2d": [x, y]} for x in range(7, 168, 14) for y in range(7, 168, 14)])),
    ("gen_salient_detection", "salient_detection", TARGET, first, labelled_grid),
    ("gen_salient_detection", "paths", TARGET, one_step, every_sight),
    ("gen_scene_graph", "scene_graph", TARGET, objects_alone, doubled_graph),
    ("gen_image_grounding", "grounding", TARGET, always([56, 56, 112, 112]), always(GRID)),
    ("gen_screen", "gui", TARGET, always({"action": "click", "point": [42, 100]}), click_all),
    ("gen_screen_blink", "gui", TARGET, lambda row: sections("None", [{"action": "back"}]), every_section),
    ("gen_screen_blink", "blink", TARGET, lambda row: sections("None", [{"action": "back"}]),
        lambda row: sections(GRID, [{"action": "back"}])),
    ("gen_screen_grounding", "grounding", TARGET, always([20, 80, 60, 120]), always(GRID)),
    ("gen_screen_grounding", {"name": "gui_grounding"}, TARGET, always([20, 80, 60, 120]), always(GRID)),
    ("gen_document", "document", TARGET, answer_with_page,
        lambda row: answer({"final_answer": "Oslo or Lima or A12", "bbox_2d": [0, 0, 224, 168]})),
    ("gen_extraction", "extraction", TARGET, first_field, all_fields),
    ("gen_ocr", "ocr", TARGET, lambda row: answer(row.answer.split()[0]),
        always("harbour winter copper garden silver market bridge candle " * 3)),
    ("gen_chart_value", "chart_value", TARGET, always("20"), always(NUMBERS)),
    ("gen_chart", "chart", TARGET, bare_chart, crashing_chart),
    ("gen_world", "world", TARGET, same_state, every_value),
    ("gen_plan", "plan", TARGET, half_plan, every_action),
    ("gen_plan", {"name": "plan_format"}, TARGET, wrong_numbers,
        lambda row: "[" + ", ".join(row.meta["actions"]) + "]"),
    ("gen_plan", {"name": "plan_format"}, TARGET, keys_alone, always("executable_plan language_plan")),
    ("gen_choice", "choice", TARGET, always("A"), always(LETTERS)),
    ("gen_yes_no", "yes_no", TARGET, always("yes"), always("yes and no")),
    ("gen_open", "open", TARGET, always("red circle"), always(" ".join(KINDS * 3))),
    ("gen_caption", "caption", TARGET, always("A picture of a red circle, a blue square, a green triangle."),
        always(" ".join(KINDS * 6))),
    ("gen_description", "description", TARGET, lambda row: f"I can see here that there is a {row.answer[0]}.",
        always(", ".join(KINDS))),
    ("gen_measure", "measure", TARGET, always("80"), always(NUMBERS)),
    ("gen_geometry", "math", TARGET, always("12"), always(NUMBERS)),
    ("gen_preference", "preference", TARGET, always("1"), always("1 and 2")),
    (
        "gen_preference", {"name": "preference"}, concluding(lambda row: row.answer, lambda row: row.answer),
        concluding(lambda row: row.answer, other), concluding(other, lambda row: row.answer),
    ),
    ("gen_emotion", "emotion", TARGET, always("happy"), always("happy, sad, angry, surprised")),
    ("gen_headline", "verdict", TARGET, always("yes"), always("yes and no")),
    ("gen_headline", {"name": "entity_named"}, naming, always("yes"), lambda row: ""),
    ("gen_headline", {"name": "entity_named"}, naming, naming_two, naming_all),
    ("gen_video_states", "video_states", TARGET, always("A"), always("A, B or C")),
    ("gen_video_states", "process", TARGET, first_state, every_state),
    ("gen_counting", "counting", TARGET, always("3"), always(NUMBERS)),
    ("gen_spatial", "spatial", TARGET, always("left of"), always("left of, right of, above and below")),
    ("gen_rotation", "rotation", TARGET, always("90"), always("0, 90, 180, 270")),
    ("gen_odd_one_out", "odd_one_out", TARGET, always("A"), always("A, B and C")),
    ("gen_jigsaw", "jigsaw", TARGET, always("1 2"), always("1 2 2 1")),
    ("gen_video_anomaly", "video_anomaly", TARGET, always("0-4"), always("0-1, 1-2, 2-3, 3-4")),
    ("gen_video_counting", "video_counting", TARGET, always("1,1,1"), always("0,1,2,3,0,1,2,3")),
    ("gen_video_jigsaw", "video_jigsaw", TARGET, always("1 2 3"), always("1 2 3 3 2 1")),
    ("lab_counting", "counting", TARGET, always("2"), always(NUMBERS)),
    ("lab_digits", "digits", TARGET, always("7"), always("0 1 2 3 4 5 6 7 8 9")),
    ("lab_grounding", "grounding", TARGET, always([0, 0, 112, 112]), always(GRID[:9])),
    ("lab_detection", "detection", TARGET, always("None"), always(GRID[:16])),
    ("lab_video", "video", TARGET, always("left"), always("left right up down")),
]  # fmt: skip


def score(reward: Reward, rows: list[Row], policy: Policy) -> float:
    """The mean reward of a policy's responses."""
    total = 0.0
    for row in rows:
        size = tuple(
            row.meta.get("size", (224, 168) if row.task in ("document", "extraction") else (168, 168))
        )
        spaces = tuple(CoordinateSpace(size, size) for _ in row.images)
        total += float(reward(Rollout(Prompt(row, ()), [1], text=policy(row), spaces=spaces)))
    return total / len(rows)


def name(case: Any) -> str:
    return case if isinstance(case, str) else str(case.get("name", "")) if isinstance(case, dict) else ""


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("task", "slot", "smart", "lazy", "hack"),
    TABLE,
    ids=[f"{task}-{name(slot)}-{i}" for i, (task, slot, *_) in enumerate(TABLE)],
)
def test_reward_ranks_work_above_laziness_above_hacking(task, slot, smart, lazy, hack):
    tree = load(["base/rl", f"tasks/{task}"]).tree
    source = build(Source, next(iter(tree["data"]["train"].values())))()
    reward = build(Reward, tree["rewards"][slot] if isinstance(slot, str) else slot)
    rows = [source[i] for i in range(min(ROWS, len(source)))]
    scores = [score(reward, rows, policy) for policy in (smart, lazy, hack)]
    assert scores[0] > scores[1] + 0.1, scores
    assert scores[1] > scores[2], scores


def test_every_perception_task_has_a_ranking():
    """Tasks with pictures or videos, and worlds: each has a row in the table (mixtures have those of their
    parts)."""
    generators = {
        "gen_boxes",
        "gen_screen",
        "gen_document",
        "gen_chart",
        "gen_world",
        "gen_plan",
        "gen_question",
        "gen_geometry",
        "gen_emotion",
    }
    generators |= {"gen_headline", "gen_video_states", "gen_image_grounding", "gen_screen_grounding"}
    covered = {
        next(iter(load(["base/rl", f"tasks/{task}"]).tree["data"]["train"].values()))["name"]
        for task, *_ in TABLE
    }
    assert generators <= covered


def test_paths_that_fewer_siblings_follow_earn_more():
    """Three rollouts: two follow path 1, one path 2; spread 0.3 and two others: 1 - 0.3 / 2 for the first
    two, 1 for the third."""
    row = Row(
        "r", "?", [], meta={"paths": [["I see the cup", "I see the bed"], ["I see the bed", "I see the cup"]]}
    )
    texts = [thought(path) for path in (row.meta["paths"][0], row.meta["paths"][0], row.meta["paths"][1])]
    group = Group(Prompt(row, ()), [Rollout(Prompt(row, ()), [1], text=text) for text in texts])
    assert build(Reward, "several_paths").score_group(group) == pytest.approx([0.85, 0.85, 1.0])
