"""Whether a benchmark was in the training data: shared 13-grams, equal or nearly equal pictures, and questions that a model can complete."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vlrl.eval.collect import Draw
from vlrl.eval.media import as_media
from vlrl.eval.prompts import ask, media_of, sample_seed
from vlrl.eval.rows import FORMATS, Rows, read, read_file
from vlrl.eval.suite import load
from vlrl.registry import ConfigError
from vlrl.types import MediaError, Request, Sampling

GRAM = 13
SHORTEST = 5  # words of a question that is compared whole, as it is shorter than a gram
NEAR = 4  # bits by which two picture hashes may differ


def words(text: str) -> list[str]:
    """Lower-case words and numbers."""
    return re.findall(r"\w+", text.lower())


def grams(text: str, size: int = GRAM) -> set[bytes]:
    """Digests of all runs of `size` words; of the whole text where it is shorter (and has at least five)."""
    found = words(text)
    if len(found) < SHORTEST:
        return set()
    size = min(size, len(found))
    return {hashlib.blake2b(" ".join(found[i : i + size]).encode(), digest_size=8).digest() for i in range(len(found) - size + 1)}


def picture_hash(image: Image.Image) -> int:
    """64 bits: whether each of 8 x 8 areas is brighter than its right neighbour (dHash). Survives resizing and recompression."""
    small = np.asarray(image.convert("L").resize((9, 8), Image.Resampling.BILINEAR), dtype=np.int16)
    return int("".join("1" if bit else "0" for bit in (small[:, 1:] > small[:, :-1]).ravel()), 2)


def plain_picture(code: int) -> bool:
    """A hash with hardly any structure (an even background), which would match too much."""
    return bin(code).count("1") < 4


@dataclass
class Training:
    """What is remembered of training data: grams, texts short enough to be compared whole, picture hashes."""

    grams: set[bytes] = field(default_factory=set)
    hashes: set[int] = field(default_factory=set)
    rows: int = 0

    def add(self, row: Mapping[str, Any], folder: Path) -> None:
        """Remember one row: all of its text, and its pictures."""
        self.rows += 1
        for text in texts_of(row):
            self.grams |= grams(text)
            found = words(text)
            if SHORTEST <= len(found) < GRAM:
                self.grams |= grams(text, len(found))
        for image in pictures_of(row, folder):
            self.hashes.add(picture_hash(image))


def texts_of(value: Any) -> Iterator[str]:
    """Every string inside nested mappings and lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if key not in ("bytes", "path"):
                yield from texts_of(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from texts_of(item)


def pictures_of(value: Any, folder: Path) -> Iterator[Image.Image]:
    """Every picture inside a row: encoded bytes, {"bytes", "path"}, or a path under `folder` that ends like one."""
    if isinstance(value, Mapping) and ("bytes" in value or "path" in value):
        yield from _opened(value, folder)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from pictures_of(item, folder)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from pictures_of(item, folder)
    elif isinstance(value, Image.Image) or (isinstance(value, str) and value.lower().endswith((".png", ".jpg", ".jpeg", ".webp"))):
        yield from _opened(value, folder)


def _opened(value: Any, folder: Path) -> Iterator[Image.Image]:
    try:
        for medium in as_media(value, folder, "image"):
            yield medium.load()  # type: ignore[misc]
    except MediaError:
        return  # a file that is not there cannot be compared; the count of rows says how much was read


def training_data(paths: Sequence[Path]) -> Training:
    """Read JSONL, JSON and parquet files (or all in a folder). Raises ConfigError if there are none."""
    files = [file for path in paths for file in (sorted(p for p in path.rglob("*") if p.suffix in FORMATS) if path.is_dir() else [path])]
    if not files:
        raise ConfigError(f"--training: no {', '.join(FORMATS)} files in {', '.join(map(str, paths))}")
    training = Training()
    for file in files:
        if not file.is_file():
            raise ConfigError(f"--training {file}: no such file")
        for row in read_file(file):
            training.add(row, file.parent)
    return training


def check_rows(rows: Rows, training: Training) -> dict[str, Any]:
    """Shares and ids of rows whose question shares a gram, or whose picture is (nearly) equal to one, of the training data.

    Grams that a tenth of the suite's own questions share are its template, and are not looked for.
    """
    own = [grams(rows.suite.text(row)) for row in rows.fields]
    common = Counter(gram for found in own for gram in found)
    limit = max(2, len(rows) // 10)
    hit_texts, hit_images, pictures = [], [], 0
    codes = np.array(sorted(training.hashes), dtype=np.uint64)
    for number, (name, row) in enumerate(zip(rows.ids, rows.fields, strict=True)):
        distinct = {gram for gram in own[number] if common[gram] <= limit}
        if distinct & training.grams:
            hit_texts.append({"id": name, "share": len(distinct & training.grams) / len(distinct)})
        found = [picture_hash(medium.load()) for medium in media_of(rows, row)[0]]  # type: ignore[arg-type]
        pictures += len(found)
        if any(near(code, codes) for code in found):
            hit_images.append(name)
    total = max(1, len(rows))
    return {
        "rows": len(rows), "training_rows": training.rows, "text_share": len(hit_texts) / total, "texts": hit_texts,
        "pictures": pictures, "image_share": len(hit_images) / total, "images": hit_images,
    }  # fmt: skip


def near(code: int, codes: np.ndarray) -> bool:
    """Whether any known hash differs from `code` in at most four bits (pictures without structure: in none)."""
    if not len(codes):
        return False
    differing = np.bitwise_xor(codes, np.uint64(code))
    bits = np.unpackbits(differing.view(np.uint8).reshape(len(codes), 8), axis=1).sum(1)
    return bool((bits <= (0 if plain_picture(code) else NEAR)).any())


def check_suites(names: Iterable[str], training: Sequence[Path], data: str = "auto", media: str = "") -> dict[str, Any]:
    """`check_rows` for every suite."""
    known = training_data(training)
    return {name: check_rows(read(load(name), data, media), known) for name in names}


def probe_suites(names: Iterable[str], model: str, engine: Mapping[str, Any], data: str = "auto", media: str = "") -> dict[str, Any]:
    """`completion_probe` for every suite, with one model."""
    from vlrl.eval.model import open_model

    served = open_model(model, engine)
    try:
        return {name: completion_probe(read(load(name), data, media), served.engine, Draw()) for name in names}
    finally:
        served.close()


def rouge_l(said: str, wanted: str) -> float:
    """F1 of the longest common subsequence of words. Source: Lin 2004 (ROUGE-L)."""
    a, b = words(said), words(wanted)
    if not a or not b:
        return 0.0
    row = [0] * (len(b) + 1)
    for x in a:
        previous = 0
        for j, y in enumerate(b, 1):
            previous, row[j] = row[j], previous + 1 if x == y else max(row[j], row[j - 1])
    return 2 * row[-1] / (len(a) + len(b))


def completion_probe(rows: Rows, engine: Any, draw: Draw, share: float = 0.6) -> dict[str, float]:
    """Gives the first `share` of each question's words, and compares what the model writes next with the rest.

    {"exact": share of questions completed word for word, "rouge_l": mean}. Paper: arXiv:2507.10532, sec. 3: 54.6% exact at 60% for a model that
    had seen MATH-500, 3.8% for one that had not.
    """
    requests, rests = [], []
    for number, name in enumerate(rows.ids):
        text = rows.suite.text(rows.fields[number]).split()
        cut = int(len(text) * share)
        if cut and cut < len(text):
            prompt = ask(rows, number, text=" ".join(text[:cut])).prompt
            sampling = Sampling(temperature=0.0, max_tokens=max(8, 3 * (len(text) - cut)))
            requests.append(Request(prompt, sampling, seed=sample_seed(draw.seed, rows.suite.name, name, 0), tag=len(rests)))
            rests.append(" ".join(text[cut:]))
    said = {completion.request.tag: completion.text for completion in engine.generate(requests)}
    pairs = [(said[i], rest) for i, rest in enumerate(rests)]
    exact = [float(words(text)[: len(words(rest))] == words(rest)) for text, rest in pairs]
    overlap = [rouge_l(" ".join(words(text)[: len(words(rest))]), rest) for text, rest in pairs]
    total = max(1, len(pairs))
    return {"questions": len(pairs), "exact": sum(exact) / total, "rouge_l": sum(overlap) / total}
