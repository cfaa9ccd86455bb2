"""Triton kernels judged by rules on their text and by running them in Triton's interpreter on the CPU.

Reference and answer run apart, each in a sandbox of its own, on the same seeded inputs; their outputs are
compared outside. The answer runs twice: with its kernel launches switched off, where its outputs must be
other ones, and as it is.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.scoring import Answer, GoldError, Response, Unread, Verdict
from vlrl.types import Row
from vlrl_rewards.code.isolation import packages_inside
from vlrl_rewards.code.sandbox import Ran, SandboxLimits, require, run
from vlrl_rewards.code.verifier import MAX_CODE, program_in
from vlrl_rewards.graded import Graded
from vlrl_rewards.parsing import outside_thinking

IMPORTS = ("torch", "triton", "triton.language", "math", "typing", "__future__")
# What a launcher may ask of torch and of tensors: memory, shapes and places, no arithmetic.
MEMORY = frozenset({
    "empty", "empty_like", "zeros", "zeros_like", "ones_like", "full", "full_like", "empty_strided", "numel",
    "size", "stride", "dim", "contiguous", "view", "reshape", "is_contiguous", "element_size", "new_empty",
    "new_zeros", "cdiv", "next_power_of_2", "get", "append", "items", "Config",
})  # fmt: skip
FORBIDDEN = frozenset(
    {"exec", "eval", "compile", "open", "__import__", "getattr", "setattr", "globals", "vars"}
)
MEMORY_LIMIT, SECONDS = 8 << 30, 60.0

HARNESS = """
import os, sys

def measure(place, code, entry, shapes, seeds, kernel):
    here = os.getcwd()
    os.environ.update(TRITON_INTERPRET="1", OMP_NUM_THREADS="1", HOME=here, TRITON_CACHE_DIR=here)
    sys.path.append(place)
    try:
        import torch
        import triton
        from triton.runtime.interpreter import InterpretedFunction
    except ImportError as error:
        return ["missing", str(error)]
    with open("answer.py", "w") as file:
        file.write(code)
    sys.path.insert(0, os.getcwd())

    def outputs(function):
        found = []
        for seed in seeds:
            torch.manual_seed(seed)
            out = function(*[torch.randn(shape) for shape in shapes])
            if not isinstance(out, torch.Tensor):
                raise TypeError("no tensor")
            found.append([list(out.shape), out.detach().double().flatten().tolist()])
        return found

    launch, off = InterpretedFunction.run, None
    InterpretedFunction.run = lambda *args, **kwargs: None
    try:
        import answer
        function = getattr(answer, entry)
        if kernel:
            try:
                off = outputs(function)
            except Exception:
                off = None
        InterpretedFunction.run = launch
        return ["ok", outputs(function), off]
    except Exception as error:
        return ["error", (type(error).__name__ + ": " + str(error))[:300]]
"""


class Kernel(NamedTuple):
    """What is asked for: a function `entry` of random normal tensors of `shapes`, with the outputs of
    `reference`, a program in torch that defines it too."""

    entry: str
    reference: str
    shapes: tuple[tuple[int, ...], ...]
    seeds: tuple[int, ...] = (0, 1)


def kernel_in(gold: Any) -> Kernel:
    """The gold {"entry", "reference", "shapes", "seeds"?}, also as JSON text. Raises GoldError."""
    try:
        gold = json.loads(gold) if isinstance(gold, str) else gold
        shapes = tuple(tuple(int(size) for size in shape) for shape in gold["shapes"])
        seeds = tuple(int(seed) for seed in gold.get("seeds", (0, 1)))
        found = Kernel(str(gold["entry"]), str(gold["reference"]), shapes, seeds)
        if not (found.entry.isidentifier() and shapes and seeds):
            raise ValueError("no entry, no shapes or no seeds")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise GoldError(f"gold: not a kernel's reference ({error!r}): {str(gold)[:80]!r}") from None
    return found


def rule_fault(code: str, entry: str) -> str:
    """Why a program is no Triton implementation of `entry`, by its text: "" for none.

    A function under triton.jit loads and stores by tl; `entry` launches it, `kernel[grid](...)`, itself or by
    the functions that it calls; what is not a kernel asks torch for memory and shapes alone.
    """
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "no Python program"
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    kernels = {name for name, node in functions.items() if any(map(_is_jit, node.decorator_list))}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            names += (
                ["names from torch"] if isinstance(node, ast.ImportFrom) and node.module == "torch" else []
            )
            if other := [name for name in names if name not in IMPORTS]:
                return f"it imports {other[0]}"
        if isinstance(node, ast.Name) and node.id in FORBIDDEN:
            return f"it names {node.id}"
        if isinstance(node, ast.Attribute) and node.attr.startswith("__"):
            return f"it reads {node.attr}"
    if entry not in functions:
        return f"no function {entry}"
    reached = _reached(functions, entry, kernels)
    launched = {name for launcher in reached - kernels for name in _launches(functions[launcher])} & kernels
    if not launched:
        return f"{entry} launches no function under triton.jit"
    if not any({"load", "store"} <= _attributes(functions[name], "tl") for name in launched):
        return "no kernel that is launched loads and stores"
    for name in sorted(functions.keys() - kernels):
        for called in _methods(functions[name]):
            if called not in MEMORY:
                return f"{name} calls .{called}(): computing is the kernel's"
    return ""


def _is_jit(node: ast.expr) -> bool:
    node = node.func if isinstance(node, ast.Call) else node
    return (isinstance(node, ast.Attribute) and node.attr == "jit") or (
        isinstance(node, ast.Name) and node.id == "jit"
    )


def _reached(functions: Mapping[str, ast.FunctionDef], entry: str, kernels: set[str]) -> set[str]:
    found, left = {entry}, [entry]
    while left:
        names = {node.id for node in ast.walk(functions[left.pop()]) if isinstance(node, ast.Name)}
        new = (names & functions.keys()) - found
        found |= new
        left += new - kernels
    return found


def _launches(node: ast.AST) -> Iterator[str]:
    """The names that stand as `name[...](...)`."""
    for call in ast.walk(node):
        target = call.func if isinstance(call, ast.Call) else None
        if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            yield target.value.id


def _attributes(node: ast.AST, of: str) -> set[str]:
    return {
        one.attr
        for one in ast.walk(node)
        if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id == of
    }


def _methods(node: ast.AST) -> Iterator[str]:
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            yield call.func.attr


class NotMeasured(RuntimeError):
    """A program has no outputs; the text says why."""


@lru_cache(maxsize=1024)
def measured(code: str, kernel: Kernel, is_answer: bool, sandbox: str) -> tuple[Any, Any]:
    """The outputs of a program per seed, (shape, numbers), and those with its launches switched off (None
    where it then fails). Raises NotMeasured, SandboxError, ConfigError without torch and triton."""
    place = packages_inside(sandbox != "unsafe")
    job = [place, code, kernel.entry, kernel.shapes, kernel.seeds, is_answer]
    limits = SandboxLimits(SECONDS, SECONDS, memory=MEMORY_LIMIT, output=8 << 20, packages=True)
    found = run(HARNESS, [job], "measure", limits, sandbox)
    ran = found[0] if found else Ran("timeout", "")
    if ran.status != "ok":
        raise NotMeasured(ran.status)
    status, *rest = json.loads(ran.out)
    if status == "missing":
        raise ConfigError(
            f"the reward triton_kernel needs torch and triton, and the sandbox cannot import them ({rest[0]})"
            "; install vlrl[train] with the CUDA build of torch, which brings triton"
        )
    if status != "ok":
        raise NotMeasured(str(rest[0]))
    return rest[0], rest[1]


def equal(found: Any, wanted: Any, tolerance: float) -> bool:
    """Whether outputs have the same shapes, and numbers within tolerance (1 + |wanted|)."""
    if not isinstance(found, Sequence) or len(found) != len(wanted):
        return False
    return all(
        a[0] == b[0] and all(abs(x - y) <= tolerance * (1 + abs(y)) for x, y in zip(a[1], b[1], strict=True))
        for a, b in zip(found, wanted)
    )


@register("triton_kernel")
@dataclass(frozen=True, kw_only=True)
class TritonKernel(Graded):
    """AutoTriton's reward: the program is Triton by the rules, and its outputs are the reference's.

        r = 1[rules] 1[outputs equal within tolerance (1 + |wanted|)]

    The last fenced program defines `gold["entry"]`; see `kernel_in`, `rule_fault`. Paper: AutoTriton,
    arXiv:2507.05687, abstract (rule-based and execution-based rewards together). No released code could be
    read. Deviations: Triton's interpreter on the CPU; the kernel must matter (with launches switched off the
    outputs must differ). Edge: compile errors, torch arithmetic outside kernels, forged results: 0.
    """

    refusals: ClassVar[bool] = False
    tolerance: float = 1e-3
    sandbox: str = "bubblewrap"

    def check(self, run: Any) -> None:
        super().check(run)
        require(self.sandbox)

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        kernel, text = kernel_in(gold), outside_thinking(response.text)
        code = program_in(text)
        if not code.strip() or len(code) > MAX_CODE:
            raise Unread("no fenced program in the answer")
        start = text.find(code)
        answer = Answer(code, start, start + len(code), "program")
        if fault := rule_fault(code, kernel.entry):
            return self.wrong(answer, f"rules: {fault}")
        try:
            wanted, _ = measured(kernel.reference, kernel, False, self.sandbox)
        except NotMeasured as error:
            raise GoldError(f"gold: the reference does not run ({error})") from None
        try:
            found, off = measured(code, kernel, True, self.sandbox)
        except NotMeasured as error:
            return self.wrong(answer, f"run: {error}")
        if not equal(found, wanted, self.tolerance):
            return self.wrong(answer, "run: other outputs than the reference")
        if off is not None and equal(off, wanted, self.tolerance):
            return self.wrong(answer, "rules: the outputs do not come from the kernel")
        return self.scored(answer, 1.0, True, "equal to the reference")
