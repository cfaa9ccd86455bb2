"""kind="code": a program judged by its unit tests in the sandbox.

Outputs are compared outside, by the rules of LiveCodeBench; a check that is itself a program runs in a second
sandbox.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import Answer, Response, Unread, Verdict, verdict
from vlrl.types import Row
from vlrl_rewards.code.sandbox import SandboxLimits, require, run, run_check
from vlrl_rewards.kinds import verifier
from vlrl_rewards.parsing import MAX_REPEATS, answer_tags, outside_thinking
from vlrl_rewards.verified import ByKind

_BLOCK = re.compile(r"```(?:python3?|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
_DECIMAL = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,4})?")
MAX_CODE = 100_000


class Tests(NamedTuple):
    """Inputs, expected outputs, and the function to call (None: standard input and output)."""

    inputs: list[Any]
    outputs: list[Any]
    fn: str | None


class Check(NamedTuple):
    """A check that is a program: the text that defines `check(candidate)` or asserts, the functions that it
    calls, and its own code before them."""

    text: str
    names: list[str]
    setup: str


def program_in(text: str) -> str:
    """The last fenced block of the answer, else of the text; "" if there is none."""
    tags = answer_tags(text)
    inside = text[tags[-1][0] : tags[-1][1]] if tags else text
    blocks = _BLOCK.findall(inside) or _BLOCK.findall(text)
    return blocks[-1].strip("\n") if blocks else ""


def unit_tests(gold: Any) -> Tests:
    """Gold tests: {"inputs", "outputs", "fn_name"?}, a list of {"input", "output"}, either as JSON text, or
    "assert f(1) == 2" lines.

    Raises ValueError on anything else. Function arguments are a list, or JSON values on separate lines
    (LiveCodeBench).
    """
    if isinstance(gold, str):
        if gold.lstrip().startswith("assert"):
            return _asserts(gold)
        try:
            gold = json.loads(gold)
        except (ValueError, RecursionError):
            raise ValueError(f"gold: the tests are neither JSON nor asserts: {gold[:80]!r}") from None
    if not isinstance(gold, (Mapping, list, tuple)):
        raise ValueError(f"gold: the tests are a mapping or a list, got {type(gold).__name__}: {gold!r:.80}")
    if isinstance(gold, Mapping) and "asserts" in gold:
        return _asserts("\n".join(gold["asserts"]))
    fn = (
        gold.get("fn_name")
        if isinstance(gold, Mapping)
        else next((t.get("fn_name") for t in gold if isinstance(t, Mapping) and t.get("fn_name")), None)
    )
    if isinstance(gold, Mapping):
        inputs, outputs = list(gold.get("inputs", ())), list(gold.get("outputs", ()))
    else:
        inputs, outputs = [test["input"] for test in gold], [test["output"] for test in gold]
    if not inputs or len(inputs) != len(outputs):
        raise ValueError(
            f"gold: {len(inputs)} inputs and {len(outputs)} outputs; give as many of both, at least one"
        )
    if fn is not None:
        inputs = [
            [json.loads(line) for line in test.split("\n") if line.strip()]
            if isinstance(test, str)
            else list(test)
            for test in inputs
        ]
        outputs = [_loaded(output) for output in outputs]
    return Tests(inputs, outputs, fn)


def check_in(gold: Any) -> Check | None:
    """The check of a gold {"check", "fn_name": name or names, "setup"?}, also as JSON text; None for other
    golds. Raises ValueError."""
    if isinstance(gold, str) and gold.lstrip().startswith("{"):
        try:
            gold = json.loads(gold)
        except (ValueError, RecursionError):
            return None
    if not isinstance(gold, Mapping) or "check" not in gold:
        return None
    names = [gold["fn_name"]] if isinstance(gold.get("fn_name"), str) else gold.get("fn_name")
    setup = gold.get("setup") or ""
    if (
        not isinstance(gold["check"], str)
        or not isinstance(setup, str)
        or not isinstance(names, Sequence)
        or not names
    ):
        raise ValueError(
            "gold: a check needs `check` (a program) and `fn_name` (the functions that it calls), got "
            f"{str(gold)[:80]!r}"
        )
    for text in (setup, gold["check"]):
        try:
            ast.parse(text)
        except SyntaxError as error:
            raise ValueError(f"gold: the check is not a Python program: {error}") from None
    return Check(gold["check"], [str(name) for name in names], setup)


def _loaded(output: Any) -> Any:
    try:
        return json.loads(output) if isinstance(output, str) else output
    except (ValueError, RecursionError):
        return output


def _asserts(text: str) -> Tests:
    """`assert f(1, [2]) == 3` lines as calls. The comparison happens outside the sandbox."""
    inputs, outputs, names = [], [], set()
    try:
        lines = ast.parse(text).body
        for line in lines:
            assert (
                isinstance(line, ast.Assert)
                and isinstance(line.test, ast.Compare)
                and len(line.test.ops) == 1
                and isinstance(line.test.ops[0], ast.Eq)
            )
            call = line.test.left
            assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.keywords
            names.add(call.func.id)
            inputs.append([ast.literal_eval(argument) for argument in call.args])
            outputs.append(ast.literal_eval(line.test.comparators[0]))
    except (AssertionError, SyntaxError, ValueError):
        raise ValueError(
            "gold: asserts must read `assert f(literal, ...) == literal`; write other tests as inputs and "
            "outputs"
        ) from None
    if len(names) != 1:
        raise ValueError(f"gold: asserts must call one function, these call {sorted(names)}")
    return Tests(inputs, outputs, names.pop())


def _decimals(line: str) -> list[Decimal] | None:
    """The numbers of a line; None where a word is none ("1_000", "sNaN" and "٤" are none)."""
    words = line.split()
    return [Decimal(word) for word in words] if all(map(_DECIMAL.fullmatch, words)) else None


def same_output(said: str, wanted: str) -> bool:
    """Equal line by line after trimming; lines of numbers are compared by value ("1.0" equals "1")."""
    a, b = (
        [line.strip() for line in said.strip().split("\n")],
        [line.strip() for line in str(wanted).strip().split("\n")],
    )
    if len(a) != len(b):
        return False
    return all(
        x == y or (bool(x) and (numbers := _decimals(x)) is not None and numbers == _decimals(y))
        for x, y in zip(a, b, strict=True)
    )


def same_result(said: str, wanted: Any) -> bool:
    """Equal JSON values; a tuple is a list, and true is not 1 at any depth. (LiveCodeBench also accepts the
    element of a one-element list.)"""
    try:
        return _same_json(json.loads(said), json.loads(json.dumps(wanted)))
    except (ValueError, TypeError, RecursionError):  # RecursionError: nested too deeply to be read
        return False


def _same_json(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same_json, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same_json(a[key], b[key]) for key in a)
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


@verifier("code")
def code(
    response: Response,
    gold: Any,
    row: Row,
    *,
    sandbox: str = "bubblewrap",
    seconds: float = 4.0,
    total_seconds: float = 60.0,
    memory_mb: int = 1024,
    partial: bool = False,
) -> Verdict:
    """The last fenced program outside the thinking passes every test; `partial` scores the share of tests
    passed (then all are run).

    Gold: tests (`unit_tests`), compared outside the sandbox; or {"check": text, "fn_name": names, "setup"?},
    a program that asserts (HumanEval's `check(candidate)`): it runs in a sandbox of its own, which the
    solution cannot reach.

    Raises ValueError on broken tests, SandboxError where programs cannot be isolated (`sandbox="unsafe"` runs
    them with limits only).
    """
    check = check_in(gold)
    tests = unit_tests(gold) if check is None else None
    require(sandbox)
    text = outside_thinking(response.text)
    if len(answer_tags(text)) > MAX_REPEATS:
        raise Unread("several answer blocks, none chosen")
    program = program_in(text)
    if not program.strip():
        raise Unread("no fenced program in the answer")
    start = text.find(program)
    answer = Answer(program, start, start + len(program), "program")
    if len(program) > MAX_CODE:
        raise Unread("the program is too long", answer)
    limits = SandboxLimits(seconds, total_seconds, memory_mb << 20)
    if check is not None:
        status = run_check(program, *check, limits, sandbox).status
        passed_check = status == "ok"
        reason = "the check passed" if passed_check else f"the check failed; {status or 'no verdict'}"
        return verdict(answer, float(passed_check), passed_check, reason, "check", program[:2000])
    assert tests is not None
    ran = run(program, tests.inputs, tests.fn, limits, sandbox, stop=not partial)
    passed, why = _passed(ran, tests)
    count = len(tests.inputs)
    reason = f"all {passed} tests passed" if passed == count else f"{passed} of {count} tests passed; {why}"
    score = passed / count if partial else float(passed == count)
    rule = "stdin" if tests.fn is None else "call"
    return verdict(answer, score, passed == count, reason, rule, program[:2000])


def _passed(ran: Sequence[Any], tests: Tests) -> tuple[int, str]:
    passed, why = 0, "out of time"
    for i, result in enumerate(ran):
        same = same_output if tests.fn is None else same_result
        if result.status == "ok" and same(result.out, tests.outputs[i]):
            passed += 1
        else:
            why = f"test {i}: {result.status if result.status != 'ok' else 'wrong output'}"
    return passed, why


@register("code")
@dataclass(frozen=True, kw_only=True)
class Code(ByKind):
    """Unit tests of a program, in a sandbox.

        r = 1[every test passes]
        r = passed / tests   (with `partial`)

    Paper: DeepSeek-R1 (compiler feedback on tests), arXiv:2501.12948, sec. 2.2.2; output rules:
    LiveCodeBench, arXiv:2403.07974. Runs in a sandbox (namespaces); a run on a machine without one is refused
    at start-up unless `sandbox: unsafe`. Edge: no fenced program: 0. Units: seconds of wall clock per test.
    """

    sandbox: str = "bubblewrap"
    seconds: float = 4.0
    total_seconds: float = 60.0
    memory_mb: int = 1024
    partial: bool = False

    def check(self, run: Any) -> None:
        require(self.sandbox)

    def kind_of(self, row: Row) -> tuple[str, Mapping[str, Any]]:
        limits = {"seconds": self.seconds, "total_seconds": self.total_seconds, "memory_mb": self.memory_mb}
        return "code", {"sandbox": self.sandbox, **limits, "partial": self.partial}
