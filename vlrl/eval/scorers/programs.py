"""Programs: scored by running their tests in the sandbox of the training verifier."""

from __future__ import annotations

import base64
import json
import pickletools
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from vlrl.eval.scorer import Record, Scorer
from vlrl.eval.scorers.verifier import training_verifier
from vlrl.plugins.registry import register
from vlrl.plugins.scoring import Response, Unread, Verdict

_FENCED = re.compile(r"```(?:python3?|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
STOPS = ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint(")


def last_fenced(response: str) -> str | None:
    """The contents of the last code block; None without one."""
    found = _FENCED.findall(response)
    return found[-1] if found else None


def passes(program: str, tests: Any, seconds: float, total: float, sandbox: str) -> Verdict:
    """The training verifier's verdict on a program."""
    options = {"sandbox": sandbox, "seconds": seconds, "total_seconds": total}
    verdict = training_verifier()(tests, f"```python\n{program}\n```", kind="code", **options)
    return replace(verdict, extracted=program[:2000], span=None, unread=False)


@register("humaneval")
@dataclass(frozen=True)
class HumanEval(Scorer):
    """HumanEval: score = [check(entry_point) passes].

    Paper: Chen et al., arXiv:2107.03374. A code block is the program; without one, the response continues the
    prompt up to the stop sequences of the paper. Deviates: the paper runs program and check in one process;
    here the check runs in a sandbox of its own, with the prompt's helper functions, and calls the program in
    another, so that a program can neither read nor fake the verdict.
    """

    costly: ClassVar[bool] = True
    seconds: float = 10.0
    sandbox: str = "bubblewrap"

    def expected(self, record: Record) -> dict[str, Any]:
        """The check, in the verifier's form."""
        setup = f"{record['prompt']}\n    pass\n"
        return {"check": record["test"], "fn_name": record["entry_point"], "setup": setup}

    def grade(self, response: Response, gold: Any, row: Record) -> Verdict:
        if not response.text.strip():
            raise Unread("empty")
        program = self.program(row, response.text)
        return passes(program, gold, self.seconds, self.seconds + 5, self.sandbox)

    def program(self, record: Record, response: str) -> str:
        """The whole program of a response: its last code block, or the prompt continued by the response."""
        block = last_fenced(response)
        if block is not None:
            return block if f"def {record['entry_point']}" in block else record["prompt"] + block
        ends = [response.find(stop) for stop in STOPS if stop in response]
        return record["prompt"] + response[: min(ends, default=len(response))]

    def demonstrations(self, record: Record) -> list[str]:
        return [str(record["canonical_solution"])]


def hidden_tests(text: str) -> list[Mapping[str, Any]]:
    """Tests as JSON, or as the hub packs them: base64 of a compressed pickle of that JSON. The JSON text is
    read from the pickle's opcodes; nothing is unpickled. Raises ValueError if it holds no text."""
    try:
        return json.loads(text)
    except ValueError:
        packed = zlib.decompress(base64.b64decode(text))
    for code, argument, _ in pickletools.genops(packed):
        if "UNICODE" in code.name and isinstance(argument, str):
            return json.loads(argument)
    raise ValueError("livecodebench: private_test_cases holds no text")


@register("livecodebench")
@dataclass(frozen=True)
class LiveCodeBench(Scorer):
    """LiveCodeBench: score = [the program in the last code block passes every public and hidden test].

    Paper: arXiv:2403.07974. 6 s per test and (6 + 1) * tests + 5 s in all; outputs are compared line by line,
    then as decimals.
    """

    costly: ClassVar[bool] = True
    seconds: float = 6.0
    sandbox: str = "bubblewrap"

    def grade(self, response: Response, gold: Any, row: Record) -> Verdict:
        program = last_fenced(response.text)
        if program is None or not program.strip():
            raise Unread("no fenced program")
        total = (self.seconds + 1) * len(gold["inputs"]) + 5
        return passes(program, gold, self.seconds, total, self.sandbox)

    def expected(self, record: Record) -> dict[str, Any]:
        """The tests of a record, in the verifier's form."""
        tests = [
            *json.loads(record["public_test_cases"]),
            *(hidden_tests(record["private_test_cases"]) if record.get("private_test_cases") else ()),
        ]
        name = json.loads(record.get("metadata") or "{}").get("func_name")
        found = {"inputs": [test["input"] for test in tests], "outputs": [test["output"] for test in tests]}
        return {**found, "fn_name": name} if name else found

    def demonstrations(self, record: Record) -> list[str]:
        return [f"```python\n{record['solution']}\n```"] if record.get("solution") else []
