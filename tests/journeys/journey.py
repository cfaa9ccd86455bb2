"""What the journeys share: commands as a user types them, in a folder of their own, and pictures of
clocks."""

import json
import math
import os
import subprocess
import sys

from PIL import Image, ImageDraw

LIMIT = 300  # seconds of a journey on a machine with nothing else to do; CPU-seconds on any other
PATH = os.environ.get(
    "VLRL_JOURNEY_PATH", ""
)  # a folder with the unpacked wheel: journeys then run that instead of the source tree


def vlrl(folder, *words, code=0):
    """Run `vlrl WORDS` in `folder`; returns standard output. Fails where the exit code is another."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    environment |= {"PYTHONPATH": PATH} if PATH else {}
    command = [sys.executable, "-m", "vlrl", *map(str, words)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=4 * LIMIT
    )
    assert done.returncode == code, f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def last_metrics(run):
    return json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])


def clock(hour, size=56, shade=255):
    """A picture of a clock's face on a ground of some shade."""
    picture = Image.new("RGB", (size, size), (shade, shade, 255))
    draw = ImageDraw.Draw(picture)
    draw.ellipse((2, 2, size - 3, size - 3), outline="black", width=2)
    angle, middle = math.radians(hour * 30 - 90), size / 2
    draw.line(
        (middle, middle, middle + 0.4 * size * math.cos(angle), middle + 0.4 * size * math.sin(angle)),
        fill="red",
        width=4,
    )
    return picture


def clocks(folder, rows, **columns):
    """Pictures and a JSONL of questions about them; returns the file."""
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    lines = []
    for n in range(rows):
        hour = n % 4 * 3 or 12
        clock(hour, shade=255 - 3 * n).save(folder / "pictures" / f"{n}.png")
        lines.append({"question": "Which hour?", "answer": str(hour), "image": f"{n}.png", **columns})
    (folder / "clocks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / "clocks.jsonl"
