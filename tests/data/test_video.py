"""Video decoding: frame selection, every backend and container, clips by time, faults."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from vlrl_data.media import parse
from vlrl_data.media.parse import MediaSettings
from vlrl_data.media.video import Frames, GeneratedVideo, StoredVideo, decode, encode, frame_files
from vlrl_data.media.video_decoders import BACKENDS

from vlrl.plugins.registry import ConfigError
from vlrl.types import MediaError


def ramp(count=20, size=(32, 64)):
    """Frame i is grey of level 10 * i."""
    return [np.full((*size, 3), 10 * i, np.uint8) for i in range(count)]


@pytest.fixture(scope="module")
def movie(tmp_path_factory):
    path = tmp_path_factory.mktemp("video") / "ramp.mp4"
    path.write_bytes(encode(ramp(), 10.0, crf=1))
    return str(path)


def levels(clip):
    return [round(float(frame.mean()) / 10) for frame in clip.frames_THWC]


def usable(backend):
    if backend == "torchcodec":
        torchcodec = pytest.importorskip(
            "torchcodec", reason="torchcodec is not installed", exc_type=(ImportError, RuntimeError, OSError)
        )
        assert torchcodec
        try:
            from torchcodec.decoders import VideoDecoder
        except (ImportError, RuntimeError, OSError):
            pytest.skip("torchcodec finds no FFmpeg here")
        assert VideoDecoder
    else:
        pytest.importorskip({"pyav": "av"}.get(backend, backend))


@pytest.mark.parametrize("backend", sorted(BACKENDS))
@pytest.mark.parametrize("as_bytes", [False, True])
def test_backends_agree(movie, backend, as_bytes):
    usable(backend)
    source = Path(movie).read_bytes() if as_bytes else movie
    try:
        clip = decode(source, Frames(fps=2.0, backend=backend))
    except MediaError as error:
        if "libtorchcodec" in str(error):
            pytest.skip("torchcodec finds no FFmpeg here")
        raise
    assert (
        levels(clip) == [0, 6, 13, 19]
        and clip.fps == pytest.approx(2.0)
        and clip.frames_THWC.shape == (4, 32, 64, 3)
    )


@pytest.mark.parametrize(
    ("frames", "total", "fps", "expected"),
    [
        (Frames(fps=0), 5, 25.0, [0, 1, 2, 3, 4]),
        (Frames(fps=2.0), 20, 10.0, [0, 6, 13, 19]),
        (Frames(fps=2.0, min_frames=4), 10, 30.0, [0, 3, 6, 9]),  # a third of a second: 0.67 frames wanted
        (Frames(fps=10.0, max_frames=4), 300, 30.0, [0, 100, 199, 299]),
        (Frames(fps=2.0), 3, 1.0, [0, 2]),  # 6 wanted, 3 there, even: 2
        (Frames(fps=1.0), 1, 1.0, [0]),
        (Frames(fps=0, min_frames=1, max_frames=2), 9, 9.0, [0, 8]),
        (Frames(fps=2.0), 75, 30.0, [0, 25, 49, 74]),  # 5 frames wanted, even: 4
    ],
)
def test_which_frames(frames, total, fps, expected):
    assert frames.pick(total, fps).tolist() == expected


@pytest.mark.parametrize(
    ("span", "first", "last"),
    [((0.5, None), 5, 19), ((None, 1.0), 0, 9), ((0.5, 1.0), 5, 9), ((0.45, 0.95), 5, 9)],
)
def test_clips_by_time(movie, span, first, last):
    found = levels(decode(movie, Frames(fps=0), span))
    assert (found[0], found[-1], len(found)) == (first, last, last - first + 1)


@pytest.mark.parametrize("span", [(3.0, None), (1.0, 1.0), (1.5, 0.5), (-1.0, 1.0)])
def test_clips_outside_are_refused(movie, span):
    with pytest.raises(MediaError, match="no frame between"):
        StoredVideo(movie, span=span).load()


def test_pixel_budgets(movie):
    assert decode(movie, Frames(fps=0, frame_pixels=32 * 16)).frames_THWC.shape == (20, 16, 32, 3)
    small = decode(movie, Frames(fps=0, total_pixels=20 * 16 * 8)).frames_THWC
    assert small.shape == (20, 8, 16, 3) and small.shape[0] * small.shape[1] * small.shape[2] <= 20 * 16 * 8
    assert decode(movie, Frames(fps=0, frame_pixels=10**6)).frames_THWC.shape == (20, 32, 64, 3)


def test_frame_folder(tmp_path, movie):
    for index in (0, 1, 2, 10):
        Image.new("RGB", (6, 4), (index, 0, 0)).save(tmp_path / f"f{index}.png")
    files = frame_files(tmp_path)
    assert [file[-7:] for file in files] == ["/f0.png", "/f1.png", "/f2.png", "f10.png"]
    video = parse.parse_video(str(tmp_path), MediaSettings(frames=Frames(fps=2.0)))
    clip = video.load()
    assert clip.frames_THWC[:, 0, 0, 0].tolist() == [0, 1, 2, 10] and clip.fps == 2.0
    listed = parse.parse_video(
        {"frames": list(files), "rate": 4.0, "fps": 2.0, "min_frames": 2}, MediaSettings()
    )
    assert listed.load().frames_THWC[:, 0, 0, 0].tolist() == [0, 10] and listed.load().fps == 2.0
    Image.new("RGB", (7, 4)).save(tmp_path / "f3.png")
    with pytest.raises(MediaError, match="differ in size"):
        StoredVideo(frame_files(tmp_path), Frames(fps=0)).load()
    with pytest.raises(MediaError, match="not a folder with images"):
        frame_files(tmp_path / "no")


def test_broken_videos(tmp_path, movie):
    data = Path(movie).read_bytes()
    for name, content in (("empty", b""), ("text", b"hello"), ("cut", data[: len(data) // 2])):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(MediaError, match=name):
            StoredVideo(str(tmp_path / name)).load()
    with pytest.raises(MediaError, match="no such file"):
        StoredVideo(str(tmp_path / "none")).check()
    with pytest.raises(MediaError, match="empty"):
        StoredVideo(str(tmp_path / "empty")).check()


def test_sound_only(tmp_path):
    import av

    with av.open(str(tmp_path / "a.mkv"), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
    with pytest.raises(MediaError, match="no video stream"):
        StoredVideo(str(tmp_path / "a.mkv")).load()


def test_key_depends_on_frames_and_span(movie):
    data = Path(movie).read_bytes()
    assert StoredVideo(movie) == StoredVideo(data)
    assert (
        len(
            {
                StoredVideo(movie).key,
                StoredVideo(movie, Frames(fps=1.0)).key,
                StoredVideo(movie, span=(0.0, 1.0)).key,
            }
        )
        == 3
    )


def write(level):
    return encode([np.full((16, 16, 3), level, np.uint8)] * 2, 2.0)


def test_generated_video():
    made = GeneratedVideo(write, (120,))
    assert (
        made.load().frames_THWC.shape == (2, 16, 16, 3)
        and abs(float(made.load().frames_THWC.mean()) - 120) < 3
    )
    assert made == GeneratedVideo(write, (120,)) != GeneratedVideo(write, (121,))


@pytest.mark.parametrize(
    "options", [{"backend": "ffmpeg"}, {"fps": -1.0}, {"min_frames": 9, "max_frames": 3}]
)
def test_bad_options(options):
    with pytest.raises(ConfigError, match=r"backend|fps"):
        Frames(**options)
