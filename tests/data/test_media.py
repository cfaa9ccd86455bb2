"""Image files of every mode and format, limits, faults, keys, and the values of media columns."""

import base64
import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image
from vlrl_data.media import parse
from vlrl_data.media.images import (
    GeneratedImage,
    ImageLimits,
    InMemoryImage,
    StoredImage,
    image_size,
    open_image,
    rgb,
)
from vlrl_data.media.parse import MediaSettings, RemoteMedia
from vlrl_data.media.video import StoredVideo

from vlrl.types import MediaError

RED = (255, 0, 0)


def encoded(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def red(mode="RGB", size=(4, 2)):
    return Image.new("RGB", size, RED).convert(mode)


def transparent():
    image = Image.new("RGBA", (4, 2), (*RED, 0))
    image.putpixel((0, 0), (*RED, 255))
    return image


def palette_with_transparency():
    image = Image.new("P", (4, 2), 1)
    image.putpalette([*RED, 0, 0, 255])
    image.putpixel((0, 0), 0)
    return encoded(image, transparency=1)


def rotated(kind):
    exif = Image.Exif()
    exif[0x0112] = 6  # shown a quarter turn clockwise
    image = red(size=(8, 4))
    image.paste((0, 0, 255), (0, 0, 4, 4))
    return encoded(image, kind, exif=exif)


def animated():
    frames = [red(), Image.new("RGB", (4, 2), "blue")]
    return encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])


@pytest.mark.parametrize(
    ("data", "first", "last"),
    [
        (encoded(red()), RED, RED),
        (encoded(transparent()), RED, (255, 255, 255)),
        (palette_with_transparency(), RED, (255, 255, 255)),
        (encoded(red("P")), RED, RED),
        (
            encoded(Image.fromarray(np.array([[65535, 0], [32768, 257]], np.uint16))),
            (255, 255, 255),
            (1, 1, 1),
        ),
        (
            encoded(Image.fromarray(np.array([[0.0, 2.0], [1.0, 2.0]], np.float32)), "TIFF"),
            (0, 0, 0),
            (255, 255, 255),
        ),
        (encoded(Image.new("1", (2, 2), 1)), (255, 255, 255), (255, 255, 255)),
        (encoded(Image.new("L", (2, 2), 7)), (7, 7, 7), (7, 7, 7)),
        (encoded(red("CMYK"), "TIFF"), RED, RED),
        (animated(), RED, RED),
    ],
    ids=[
        "rgb",
        "rgba",
        "palette transparent",
        "palette",
        "16 bit",
        "float",
        "1 bit",
        "grey",
        "cmyk",
        "animated",
    ],
)
def test_modes(data, first, last):
    image = open_image(data)
    assert (
        image.mode == "RGB"
        and image.getpixel((0, 0)) == first
        and image.getpixel((image.width - 1, image.height - 1)) == last
    )


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_rotated_by_exif(kind):
    data = rotated(kind)
    image = open_image(data)
    assert image.size == image_size(data) == (4, 8)
    assert image.getpixel((0, 0)) == (0, 0, 255) and image.getpixel((0, 7)) == RED


def bomb():
    """A PNG header that says 30,000 x 30,000 pixels."""
    header = struct.pack(">IIBBBBB", 30000, 30000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    return (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", 13)
        + chunk
        + struct.pack(">I", zlib.crc32(chunk))
        + encoded(red())[33:]
    )


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8))


@pytest.mark.parametrize(
    ("data", "limits", "reason"),
    [
        (b"", ImageLimits(), "empty"),
        (b"not an image at all", ImageLimits(), "not an image"),
        (b"%PDF-1.4 ...", ImageLimits(), "not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", ImageLimits(), "not an image"),
        (encoded(NOISE)[:3000], ImageLimits(), "truncated|broken|Truncated"),
        (encoded(NOISE, "JPEG")[:900], ImageLimits(), "truncated"),
        (bomb(), ImageLimits(), "over the limit of 100000000|decompression bomb"),
        (encoded(red()), ImageLimits(max_bytes=10), "over the limit of 10"),
        (encoded(red()), ImageLimits(min_side=3), "min_side"),
        (encoded(red(size=(500, 1))), ImageLimits(), "max_aspect"),
    ],
)
def test_refused(data, limits, reason):
    with pytest.raises(MediaError, match=reason):
        StoredImage(data, limits).load()


def test_truncated_on_request():
    assert open_image(encoded(NOISE, "JPEG")[:900], ImageLimits(truncated=True)).size == (64, 64)
    with pytest.raises(MediaError):
        open_image(encoded(NOISE, "JPEG")[:900])


def test_missing_and_wrong_files(tmp_path):
    with pytest.raises(MediaError, match=r"no\.png: No such file"):
        StoredImage(str(tmp_path / "no.png")).check()
    with pytest.raises(MediaError, match=r"no\.png"):
        _ = StoredImage(str(tmp_path / "no.png")).key
    with pytest.raises(MediaError):
        StoredImage(str(tmp_path)).load()


def test_key_is_content(tmp_path):
    data = encoded(red())
    (tmp_path / "a.png").write_bytes(data)
    (tmp_path / "b.png").write_bytes(data)
    same = [StoredImage(data), StoredImage(str(tmp_path / "a.png")), StoredImage(str(tmp_path / "b.png"))]
    assert len({medium.key for medium in same}) == 1 and len(set(same)) == 1
    assert StoredImage(encoded(transparent())).key != same[0].key
    (tmp_path / "a.png").write_bytes(encoded(transparent()))
    assert StoredImage(str(tmp_path / "a.png")).key != same[0].key
    assert InMemoryImage(red()) == InMemoryImage(red()) != InMemoryImage(red("L"))


def paint(level):
    return Image.new("RGB", (2, 2), (level, 0, 0))


def test_generated_image():
    assert GeneratedImage(paint, (3,)).load().getpixel((0, 0)) == (3, 0, 0)
    assert GeneratedImage(paint, (3,)) == GeneratedImage(paint, (3,)) != GeneratedImage(paint, (4,))


def test_any_column_value(tmp_path):
    data = encoded(red(size=(40, 30)))
    (tmp_path / "with space.png").write_bytes(data)
    place = MediaSettings((str(tmp_path / "elsewhere"), str(tmp_path)))
    text = base64.b64encode(encoded(NOISE)).decode()
    values = [
        red(),
        data,
        bytearray(data),
        "with space.png",
        str(tmp_path / "with space.png"),
        f"file://{tmp_path}/with%20space.png",
        f"data:image/png;base64,{base64.b64encode(data).decode()}",
        text,
        {"bytes": data, "path": None},
        {"bytes": None, "path": "with space.png"},
        {"bytes": base64.b64encode(data).decode()},
        {"url": f"data:image/png;base64,{base64.b64encode(data).decode()}"},
        np.zeros((3, 4, 3), np.uint8),
        np.zeros((3, 4), np.uint8),
        StoredImage(data),
    ]
    for value in values:
        medium = parse.parse_image(value, place)
        medium.check()
        assert medium.load().mode == "RGB"


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        "",
        {},
        {"name": "x"},
        [],
        np.zeros((3, 4)),
        np.zeros((0, 4, 3), np.uint8),
        "data:image/png,xx",
    ],
)
def test_not_a_picture(value):
    with pytest.raises(MediaError):
        parse.parse_image(value, MediaSettings())


@pytest.mark.parametrize("value", [None, 3, "", {}, [], [1]])
def test_not_a_video(value):
    with pytest.raises(MediaError):
        parse.parse_video(value, MediaSettings())


def test_plain_is_the_inverse(tmp_path):
    (tmp_path / "a.png").write_bytes(encoded(red()))
    place = MediaSettings((str(tmp_path),))
    for medium in (
        StoredImage(str(tmp_path / "a.png")),
        StoredImage(encoded(red())),
        RemoteMedia("http://example.org/a.png", place),
    ):
        assert parse.parse_image(parse.to_json(medium), place).key == medium.key
    again = parse.parse_image(parse.to_json(InMemoryImage(red())), place)
    assert again.load().tobytes() == red().tobytes()
    clip = StoredVideo("x.mov", span=(0.5, None))
    assert parse.parse_video(parse.to_json(clip), MediaSettings(("/",))).span == (0.5, None)


def test_rgb_keeps_integer_range():
    image = Image.fromarray(np.array([[0, 65535]], np.int32))
    assert image.mode == "I" and [rgb(image).getpixel((x, 0))[0] for x in (0, 1)] == [0, 255]
