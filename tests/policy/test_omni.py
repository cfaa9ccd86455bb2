"""What the thinkers hear: frames as the release's processor makes them, sounds that are refused, and folders
of the whole model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from samples import PROMPTS, Hiss, ask, groups_of, processed

from vlrl.engine.vllm.prompts import check_pictures
from vlrl.methods.core.trainable import Parts
from vlrl.plugins.registry import ConfigError, build
from vlrl.policy import Family, Policy
from vlrl.policy.families.sounds import resampled
from vlrl.trainer.step.loss_inputs import make_batch
from vlrl.types import MediaError, Sound

OMNI = ("qwen2_5_omni", "qwen3_omni_moe")


def policy_of(name: str, **fields) -> Policy:
    return Policy(build(Family, {"name": name, "tiny": {}} | fields))


@pytest.mark.parametrize("name", OMNI)
@pytest.mark.parametrize("seconds", [0.05, 0.5, 2.0, 2.31, 7.0])
def test_frames_and_embeddings_are_those_of_the_processor_and_the_model(name: str, seconds: float) -> None:
    """Also across the borders of the tower's windows (1 s and 2 s)."""
    policy = policy_of(name)
    prompt = ask("What?", audios=(Hiss(7, seconds),))
    encoded, own = policy.encode(prompt), processed(policy, prompt)
    (feature,) = encoded.features
    frames = own["input_features"][0, :, : int(own["feature_attention_mask"].sum())].T
    torch.testing.assert_close(feature.tensors["input_features"], frames, atol=1e-5, rtol=0)
    assert encoded.ids == own["input_ids"][0].tolist() and encoded.types.count(3) == feature.num_embeds
    with torch.no_grad():
        (ours,) = policy.family.encode_media(policy.model, [feature])
        theirs = policy.model.get_audio_features(own["input_features"], own["feature_attention_mask"])
    torch.testing.assert_close(ours.embeds_NH, theirs.last_hidden_state, atol=1e-5, rtol=0)
    assert len(ours.embeds_NH) == feature.num_embeds


def test_a_sound_is_brought_to_the_towers_rate() -> None:
    time = np.arange(4800) / 48000
    wave = Sound(np.sin(2 * np.pi * 440 * time).astype(np.float32), 48000)
    found = resampled(wave, 16000)
    assert found.dtype == np.float32 and len(found) == 1600
    wanted = np.sin(2 * np.pi * 440 * np.arange(1600) / 16000)
    assert np.abs(found - wanted)[50:-50].max() < 1e-3
    assert resampled(wave, 48000) is wave.samples_T


def test_a_sound_that_is_too_long_or_too_short_is_refused_and_never_cut() -> None:
    policy = policy_of("qwen2_5_omni")  # a tiny one hears 30 s
    with pytest.raises(MediaError, match=r"a sound of 31.0 s; the tower hears up to 30 s: cut it into parts"):
        policy.encode(ask("What?", audios=(Hiss(1, 31.0),)))
    with pytest.raises(MediaError, match="a sound of 5 ms is too short to be heard"):
        policy.encode(ask("What?", audios=(Hiss(1, 0.005),)))


def test_a_family_that_does_not_hear_says_who_does() -> None:
    policy = policy_of("qwen2_5_vl")
    with pytest.raises(ConfigError, match="'qwen2_5_vl' hears no audio; use qwen2_5_omni, qwen3_o.* gemma3n"):
        policy.encode(PROMPTS["audio"])


def test_vllm_refuses_audio_in_one_line() -> None:
    with pytest.raises(ConfigError, match="family 'qwen2_5_vl': the row has audio.*use engine 'hf'"):
        check_pictures(policy_of("qwen2_5_vl").family, PROMPTS["audio"], True)


@pytest.mark.parametrize("name", OMNI)
def test_a_frozen_tower_hears_a_sound_once_and_changes_nothing(name: str) -> None:
    """Also where the vision tower's projector is trained, which a sound does not pass."""
    policy = policy_of(name)
    batch = make_batch(groups_of([PROMPTS["all"], PROMPTS["audio"]]), policy.pad_id)
    free = policy.forward(batch)["logp"].detach()
    Parts(freeze=("vision",))(policy)
    counters = policy.params.net.media.counters
    counters.clear()
    for _ in range(2):
        torch.testing.assert_close(policy.forward(batch)["logp"], free, atol=1e-5, rtol=0)
    assert counters["media_encoded"] == counters["media_reused"] == 4
    assert not any(p.requires_grad for n, p in policy.model.named_parameters() if "audio_tower" in n)


def test_the_thinker_is_loaded_from_the_whole_release(tmp_path: Path) -> None:
    """A folder as released: the thinker's weights behind a prefix, its config inside that of the whole."""
    policy = policy_of("qwen2_5_omni")
    config = transformers.Qwen2_5OmniConfig(
        thinker_config=policy.model.config.to_dict(), enable_audio_output=False
    )
    whole = transformers.Qwen2_5OmniForConditionalGeneration(config)
    whole.thinker.load_state_dict(policy.model.state_dict())
    whole.save_pretrained(tmp_path)
    policy.processor.save_pretrained(tmp_path)
    again = policy_of("qwen2_5_omni", model=str(tmp_path), tiny=None)
    batch = make_batch(groups_of([PROMPTS["audio"]]), policy.pad_id)
    torch.testing.assert_close(again.forward(batch)["logp"], policy.forward(batch)["logp"], atol=1e-6, rtol=0)
