"""Pictures and videos of foreign origin: one opener with a list of formats, which opens nothing else, turns
frames as the file says, and takes memory for the frames that are kept."""

import ast
import base64
import re
import socket
import struct
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from vlrl_data.media import video as video_module
from vlrl_data.media.images import open_image
from vlrl_data.media.parse import MediaSettings, parse_video
from vlrl_data.media.video import NATIVE, Frames, decode, encode

from vlrl.services.media_files import check_container, container_of
from vlrl.types import MediaError

ROOT = Path(__file__).parents[2]
BACKENDS = ["pyav", "decord"]


def movie(frames=6, height=32, width=64):
    """White at the top left of each frame."""
    made = np.zeros((frames, height, width, 3), np.uint8)
    made[:, : height // 2, : width // 2] = 255
    return encode(made, 2.0)


def playlists(secret, port):
    """Texts that ffmpeg, left to guess, follows to other files and addresses."""
    return {
        "m3u8": f"#EXTM3U\n#EXT-X-TARGETDURATION:3\n#EXTINF:3.0,\n{secret}\n#EXT-X-ENDLIST\n",
        "m3u8 of a host": f"#EXTM3U\n#EXTINF:3.0,\nhttp://127.0.0.1:{port}/a.ts\n#EXT-X-ENDLIST\n",
        "concat": f"ffconcat version 1.0\nfile '{secret}'\n",
        "sdp": f"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nm=video {port} RTP/AVP 96\n"
        "a=rtpmap:96 H264/90000\n",
        "mpd": f'<?xml version="1.0"?><MPD><BaseURL>http://127.0.0.1:{port}/</BaseURL></MPD>',
    }


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", list(playlists("", 0)))
def test_what_names_other_files_is_refused(tmp_path, kind, backend):
    pytest.importorskip({"pyav": "av"}.get(backend, backend))
    (tmp_path / "secret.mp4").write_bytes(movie())
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(0.05)
        text = playlists(tmp_path / "secret.mp4", server.getsockname()[1])[kind].encode()
        root = tmp_path / "media"
        root.mkdir()
        settings = MediaSettings((str(root),), frames=Frames(backend=backend), confined=True)
        values = [text, f"data:video/mp4;base64,{base64.b64encode(text).decode()}"]
        for suffix in (".m3u8", ".mp4", ".sdp", ".mpd", ".txt"):
            (root / f"a{suffix}").write_bytes(text)
            values.append(f"a{suffix}")
        begun = time.time()
        for value in values:
            with pytest.raises(MediaError, match="not a video container that is read"):
                parse_video(value, settings).load()
        assert time.time() - begun < 2
        with pytest.raises(TimeoutError):
            server.accept()


@pytest.mark.parametrize(
    "head", ["%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "%PDF-1.4\n", "<svg/>"]
)
def test_what_runs_a_program_is_no_picture(tmp_path, head):
    from vlrl.eval.media import SuitePicture
    from vlrl.plugins.episodes import Picture

    (tmp_path / "a.png").write_text(head + "showpage\n")
    data = (tmp_path / "a.png").read_bytes()
    for source in (str(tmp_path / "a.png"), data):
        with pytest.raises(MediaError, match="not an image that can be read"):
            open_image(source)
    for load in (lambda: Picture.from_bytes(data), lambda: SuitePicture(data).load()):
        with pytest.raises(MediaError):
            load()


def test_containers_are_known_by_their_first_bytes(tmp_path):
    import av

    for suffix, name in (
        (".mp4", "mov"),
        (".mkv", "matroska"),
        (".avi", "avi"),
        (".ts", "mpegts"),
        (".flv", "flv"),
    ):
        with av.open(str(tmp_path / f"a{suffix}"), "w") as container:
            stream = container.add_stream("mpeg4" if suffix != ".flv" else "flv1", rate=5)
            stream.width = stream.height = 32
            stream.pix_fmt = "yuv420p"
            for _ in range(5):
                frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), 200, np.uint8), format="rgb24")
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        assert check_container(tmp_path / f"a{suffix}") == name
        assert decode(str(tmp_path / f"a{suffix}"), NATIVE).frames_THWC.shape[1:] == (32, 32, 3)
    assert container_of(b"") == container_of(b"G" * 10 + b"x" * 400) == ""


def turned(data, degrees):
    """An mp4 whose track header asks for a turn clockwise."""
    at = data.index(b"tkhd") + 4
    start = at + 4 + (20 if data[at] == 0 else 32) + 16
    a, b, c, d = {90: (0, 1, -1, 0), 180: (-1, 0, 0, -1), 270: (0, -1, 1, 0)}[degrees]
    matrix = struct.pack(">9i", a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30)
    return data[:start] + matrix + data[start + 36 :]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("degrees", "corner"), [(90, (2, -3)), (180, (-3, -3)), (270, (-3, 2))])
def test_frames_are_upright(backend, degrees, corner):
    pytest.importorskip({"pyav": "av"}.get(backend, backend))
    image = decode(turned(movie(), degrees), Frames(fps=0.0, backend=backend)).frames_THWC[0]
    assert image.shape == ((64, 32, 3) if degrees != 180 else (32, 64, 3))
    white = {(y, x) for y in (2, -3) for x in (2, -3) if image[y, x, 0] > 128}
    assert white == {corner}


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_is_that_of_the_frames_that_are_kept(backend):
    """60 frames of 640 x 480 are 55 MB; made small as they come they take less than 4."""
    pytest.importorskip({"pyav": "av"}.get(backend, backend))
    data = movie(60, 480, 640)
    small = Frames(fps=0.0, frame_pixels=64 * 48, backend=backend)
    decode(data, small)  # libraries are imported, codecs opened
    tracemalloc.start()
    clip = decode(data, small)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert clip.frames_THWC.shape == (60, 48, 64, 3) and peak < 12 << 20, peak


def test_a_clip_beyond_the_bound_is_refused(monkeypatch):
    monkeypatch.setattr(video_module, "MAX_CLIP_BYTES", 6 * 32 * 64 * 3 - 1)
    with pytest.raises(MediaError, match="6 frames of 64 x 32 pixels take 36864 bytes, over the limit"):
        decode(movie(), NATIVE)
    assert decode(movie(), Frames(fps=0.0, frame_pixels=512)).frames_THWC.shape[0] == 6


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_pixels_that_are_no_numbers(tmp_path, value):
    pixels = np.full((8, 8), 0.5, np.float32)
    pixels[2, 2] = value
    Image.fromarray(pixels).save(tmp_path / "a.tiff")
    with pytest.raises(MediaError, match="NaN or infinite"):
        open_image(str(tmp_path / "a.tiff"))


def test_32_bit_pixels_are_scaled_by_their_range(tmp_path):
    pixels = np.linspace(0, 4_000_000, 64).astype(np.int32).reshape(8, 8)
    Image.fromarray(pixels).save(tmp_path / "a.tiff")
    grey = np.asarray(open_image(str(tmp_path / "a.tiff")))[..., 0].ravel()
    assert grey[0] == 0 and grey[-1] == 255 and 120 < grey[32] < 136 and len(set(grey.tolist())) > 60


def test_nobody_else_opens_media():
    """Calls of Image.open, av.open, VideoReader and VideoDecoder stand in the opener and the decoders
    alone; what writes a file, or opens one of the package's own, is named here."""
    allowed = {
        "vlrl/services/media_files.py": {"Image.open", "av.open"},
        "data/vlrl_data/media/video_decoders.py": {"decord.VideoReader", "VideoDecoder"},
        "data/vlrl_data/media/video.py": {"av.open"},  # writes
        "vlrl/eval/fixtures/__init__.py": {"av.open"},  # writes
        "data/vlrl_data/lab/shipped_images.py": {"Image.open"},  # of the package
        "vlrl/logging/tracker_libraries.py": {"Image.open"},  # thumbnails that the log has made
    }
    found = {}
    for folder in ("vlrl", "data/vlrl_data", "rewards/vlrl_rewards"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.is_relative_to(ROOT / "vlrl" / "bench"):
                continue
            text = path.read_text(encoding="utf-8")
            if not re.search(r"\b(Image|av|decord|VideoDecoder)\b", text):
                continue
            for node in ast.walk(ast.parse(text)):
                name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
                if name in ("Image.open", "PIL.Image.open", "av.open", "decord.VideoReader", "VideoDecoder"):
                    found.setdefault(path.relative_to(ROOT).as_posix(), set()).add(name)
    assert {place: names for place, names in found.items() if names - allowed.get(place, set())} == {}


WATCHED = """
import sys
from pathlib import Path
root = sys.argv[1]
from vlrl.types import MediaError
from vlrl_data.media.parse import MediaSettings, parse_image, parse_video
from vlrl_data.media.video import NATIVE
settings = MediaSettings((root,), frames=NATIVE, confined=True)
parse_video("good.mp4", settings).load(), parse_image("good.png", settings).load()  # imports what is needed

def hook(event, args):
    outside = event == "open" and isinstance(args[0], str) and not args[0].startswith(root)
    if outside or event.startswith(("socket.", "subprocess.", "os.exec", "os.posix_spawn", "os.system")):
        print("touched", event, args[:2], flush=True)

sys.addaudithook(hook)
for file in sorted(Path(root).iterdir()):
    for parse in (parse_image, parse_video):
        for value in (file.name, file.read_bytes()):
            try:
                parse(value, settings).load()
                print("loaded", file.name, parse.__name__)
            except MediaError:
                pass
"""


def test_nothing_outside_the_root_is_touched(tmp_path):
    root = tmp_path / "media"
    root.mkdir()
    (tmp_path / "secret.mp4").write_bytes(movie())
    for name, text in playlists(tmp_path / "secret.mp4", 9).items():
        (root / f"{name}.mp4").write_text(text)
    (root / "a.eps").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    (root / "link.mp4").symlink_to(tmp_path / "secret.mp4")
    (root / "good.mp4").write_bytes(movie())
    Image.new("RGB", (9, 9)).save(root / "good.png")
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(root)], capture_output=True, text=True, timeout=300, check=True
    )
    lines = set(done.stdout.splitlines())
    loaded = {"loaded good.mp4 parse_video", "loaded good.png parse_image", "loaded link.mp4 parse_video"}
    assert lines <= loaded and "loaded good.mp4 parse_video" in lines, lines
