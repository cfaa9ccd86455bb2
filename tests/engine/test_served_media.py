"""Media on their way to a server: exact pixels, written once, kept while a request needs them."""

import base64
import io
import pickle
from pathlib import Path

import numpy as np
import pytest
from engine_kit import Noise, make_prompt
from PIL import Image

from vlrl.engine.vllm.served_media import ServedMedia, read_clip, written, written_clip
from vlrl.types import Clip

PICTURE, CLIP = Noise(1, (40, 24)), Noise(2, (20, 12), frames=5)


def read_back(part: dict[str, str]) -> bytes:
    """The bytes behind a part's URL."""
    if part["url"].startswith("data:"):
        return base64.b64decode(part["url"].partition("base64,")[2])
    return Path(part["url"].removeprefix("file://")).read_bytes()


@pytest.mark.parametrize("shared", [True, False])
def test_pixels_and_times_arrive_unchanged(shared: bool, tmp_path: Path) -> None:
    media = ServedMedia(tmp_path / "media" if shared else None)
    picture, clip = media.parts(make_prompt("Q", PICTURE, CLIP))
    assert (picture["type"], clip["type"]) == ("image_url", "video_url")
    assert (picture["uuid"], clip["uuid"]) == (PICTURE.key, CLIP.key)
    shown = np.asarray(Image.open(io.BytesIO(read_back(picture))))
    assert np.array_equal(shown, np.asarray(PICTURE.load()))
    frames, metadata = read_clip(read_back(clip))
    assert np.array_equal(frames, CLIP.load().frames_THWC)
    assert metadata == {
        "fps": 2.0,
        "total_num_frames": 5,
        "duration": 2.5,
        "frames_indices": [0, 1, 2, 3, 4],
        "do_sample_frames": False,
    }


def test_a_request_does_not_grow_with_its_media(tmp_path: Path) -> None:
    large = Noise(3, (640, 480), frames=4)
    (part,) = ServedMedia(tmp_path).parts(make_prompt("Q", large))
    assert len(str(part)) < 400 + len(str(tmp_path)) and len(written(large)) > 3_600_000


def test_each_is_written_once_and_stays_while_it_is_used(tmp_path: Path) -> None:
    media = ServedMedia(tmp_path, max_bytes=0)
    prompt = make_prompt("Q", PICTURE)
    first, second = media.parts(prompt), media.parts(prompt)
    assert first == second and len(list(tmp_path.iterdir())) == 1
    media.release(prompt)
    assert len(read_back(first[0])) > 0, "the second request still needs it"
    media.release(prompt)
    assert not list(tmp_path.iterdir())
    assert len(read_back(media.parts(prompt)[0])) > 0, "written anew when it is shown again"


def test_what_was_used_last_stays_longest(tmp_path: Path) -> None:
    sizes = [len(written(Noise(seed))) for seed in range(3)]
    media = ServedMedia(tmp_path, max_bytes=sizes[0] + sizes[2])
    prompts = [make_prompt("Q", Noise(seed)) for seed in range(3)]
    for prompt in (*prompts[:2], prompts[0], prompts[2]):
        media.parts(prompt)
        media.release(prompt)
    kept = {path.stat().st_size for path in tmp_path.iterdir()}
    assert len(list(tmp_path.iterdir())) == 2 and kept == {sizes[0], sizes[2]}


def test_nothing_is_unpickled() -> None:
    out = io.BytesIO()
    np.savez(out, frames=np.array([{"a": 1}], dtype=object), fps=2.0)
    with pytest.raises(ValueError, match="allow_pickle"):
        read_clip(out.getvalue())
    with pytest.raises(ValueError, match="allow_pickle|pickled"):
        read_clip(pickle.dumps([1]))
    out = io.BytesIO()
    np.savez(out, other=np.zeros(2))
    with pytest.raises(ValueError, match="frames and fps, not other"):
        read_clip(out.getvalue())
    assert len(read_clip(written_clip(Clip(np.zeros((2, 4, 4, 3), np.uint8), 1.0)))[0]) == 2
