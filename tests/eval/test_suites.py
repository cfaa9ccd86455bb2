"""Every suite on its fixture: prompts and media, gold answers, silence, options that move."""

from __future__ import annotations

import pytest
from task_kit import params

from vlrl.eval import load_suite, suite_names
from vlrl.eval.floors import floors, gold_self_test
from vlrl.eval.grade import Sample, grade
from vlrl.eval.prompts import build_prompt, media_of, rotate_options
from vlrl.plugins.registry import ConfigError

# Golds that the benchmark's own rules cannot reach; everything else must be reached.
UNREACHABLE = {
    ("mathvista", "lmms_eval"): ["3", "4"],  # floats: the hub's precision is a float, and round() refuses it
    ("mathvista", "vlmevalkit"): ["5"],  # lists are never right
    ("mathvista", "rule_end_to_end"): ["5"],
    ("mmmu", "lmms_eval"): ["validation_Math_2"],  # open answers scored 0 for fourteen months
}
# What silence is worth by a benchmark's own rules.
BLANK = {
    ("mathvista", profile): 1 / 6 for profile in ("official", "extraction", "rule_end_to_end", "lmms_eval")
}
PAIRS = [
    pytest.param(*name.values, profile, marks=name.marks)
    for name in params(suite_names())
    for profile in load_suite(name.values[0]).built
]


WANTED = """
mathvista vsi_bench mathverse mathvision we_math mmmu mmmu_pro mmstar vstar cv_bench countbench refcoco
refcoco_plus refcocog coco lvis screenspot screenspot_pro ocrbench chartqa docvqa textvqa blink
hallusion_bench video_mme tempcompass mvbench long_video_bench mlvu video_mmmu seed_bench_r1 aime24 aime25
math500 gsm8k amc23 minerva olympiad_bench gpqa mmlu_pro ifeval humaneval livecodebench mathodyssey mathreal
mathreal_question mathreal_description mathreal_clean
"""


def test_the_suites_are_there():
    assert set(WANTED.split()) <= set(suite_names())


@pytest.mark.parametrize("name", suite_names())
def test_rows_become_prompts_with_their_media(name, fixture_data):
    data = fixture_data(name)
    assert data.origin == "fixture" and len(data) >= 2 and len(set(data.ids)) == len(data)
    for number in range(len(data)):
        prompt = build_prompt(data, number).prompt
        images, videos = media_of(data, data.records[number])
        text = prompt.messages[-1]["content"][-1]["text"]
        assert text.strip() and "{{" not in text
        assert len(prompt.images) == len(images) and len(prompt.videos) == len(videos)
        assert bool(images or videos) == bool(data.suite.media.images or data.suite.media.videos)
        for medium in (*images, *videos):
            assert medium.load() is not None
    assert data.suite.about and data.suite.data.size > 0


@pytest.mark.parametrize(("name", "profile"), PAIRS)
def test_gold_self_test_and_silence(name, profile, fixture_data):
    data = fixture_data(name)
    chosen = data.suite.profile(profile)
    assert gold_self_test(data, chosen)["unreachable"] == UNREACHABLE.get((name, profile), [])
    assert floors(data, chosen)["blank"] == pytest.approx(BLANK.get((name, profile), 0.0))


@pytest.mark.parametrize(
    "name", params(name for name in suite_names() if "official" in load_suite(name).built)
)
def test_gold_answers_score_everything(name, fixture_data):
    data = fixture_data(name)
    scorer = data.suite.profile("official").scorer
    graded = grade(
        data, {key: [Sample(scorer.demonstrations(record)[0])] for key, record in zip(data.ids, data.records)}
    )
    assert graded.figures["overall"] == pytest.approx(1.0)
    assert graded.interval.low <= graded.interval.value <= graded.interval.high


@pytest.mark.sweep
@pytest.mark.parametrize("name", params(n for n in suite_names() if "vlrl" in load_suite(n).built))
@pytest.mark.parametrize(
    "response",
    [
        "",
        ":",
        "Thought process:",
        "I'm sorry, I cannot help with that.",
        "A B C D E",
        "<answer></answer>",
        "x" * 5000,
    ],
)
def test_the_strict_profile_is_not_fooled(name, response, fixture_data):
    data = fixture_data(name)
    assert grade(data, {key: [Sample(response)] for key in data.ids}, "vlrl").figures[
        "overall"
    ] <= STRICT_FLOOR.get(name, 0.0)


STRICT_FLOOR = {"ifeval": 0.75}  # some constraints are kept by any text


def test_rotated_options_take_their_gold_along(fixture_data):
    data = fixture_data("vsi_bench")
    record = data.records[2]
    moved = rotate_options(data.suite, record, 1)
    assert moved["options"] == ["A. bed", "B. lamp", "C. bin", "D. door"] and moved["ground_truth"] == "C"
    assert (
        rotate_options(data.suite, moved, 3) == record
        and rotate_options(data.suite, data.records[0], 1) == data.records[0]
    )
    choice = fixture_data("mathvista").records[1]
    moved = rotate_options(fixture_data("mathvista").suite, choice, 1)
    assert moved["choices"] == ["3/5", "3/11", "8/11", "6/11"] and moved["answer"] == "8/11"
    assert moved["query"].endswith("(A) 3/5\n(B) 3/11\n(C) 8/11\n(D) 6/11")


def test_a_suite_that_cannot_be_permuted_says_so(fixture_data):
    with pytest.raises(ConfigError, match="cannot be permuted"):
        rotate_options(fixture_data("gpqa").suite, fixture_data("gpqa").records[0])


def test_variants(fixture_data):
    data = fixture_data("vsi_bench")
    assert build_prompt(data, 0, "blind").prompt.videos == ()
    assert (
        build_prompt(data, 0, "wrong_picture").prompt.videos[0].key
        == build_prompt(data, 3).prompt.videos[0].key
        != build_prompt(data, 0).prompt.videos[0].key
    )
    assert build_prompt(data, 2, "permuted1").prompt.row.answer == "C"
    assert "<think>" in build_prompt(data, 2, protocol="thinking").prompt.messages[-1]["content"][-1]["text"]
    with pytest.raises(ConfigError, match="no variant 'blnd'"):
        build_prompt(data, 0, "blnd")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("profiles: {official: {scorer: {name: choise}}}", "Did you mean 'choice'"),
        ("profiles: {official: {scorer: {name: choice, reader: rankd}}}", "Did you mean 'ranked'"),
        ("profiles: {official: {scoer: {name: choice}}}", "unknown field"),
        ("promt: x\nprofiles: {official: {scorer: {name: choice}}}", "Did you mean 'prompt'"),
        ("profiles: {official: {}}", "needs a `scorer`"),
    ],
)
def test_mistakes_in_a_suite_are_named(tmp_path, text, message):
    file = tmp_path / "mine.yaml"
    file.write_text(f"data: {{hub: a/b, split: test}}\n{'' if 'promt' in text else 'prompt: x'}\n{text}\n")
    with pytest.raises(ConfigError, match=message):
        load_suite(file)


def test_a_template_names_the_field_that_is_missing(fixture_data):
    suite = load_suite("vsi_bench")
    with pytest.raises(ConfigError, match="'question'"):
        suite.text({"options": None})
