"""Pictures and videos of a row: what is no path, what leaves `media_root`, what is damaged."""

import base64
import json

import pytest
from PIL import Image
from row_faults_kit import (
    GOOD,
    own_cache,  # noqa: F401 - every test has a cache of its own
    png,
    read,
    reason_of,
)
from vlrl_data.media.images import StoredImage, image_size
from vlrl_data.media.parse import MediaSettings, parse_image, parse_video

from vlrl.types import MediaError


def test_images_as_text_that_could_be_paths(tmp_path):
    data = png(tmp_path)
    settings = MediaSettings((str(tmp_path),), confined=True)
    for text in (base64.urlsafe_b64encode(data), base64.b64encode(data), base64.encodebytes(data)):
        assert parse_image(text.decode(), settings).load().size == (40, 40)
    for path in ("x" * 300 + ".png", "x/" * 3000 + "a.png", "a\0b.png"):
        for parse in (parse_image, parse_video):
            with pytest.raises(MediaError, match="File name too long|no such file|No such file|null"):
                parse(path, MediaSettings()).check()
    assert len(reason_of(tmp_path, GOOD | {"id": "b", "images": ["x" * 5000 + ".png"]})) < 500


class TestBorder:
    """`media_root`, when given, is a border."""

    @pytest.fixture
    def root(self, tmp_path):
        png(tmp_path / "root")
        png(tmp_path / "outside", "secret.png")
        (tmp_path / "root" / "frames").mkdir()
        (tmp_path / "root" / "link.png").symlink_to(tmp_path / "outside" / "secret.png")
        (tmp_path / "root" / "linked").symlink_to(tmp_path / "outside")
        (tmp_path / "root" / "frames" / "1.png").symlink_to(tmp_path / "outside" / "secret.png")
        (tmp_path / "root" / "inner.png").symlink_to(tmp_path / "root" / "a.png")
        return tmp_path / "root"

    LEAVING = [
        "../outside/secret.png",
        "{outside}/secret.png",
        "file://{outside}/secret.png",
        "/etc/passwd",
        "link.png",
        "linked/secret.png",
        "frames/../../outside/secret.png",
        "../outside/missing.png",
        {"path": "../outside/secret.png"},
        {"url": "file:///etc/passwd"},
    ]

    @pytest.mark.parametrize("place", range(len(LEAVING)))
    def test_paths_that_leave_are_refused_before_any_byte_is_read(self, root, place, monkeypatch):
        def filled(value):
            return (
                {key: filled(text) for key, text in value.items()}
                if isinstance(value, dict)
                else value.format(outside=root.parent / "outside")
            )

        record = GOOD | {"images": [filled(self.LEAVING[place])]}
        (root.parent / "rows.jsonl").write_text(json.dumps(record))
        monkeypatch.setattr(Image, "open", lambda *args, **kwargs: pytest.fail("a file was opened"))
        rows = read(root.parent / "rows.jsonl", media_root=str(root))
        assert "path leaves media_root" in rows.quarantine.rows[0].reason

    @pytest.mark.parametrize(
        "value",
        [
            "frames",
            ["a.png", "../outside/secret.png"],
            "linked",
            {"frames": ["link.png"]},
            "../outside/x.mp4",
        ],
    )
    def test_videos_too(self, root, value):
        (root.parent / "rows.jsonl").write_text(json.dumps(GOOD | {"videos": [value]}))
        rows = read(root.parent / "rows.jsonl", media_root=str(root))
        assert "path leaves media_root" in rows.quarantine.rows[0].reason

    @pytest.mark.parametrize(
        "path", ["a.png", "./a.png", "frames/../a.png", "{root}/a.png", "file://{root}/a.png", "inner.png"]
    )
    def test_paths_inside_pass(self, root, path):
        (root.parent / "rows.jsonl").write_text(json.dumps(GOOD | {"images": [path.format(root=root)]}))
        assert len(read(root.parent / "rows.jsonl", media_root=str(root))) == 1

    def test_the_setting_decides_without_a_root(self, root):
        (root / "rows.jsonl").write_text(json.dumps(GOOD | {"images": ["../outside/secret.png"]}))
        assert len(read(root / "rows.jsonl")) == 1
        assert (
            "path leaves media_root"
            in read(root / "rows.jsonl", outside_media="refuse").quarantine.rows[0].reason
        )
        assert len(read(root / "rows.jsonl", media_root=str(root), outside_media="allow")) == 1


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP", "PPM"])
def test_damaged_images_raise_nothing_else(kind):
    import io
    import random

    buffer = io.BytesIO()
    Image.effect_noise((24, 24), 60).convert("P" if kind == "GIF" else "RGB").save(buffer, kind)
    rng = random.Random(kind)
    for _ in range(150):
        data = bytearray(buffer.getvalue())
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        medium = parse_image(
            bytes(data[: rng.randint(1, len(data)) if rng.random() < 0.3 else len(data)]), MediaSettings()
        )
        for read_image in (StoredImage.check, StoredImage.load, lambda stored: image_size(stored.source)):
            try:
                read_image(medium)
            except MediaError as error:
                assert str(error)
