"""Demonstrated boxes and points reach the policy in the units of its family, which are those that the rewards
read."""

import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from run_kit import View

from vlrl.plugins.registry import build, get, shipped
from vlrl.plugins.stages import PromptTemplate, Reward, Source
from vlrl.policy import Family, Policy
from vlrl.trainer.data.rows import converted, prompt_of, to_model_coordinates
from vlrl.types import TARGET_UNITS, CoordinateSpace, Prompt, Rollout, Row, RowError

CASES = [  # source, fields, reward
    *(
        ("gen_boxes", {"ask": [ask], "size": 120}, reward)
        for ask, reward in (("grounding", "iou"), ("detection", "detection"), ("pointing", "points"))
    ),
    *(
        ("gen_boxes", {"ask": [ask], "size": 120}, reward)
        for ask, reward in (("salient_detection", "detection"), ("scene_graph", "scene_graph"))
    ),
    ("gen_image_grounding", {"size": 120}, "iou"),
    ("gen_document", {"ask": ["document"]}, "evidence"),
    ("gen_jigsaw", {"ask": ["box"]}, "jigsaw_question"),
    ("gen_screen", {}, "gui_action"),
    ("gen_screen_grounding", {}, "iou"),
    ("lab_grounding", {}, "iou"),
    ("lab_detection", {}, "detection"),
]
UNITS = {"qwen2_5_vl": "seen", "qwen2_5_omni": "seen", "qwen3_omni_moe": "per_mille"}
UNITS |= dict.fromkeys(("qwen2_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), "per_mille")
UNITS |= dict.fromkeys(("glm4v", "glm4v_moe", "glm46v", "gemma3", "gemma3n", "gemma4"), "per_mille")
UNITS |= dict.fromkeys(("internvl", "mistral3", "ovis2", "minicpmv4_6"), "per_mille")
UNITS |= dict.fromkeys(("llava_onevision", "smolvlm", "lfm2_vl", "kimi_k25"), "unit")
FAMILIES = tuple(UNITS)
COORDINATES = re.compile(r"\[\s*-?\d+\s*,\s*-?\d+(\s*,\s*-?\d+\s*,\s*-?\d+)?\s*\]")


def rows_of(name, fields, count=6):
    return build(Source, {"name": name, "count": count, **fields})()[:]


def policy_with(space):
    return SimpleNamespace(spaces=lambda prompt: [space] * len(prompt.images))


@pytest.mark.parametrize("units", ["seen", "unit", "per_mille"])
@pytest.mark.parametrize(("name", "fields", "reward"), CASES, ids=lambda value: str(value)[:40])
def test_a_demonstration_earns_its_reward_in_every_unit(name, fields, reward, units):
    """Also where the processor makes the picture half as wide and three times as high; unconverted, a box is
    another one."""
    judge, before = build(Reward, reward), []
    for row in rows_of(name, fields):
        width, height = row.images[row.meta.get("picture", 0)].load().size
        space = CoordinateSpace((width, height), (width // 2, height * 3), units)
        said = to_model_coordinates(policy_with(space), row)
        assert said.meta[TARGET_UNITS] == "policy" and said.answer == row.answer
        prompt = Prompt(said, (), said.images)
        score, other = (
            judge(Rollout(prompt, [1], text=text, spaces=(space,) * len(row.images)))
            for text in (said.target, row.target)
        )
        assert score > 0.85
        before.append(other)
    assert min(before) < 0.6


def test_every_generator_with_coordinates_says_so():
    """Of all generated tasks: a demonstration with boxes or points among the gold answer's is marked, and no
    other is."""
    marked = set()
    for name in shipped(Source):
        if not name.startswith(("gen_", "lab_")):
            continue
        if get(Source, name).__name__ == "Files":
            continue
        for row in rows_of(name, {}, 4):
            if row.images and COORDINATES.search(row.target) and isinstance(row.answer, (list, tuple, dict)):
                assert row.meta.get(TARGET_UNITS) == "original", (name, row.target)
            if TARGET_UNITS in row.meta:
                marked.add(name)
    assert marked == {name for name, _, _ in CASES} - {"gen_jigsaw"}  # whose default asks no boxes
    assert all(row.meta.get(TARGET_UNITS) == "original" for row in rows_of("gen_jigsaw", {"ask": ["box"]}))


@cache
def policy_of(family):
    return Policy(build(Family, {"name": family, "tiny": {"layers": 1, "seed": 3}}))


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_of_a_real_policy_demonstrate_in_its_units(family):
    """Through the trainer's own way from row to prompt: the box of a picture of 120 x 120 pixels, in what the
    family writes."""
    policy = policy_of(family)
    row = next(row for row in rows_of("gen_boxes", {"ask": ["grounding"], "size": 120}))
    template = build(PromptTemplate, "chat")
    phase = View(prompt_template=template, settings=SimpleNamespace(max_prompt_tokens=10_000))
    prompt = prompt_of(policy, phase, row)
    space = policy.spaces(prompt)[0]
    assert space.units == UNITS[family] and space.original == (120, 120)
    written = [float(number) for number in re.findall(r"[\d.]+", prompt.row.target.replace("answer", ""))]
    expected = {"unit": [x / 120 for x in row.answer], "per_mille": [x * 1000 / 120 for x in row.answer]}
    expected["seen"] = [x * space.seen[i % 2] / 120 for i, x in enumerate(row.answer)]
    assert written == pytest.approx(expected[space.units], abs=0.005 if space.units == "unit" else 0.5)
    rollout = Rollout(prompt, [1], text=prompt.row.target, spaces=(space,))
    assert build(Reward, "iou")(rollout) > 0.85
    assert prompt_of(policy, phase, prompt.row).row.target == prompt.row.target  # once


def test_every_model_config_has_a_family_of_known_units():
    folder = Path(__file__).parents[2] / "configs" / "models"
    if not folder.is_dir():
        pytest.skip("configs are not beside the tests")
    names = {yaml.safe_load(file.read_text())["policy"]["name"] for file in folder.glob("*.yaml")}
    assert names - {"text"} <= set(FAMILIES)
    assert all(get(Family, name).units == UNITS[name] for name in names - {"text"})


def test_conversion_by_hand():
    space = CoordinateSpace((200, 100), (400, 50), "seen")  # x doubled, y halved
    assert converted("<answer>[10, 20, 30, 41]</answer>", space) == "<answer>[20, 10, 60, 20]</answer>"
    assert converted('[{"bbox_2d": [10, 20, 30, 40], "label": "a [1, 2] é", "score": 3}] [x1, y1', space) == (
        '[{"bbox_2d": [20, 10, 60, 20], "label": "a [1, 2] é", "score": 3}] [x1, y1'
    )
    assert converted(
        '{"point": [100, 50], "on": [true, false], "three": [1, 2, 3]}',
        CoordinateSpace((200, 100), (1, 1), "unit"),
    ) == ('{"point": [0.5, 0.5], "on": [true, false], "three": [1, 2, 3]}')
    assert converted("None [", space) == "None [" and converted("", space) == ""


def test_rows_of_files_say_it_in_meta_and_wrong_units_are_refused():
    picture = rows_of("lab_grounding", {})[0].images[0]
    policy = policy_with(CoordinateSpace((100, 100), (1, 1), "per_mille"))
    row = Row(
        "a",
        "?",
        [1, 2, 3, 4],
        images=(picture,),
        target="[10, 20, 30, 40]",
        meta={TARGET_UNITS: "original", "demonstrations": ["[5, 5]"]},
    )
    said = to_model_coordinates(policy, row)
    assert said.target == "[100, 200, 300, 400]" and said.meta["demonstrations"] == ["[50, 50]"]
    plain = Row("b", "?", [1, 2, 3, 4], images=(picture,), target="[10, 20, 30, 40]")
    assert to_model_coordinates(policy, plain) is plain
    for meta in (
        {TARGET_UNITS: "pixels"},
        {TARGET_UNITS: "original", "picture": 1},
        {TARGET_UNITS: "original", "picture": "0"},
    ):
        with pytest.raises(RowError, match="allowed are original or policy, and 0 to 0"):
            to_model_coordinates(policy, Row("c", "?", images=(picture,), target="[1, 2]", meta=meta))
