"""Sounds as media: what is opened, what is refused, rows of several forms, and the way back to JSON."""

from __future__ import annotations

import dataclasses
import io
import json
import wave
from pathlib import Path

import numpy as np
import pytest
from vlrl_data.media import audio
from vlrl_data.media.audio import GeneratedSound, InMemorySound, StoredSound, sound_of, wav_bytes
from vlrl_data.media.parse import MediaSettings, parse_audio, to_json
from vlrl_data.tools.convert import record_of

from vlrl.methods.core.prompt_template import Chat
from vlrl.plugins.registry import build
from vlrl.plugins.stages import Source
from vlrl.services.media_files import sound_format
from vlrl.types import MediaError, Row, Sound
from vlrl.types.plain import media_from_plain, media_to_plain

TONE = Sound(np.sin(np.arange(800) / 5).astype(np.float32) / 2, 16000)


def pcm(samples: np.ndarray, rate: int = 8000) -> bytes:
    """A WAV file of 16-bit integers (T, C), by the standard library."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.astype("<i2").tobytes())
    return out.getvalue()


def encoded(container: str, codec: str) -> bytes:
    """TONE as ffmpeg writes it."""
    import av

    out = io.BytesIO()
    with av.open(out, "w", format=container) as file:
        stream = file.add_stream(codec, rate=16000)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray((TONE.samples_T * 32767).astype(np.int16)[None], "s16", "mono")
        frame.sample_rate = 16000
        for packet in (*stream.encode(frame), *stream.encode()):
            file.mux(packet)
    return out.getvalue()


def test_a_wav_file_keeps_its_rate_and_the_mean_of_its_channels(tmp_path: Path) -> None:
    left, right = np.full(50, 16384), np.full(50, -8192)
    data = pcm(np.stack([left, right], 1))
    (tmp_path / "two.wav").write_bytes(data)
    for source in (data, str(tmp_path / "two.wav")):
        sound = StoredSound(source).load()
        assert sound.rate == 8000 and sound.samples_T == pytest.approx(np.full(50, 0.125))
    assert sound.seconds == 50 / 8000


def test_samples_go_to_a_file_and_back_bit_for_bit() -> None:
    found = StoredSound(wav_bytes(TONE)).load()
    assert found.rate == TONE.rate and np.array_equal(found.samples_T, TONE.samples_T)


@pytest.mark.parametrize(
    ("container", "codec"), [("flac", "flac"), ("ogg", "libvorbis"), ("mp3", "libmp3lame")]
)
def test_other_formats_are_known_by_their_first_bytes(container: str, codec: str) -> None:
    import av

    if codec not in av.codecs_available:
        pytest.skip(f"this ffmpeg has no {codec}")
    if codec == "libvorbis":
        codec = "flac"  # in ogg: the same container
    data = encoded(container, codec)
    assert sound_format(data) == container
    sound = StoredSound(data).load()
    assert sound.rate == 16000 and 0.3 < np.abs(sound.samples_T).max() < 0.7


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"#EXTM3U\nhttp://127.0.0.1/x.mp3", "not a sound file that is read (wav, flac"),
        (b"", "not a sound file that is read"),
        (b"RIFF\x24\x00\x00\x00WAVEfmt ", "PyAV cannot decode it"),
        (pcm(np.zeros((0, 1))), "it has no samples"),
        (wav_bytes(Sound(np.array([0.0, np.nan], np.float32), 8000)), "NaN or infinite"),
    ],
)
def test_what_is_no_sound_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(MediaError) as refused:
        StoredSound(data).load()
    assert said in str(refused.value)


def test_memory_is_bounded_while_a_sound_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio, "MAX_SOUND_BYTES", 1000)
    with pytest.raises(MediaError, match="over 1000 bytes of samples; cut it into parts"):
        StoredSound(wav_bytes(TONE)).load()


def test_a_file_that_is_missing_or_no_sound_is_found_before_training(tmp_path: Path) -> None:
    with pytest.raises(MediaError, match="no such file"):
        StoredSound(str(tmp_path / "gone.wav")).check()
    (tmp_path / "text.wav").write_text("hello there")
    with pytest.raises(MediaError, match="not a sound file that is read"):
        StoredSound(str(tmp_path / "text.wav")).check()


@pytest.mark.parametrize(
    ("samples", "rate", "said"),
    [
        ([0.1, 0.2], None, "sampling_rate 'None'"),
        ([0.1, 0.2], 0, "sampling_rate '0'"),
        ([], 16000, "0 samples at 16000 per second"),
        ([1, 2], 16000, "type int64 is no sound"),
        (np.zeros((2, 2, 2)), 16000, r"shape (2, 2, 2)"),
        ([float("inf")], 16000, "NaN or infinite"),
    ],
)
def test_samples_that_are_no_sound_are_refused(samples, rate, said: str) -> None:
    with pytest.raises(MediaError) as refused:
        sound_of(samples, rate)
    assert said in str(refused.value)


def test_a_column_may_hold_a_path_bytes_or_samples_with_their_rate(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav_bytes(TONE))
    settings = MediaSettings(roots=(str(tmp_path),))
    values = [
        "a.wav", wav_bytes(TONE), {"path": "a.wav"}, {"bytes": wav_bytes(TONE), "path": None}, TONE,
        {"array": TONE.samples_T.tolist(), "sampling_rate": 16000}, {"audio_url": "a.wav"},
    ]  # fmt: skip
    for value in values:
        medium = parse_audio(value, settings)
        assert medium.kind == "audio" and np.array_equal(medium.load().samples_T, TONE.samples_T)
        again = parse_audio(to_json(medium), settings).load()
        assert again.rate == 16000 and np.array_equal(again.samples_T, TONE.samples_T)
    with pytest.raises(MediaError, match="an array alone has no rate"):
        parse_audio(TONE.samples_T, settings)
    closed = MediaSettings(roots=(str(tmp_path),), confined=True)
    with pytest.raises(MediaError, match="path leaves media_root"):
        parse_audio("../b.wav", closed)


RECORDS = [
    {"id": "a", "question": "What is said?", "answer": "one", "audio": "a.wav"},
    {"id": "b", "question": "<audio>What is said?", "answer": "one", "audios": ["a.wav"]},
    {"id": "c", "problem": "<audio>What is said?", "answer": "one", "audio": {"path": "a.wav"}},
    {
        "messages": [
            {"role": "user", "content": "<audio>What is said?"}, {"role": "assistant", "content": "one"}
        ],
        "audios": ["a.wav"],
    },
    {
        "prompt": [
            {
                "role": "user",
                "content": [{"type": "audio", "audio": "a.wav"}, {"type": "text", "text": "What is said?"}],
            }
        ],
        "solution": "one",
    },
]  # fmt: skip


@pytest.mark.parametrize("record", RECORDS)
def test_rows_of_five_record_families_show_their_sound(tmp_path: Path, record: dict) -> None:
    (tmp_path / "a.wav").write_bytes(wav_bytes(TONE))
    (tmp_path / "rows.jsonl").write_text(json.dumps(record) + "\n")
    (row,) = build(Source, {"name": "files", "path": str(tmp_path / "rows.jsonl")})()
    assert row.answer == "one" and [medium.kind for medium in row.audios] == ["audio"]
    prompt = Chat()(row)
    assert [item["type"] for item in prompt.messages[-1]["content"]][:2] == ["audio", "text"]
    assert prompt.audios == row.audios and prompt.media[0].key in repr(prompt.media[0].key)
    assert Chat()(Row("x", "What is said?", "one")).key != prompt.key
    written = record_of(row, tmp_path)
    assert written["audios"][0]["path"] == "a.wav"


def test_a_marker_without_a_sound_is_quarantined(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(
        json.dumps({"id": "a", "question": "<audio> <audio> Same?", "answer": "no", "audio": "a.wav"}) + "\n"
        + json.dumps({"id": "b", "question": "Same?", "answer": "no"}) + "\n"
    )  # fmt: skip
    (tmp_path / "a.wav").write_bytes(wav_bytes(TONE))
    rows = build(Source, {"name": "files", "path": str(tmp_path / "rows.jsonl"), "max_bad": 0.9})()
    assert [row.id for row in rows] == ["b"]


def test_a_sound_made_in_an_episode_is_kept_with_its_samples() -> None:
    row = Row("a", "What?", "one")
    again = media_from_plain(media_to_plain(InMemorySound(TONE), row), row)
    assert again.kind == "audio" and again.key == InMemorySound(TONE).key
    assert again.load().rate == 16000 and np.array_equal(again.load().samples_T, TONE.samples_T)


def test_lab_sounds_are_what_their_answers_say() -> None:
    """Spectra of the tones, against the frequencies of the keys, and of the pitches in order."""
    from vlrl_data.lab.sounds import HIGH, LOW, PITCHES, WORDS, key_tones

    def loudest(sound: Sound, start: int, count: int, among: tuple[int, ...]) -> int:
        power = np.abs(np.fft.rfft(sound.samples_T[start : start + count]))
        return max(among, key=lambda hertz: power[round(hertz * count / sound.rate)])

    for row in build(Source, {"name": "lab_sounds", "count": 6, "seconds": 0.2})():
        sound, heard = row.audios[0].load(), []
        for i in range(3):
            pair = (loudest(sound, i * 4000, 3200, LOW), loudest(sound, i * 4000, 3200, HIGH))
            heard.append(next(WORDS[d] for d in range(10) if key_tones(d) == pair))
        assert " ".join(heard) == row.answer and isinstance(row.audios[0], GeneratedSound)
    labels = []
    for row in build(Source, {"name": "lab_sounds", "count": 12, "ask": "rises", "seconds": 0.2})():
        sound = row.audios[0].load()
        pitches = [loudest(sound, i * 4000, 3200, PITCHES) for i in range(3)]
        labels.append(row.answer)
        assert (pitches == sorted(pitches)) is (row.answer == "entailed")
        assert row.target.endswith(row.answer)
    assert set(labels) == {"entailed", "not-entailed"}


def test_the_data_tools_take_rows_with_sounds(tmp_path: Path) -> None:
    """Equal questions over different sounds are no duplicates; a preview draws the waveform."""
    from vlrl_data.tools.duplicates import dedup
    from vlrl_data.tools.preview import medium_entry
    from vlrl_data.tools.stats import stats

    rows = list(build(Source, {"name": "lab_sounds", "count": 3})())
    again = dataclasses.replace(rows[0], id="again")
    assert [match.id for match in dedup([*rows, again])] == ["again"]
    shown = medium_entry(rows[0].audios[0], [], 0)
    assert shown["caption"] == "sound 1: 0.45 s, 16000 samples per second"
    assert shown["src"].startswith("data:image/png")
    assert stats(rows)["media"] == {"0 images, 0 videos, 1 sounds": 3}


def test_a_marker_of_a_videos_own_sound_is_left_out_and_told() -> None:
    from vlrl_data.record_families.chat import SOUND_TRACK, Llava

    turns = [{"from": "human", "value": "<video>\n<audio>\nWhich?"}, {"from": "gpt", "value": "sad"}]
    draft = Llava.draft({"video": "a.mp4", "conversations": turns})
    assert draft["question"] == "<video>\nWhich?" and SOUND_TRACK in draft["guessed"]
    heard = Llava.draft({"video": "a.mp4", "audio": "a.wav", "conversations": turns})
    assert heard["question"] == "<video>\n<audio>\nWhich?" and heard["audios"] == ["a.wav"]
