"""A decoder without memory or file handles is no fault of a row; numbers of a video entry are numbers."""

import errno

import numpy as np
import pytest
from PIL import Image
from vlrl_data.media import images, video
from vlrl_data.media.images import StoredImage
from vlrl_data.media.parse import MediaSettings, parse_video
from vlrl_data.media.video import StoredVideo, encode

from vlrl.services.failures import of_the_machine
from vlrl.types import MediaError

FAULTS = [MemoryError(), *(OSError(number, "x") for number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM))]


@pytest.fixture
def files(tmp_path):
    """A picture and a clip that are fine."""
    Image.new("RGB", (28, 28)).save(tmp_path / "good.png")
    (tmp_path / "good.mp4").write_bytes(encode(np.zeros((8, 28, 28, 3), np.uint8), 4.0))
    return tmp_path


def raising(error):
    def fails(*_, **__):
        raise error

    return fails


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
def test_what_the_machine_lacks_is_not_the_pictures_fault(files, monkeypatch, fault):
    monkeypatch.setattr(images, "open_picture", raising(fault))
    with pytest.raises((OSError, MemoryError)) as failure:
        StoredImage(str(files / "good.png")).load()
    assert of_the_machine(failure.value)


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
def test_nor_the_clips(files, monkeypatch, fault):
    assert len(StoredVideo(str(files / "good.mp4")).load()) >= 2
    monkeypatch.setattr(video, "BACKENDS", dict.fromkeys(video.BACKENDS, raising(fault)))
    with pytest.raises((OSError, MemoryError)) as failure:
        StoredVideo(str(files / "good.mp4")).load()
    assert of_the_machine(failure.value)


def test_a_broken_file_is_the_rows_fault(files):
    (files / "bad.png").write_bytes(b"no picture")
    (files / "bad.mp4").write_bytes(b"no clip")
    for medium in (StoredImage(str(files / "bad.png")), StoredVideo(str(files / "bad.mp4"))):
        with pytest.raises(MediaError):
            medium.load()


KEYS = (
    "fps",
    "min_frames",
    "max_frames",
    "max_pixels",
    "total_pixels",
    "start",
    "end",
    "video_start",
    "rate",
)
VALUES = ["100", "x", True, float("nan"), float("inf"), -1, [1], {"a": 1}, b"1"]


@pytest.mark.parametrize("key", KEYS)
def test_every_type_at_every_number_of_a_video_entry(files, key):
    for value in VALUES:
        with pytest.raises(MediaError, match=f"a video entry whose {key} is "):
            parse_video({"path": str(files / "good.mp4"), key: value}, MediaSettings())
    made = parse_video({"path": str(files / "good.mp4"), "max_pixels": 400, "fps": 4}, MediaSettings())
    assert made.load().frames_THWC.shape[1] <= 20
    with pytest.raises(MediaError, match="min_frames=9, max_frames=4"):
        parse_video({"path": "a.mp4", "min_frames": 9, "max_frames": 4}, MediaSettings())
