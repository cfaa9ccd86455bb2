"""Contamination: shared 13-grams, near-equal pictures, completed questions."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image, ImageDraw

from vlrl.engine.fake import Fake
from vlrl.eval.contamination import (
    check_suite,
    completion_probe,
    grams,
    index_training_data,
    is_near,
    picture_hash,
    rouge_l,
)
from vlrl.plugins.registry import ConfigError

LONG = "the quick brown fox jumps over the lazy dog while seven small birds watch from the old oak tree"


def test_grams():
    assert (
        len(grams(LONG)) == 19 - 13 + 1
        and grams("four words are few") == set()
        and len(grams("five words are just enough")) == 1
    )
    assert grams(LONG.upper() + "!") == grams(LONG)


def picture(shift=0, size=(96, 64)):
    image = Image.new("RGB", (96, 64), "white")
    canvas = ImageDraw.Draw(image)
    for i in range(6):
        canvas.rectangle(
            [i * 16 + shift, (i * 23) % 40, i * 16 + 9 + shift, (i * 23) % 40 + 20],
            fill=(40 * i, 200 - 30 * i, 90),
        )
    return image.resize(size)


def test_picture_hashes_survive_resizing_and_tell_pictures_apart():
    a, b = picture_hash(picture()), picture_hash(picture(size=(480, 320)))
    assert is_near(a, np.array([b], dtype=np.uint64))
    assert not is_near(
        picture_hash(picture().transpose(Image.Transpose.FLIP_LEFT_RIGHT)), np.array([a], dtype=np.uint64)
    )
    assert not is_near(a, np.array([], dtype=np.uint64))


def test_contamination_of_a_training_set(tmp_path, fixture_data):
    data = fixture_data("vsi_bench")
    question = data.records[8]["question"]
    training = tmp_path / "train.jsonl"
    training.write_text(
        "\n".join(
            json.dumps(row)
            for row in [
                {"messages": [{"role": "user", "content": f"Hello. {question} Thanks."}]},
                {"text": LONG},
            ]
        )
    )
    found = check_suite(data, index_training_data([training]))
    assert (
        [hit["id"] for hit in found["texts"]] == ["8"]
        and found["training_rows"] == 2
        and found["text_share"] == 0.1
    )
    clean = tmp_path / "clean.jsonl"
    clean.write_text(json.dumps({"text": "These are frames of a video. " + LONG}))
    assert (
        check_suite(data, index_training_data([clean]))["texts"] == []
    )  # the prompt template alone is no contamination
    with pytest.raises(ConfigError, match="no such file"):
        index_training_data([tmp_path / "gone.jsonl"])


def test_contaminated_pictures(tmp_path, fixture_data):
    data = fixture_data("mathvista")
    (tmp_path / "train").mkdir()
    source = data.folder / data.records[2]["decoded_image"]["path"]
    Image.open(source).resize((480, 320)).save(tmp_path / "train" / "a.jpg")
    (tmp_path / "train" / "rows.jsonl").write_text(json.dumps({"image": "a.jpg", "text": "a bar chart"}))
    found = check_suite(data, index_training_data([tmp_path / "train"]))
    assert found["images"] == ["3"] and found["pictures"] == 6


def test_completion_probe_tells_a_memory_from_a_guess(fixture_data):
    data = fixture_data("math500")
    whole = {
        f"math500/{name}": data.suite.text(record).split() for name, record in zip(data.ids, data.records)
    }

    def remember(request, index):
        words = whole[request.prompt.row.id]
        return " ".join(words[len(request.prompt.row.question.split()) :])

    assert completion_probe(data, Fake(function=remember)) == {"questions": 2, "exact": 1.0, "rouge_l": 1.0}
    guess = completion_probe(data, Fake(function=lambda request, index: "something else"))
    assert guess["exact"] == 0 and guess["rouge_l"] < 0.2
    assert rouge_l("a b c", "a x c") == pytest.approx(2 / 3) and rouge_l("", "a") == 0
