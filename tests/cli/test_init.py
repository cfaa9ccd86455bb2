"""`vlrl init`: what rows look like decides reward and prompt; its config loads, fits and acts."""

from __future__ import annotations

import io
import json

import pytest
from PIL import Image

from vlrl.cli import init as command
from vlrl.cli.proposal import FORMATS, KINDS, propose
from vlrl.config import load
from vlrl.plugins.registry import ConfigError, names
from vlrl.plugins.stages import Reward
from vlrl.types import Row

PICTURE, VIDEO = object(), object()  # rows are looked at, their media are not


def row(answer, images=(), videos=(), choices=()):
    return Row(
        id="r",
        question="q",
        answer=answer,
        images=tuple(images),
        videos=tuple(videos),
        choices=tuple(choices),
    )


@pytest.mark.parametrize(
    ("rows", "reward"),
    [
        ([row([1, 2, 30, 40], [PICTURE])], "iou"),
        ([row([[1, 2, 30, 40], [5, 6, 7, 8]], [PICTURE])], "detection"),
        ([row([{"bbox_2d": [1, 2, 3, 4], "label": "cat"}], [PICTURE])], "detection"),
        ([row([3, 9], [PICTURE])], "point"),
        ([row([3.0, 9.5], videos=[VIDEO])], "temporal_iou"),
        ([row([2, 1, 3], [PICTURE])], "order"),
        ([row("B", [PICTURE], choices=["red", "blue"])], "mcq"),
        ([row("blue", choices=["red", "blue"])], "mcq"),
        ([row("yes"), row("no")], "yes_no"),
        ([row("7", [PICTURE]), row(12, [PICTURE])], "counting"),
        ([row("7"), row(r"\frac{1}{2}"), row("x = 3")], "math"),
        ([row("7.5", [PICTURE])], "numeric"),
        ([row("golden retriever", [PICTURE])], "exact"),
        ([row("a cat sits on the mat and sleeps", [PICTURE])], "text_metric"),
    ],
)
def test_answers_decide_the_reward(rows, reward):
    found = propose(rows)
    assert found is not None and found.reward == reward and found.share == 1.0


def test_a_few_odd_rows_do_not_decide_and_a_mixture_says_its_share():
    assert propose([*[row("yes")] * 19, row("a long and winding answer to it")]).reward == "yes_no"
    mixed = propose([*[row([1, 2, 30, 40], [PICTURE])] * 6, *[row("yes")] * 4])
    assert mixed.reward == "iou" and mixed.share == 0.6
    assert propose([row({"a": 1})]) is None


def test_what_is_proposed_is_there():
    assert {reward for reward, *_ in KINDS} <= set(names(Reward)) and set(FORMATS.values()) <= set(
        names(Reward)
    )


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Forty rows with boxes and their pictures, and held-out ones beside them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    Image.new("RGB", (120, 90), (90, 80, 70)).save(tmp_path / "a.png")
    lines = [
        json.dumps(
            {"question": f"Where is cat {i}?", "answer": [10, 10, 50 + i % 20, 60], "images": ["a.png"]}
        )
        for i in range(40)
    ]
    (tmp_path / "cats_train.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "cats_val.jsonl").write_text("\n".join(lines[:5]), encoding="utf-8")
    return tmp_path


def run(*words, **options):
    given = {
        "reward": "",
        "model": "",
        "gpus": "",
        "method": "",
        "media_root": "",
        "fields": "",
        "check": False,
    } | options
    command.init(*words, output=command.Path("mine.yaml"), **given)
    return load(["mine.yaml"])


def test_boxes_on_one_small_gpu(data, capsys):
    config = run("cats_train.jsonl", gpus="1xl4", check=True)
    said = capsys.readouterr().out
    text = (data / "mine.yaml").read_text(encoding="utf-8")
    assert config.tree["rewards"]["answer"] == {"name": "iou", "weight": 1.0}
    assert config.tree["policy"]["model"] == "Qwen/Qwen2.5-VL-3B-Instruct"
    assert config.tree["trainable"]["name"] == "lora" and config.tree["optimizer"]["lr"] == 1e-5
    assert config.tree["data"]["heldout"]["mine"]["path"] == "cats_val.jsonl"
    assert config.tree["watch"]["heldout_every"] == 50
    assert "answers are boxes (100% of the rows)" in said and "does not fit 1 x l4 as it is" in said
    assert (
        "fits 1 x l4: " in said
        and "the reward reads their gold answers" in said
        and "every part acts" in said
    )
    assert 15 <= len(text.splitlines()) <= 26 and text.count("#") >= 8
    assert not (data / "runs").exists()


def test_a_large_gpu_trains_all_weights(data):
    assert run("cats_train.jsonl", gpus="1xh200").tree["trainable"]["name"] == "full"


def test_text_without_a_gpu(data):
    (data / "sums.jsonl").write_text(
        "\n".join(json.dumps({"question": f"{i}+1?", "answer": str(i + 1)}) for i in range(30)),
        encoding="utf-8",
    )
    config = run("sums.jsonl")
    assert (
        config.tree["rewards"]["answer"]["name"] == "math"
        and config.tree["prompt_template"]["style"] == "boxed"
    )
    assert config.tree["policy"]["model"] == "fetched:smollm2" and config.tree["outcome"] == "answer"


def test_columns_of_other_names(data, capsys):
    (data / "shots").mkdir()
    Image.new("RGB", (30, 30)).save(data / "shots" / "1.png")
    (data / "labels.csv").write_text(
        "label,prompt,file\n" + "black,Which colour?,1.png\n" * 9, encoding="utf-8"
    )
    with pytest.raises(
        ConfigError, match="nothing reads `label`, `file`: `fields: {label: answer}` takes one"
    ):
        run("labels.csv")
    config = run("labels.csv", media_root="shots", fields="label=answer,file=image")
    mine, said = config.tree["data"]["train"]["mine"], capsys.readouterr().out
    assert mine["fields"] == {"label": "answer", "file": "image"} and "9 with pictures" in said
    assert "vlrl data preview labels.csv --media-root shots --fields label=answer,file=image\n" in said


def test_a_tiny_model_gets_a_cold_start(data):
    (data / "colours.jsonl").write_text(
        "\n".join(
            json.dumps({"question": "Colour?", "answer": "red", "images": ["a.png"]}) for _ in range(12)
        ),
        encoding="utf-8",
    )
    config = run("colours.jsonl", check=True)
    assert list(config.phases) == ["cold_start", "rl"]
    assert config.tree["data"]["train"]["mine"]["target"] == "<answer>{answer}</answer>"


def test_what_is_said_counts_more_than_what_is_seen(data):
    config = run("cats_train.jsonl", reward="iou_hard", method="dapo", model="qwen3_vl_4b", gpus="8xh100")
    assert config.tree["rewards"]["answer"]["name"] == "iou_hard"
    assert config.tree["policy"]["name"] == "qwen3_vl" and config.tree["policy_loss"]["high"] == 0.28


@pytest.mark.parametrize(
    ("words", "options", "said"),
    [
        ((), {}, "give DATA"),
        (("nothing.jsonl",), {}, "no file, folder or hub id 'nothing.jsonl'"),
        (("cats_train.jsonl",), {"reward": "iuo"}, "Did you mean 'iou'"),
        (("cats_train.jsonl",), {"gpus": "many"}, "'many'"),
        (("cats_train.jsonl",), {"gpus": "0xl4"}, "COUNTxNAME"),
        (("cats_train.jsonl",), {"gpus": "1xl5"}, "no GPU named 'l5'"),
        (("cats_train.jsonl",), {"method": "gropo"}, "methods/grpo"),
        (("cats_train.jsonl",), {"reward": "math"}, "mine.yaml"),
    ],
)
def test_mistakes_are_one_line(data, words, options, said):
    with pytest.raises(ConfigError) as caught:
        run(*(words or ("",)), **options)
    assert said in str(caught.value)


def test_a_config_is_never_overwritten(data):
    (data / "mine.yaml").write_text("steps: 1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="is there already"):
        run("cats_train.jsonl")
    assert (data / "mine.yaml").read_text(encoding="utf-8") == "steps: 1\n"


def test_a_folder_of_classes(data):
    for name in ("cats", "dogs"):
        (data / "pets" / name).mkdir(parents=True)
        for number in range(6):
            Image.new("RGB", (40, 40), (number, 90, 9)).save(data / "pets" / name / f"{number}.png")
    config = run("pets")
    assert config.tree["data"]["train"]["mine"]["name"] == "folder" and config.tree["rewards"]["answer"][
        "name"
    ] in ("exact", "mcq")
