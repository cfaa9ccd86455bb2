"""Hostile files that are no text: tables of every arrow type, broken and compressed containers, pictures in
every mode and orientation."""

from __future__ import annotations

import bz2
import datetime
import gzip
import io
import lzma
import zipfile
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hostile_kit import REFUSED, Case, lines, same
from PIL import Image


def parquet(columns: dict[str, Any], **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, **options)
    return sink.getvalue()


def arrow(columns: dict[str, Any], stream: bool = False) -> bytes:
    sink, made = io.BytesIO(), pa.table(columns)
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, made.schema) as writer:
        writer.write_table(made)
    return sink.getvalue()


def zstd(data: bytes) -> bytes:
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as stream:
        stream.write(data)
    return out.getvalue().to_pybytes()


def arrow_types() -> Iterator[Case]:
    day, noon = datetime.date(2024, 5, 1), datetime.datetime(2024, 5, 1, 12)
    made = (
        ("float32", pa.array([0.1], pa.float32()), 0.1), ("float16", pa.array([0.1], pa.float16()), 0.1),
        ("float64", pa.array([0.1]), 0.1), ("a float NaN", pa.array([float("nan")]), REFUSED),
        ("a float infinity", pa.array([float("inf")], pa.float32()), REFUSED),
        ("float32 large", pa.array([16777216.0], pa.float32()), 16777216.0),
        ("decimal", pa.array([Decimal("1.50")]), "1.50"),
        ("decimal256", pa.array([Decimal("1" * 50)]), "1" * 50),
        ("negative decimal", pa.array([Decimal("-0.10")]), "-0.10"),
        ("uint64", pa.array([2**64 - 1], pa.uint64()), 2**64 - 1), ("int8", pa.array([-3], pa.int8()), -3),
        ("date32", pa.array([day]), "2024-05-01"), ("date64", pa.array([day], pa.date64()), "2024-05-01"),
        ("seconds", pa.array([noon], pa.timestamp("s")), "2024-05-01T12:00:00"),
        ("microseconds", pa.array([noon], pa.timestamp("us")), "2024-05-01T12:00:00"),
        ("nanoseconds", pa.array([1714564800000000001], pa.timestamp("ns")), "2024-05-01T12:00:00.000000001"),
        ("a time zone", pa.array([noon], pa.timestamp("us", "UTC")), "2024-05-01T12:00:00+00:00"),
        ("another zone", pa.array([noon], pa.timestamp("us", "Asia/Tokyo")), "2024-05-01T21:00:00+09:00"),
        ("time32", pa.array([datetime.time(12, 30)], pa.time32("s")), "12:30:00"),
        ("time64", pa.array([45_000_000_000_001], pa.time64("ns")), "12:30:00.000000001"),
        ("duration", pa.array([datetime.timedelta(seconds=90)]), "0:01:30"),
        ("a year beyond Python's", pa.array([10**17], pa.timestamp("s")), REFUSED),
        ("bool", pa.array([True]), True), ("null", pa.array([None]), REFUSED),
        ("bytes", pa.array([b"red"]), REFUSED), ("fixed bytes", pa.array([b"red"], pa.binary(3)), REFUSED),
        ("large text", pa.array(["red"], pa.large_string()), "red"),
        ("text view", pa.array(["red"], pa.string_view()), "red"),
        ("dictionary", pa.array(["red"]).dictionary_encode(), "red"),
        ("dictionary of decimals", pa.array([Decimal("1.50")]).dictionary_encode(), "1.50"),
        ("list", pa.array([[0.1, 2.5]], pa.list_(pa.float32())), [0.1, 2.5]),
        ("large list", pa.array([[0.1]], pa.large_list(pa.float32())), [0.1]),
        ("list of one size", pa.array([[0.1, 0.2]], pa.list_(pa.float32(), 2)), [0.1, 0.2]),
        ("nested list", pa.array([[[0.1], []]], pa.list_(pa.list_(pa.float32()))), [[0.1], []]),
        ("struct", pa.array([{"a": 1, "b": "x"}]), {"a": 1, "b": "x"}),
        ("struct of dates", pa.array([{"a": day}]), {"a": "2024-05-01"}),
        ("list of structs", pa.array([[{"a": 0.1}]], pa.list_(pa.struct([("a", pa.float32())]))),
            [{"a": 0.1}]),
        ("map", pa.array([[("a", 0.1)]], pa.map_(pa.string(), pa.float32())), {"a": 0.1}),
        ("map with a key twice", pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int8())),
            [["a", 1], ["a", 2]]),
        ("map of numbers", pa.array([[(1, "a")]], pa.map_(pa.int8(), pa.string())), [[1, "a"]]),
        ("map of large text", pa.array([[("a", 1)]], pa.map_(pa.large_string(), pa.int8())), {"a": 1}),
    )  # fmt: skip
    for name, column, answer in made:
        said = REFUSED if same(answer, REFUSED) else {"question": "?", "answer": answer}
        columns = {"problem": ["?"], "answer": column}
        yield from _of_table(f"{name}", columns, [said])


def _of_table(name: str, columns: dict[str, Any], rows: list[Any]) -> Iterator[Case]:
    """A table as parquet and as both forms of arrow; what a format cannot hold is left out."""
    makers = {
        ".parquet": lambda: parquet(columns),
        ".arrow": lambda: arrow(columns),
        ".feather": lambda: arrow(columns, stream=True),
    }
    for suffix, make in makers.items():
        try:
            content = make()
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
            continue
        if suffix != ".parquet" or name not in ("nanoseconds", "date64"):
            yield Case(f"{suffix} {name}", suffix, content, rows)


def broken_containers() -> Iterator[Case]:
    count = 400
    columns = {"problem": [f"q{i}" for i in range(count)], "answer": [f"a{i:05}" for i in range(count)]}
    rows = [{"question": f"q{i}", "answer": f"a{i:05}"} for i in range(count)]
    checked = parquet(columns, write_page_checksum=True, compression="none", use_dictionary=False)
    for place in range(40, 40 + 10 * 700, 700):
        flipped = bytearray(checked)
        flipped[place % (len(checked) - 400)] ^= 0x20
        yield Case(f"parquet, byte {place}", ".parquet", bytes(flipped), rows)
    for name, whole in ((".parquet", checked), (".arrow", arrow(columns))):
        for share in (0.1, 0.5, 0.9, 0.999):
            yield Case(f"{name} cut at {share}", name, whole[: int(len(whole) * share)], rows)
        yield Case(f"{name} of text", name, b"hello" * 50, rows)
        yield Case(f"{name} with a tail", name, whole + b"tail", rows)
    text = lines([{"problem": row["question"], "answer": row["answer"]} for row in rows]).encode()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("rows.jsonl", text)
    packers = {".gz": gzip.compress, ".bz2": bz2.compress, ".zst": zstd}
    for suffix, pack in packers.items():
        whole = pack(text)
        yield Case(f"{suffix}", f".jsonl{suffix}", whole, rows, whole=False)
        yield Case(f"{suffix} in two parts", f".jsonl{suffix}", pack(text[:900]) + pack(text[900:]), rows)
        yield Case(f"{suffix} cut", f".jsonl{suffix}", whole[:-9], rows)
        yield Case(f"{suffix} with a tail", f".jsonl{suffix}", whole + b"tail of another kind", rows)
        yield Case(f"{suffix} that is plain", f".jsonl{suffix}", text, rows)
        yield Case(f"{suffix} under a plain name", ".jsonl", whole, rows)
        yield Case(f"{suffix} twice", f".jsonl{suffix}", pack(whole), rows)
        if suffix == ".zst":
            continue  # its frames have no checksum as pyarrow writes them: a flipped bit is other text
        flipped = bytearray(whole)
        flipped[len(flipped) // 2] ^= 0x01
        yield Case(f"{suffix} with a flipped bit", f".jsonl{suffix}", bytes(flipped), rows)
    yield Case(".xz", ".jsonl.xz", lzma.compress(text), rows)
    yield Case(".zip", ".jsonl.zip", archive.getvalue(), rows)
    yield Case("zip under a plain name", ".jsonl", archive.getvalue(), rows)
    yield Case("a web page", ".jsonl", b"<!DOCTYPE html><html>404</html>\n", [REFUSED])
    yield Case("a pointer of Git LFS", ".jsonl", b"version https://git-lfs.github.com/spec/v1\n", [REFUSED])
    yield Case("zeros", ".jsonl", bytes(500), [REFUSED])


def pictures() -> Iterator[Case]:
    """Pictures whose upper left pixel is red (grey in modes without colours), in modes and orientations of
    all kinds; what cannot be shown as it is must be refused."""
    base = Image.new("RGB", (60, 40), "blue")
    base.paste((200, 0, 0), (0, 0, 30, 20))
    red, grey = (200, 0, 0), (60, 60, 60)
    made: dict[str, tuple[bytes, Any]] = {}

    def add(name: str, picture: Image.Image, form: str, said: Any, **named: Any) -> None:
        out = io.BytesIO()
        picture.save(out, form, **named)
        made[name] = (out.getvalue(), said)

    for form in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "TGA", "JPEG2000"):
        add(f"{form}", base, form, red)
    add("palette", base.quantize(8), "PNG", red)
    add("grey", base.convert("L"), "PNG", grey)
    add("black and white", base.convert("1", dither=Image.Dither.NONE), "PNG", (0, 0, 0))
    add("CMYK", base.convert("CMYK"), "JPEG", red, quality=95)
    add("CMYK TIFF", base.convert("CMYK"), "TIFF", red)
    add("LAB", base.convert("RGB").convert("YCbCr"), "JPEG", red, quality=95)
    whole = np.asarray(base.convert("L")).astype(np.float64)
    for name, kind, scale in (("16 bits", np.uint16, 257), ("signed 16 bits", np.int32, 257)):
        add(name, Image.fromarray((whole * scale).astype(kind)), "TIFF", grey)
    add("16 bits PNG", Image.fromarray((whole * 257).astype(np.uint16)), "PNG", grey)
    broken = whole.astype(np.float32) / 255
    add("floats", Image.fromarray(broken), "TIFF", grey)
    for name, value in (("NaN", np.nan), ("infinity", np.inf), ("negative", -1e30)):
        faulty = broken.copy()
        faulty[3, 3] = value
        add(f"floats with {name}", Image.fromarray(faulty), "TIFF", REFUSED)
    turns = {
        2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE",
                      6: "ROTATE_90", 7: "TRANSVERSE", 8: "ROTATE_270",
    }  # fmt: skip
    for turn, how in turns.items():
        exif = Image.Exif()
        exif[0x0112] = turn
        for form in ("JPEG", "PNG", "WEBP", "TIFF"):
            stored = base.transpose(Image.Transpose[how])
            add(
                f"turned {turn} {form}",
                stored,
                form,
                red,
                exif=exif,
                **({"quality": 95} if form == "JPEG" else {}),
            )
    add("animation", base, "GIF", red, save_all=True, append_images=[Image.new("RGB", (60, 40), "green")])
    for name, (content, said) in made.items():
        record = {"problem": "Which?", "answer": "red", "images": ["cat.bin"]}
        row = REFUSED if said == REFUSED else {"question": "Which?", "pixel": said}
        yield Case(f"picture {name}", ".jsonl", lines([record]).encode(), [row], media={"cat.bin": content})
    cut = made["PNG"][0][:-60]
    yield Case("a cut picture", ".jsonl", lines([record]).encode(), [REFUSED], media={"cat.bin": cut})
