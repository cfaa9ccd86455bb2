"""A hardware module judged by simulation beside a golden one, under the same random stimulus.

Golden and answer are simulated apart, each in a sandbox of its own, and their outputs are compared outside:
the answer finds no expected output to copy, and what it prints is no result.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product
from math import ceil
from typing import Any, NamedTuple

from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.scoring import Answer, GoldError, Response, Unread, Verdict, verdict
from vlrl.types import Row
from vlrl_rewards.code.sandbox import Ran, SandboxLimits, require, run
from vlrl_rewards.graded import Graded
from vlrl_rewards.parsing import outside_thinking

MAX_CODE = 100_000
MAX_GOLDS = 8
# System tasks that neither end the simulation nor reach files, arguments or the testbench.
HARMLESS = frozenset({
    "signed", "unsigned", "clog2", "bits", "rtoi", "itor", "floor", "ceil", "pow", "sqrt", "ln", "log10",
    "exp", "display", "displayb", "displayh", "displayo", "write", "strobe", "monitor", "time", "stime",
    "realtime", "random", "urandom", "urandom_range", "error", "warning", "info",
})  # fmt: skip
FORM = ("<think>", "</think>", "<answer>", "</answer>")
_BLOCK = re.compile(r"```verilog\s*(.*?)\s*```", re.DOTALL)
# Escaped identifiers, comments and strings: what stands in them is no code.
_NOTES = re.compile(r'\\\S+|//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"', re.DOTALL)
_MODULE = re.compile(r"\bmodule\s+(?:automatic\s+|static\s+)?([A-Za-z_][\w$]*)(.*?)\bendmodule\b", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_][\w$]*")

# Runs inside the sandbox. The digest of each sequence of samples goes out; every other line is dropped.
HARNESS = """
import hashlib, os, shutil, subprocess

def simulate(design, bench, top, mark, most):
    if not (shutil.which("iverilog") and shutil.which("vvp")):
        return ["missing", ""]
    for name, text in (("design.sv", design), ("bench.sv", bench)):
        with open(name, "w") as file:
            file.write(text)
    place = dict(os.environ, TMPDIR=os.getcwd())
    built = subprocess.run(["iverilog", "-g2012", "-o", "out.vvp", "-s", top, "bench.sv", "design.sv"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=place)
    if built.returncode or not os.path.exists("out.vvp"):
        return ["compile", built.stdout.decode(errors="replace")[:400]]
    ran = subprocess.Popen(["vvp", "-n", "out.vvp"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env=place)
    head, found, size, done = mark.encode(), [], 0, False
    while True:
        line = ran.stdout.readline(1 << 20)
        size += len(line)
        if not line or size > most:
            break
        if line.startswith(head):
            word = line[len(head):]
            if word[:1] == b"#":
                found.append(hashlib.sha256())
            elif word[:1] == b"=" and found:
                found[-1].update(word)
            done = word[:1] == b"."
    ran.kill()
    ran.wait()
    return ["ok" if done else "unfinished", [one.hexdigest()[:24] for one in found]]
"""


class Golden(NamedTuple):
    """A golden module: its code, (name, bits) of its inputs and outputs, its clock as (name, rising edge),
    and its resets as (name, level that resets, whether with the clock)."""

    code: str
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, int], ...]
    clock: tuple[str, bool] | None = None
    resets: tuple[tuple[str, int, bool], ...] = ()


class Stimulus(NamedTuple):
    """`sequences` random sequences of `steps` samples, from `seed`."""

    sequences: int = 100
    steps: int = 1000
    seed: int = 0


class Place(NamedTuple):
    """Where simulations run: the sandbox's mode, and seconds for compiling and simulating."""

    sandbox: str = "bubblewrap"
    seconds: float = 30.0


def goldens_in(gold: Any) -> list[Golden]:
    """The golden modules of a gold: {"code", "input_port_width", "output_port_width", "clock_port_polarity",
    "reset_port_polarity_sync"}, or a mapping of names to such; either as JSON text.

    Raises GoldError on anything else.
    """
    try:
        if isinstance(gold, str):
            gold = json.loads(gold)
        several = [gold] if "code" in gold else list(gold.values())
        found = [_golden(one) for one in several]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise GoldError(f"gold: not a golden module with its ports ({error}): {str(gold)[:80]!r}") from None
    if not 1 <= len(found) <= MAX_GOLDS:
        raise GoldError(f"gold: {len(found)} golden modules; give 1 to {MAX_GOLDS}")
    return found


def _golden(one: Mapping[str, Any]) -> Golden:
    inputs, outputs = (
        tuple(sorted((str(name), int(width)) for name, width in one[f"{side}_port_width"] or ()))
        for side in ("input", "output")
    )
    clocks = [(str(name), bool(edge)) for name, edge in one.get("clock_port_polarity") or ()]
    resets = tuple(
        sorted(
            (str(n), int(level), bool(sync)) for n, level, sync in one.get("reset_port_polarity_sync") or ()
        )
    )
    names = [name for name, _ in (*inputs, *outputs)]
    controls = [clocks[0][0] if clocks else "", *(reset[0] for reset in resets)]
    if not outputs or len(clocks) > 1 or len(set(names)) < len(names):
        raise ValueError(f"{len(outputs)} outputs, {len(clocks)} clocks, ports {names}")
    if not all(map(_WORD.fullmatch, names)) or not {*filter(None, controls)} <= {name for name, _ in inputs}:
        raise ValueError(f"ports {names}, clock and resets {controls}")
    return Golden(str(one["code"]), inputs, outputs, clocks[0] if clocks else None, resets)


def module_in(text: str) -> str:
    """The last ```verilog block outside the thinking; "" if there is none."""
    blocks = _BLOCK.findall(outside_thinking(text))
    return blocks[-1] if blocks else ""


def refusal(code: str) -> str:
    """Why a text is not simulated: its length, no module, a system task or a directive that reaches past it;
    "" for nothing."""
    if len(code) > MAX_CODE or not top_of(code):
        return "no module" if len(code) <= MAX_CODE else f"more than {MAX_CODE:,} characters"
    bare = _NOTES.sub(" ", code)
    for name in re.findall(r"\$([\w$]*)", bare):
        if name not in HARMLESS:
            return f"the system task ${name}"
    if re.search(r"`\s*include\b|``|`\s*define\b(?:[^\n]|\\\n)*\$", bare):
        return "an included file, a pasted name, or a system task in a macro"
    return ""


def top_of(code: str) -> str:
    """The module that no other one instantiates; of several the one with the most modules below it, the first
    of equal ones. "" without a module."""
    bodies = {match[1]: set(_WORD.findall(match[2])) for match in _MODULE.finditer(_NOTES.sub(" ", code))}
    below = {name: words & bodies.keys() - {name} for name, words in bodies.items()}

    def reached(name: str) -> set[str]:
        found, left = set[str](), [name]
        while left:
            new = below[left.pop()] - found
            found |= new
            left += new
        return found

    roots = [name for name in bodies if not any(name in others for others in below.values())]
    return max(roots, key=lambda name: len(reached(name)), default="")


def _sequence(reset: str, steps: list[str], count: int, mark: str) -> list[str]:
    opening = [f"  repeat ({count}) begin", f'    $display("{mark}#");', f"    {reset}"]
    return [*opening, "    #100; sample;", *steps, "  end"]


def _resets(golden: Golden, toggles: str) -> list[str]:
    """The pulses of all combinations of resets, as statements."""
    by_name: dict[str, list[tuple[str, int, bool]]] = {}
    for reset in golden.resets:
        by_name.setdefault(reset[0], []).append(reset)
    pulses = []
    for size in range(1, len(by_name) + 1):
        for names in combinations(by_name, size):
            for chosen in product(*(by_name[name] for name in names)):
                # as the release (verify.py:190-203): beside one that waits for the clock, the others are only
                # taken back
                held = [reset for reset in chosen if reset[2]] or chosen
                on = " ".join(f"{name}_in = {int(level == 1)};" for name, level, _ in held)
                off = " ".join(f"{name}_in = {int(level != 1)};" for name, level, _ in chosen)
                hold = toggles if any(sync for _, _, sync in chosen) else ""
                pulses.append(f"{on} #10; {hold} {off}")
    return pulses


def bench_of(golden: Golden, top: str, stimulus: Stimulus, mark: str) -> str:
    """A testbench of a module with the golden one's ports: it drives random inputs and prints the outputs.

    Each line starts with `mark`: "#" opens a sequence, "=" is a sample (the outputs, in bits), "." the end.
    As the release: sequences that start with random resets, then as many for each combination of reset
    pulses; inputs change, the clock toggles once, the outputs are sampled.
    """
    clock, controls = golden.clock, {reset[0] for reset in golden.resets}
    free = [port for port in golden.inputs if port[0] not in controls | ({clock[0]} if clock else set())]
    drive = " ".join(
        f"{name}_in = {{{', '.join(['$random(seed)'] * ceil(width / 32))}}};" for name, width in free
    )
    toggle = f"{clock[0]}_in = ~{clock[0]}_in;" if clock else ""
    steps = [f"    repeat ({stimulus.steps}) begin #100; {drive} #100; {toggle} #100; sample; end"]
    random_reset = " ".join(f"{name}_in = $random(seed);" for name in sorted(controls))
    body = _sequence(random_reset, steps, stimulus.sequences, mark)
    for pulse in _resets(golden, f"{toggle} #10; {toggle} #10;"):
        body += _sequence(pulse, steps, stimulus.sequences, mark)
    ports = [f".{name}({name}_in)" for name, _ in golden.inputs]
    ports += [f".{name}({name}_out)" for name, _ in golden.outputs]
    shown = ", ".join(f"{name}_out" for name, _ in golden.outputs)
    return "\n".join(
        [
            f"module {mark};",
            *(f"  reg [{width - 1}:0] {name}_in;" for name, width in golden.inputs),
            *(f"  wire [{width - 1}:0] {name}_out;" for name, width in golden.outputs),
            f"  integer seed = {stimulus.seed};",
            f"  {top} {mark}_dut ({', '.join(ports)});",
            f'  task sample; $display("{mark}=%b", {{{shown}}}); endtask',
            "  initial begin",
            f"  {clock[0]}_in = {int(not clock[1])};" if clock else "",
            *body,
            f'  $display("{mark}.");',
            "  $finish;",
            "  end",
            "endmodule",
        ]
    )


def trace(code: str, golden: Golden, stimulus: Stimulus, place: Place) -> tuple[str, Any]:
    """Simulate a module with the golden one's ports: "ok" and a digest per sequence, or what failed
    ("compile", "unfinished", "timeout", ...) and its message. Raises SandboxError where it could not be run
    at all, ConfigError without iverilog."""
    mark = f"m{secrets.token_hex(12)}"
    bench = bench_of(golden, top_of(code), stimulus, mark)
    bits = sum(width for _, width in golden.outputs)
    runs = stimulus.sequences * (1 + len(_resets(golden, "")))
    most = (1 << 20) + 2 * runs * (stimulus.steps + 2) * (len(mark) + bits + 3)
    limits = SandboxLimits(place.seconds, place.seconds)
    found = run(HARNESS, [[code, bench, mark, mark, most]], "simulate", limits, place.sandbox)
    ran = found[0] if found else Ran("timeout", "")
    if ran.status != "ok":
        return ran.status, ""
    status, detail = json.loads(ran.out)
    if status == "missing":
        raise ConfigError(MISSING)
    return status, detail if status == "compile" else tuple(detail)


MISSING = (
    "the reward verilog needs the programs iverilog and vvp in /usr/bin, and they are not there; install "
    "Icarus Verilog (apt-get install iverilog)"
)
_BUFFER = Golden("module b(input a, output y); assign y = a; endmodule", (("a", 1),), (("y", 1),))


@lru_cache(maxsize=4)
def require_simulator(sandbox: str) -> None:
    """Simulate a wire, once. Raises ConfigError where iverilog is missing or does not work in the sandbox,
    SandboxError without a sandbox."""
    require(sandbox)
    status, detail = trace(_BUFFER.code, _BUFFER, Stimulus(1, 1), Place(sandbox))
    if status != "ok" or len(detail) != 1:
        raise ConfigError(f"the reward verilog: iverilog does not work in the sandbox ({status}: {detail})")


@lru_cache(maxsize=4096)
def golden_trace(golden: Golden, stimulus: Stimulus, place: Place) -> tuple[str, ...]:
    """The digests of a golden module. Raises GoldError where it cannot be simulated."""
    status, detail = trace(golden.code, golden, stimulus, place)
    if status != "ok":
        raise GoldError(f"gold: the golden module cannot be simulated ({status}: {str(detail)[:200]})")
    return tuple(detail)


@register("verilog")
@dataclass(frozen=True, kw_only=True)
class Verilog(Graded):
    """CodeV-R1's reward of hardware modules: equivalence with a golden module under random stimulus.

        r = 1[outputs equal bit by bit, x and z too, at every sample], else 0

    The gold: see `goldens_in`. `form`: each of <think>, </think>, <answer>, </answer> stands once, in order.
    Paper: CodeV-R1, arXiv:2505.24183, sec. 3.1; IPRC-DIP/CodeV-R1 @ 277ac46e
    verl/verl/utils/reward_score/codev.py:6-40, codev_eval_toolkit/verify.py:101-400. Deviations: answer and
    golden module are simulated apart, and an asynchronous reset lasts 10 time units (there 0). Edge: compile
    errors, other ports, no block, a system task outside `HARMLESS`, an include: 0. Needs iverilog.
    """

    sandbox: str = "bubblewrap"
    sequences: int = 100
    steps: int = 1000
    seconds: float = 30.0
    form: bool = False

    def __post_init__(self) -> None:
        if self.sequences < 1 or self.steps < 1:
            raise ConfigError(
                f"verilog: sequences={self.sequences} and steps={self.steps} must be at least 1; the release "
                "has 100 and 1000"
            )

    def check(self, run: Any) -> None:
        super().check(run)
        require_simulator(self.sandbox)

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        goldens, place = goldens_in(gold), Place(self.sandbox, self.seconds)
        require_simulator(self.sandbox)
        text, stimulus = response.text, Stimulus(self.sequences, self.steps)
        if self.form and not formed(text):
            raise Unread("not <think></think><answer></answer>, each once")
        code = module_in(text)
        if not code:
            raise Unread("no ```verilog block in the answer")
        start = text.find(code)
        answer = Answer(code, start, start + len(code), "module")
        if why := refusal(code):
            return verdict(answer, 0.0, False, f"not simulated: {why}", "simulation", code[:2000])
        for golden in goldens:
            wanted = golden_trace(golden, stimulus, place)
            status, found = trace(code, golden, stimulus, place)
            if status == "ok" and found == wanted:
                return verdict(answer, 1.0, True, "equivalent at every sample", "simulation", code[:2000])
            wrong = sum(a != b for a, b in zip(wanted, found))
            why = f"other outputs in {wrong} of {len(wanted)} sequences" if status == "ok" else status
        return verdict(answer, 0.0, False, why, "simulation", code[:2000])


def formed(text: str) -> bool:
    """Whether each of FORM stands once in a text, in order (codev.py:16-20 of the release)."""
    places = [text.find(tag) for tag in FORM]
    return [text.count(tag) for tag in FORM] == [1] * len(FORM) and places == sorted(places)
