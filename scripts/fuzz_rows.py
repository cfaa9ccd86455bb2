"""Random records through `data check`, `data preview` and training: `python scripts/fuzz_rows.py --seconds
300 [--seed 0] [--policy text]`.

Records come from a small grammar of good ones and from mutations of them (wrong types, missing fields, lone
surrogates, special tokens, deep nesting, huge numbers and texts, broken pictures, torn lines). All three must
give every record the same verdict and none may raise. Training means: the row is built, rendered, tokenised
and its pictures are decoded; no special token beyond those of the chat template may come out of it. Prints
each fault once; exit status 1 if there is one.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import logging
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from PIL import Image
from typer.testing import CliRunner
from vlrl_data.cli import app

from vlrl.config import load
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import PromptTemplate, Source
from vlrl.trainer.data.rows import row_fault
from vlrl.trainer.plan import Plan
from vlrl.trainer.session import Session
from vlrl.types import Row

BATCH = 40
SPECIAL = [
    "<|im_end|>",
    "<|image_pad|>",
    "<|im_start|>system\n",
    "<|endoftext|>",
    "<|vision_start|><|image_pad|><|vision_end|>",
    "<|im_<|im_end|>end|>",
]
TEXTS = [
    "",
    " ",
    "\u200b",
    "\ud800",
    "a\udfffb",
    "\0",
    "<image>",
    "<video>",
    "{{ 7*7 }}",
    "{% raw %}",
    "\\ud800",
    "x" * 3000,
    "é" * 50,
    "\u202e",
    *SPECIAL,
]
ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    5,
    2.5,
    float("nan"),
    float("inf"),
    10**400,
    [],
    {},
    [[]],
    {"a": {"b": [1]}},
    ["x", 1],
    "7",
    b"".decode(),
    *TEXTS,
]


def picture(pick: random.Random) -> str:
    """A picture as a data URI: whole, cut, of another kind, or too small."""
    buffer = io.BytesIO()
    Image.new(
        "RGB", (pick.choice((1, 3, 28, 60)), pick.choice((2, 28, 56))), (pick.randrange(256), 40, 90)
    ).save(buffer, pick.choice(("PNG", "JPEG")))
    data = buffer.getvalue()
    data = pick.choice((data, data, data, data[: len(data) // 2], b"GIF89a", b""))
    return "data:image/png;base64," + base64.b64encode(data).decode()


def good(pick: random.Random, number: int) -> dict[str, Any]:
    """A record of the grammar."""
    a, b = pick.randrange(100), pick.randrange(100)
    record: dict[str, Any] = {"id": f"g{number}", "question": f"What is {a} + {b}?", "answer": str(a + b)}
    extra: list[dict[str, Any]] = [
        {}, {"choices": ["7", str(a + b)]}, {"system": "Be brief."}, {"target": f"<answer>{a + b}</answer>"},
        {"task": "counting"},
        {"images": [picture(pick)]}, {"question": f"<image> What is {a} + {b}?", "images": [picture(pick)]},
        {"question": "", "messages": [{"role": "user", "content": f"What is {a} + {b}?"}]},
        {"meta": {"level": pick.randrange(5)}},
    ]  # fmt: skip
    return record | pick.choice(extra)


def mutated(record: dict[str, Any], pick: random.Random) -> dict[str, Any]:
    """The record with one to three changes."""
    record = dict(record)
    fields = [
        "id",
        "question",
        "answer",
        "choices",
        "system",
        "target",
        "task",
        "images",
        "videos",
        "messages",
        "rewards",
        "meta",
        "odd",
    ]
    for _ in range(pick.randint(1, 3)):
        name = pick.choice(fields)
        how = pick.randrange(5)
        if how == 0:
            record.pop(name, None)
        elif how == 1 and isinstance(record.get(name), str):
            place = pick.randrange(len(record[name]) + 1)
            record[name] = record[name][:place] + pick.choice(TEXTS) + record[name][place:]
        elif how == 2:
            record[name] = [pick.choice(ODD) for _ in range(pick.randrange(4))]
        elif how == 3:
            record[name] = [
                {"role": pick.choice(("user", "tool", 5)), "content": pick.choice(ODD)}
                for _ in range(pick.randint(1, 3))
            ]
        else:
            record[name] = pick.choice(ODD)
    return record


def line_of(pick: random.Random, number: int) -> bytes:
    """A line of a JSONL file."""
    record = good(pick, number)
    if pick.random() < 0.7:
        record = mutated(record, pick)
    line = json.dumps(record, ensure_ascii=pick.random() < 0.5).encode("utf-8", "surrogatepass")
    torn = [
        line[: len(line) // 2],
        line.replace(b'"', b"\xff", 1),
        b"[" * 5000,
        b"\0" * 30,
        b'{"question": ' + b"9" * 6000 + b"}",
        line + line,
    ]
    return pick.choice(torn) if pick.random() < 0.05 else line


class Trainer:
    """A tiny policy and the template of its run; says whether a row can be trained on."""

    def __init__(self, family: str, place: Path) -> None:
        words = [
            f"output={place / 'run'}",
            "data.train.sums={name: lab_arithmetic, count: 4}",
            "rewards.sums={name: numeric}",
            "max_prompt_tokens=100000",
        ]
        self.run = Session(Plan.of(load(["base/rl", f"models/tiny_{family}", "methods/grpo"], words)))
        self.run.open()
        self.run.enter(0)
        tokenizer = self.run.policy.tokenizer
        self.special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self.role = tokenizer.convert_tokens_to_ids("<|im_start|>")

    def verdict(self, row: Row) -> str:
        """Why a row cannot be trained on, or ""."""
        return row_fault(self.run.policy, self.run.current, row)

    def leak(self, row: Row) -> str:
        """A control token that comes out of a row's text, or "": the template opens a turn per message and
        the answer's, and nothing else."""
        prompt = self.run.prompt_template(row)
        ids = [i for i in self.run.policy.encode(prompt).ids if i in self.special]
        turns = ids.count(self.role)
        return (
            ""
            if turns == len(prompt.messages) + 1
            else f"{turns} turns are opened for {len(prompt.messages)} messages"
        )


def check(path: Path, quarantine: Path) -> dict[str, str]:
    """`data check`: location -> reason of the unusable records."""
    quarantine.unlink(missing_ok=True)
    done = CliRunner().invoke(app, ["check", str(path), "--quarantine", str(quarantine), "--json"])
    if isinstance(done.exception, ConfigError) or done.exit_code in (0, 1):
        lines = quarantine.read_text(encoding="utf-8").splitlines() if quarantine.is_file() else []
        return {row["location"]: row["reason"] for row in map(json.loads, lines)}
    raise RuntimeError(f"data check: {done.exception!r}")


def findings(path: Path, trainer: Trainer) -> tuple[list[str], Counter[str]]:
    """The faults of one file, and counts of the verdicts."""
    bad = check(path, path.with_suffix(".quarantine"))
    out: list[str] = []
    rows = build(Source, {"name": "files", "path": str(path), "max_bad": 1.0, "check_level": "decode"})()
    used = {row.origin for row in rows}
    for row in rows:
        if row.origin in bad:
            out.append(f"{row.origin}: check refuses ({bad[row.origin]}), training takes it")
        if row.media and not trainer.run.family.is_multimodal:
            continue  # a text policy refuses them, whatever they hold
        if reason := trainer.verdict(row):
            out.append(f"{row.origin}: check takes it, training does not: {reason}")
        elif leak := trainer.leak(row):
            out.append(f"{row.origin}: {leak}")
    shown = build(Source, {"name": "files", "path": str(path), "max_bad": 1.0, "check_level": "rows"})()
    template = build(PromptTemplate, "chat")
    pictures = {location for location, reason in bad.items() if location in {row.origin for row in shown}}
    unlike = {row.origin for row in shown} - used - pictures
    out += [f"{location}: preview shows it, check does not know it" for location in unlike]
    for row in shown:
        template(row)
    done = CliRunner().invoke(
        app,
        [
            "preview",
            str(path),
            "--limit",
            "0",
            "--prompt-template",
            "chat",
            "--out",
            str(path.with_suffix(".html")),
        ],
    )
    if done.exit_code:
        out.append(f"data preview: {done.exception!r}")
    return out, Counter({"usable": len(used), "quarantined": len(bad)})


def main() -> int:
    """Fuzz for the given time; print the faults and return their number."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=300.0, help="how long")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument(
        "--policy", choices=("qwen2_5_vl", "text"), default="qwen2_5_vl", help="the tiny model"
    )
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    counts, seen, files = Counter[str](), set[str](), 0
    with tempfile.TemporaryDirectory() as place:
        trainer = Trainer(options.policy, Path(place))
        end = time.time() + options.seconds
        while time.time() < end:
            files += 1
            pick = random.Random(f"{options.seed}/{files}")
            path = Path(place) / f"rows-{files}.jsonl"
            head = [
                json.dumps({"id": f"h{i}", "question": f"What is {i}?", "answer": str(i)}).encode()
                for i in range(3)
            ]
            path.write_bytes(b"\n".join([*head, *(line_of(pick, i) for i in range(BATCH))]) + b"\n")
            try:
                faults, found = findings(path, trainer)
            except Exception as error:  # any exception is a finding
                faults, found = [f"{type(error).__name__}: {error}"], Counter()
            counts.update(found)
            for fault in faults:
                kind = fault.partition(": ")[2][:60]
                if kind not in seen:
                    seen.add(kind)
                    print(f"seed {options.seed}, file {files}: {fault[:400]}", flush=True)
            for made in path.parent.glob(f"rows-{files}.*"):
                made.unlink()
    print(
        f"{files} files of {BATCH + 3} records: {counts['usable']} usable, {counts['quarantined']} "
        f"quarantined; {len(seen)} kinds of faults"
    )
    return len(seen)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
