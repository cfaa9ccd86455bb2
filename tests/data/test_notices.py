"""What a record lacks is said in its own words, and what is assumed of a file once, however many phases read
it."""

import json
import logging

import pytest

from vlrl.config import load
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Source
from vlrl.trainer.data.rows import PromptTooLongError
from vlrl.trainer.plan import Plan

SUM = {"question": "1 + 1?", "answer": "2", "context": "Add."}


def written(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_notice_is_logged_once_in_a_run_of_two_phases(tmp_path, caplog):
    train = written(tmp_path / "sums.jsonl", [SUM] * 30 + [{"question": "2 + 2?"}])
    heldout = written(tmp_path / "held.jsonl", [SUM] * 2)
    source = f"{{name: files, path: {train}, heldout: {{path: {heldout}}}, target: '{{answer}}'}}"
    words = [f"data.train.mine={source}", "rewards.mine={name: math}", f"output={tmp_path / 'run'}"]
    plan = Plan.of(load(["base/rl", "base/lab", "models/tiny_text", "methods/grpo"], words))
    assert len(plan.phases) == 2
    with caplog.at_level(logging.INFO):
        for seen in (1, 2):
            caplog.clear()
            plan.check() if seen == 1 else Plan.of(plan.config).check()
            said = [record.getMessage() for record in caplog.records]
            assert sum("quarantined" in text for text in said) == 1, said
            assert sum(text.startswith("sums: assumed for 30 rows") for text in said) == 1, said
            assert sum(text.startswith("held: read as qa") for text in said) == 1, said


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([SUM, {"question": "x"}], "it has no `answer` (nor label, solution, answerKey); its fields: `quest"),
        ([SUM, {"answer": "x"}], "it has no `question` (nor query); its fields: `answer`"),
        ([SUM, {}], "it has no `question` (nor query); its fields: none"),
        (
            [[{"from": "human", "value": "1?"}, {"ground_truth": {"value": "1"}}], {"question": "x"}],
            "orz records are lists or paths, and this one is a mapping of fields",
        ),
        (
            [{"instruction": "1 + 1?", "input": "", "output": "2"}],
            "a row needs `question` and `answer`, and has `image`, `images` or `video` for what it shows. "
            "Rename yours with `fields: {instruction: question, output: answer}`",
        ),
    ],
)
def test_a_record_of_another_shape_is_described(tmp_path, records, reason):
    path = written(tmp_path / "mine.jsonl", records)
    with pytest.raises(ConfigError) as error:
        build(Source, {"name": "files", "path": str(path), "max_bad": 0.0}).read()
    assert reason in str(error.value) and "''" not in str(error.value)


def test_a_prompt_of_too_many_words_is_refused_before_the_model_is_loaded(tmp_path):
    path = written(tmp_path / "long.jsonl", [{"question": "one two three", "answer": "1"}])
    words = [f"data.train.mine={{name: files, path: {path}}}", "rewards.mine={name: math}"]
    words += [f"output={tmp_path / 'run'}", "prompt_template={name: chat, instruction: four five}"]
    configs = ["base/rl", "models/tiny_text", "methods/grpo"]
    with pytest.raises(
        PromptTooLongError, match="row 'long-0' has 5 words, max_prompt_tokens is 4; raise it"
    ):
        Plan.of(load(configs, [*words, "max_prompt_tokens=4"])).check()
    Plan.of(load(configs, [*words, "max_prompt_tokens=5"])).check()


@pytest.mark.parametrize(
    ("value", "said"),
    [("a/1.JPG", "names images"), ("1.mp4", "names videos"), ("1.wav", "names audios"), ("1.x", "")],
)
def test_a_column_of_media_that_no_model_sees_is_named(tmp_path, value, said):
    path = written(tmp_path / "mine.jsonl", [{"question": "What?", "answer": "a cat", "file": value}])
    guesses = list(build(Source, {"name": "files", "path": str(path)}).load().guesses())
    kind = said.removeprefix("names ").removesuffix("s")
    assert [f"`fields: {{file: {kind}}}`" in guess and said in guess for guess in guesses] == [True] * bool(
        said
    )
