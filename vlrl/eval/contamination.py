"""Contamination: whether a benchmark is in training data (shared 13-grams, near-equal pictures) or in a model
(questions that it completes)."""

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

from vlrl.eval.media import as_media
from vlrl.eval.model import open_model
from vlrl.eval.prompts import build_prompt, media_of, sample_seed
from vlrl.eval.records import FORMATS, SuiteData, read_file, read_records
from vlrl.eval.scorer import Record
from vlrl.eval.suite import load_suite
from vlrl.plugins.registry import ConfigError
from vlrl.types import MediaError, Request, Sampling

GRAM = 13  # words
SHORTEST = 5  # fewest words of a text that is compared; one of fewer than GRAM words is compared as a whole
NEAR = 4  # bits by which the hashes of near-equal pictures may differ


def words(text: str) -> list[str]:
    """Lower-case words and numbers."""
    return re.findall(r"\w+", text.lower())


def grams(text: str, size: int = GRAM) -> set[bytes]:
    """Digests of all n-grams of `size` words; of the whole text where it is shorter; none for fewer than five
    words."""
    found = words(text)
    if len(found) < SHORTEST:
        return set()
    size = min(size, len(found))
    return {
        hashlib.blake2b(" ".join(found[i : i + size]).encode(), digest_size=8).digest()
        for i in range(len(found) - size + 1)
    }


def picture_hash(image: Image.Image) -> int:
    """dHash in 64 bits: whether each of 8 x 8 areas is brighter than its right neighbour. Robust to resizing
    and recompression."""
    small = np.asarray(image.convert("L").resize((9, 8), Image.Resampling.BILINEAR), dtype=np.int16)
    return int("".join("1" if bit else "0" for bit in (small[:, 1:] > small[:, :-1]).ravel()), 2)


def is_uniform(code: int) -> bool:
    """Whether a hash has fewer than four set bits (an even background); such hashes would match too many
    pictures."""
    return bin(code).count("1") < 4


@dataclass
class TrainingIndex:
    """An index of training data: n-grams (short texts as a whole) and picture hashes."""

    grams: set[bytes] = field(default_factory=set)
    hashes: set[int] = field(default_factory=set)
    rows: int = 0

    def add(self, record: Record, folder: Path) -> None:
        """Adds all texts and pictures of one record."""
        self.rows += 1
        for text in texts_of(record):
            self.grams |= grams(text)
            found = words(text)
            if SHORTEST <= len(found) < GRAM:
                self.grams |= grams(text, len(found))
        for image in pictures_of(record, folder):
            self.hashes.add(picture_hash(image))


def texts_of(value: Any) -> Iterator[str]:
    """Every string in nested mappings and lists, except under the keys "bytes" and "path"."""
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
    """Every picture in a record: a PIL image, {"bytes", "path"}, or a path under `folder` with the ending of
    a picture."""
    if isinstance(value, Mapping) and ("bytes" in value or "path" in value):
        yield from _open_pictures(value, folder)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from pictures_of(item, folder)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from pictures_of(item, folder)
    elif isinstance(value, Image.Image) or (
        isinstance(value, str) and value.lower().endswith((".png", ".jpg", ".jpeg", ".webp"))
    ):
        yield from _open_pictures(value, folder)


def _open_pictures(value: Any, folder: Path) -> Iterator[Image.Image]:
    try:
        for medium in as_media(value, folder, "image"):
            picture = medium.load()
            assert isinstance(picture, Image.Image)
            yield picture
    except MediaError:
        return  # a missing or broken picture cannot be compared


def index_training_data(paths: Sequence[Path]) -> TrainingIndex:
    """Indexes JSONL, JSON and parquet files (or all of them in a folder). Raises ConfigError if there are
    none."""
    files = [
        file
        for path in paths
        for file in (sorted(p for p in path.rglob("*") if p.suffix in FORMATS) if path.is_dir() else [path])
    ]
    if not files:
        raise ConfigError(f"--training: no {', '.join(FORMATS)} files in {', '.join(map(str, paths))}")
    index = TrainingIndex()
    for file in files:
        if not file.is_file():
            raise ConfigError(f"--training {file}: no such file")
        for record in read_file(file):
            index.add(record, file.parent)
    return index


def check_suite(data: SuiteData, training: TrainingIndex) -> dict[str, Any]:
    """Shares and ids of records whose question shares an n-gram with the training data, or whose picture is
    (nearly) equal to one of its pictures.

    N-grams in more than a tenth of the suite's own questions belong to its prompt template and are ignored.
    """
    own = [grams(data.suite.text(record)) for record in data.records]
    common = Counter(gram for found in own for gram in found)
    limit = max(2, len(data) // 10)
    texts: list[dict[str, Any]] = []
    images: list[str] = []
    pictures = 0
    codes = np.array(sorted(training.hashes), dtype=np.uint64)
    for number, (name, record) in enumerate(zip(data.ids, data.records, strict=True)):
        distinct = {gram for gram in own[number] if common[gram] <= limit}
        if distinct & training.grams:
            texts.append({"id": name, "share": len(distinct & training.grams) / len(distinct)})
        hashes = [
            picture_hash(picture)
            for medium in media_of(data, record)[0]
            if isinstance(picture := medium.load(), Image.Image)
        ]
        pictures += len(hashes)
        if any(is_near(code, codes) for code in hashes):
            images.append(name)
    total = max(1, len(data))
    return {
        "rows": len(data),
        "training_rows": training.rows,
        "text_share": len(texts) / total,
        "texts": texts,
        "pictures": pictures,
        "image_share": len(images) / total,
        "images": images,
    }


def is_near(code: int, codes: np.ndarray) -> bool:
    """Whether any of the hashes differs from `code` in at most four bits (in none, for a uniform picture)."""
    if not len(codes):
        return False
    differing = np.bitwise_xor(codes, np.uint64(code))
    bits = np.unpackbits(differing.view(np.uint8).reshape(len(codes), 8), axis=1).sum(1)
    return bool((bits <= (0 if is_uniform(code) else NEAR)).any())


def check_suites(
    names: Iterable[str], training: Sequence[Path], data: str = "auto", media: str = ""
) -> dict[str, Any]:
    """`check_suite` for every suite."""
    index = index_training_data(training)
    return {name: check_suite(read_records(load_suite(name), data, media), index) for name in names}


def probe_suites(
    names: Iterable[str], model: str, engine: Mapping[str, Any], data: str = "auto", media: str = ""
) -> dict[str, Any]:
    """`completion_probe` of one model for every suite."""
    served = open_model(model, engine)
    try:
        return {
            name: completion_probe(read_records(load_suite(name), data, media), served.engine)
            for name in names
        }
    finally:
        served.close()


def rouge_l(text: str, reference: str) -> float:
    """ROUGE-L: F1 of the longest common subsequence of words. Source: Lin 2004."""
    a, b = words(text), words(reference)
    if not a or not b:
        return 0.0
    lengths = [0] * (len(b) + 1)  # of the common subsequences with the prefixes of b
    for x in a:
        previous = 0
        for j, y in enumerate(b, 1):
            previous, lengths[j] = lengths[j], previous + 1 if x == y else max(lengths[j], lengths[j - 1])
    return 2 * lengths[-1] / (len(a) + len(b))


def completion_probe(data: SuiteData, engine: Any, seed: int = 0, share: float = 0.6) -> dict[str, float]:
    """Partial-prompt completion: prompts with the first `share` of each question's words and compares the
    greedy continuation with the rest.

    Returns {"questions": number of them, "exact": share completed word for word, "rouge_l": mean ROUGE-L}.
    Paper: arXiv:2507.10532, sec. 3: 54.6% exact at 60% for a model that had seen MATH-500, 3.8% for one that
    had not.
    """
    requests: list[Request] = []
    rests: list[str] = []
    for number, name in enumerate(data.ids):
        text = data.suite.text(data.records[number]).split()
        cut = int(len(text) * share)
        if cut and cut < len(text):
            prompt = build_prompt(data, number, text=" ".join(text[:cut])).prompt
            sampling = Sampling(temperature=0.0, max_tokens=max(8, 3 * (len(text) - cut)))
            requests.append(
                Request(prompt, sampling, seed=sample_seed(seed, data.suite.name, name, 0), tag=len(rests))
            )
            rests.append(" ".join(text[cut:]))
    completions = {completion.request.tag: completion.text for completion in engine.generate(requests)}
    pairs = [(completions[i], rest) for i, rest in enumerate(rests)]
    exact = [float(words(text)[: len(words(rest))] == words(rest)) for text, rest in pairs]
    overlap = [rouge_l(" ".join(words(text)[: len(words(rest))]), rest) for text, rest in pairs]
    total = max(1, len(pairs))
    return {"questions": len(pairs), "exact": sum(exact) / total, "rouge_l": sum(overlap) / total}
