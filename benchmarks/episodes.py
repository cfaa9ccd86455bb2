"""Many episodes at once among hanging and crashing tools: `python -m benchmarks.episodes [--steps 20]
[--kill-every 7] [--output DIR]`.

A run of `vlrl train` plays 512 episodes in each step (64 prompts, 8 conversations each), so that 20 steps are
10,240 episodes. Every episode has a process of its own (a shell), pipes to it and a temporary folder; 5 % of
these tools hang in a call, with a child of theirs, until the deadline, and 2 % are killed in one. The run is
played twice: left alone, and killed (SIGKILL) at a random moment of every `kill-every` steps and resumed.
Checked:

- every episode ends as `done` or as an environment error that is counted, 512 in each step;
- after the run, and after every kill, no process of an episode is alive and no folder is left;
- threads, open files and memory of the training process do not grow over the episodes (memory in use: without
  what the allocator keeps for later);
- the run that was killed holds the same episodes, word by word, as the run that was left alone: none twice,
  none lost.

Exit status 1 if one of them fails. `--steps 2 --prompts 8` is a short version. The file is also the plug-in
file of its runs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from benchmarks import cli
from benchmarks.meter import release_memory
from vlrl.plugins.contexts import CallbackContext
from vlrl.plugins.episodes import Action, Episode, Observation
from vlrl.plugins.registry import register
from vlrl.plugins.stages import Callback, Environment, Source
from vlrl.services.files import TRAJECTORIES, append_jsonl, read_jsonl
from vlrl.services.reaper import PREFIX, REAPER
from vlrl.types import Group, Row

GROUP = 8
HANGING, CRASHING = 5, 2  # of 100 episodes
PROCESS = "process.jsonl"
TOOL = "vlrl-bench-tool"  # the name of every tool's process
# of the training process between the second and the last quarter of its steps: 3 KB per episode of 20 steps
# of 512
MAX_GROWTH_MB = 32.0
# a tool: one line per call. "hang" waits for a child of its own, "die" kills itself in the middle of a call
SHELL = (
    'while read -r word; do case $word in hang) sleep 100000;; die) kill -9 $$;; *) echo "$word" >> calls; '
    'echo "heard $word";; esac; done'
)


@register("bench_rows")
@dataclass(frozen=True, kw_only=True)
class BenchRows(Source):
    """1,000 rows without an answer: the environment pays. vlrl original (a measurement's own)."""

    @property
    def own_rewards(self) -> Mapping[str, Mapping[str, Any]]:
        """The environment's return."""
        return {"paid": {"name": "environment_return", "weight": 1.0}}

    def __call__(self) -> Sequence[Row]:
        return [Row(f"r{i}", f"Play game {i}.") for i in range(1000)]


@register("bench_shell")
@dataclass(frozen=True, kw_only=True)
class BenchShell(Environment):
    """Three calls of a process of the episode's own, which hangs or dies in a share of the episodes. vlrl
    original (a measurement's own)."""

    stops: ClassVar[tuple[str, ...]] = tuple("aeiou 0123456789")
    turns: int = 3

    def episode(self) -> Episode:
        return ShellEpisode(self.turns)


class ShellEpisode(Episode):
    """A shell in a folder of its own. What happens in it is a function of the row and of the policy's first
    turn."""

    def __init__(self, turns: int) -> None:
        self.turns, self.fate = turns, ""
        self.folder: Path | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def reset(self, row: Row, seed: int) -> Observation:
        self.row = row.id
        self.folder = REAPER.folder()
        self.process = REAPER.spawn(
            ["sh", "-c", SHELL, TOOL], cwd=self.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return Observation("Begin.")

    def step(self, action: Action) -> Observation:
        value = zlib.crc32(repr((self.row, action.turn, action.text)).encode())
        if action.turn == 1:
            self.fate = "hang" if value % 100 < HANGING else "die" if value % 100 < HANGING + CRASHING else ""
        word = self.fate if self.fate and action.turn == 2 else f"turn{action.turn}"
        assert self.process and self.process.stdin and self.process.stdout
        self.process.stdin.write(word.encode() + b"\n")
        self.process.stdin.flush()
        said = self.process.stdout.readline().decode().strip()
        if said != f"heard {word}":
            raise ConnectionError("the tool is gone")
        return Observation(said, reward=value % 7 / 6, done=action.turn >= self.turns, calls=1)

    def close(self) -> None:
        if self.process is not None:
            REAPER.end(self.process)
        if self.folder is not None:
            REAPER.remove(self.folder)


@register("bench_process")
@dataclass(frozen=True, kw_only=True)
class BenchProcess(Callback):
    """Writes memory in use, open files, threads, folders and tools of the process after every step. vlrl
    original (a measurement's own)."""

    def __call__(self, run: CallbackContext, groups: Sequence[Group]) -> Mapping[str, float]:
        waited = time.monotonic() + 10.0
        while time.monotonic() < waited and any(thread.name == "episode" for thread in threading.enumerate()):
            time.sleep(0.02)  # threads that close what hung
        release_memory()
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        used = {
            "mb": pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
            "files": len(os.listdir("/proc/self/fd")),
            "threads": threading.active_count(),
        }
        cpu = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = {
            "cpu": cpu[0].ru_utime + cpu[0].ru_stime,
            "children_cpu": cpu[1].ru_utime + cpu[1].ru_stime,
        }
        left = {"folders": len(folders()), "tools": len(tools(os.getpid()))}
        append_jsonl(
            run.output / PROCESS,
            {"pid": os.getpid(), "step": run.step, "time": time.time(), **used, **seconds, **left},
        )
        return {}


def folders() -> list[Path]:
    """Folders of episodes in the temporary folder, which is this measurement's own."""
    return list(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))


def tools(parent: int = 0) -> list[int]:
    """Processes in a session that a tool of this measurement leads: tools, and what they started. With
    `parent`, its children alone."""
    found, marked = [], os.environ.get("BENCH_EPISODES", "").encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words, own = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
            state = (entry / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:  # gone
            continue
        is_tool = TOOL.encode() in words or words.startswith(b"sleep\x00100000")
        if (
            is_tool
            and b"BENCH_EPISODES=" + marked in own
            and state[0] != b"Z"
            and (not parent or int(state[1]) == parent)
        ):
            found.append(int(entry.name))
    return found


def left_over(seconds: float = 10.0) -> list[str]:
    """What is left of ended processes after at most `seconds`."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and (tools() or folders()):
        time.sleep(0.05)
    return [f"process {pid}" for pid in tools()] + [f"folder {path}" for path in folders()]


def command(output: Path, options: argparse.Namespace) -> list[str]:
    """`vlrl train` of a run of the measurement."""
    words = [
        "policy={name: text, tiny: {hidden: 16, layers: 1, heads: 2, kv_heads: 1, intermediate: 32}}",
        f"plugins=[{Path(__file__).resolve()}]",
        "data.train.games={name: bench_rows}", "callbacks.process={name: bench_process}",
        f"rollout={{name: multi_turn, max_turns: 4, patience: {options.patience:g}}}",
        f"environment={{name: bench_shell, concurrency: 64, turn_seconds: {options.turn_seconds:g}, "
        "retries: 0, record: 1000000}",
        "sampling={name: plain, max_tokens: 64}", f"prompts_per_step={options.prompts}",
        f"group_size={GROUP}", f"steps={options.steps}", "threads=1",
        f"output={output}", "error_limit=0.2",
        "watch={checkpoint_every: 2, rollouts_every: 0, keep: 2, live: false, activity_steps: 0}",
    ]  # fmt: skip
    return [sys.executable, "-m", "vlrl", "train", "base/rl", "methods/grpo", *words]


def play(
    output: Path, options: argparse.Namespace, kill_every: int, pick: random.Random
) -> tuple[int, list[str]]:
    """A run to its end, killed and resumed on the way where `kill_every` is not 0. Returns (kills, what was
    left over). Raises RuntimeError."""
    kills, log, left = 0, output.with_suffix(".log"), []
    while True:
        with log.open("a", encoding="utf-8") as file:
            process = subprocess.Popen(
                [*command(output, options), *(["--resume"] if kills else [])], stdout=file, stderr=file
            )
        at = (kills + 1) * kill_every - 1 if kill_every else options.steps
        while process.poll() is None:
            if at < options.steps and done_steps(output) >= at:
                time.sleep(pick.random() * 4.0)  # somewhere in the next step
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.02)
        code = process.wait()
        left += left_over()
        if code == 0:
            return kills, left
        if code != -signal.SIGKILL:
            raise RuntimeError(f"the run ended with {code}: {log.read_text(encoding='utf-8')[-2000:]}")
        kills += 1


def done_steps(output: Path) -> int:
    """Steps in the log."""
    path = output / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def episodes(output: Path) -> Counter[str]:
    """All recorded episodes, as texts: step, row, what was said, how it ended."""
    return Counter(json.dumps(row, sort_keys=True) for row in read_jsonl(output / TRAJECTORIES))


def check(output: Path, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """(figures of a run, what is wrong with it)."""
    wrong: list[str] = []
    metrics, wanted = read_jsonl(output / "metrics.jsonl"), options.prompts * GROUP
    totals = {
        name: sum(row.get(f"environment/{name}", 0.0) for row in metrics)
        for name in ("episodes", "end/done", "end/error")
    }
    if [row["step"] for row in metrics] != list(range(1, options.steps + 1)):
        wrong.append("steps are missing or repeated")
    for row in metrics:
        ended = row.get("environment/end/done", 0.0) + row.get("environment/end/error", 0.0)
        if not row["environment/episodes"] == ended == wanted:
            wrong.append(
                f"step {row['step']}: {row['environment/episodes']:g} episodes, {ended:g} ended as done or "
                f"error, {wanted} begun"
            )
    if metrics[-1]["reward/errors"] != totals["end/error"]:
        wrong.append(
            f"{metrics[-1]['reward/errors']:g} rollouts without a reward, {totals['end/error']:g} episodes "
            "with an error"
        )
    recorded = Counter(json.loads(text)["step"] for text in episodes(output).elements())
    if recorded != Counter(dict.fromkeys(range(1, options.steps + 1), wanted)):
        wrong.append(f"recorded episodes per step: {dict(recorded)}, {wanted} wanted")
    lives: dict[int, list[dict[str, Any]]] = {}
    for row in read_jsonl(output / PROCESS):
        lives.setdefault(row["pid"], []).append(row)
    growth = {
        name: max((change(rows, name) for rows in lives.values() if len(rows) >= 16), default=0.0)
        for name in ("mb", "files", "threads")
    }
    if growth["mb"] > MAX_GROWTH_MB or growth["files"] > 0 or growth["threads"] > 0:
        wrong.append(f"the process grows: {growth}")
    if any(row["folders"] or row["tools"] for rows in lives.values() for row in rows):
        wrong.append("folders or processes of ended episodes while the run goes on")
    cpu = sum(rows[-1]["cpu"] + rows[-1]["children_cpu"] for rows in lives.values())
    return {**totals, **growth, "mb_last": list(lives.values())[-1][-1]["mb"], "cpu": cpu}, wrong


def change(rows: Sequence[Mapping[str, float]], name: str) -> float:
    """Growth of a figure of one process, from the second to the last quarter of its steps (of at least 16:
    caches fill at first)."""
    quarter = len(rows) // 4
    return statistics.median(row[name] for row in rows[-quarter:]) - statistics.median(
        row[name] for row in rows[quarter : 2 * quarter]
    )


def main() -> int:
    """Play both runs, compare them, print the figures; the number of findings."""
    parser = cli.Parser(__doc__)
    parser.add_argument("--steps", type=int, default=20, help="steps of each run")
    parser.add_argument(
        "--prompts", type=int, default=64, help=f"prompts of a step; episodes are {GROUP} times as many"
    )
    parser.add_argument("--kill-every", type=int, default=7, help="steps between two kills")
    parser.add_argument(
        "--turn-seconds",
        type=float,
        default=10.0,
        help="deadline of a call, which a tool that hangs waits for",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=20.0,
        help="seconds that a round waits for its slowest tool; above the deadline, rounds are equal",
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed of the kills")
    parser.add_argument("--output", type=Path, help="where the runs stay; by default nowhere")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        place = (options.output or Path(scratch) / "runs").resolve()
        place.mkdir(parents=True, exist_ok=True)
        own = Path(scratch) / "tmp"  # temporary folder of the runs: all that is left in it is theirs
        own.mkdir()
        os.environ |= {
            "TMPDIR": str(own),
            "BENCH_EPISODES": f"{os.getpid()}-{time.time_ns()}",
            "OMP_NUM_THREADS": "1",
        }
        tempfile.tempdir = str(own)
        found: list[str] = []
        for name, every in (("alone", 0), ("killed", options.kill_every)):
            begun = time.time()
            kills, left = play(place / name, options, every, random.Random(options.seed))
            figures, wrong = check(place / name, options)
            found += [f"{name}: {text}" for text in (*wrong, *left)]
            ends = f"{figures['end/done']:.0f} done, {figures['end/error']:.0f} environment errors"
            print(f"{name}: {kills} kills, {figures['episodes']:.0f} episodes: {ends};")
            print(
                (
                    f"  growth of the process {figures['mb']:+.1f} MB (to {figures['mb_last']:.0f}), "
                    f"{figures['files']:+.0f} open files, "
                ),
                end="",
            )
            print(
                (
                    f"{figures['threads']:+.0f} threads; left over: {len(left)}; {figures['cpu']:.0f} "
                    f"CPU-seconds, {time.time() - begun:.0f} s"
                ),
                flush=True,
            )
        one, other = episodes(place / "alone"), episodes(place / "killed")
        lost, more = one - other, other - one
        print(
            f"episodes of the killed run: {other.total()}, {lost.total()} lost, {more.total()} that the "
            "other run has not"
        )
        same = (place / "alone" / "metrics.jsonl").read_bytes() == (
            place / "killed" / "metrics.jsonl"
        ).read_bytes()
        print(f"metrics of the two runs: {'equal' if same else 'different'}")
        found += [f"{lost.total()} episodes lost"] * bool(lost) + [
            f"{more.total()} episodes repeated"
        ] * bool(more)
        os.environ.pop("TMPDIR")
        tempfile.tempdir = None
    print("\n".join(found) if found else "nothing left over, nothing lost, nothing twice")
    return len(found)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
