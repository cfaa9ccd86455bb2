"""A long run among faults, killed again and again, against one that is left alone: `python -m benchmarks.soak
2000 [--kill-every 200] [--output DIR]`.

1 row in 100 cannot be used; 1 verdict, 1 call of the tool and 1 call of the judge in 100 raise. The process,
with its engine, is killed (SIGKILL) at a random moment of every `kill-every` steps and resumed. Checked:
every step is logged once; metrics, weights, counters, events, the judge's replies and the quarantine equal
those of the run that was left alone (so nothing is lost and nothing counted twice); memory and open files of
every process are level. Exit status 1 if not. Both runs go on side by side. The file is also the plug-in file
of its runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from benchmarks import cli
from vlrl.engine.fake import Fake
from vlrl.plugins.contexts import CallbackContext
from vlrl.plugins.episodes import Action, Episode, Observation
from vlrl.plugins.registry import register
from vlrl.plugins.stages import Callback, Environment, Reward, Source
from vlrl.services.files import append_jsonl, read_jsonl
from vlrl.types import Completion, Group, Media, Request, Rollout, Row

PROCESS = "process.jsonl"
MAX_GROWTH_MB = 16.0  # of a process between the second and the last quarter of its samples
WARM_UP = 10  # first samples of a process, which are left out: libraries are loaded when they are first used


@dataclass(frozen=True)
class NoPicture(Media):
    """A picture in a run whose policy reads text alone: the row fails when it is drawn."""

    kind = "image"

    @property
    def key(self) -> str:
        return "none"

    def load(self) -> Any:
        raise AssertionError("not reached: the text policy refuses the row")

    def check(self) -> None:
        """Nothing to check."""


@register("soak_rows")
@dataclass(frozen=True, kw_only=True)
class SoakRows(Source):
    """1,000 sums, of which every hundredth row cannot be used. vlrl original (a test's own)."""

    def __call__(self) -> Sequence[Row]:
        broken, meta = (NoPicture(),), {"constraints": ["It is short."]}
        rows = range(1000)
        return [
            Row(
                f"r{i}",
                f"{i} + 1?",
                str(i + 1),
                images=broken if i % 100 == 7 else (),
                origin=f"rows:{i}",
                meta=meta,
            )
            for i in rows
        ]


@register("soak_verdict")
@dataclass(frozen=True, kw_only=True)
class SoakVerdict(Reward):
    """A checksum of the tokens as a score; raises for 1 in 100 of them. vlrl original (a test's own)."""

    def __call__(self, rollout: Rollout) -> float:
        value = zlib.crc32(repr((rollout.row.id, rollout.ids)).encode())
        if value % 100 == 3:
            raise RuntimeError("the verifier has a fault")
        return value % 7 / 6


@register("soak_tool")
@dataclass(frozen=True, kw_only=True)
class SoakTool(Environment):
    """Answers the first turn of half of the conversations; 1 call in 100 raises. vlrl original (a test's
    own)."""

    stops: ClassVar[tuple[str, ...]] = tuple("aeiou 0123456789")

    def episode(self) -> Episode:
        return SoakEpisode()


class SoakEpisode(Episode):
    """One conversation with the tool."""

    def reset(self, row: Row, seed: int) -> Observation:
        self.row = row.id
        return Observation()

    def step(self, action: Action) -> Observation:
        value = zlib.crc32(repr(("tool", self.row, action.turn, action.text)).encode())
        if value % 100 == 3:
            raise ConnectionError("the tool has a fault")
        return Observation("go on") if value % 2 else Observation(done=True)


@register("soak_judge")
@dataclass(frozen=True)
class SoakJudge(Fake):
    """A judge that says yes to half of its questions. 1 question in 400 cannot be asked: with four to a call,
    1 call in 100. vlrl original."""

    def generate(self, requests: Sequence[Request]) -> Iterator[Completion]:
        values = [zlib.crc32(request.prompt.text.encode()) for request in requests]
        if any(value % 400 == 3 for value in values):
            raise ConnectionError("the judge has a fault")
        for request, value in zip(requests, values, strict=True):
            yield Completion(request, 0, [], [], "yes" if value % 2 else "no", "stop", 0)


@register("soak_process")
@dataclass(frozen=True, kw_only=True)
class SoakProcess(Callback):
    """Writes the memory and the open files of the process beside the run's log, every 10 steps. vlrl original
    (a test's own)."""

    def __call__(self, run: CallbackContext, groups: Sequence[Group]) -> Mapping[str, float]:
        if run.step % 10 == 0:
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
            files = len(os.listdir("/proc/self/fd"))
            append_jsonl(
                run.output / PROCESS,
                {
                    "pid": os.getpid(),
                    "step": run.step,
                    "mb": pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
                    "files": files,
                },
            )
        return {}


def command(output: Path, steps: int) -> list[str]:
    """`vlrl train` of a run of the soak."""
    words = [
        "policy={name: text, tiny: {hidden: 16, layers: 1, heads: 2, kv_heads: 1, intermediate: 32}}",
        f"plugins=[{Path(__file__).resolve()}]",
        "data.train.sums={name: soak_rows}", "rewards.verdict={name: soak_verdict}",
        "callbacks.process={name: soak_process}",
        "rewards.judge={name: judged, weight: 0.5, judge: {model: soak@1, engine: {name: soak_judge}}}",
        "rollout={name: multi_turn, max_turns: 2}", "environment={name: soak_tool}",
        "sampling={name: plain, max_tokens: 4}",
        "prompts_per_step=2", "group_size=4", f"steps={steps}", "threads=1", f"output={output}",
        "watch={checkpoint_every: 25, rollouts_every: 50, keep: 2, live: false, activity_steps: 0}",
    ]  # fmt: skip
    return [sys.executable, "-m", "vlrl", "train", "base/rl", "methods/grpo", *words]


def left_alone(output: Path, steps: int) -> None:
    """The run without kills. Raises CalledProcessError."""
    subprocess.run(command(output, steps), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def killed(output: Path, steps: int, every: int, pick: random.Random) -> int:
    """The same run, killed at a random moment of every `every` steps and resumed; returns the number of
    kills. Raises RuntimeError."""
    kills, log = 0, output.with_name("killed.log")
    while True:
        with log.open("a", encoding="utf-8") as file:
            process = subprocess.Popen(
                [*command(output, steps), *(["--resume"] if kills else [])], stdout=file, stderr=file
            )
        at = (kills + 1) * every - pick.randrange(every // 2)
        while process.poll() is None:
            done = (
                (output / "metrics.jsonl").read_bytes().count(b"\n")
                if (output / "metrics.jsonl").is_file()
                else 0
            )
            if at <= done and at < steps:
                time.sleep(pick.random() * 0.2)
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.01)
        code = process.wait()
        if code == 0:
            return kills
        if code != -signal.SIGKILL:
            raise RuntimeError(f"the run ended with {code}: {log.read_text(encoding='utf-8')[-2000:]}")
        kills += 1


def figures(output: Path) -> dict[str, Any]:
    """What must be equal in both runs."""
    last = sorted((output / "checkpoints").glob("step-*"))[-1]
    events = read_jsonl(output / "events.jsonl")
    state = json.loads((last / "trainer" / "state.json").read_text(encoding="utf-8"))
    return {
        "metrics": (output / "metrics.jsonl").read_text(encoding="utf-8"),
        "steps": [row["step"] for row in read_jsonl(output / "metrics.jsonl")],
        "weights": hashlib.sha256((last / "model.safetensors").read_bytes()).hexdigest(),
        "rows": state["bad_rows"],
        "verdicts": state["stats"],
        "quarantine": sorted(row["id"] for row in read_jsonl(output / "quarantine.jsonl")),
        "events": [(row["step"], row["message"]) for row in events if row["kind"] == "warning"],
        "replies": sorted(row["key"] for row in read_jsonl(output / "judge" / "replies-0.jsonl")),
        "rollouts": sorted(path.name for path in (output / "rollouts").glob("*.parquet")),
    }


def growth(output: Path) -> tuple[float, int, int]:
    """(largest growth of memory in MB, largest growth of open files, number of processes with enough
    samples), second to last quarter of each."""
    lives: dict[int, list[dict[str, Any]]] = {}
    for row in read_jsonl(output / PROCESS):
        lives.setdefault(row["pid"], []).append(row)
    long = [rows[WARM_UP:] for rows in lives.values() if len(rows) >= WARM_UP + 8]

    def change(rows: list[dict[str, Any]], name: str) -> float:
        quarter = len(rows) // 4
        early, late = rows[quarter : 2 * quarter], rows[-quarter:]
        return statistics.median(row[name] for row in late) - statistics.median(row[name] for row in early)

    return (
        max((change(rows, "mb") for rows in long), default=0.0),
        int(max((change(rows, "files") for rows in long), default=0)),
        len(long),
    )


def main() -> int:
    """Run both, compare, print the figures; the number of findings."""
    parser = cli.Parser(__doc__)
    parser.add_argument("steps", type=int, help="steps of each run")
    parser.add_argument("--kill-every", type=int, default=200, help="steps between two kills")
    parser.add_argument("--output", type=Path, help="where the runs stay; by default nowhere")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the kills")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        place = options.output or Path(scratch)
        place.mkdir(parents=True, exist_ok=True)
        begun = time.time()
        with ThreadPoolExecutor(1) as pool:
            alone = pool.submit(left_alone, place / "alone", options.steps)
            kills = killed(place / "killed", options.steps, options.kill_every, random.Random(options.seed))
            alone.result()
        one, other = figures(place / "alone"), figures(place / "killed")
        found = [f"{name} differ" for name in one if one[name] != other[name]]
        if one["steps"] != list(range(1, options.steps + 1)):
            found.append("steps are missing or repeated")
        faults = Counter(
            name
            for _, said in one["events"]
            for name in ("verdict", "soak_tool", "judge")
            if f"{name!r} raised" in said
        )
        missing, twice = (
            Counter(one["events"]) - Counter(other["events"]),
            Counter(other["events"]) - Counter(one["events"]),
        )
        memory, files, lives = growth(place / "alone")
        killed_memory, killed_files, killed_lives = growth(place / "killed")
        if max(memory, killed_memory) > MAX_GROWTH_MB or max(files, killed_files) > 2:
            found.append("memory or open files grow")
    rows, verdicts = one["rows"], one["verdicts"]
    print(
        f"{options.steps} steps twice in {time.time() - begun:.0f} s, {kills} kills; rows: {rows['bad']} "
        f"of {rows['drawn']} could not be used"
    )
    print(
        f"rollouts: {verdicts['score_errors']} of {verdicts['scored']} got no score; rows in quarantine: "
        f"{len(one['quarantine'])}"
    )
    print(
        (
            f"warnings by what raised: {dict(faults)}; events: {len(one['events'])}, {missing.total()} "
            "lost, "
            f"{twice.total()} there twice; "
        ),
        end="",
    )
    print(
        f"replies of the judge: {len(one['replies'])}, "
        f"{len(other['replies']) - len(set(other['replies']))} there twice"
    )
    print(
        f"growth: {memory:.1f} MB, {files} files in the whole run; at most {killed_memory:.1f} MB, "
        f"{killed_files} files in {killed_lives} lives"
    )
    print(
        "; ".join(found)
        if found
        else f"nothing lost, nothing counted twice ({lives + killed_lives} processes measured)"
    )
    return len(found)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
