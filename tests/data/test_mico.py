"""MiCo's prompt template: weakly augmented images to sample with, strongly augmented ones to train on."""

from dataclasses import replace

import pytest

from vlrl.plugins.registry import build
from vlrl.plugins.stages import PromptTemplate, Source


def test_trains_on_the_strong_pictures():
    row = build(Source, "gen_mico")()[0]
    prompt = build(PromptTemplate, {"name": "mico", "style": "think"})(row)
    assert prompt.images == row.images and prompt.for_training.images == row.meta["train_images"]
    assert prompt.for_training.messages == prompt.messages and prompt.for_training.key != prompt.key
    plain = build(PromptTemplate, "mico")(replace(row, meta={}))
    assert plain.for_training is plain
    with pytest.raises(ValueError, match="2 train_images for 3 images"):
        build(PromptTemplate, "mico")(replace(row, meta={"train_images": row.images[:2]}))
