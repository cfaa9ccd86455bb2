"""A dataset of 1,000 usable rows over 10 images, with 200 unusable rows of 20 kinds among them."""

import json
import random

from PIL import Image


def good(i):
    return json.dumps(
        {"id": f"g{i}", "problem": f"<image>What is {i}?", "answer": str(i), "images": [f"p{i % 10}.png"]}
    )


def record(i, **changes):
    return json.dumps(json.loads(good(i)) | {"id": f"b{i}"} | changes)


BREAKS = [
    lambda i: (good(i)[:-7], "broken JSON"),
    lambda i: ('"just text', "broken JSON"),
    lambda i: ("[1, 2]", "must be a mapping"),
    lambda i: (record(i, answer=None), "no answer"),
    lambda i: (record(i, answer="<answer> </answer>"), "no answer"),
    lambda i: (record(i, answer=float("nan")), "answer is nan"),
    lambda i: (record(i, images=["missing.png"]), "No such file"),
    lambda i: (record(i, images=["empty.png"]), "the file is empty"),
    lambda i: (record(i, images=["cut.png"]), "truncated|broken"),
    lambda i: (record(i, images=["text.png"]), "not an image"),
    lambda i: (record(i, images=["bomb.png"]), "over the limit"),
    lambda i: (record(i, images=[17]), "is not an image"),
    lambda i: (record(i, images=["p1.png", "p2.png"]), "1 <image> markers for 2 images"),
    lambda i: (record(i, images=[]), "1 <image> markers for 0"),
    lambda i: (record(i, problem=17), "its question is int"),
    lambda i: (record(i, problem=""), "no question"),
    lambda i: (record(i, id="g3"), "duplicate id 'g3', first at"),
    lambda i: (json.dumps({"id": f"b{i}", "answer": "x"}), "the field `problem` is missing"),
    lambda i: (record(i, videos=["no.mp4"]), "no such file"),
    lambda i: (record(i, videos=["text.mp4"]), "cannot decode"),
]


def write_folder(root):
    """Write `rows.jsonl` and its media. Returns (line, pattern of its fault, or "" for a usable row) for each
    line."""
    for i in range(10):
        Image.effect_noise((40, 40), 60).convert("RGB").save(root / f"p{i}.png")
    whole = (root / "p0.png").read_bytes()
    for name, content in {
        "empty.png": b"",
        "cut.png": whole[:900],
        "text.png": b"hi",
        "text.mp4": b"hi",
    }.items():
        (root / name).write_bytes(content)
    Image.new("L", (400, 400)).save(root / "bomb.png")
    lines = [(good(i), "") for i in range(1000)]
    rng = random.Random(0)
    for i in range(200):
        lines.insert(rng.randrange(10, len(lines)), BREAKS[i % 20](1000 + i))
    lines.insert(500, ("   ", "blank"))  # no record, yet a line
    (root / "rows.jsonl").write_text("\n".join(text for text, _ in lines))
    return lines
