"""Answers in mathematics: extraction and comparison as in each benchmark's own code, which differ from those
of the training verifier."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from vlrl.eval.expressions import evaluate
from vlrl.eval.scorer import Record, Scorer
from vlrl.eval.scorers.verifier import training_verifier
from vlrl.plugins.registry import register
from vlrl.plugins.scoring import Response, Verdict


def boxes(text: str) -> list[str]:
    r"""The contents of every \boxed{...} and \fbox{...} whose braces close, in order."""
    out = []
    for match in re.finditer(r"\\(?:boxed|fbox)\s*\{", text):
        depth = 1
        for place in range(match.end(), len(text)):
            depth += (text[place] == "{") - (text[place] == "}")
            if depth == 0:
                out.append(text[match.end() : place])
                break
    return out


def last_box(text: str) -> str | None:
    """The contents of the last box; None without one."""
    found = boxes(text)
    return found[-1] if found else None


def between_dollars(text: str) -> str | None:
    """The text between the first and the last $ (without two of them, the whole text); its last box, if it
    has one. lm-eval's hendrycks_math."""
    first, last = text.find("$"), text.rfind("$")
    inner = text[first + 1 : last] if 0 <= first < last else text
    return last_box(inner) or inner


def after_hashes(text: str) -> str | None:
    """GSM8K, strict: the first number after "#### " or "The answer is "."""
    match = re.search(r"(?:#### |The answer is )(\-?[0-9\.\,]+)", text)
    return _gsm8k(match.group(1)) if match else None


def last_number(text: str) -> str | None:
    """GSM8K, flexible: the last sequence of two or more of the characters $0-9., or integer."""
    found = re.findall(r"(-?[$0-9.,]{2,})|(-?[0-9]+)", text)
    return _gsm8k(next(part for part in found[-1] if part)) if found else None


def _gsm8k(text: str) -> str:
    return re.sub(r"\.$", "", text.replace(",", "").replace("$", ""))


def final_answer(text: str) -> str | None:
    """Minerva: the text between "Final Answer: The final answer is" and ". I hope it is correct.", without a
    box or dollars around it.

    Without these sentences, the last box.
    """
    match = re.search(r"Final Answer: The final answer is(.*?)\. I hope it is correct\.", text, re.DOTALL)
    if not match:
        return last_box(text)
    inner = match.group(1).strip()
    return last_box(inner) or inner.strip("$ ")


def answer_line(text: str) -> str | None:
    """The rest of the last line that begins with "Answer:"; without one, the last box."""
    found = re.findall(r"(?im)^\s*\**answer\**\s*:\s*(.+)$", text)
    return found[-1].strip() if found else last_box(text)


_FIXED = (
    ("\n", ""), ("\\!", ""), ("\\\\", "\\"), ("tfrac", "frac"), ("dfrac", "frac"), ("\\left", ""), ("\\right",
        ""),
    ("^{\\circ}", ""), ("^\\circ", ""), ("\\$", ""),
)  # fmt: skip


def hendrycks(text: str) -> str:
    """The normal form of MATH's own comparison (arXiv:2103.03874, math_equivalence): removes spaces, sizes,
    degrees, units and percent signs."""
    for old, new in _FIXED:
        text = text.replace(old, new)
    text = (
        text.split("\\text{ ")[0]
        .replace("\\%", "")
        .replace("%", "")
        .replace(" .", " 0.")
        .replace("{.", "{0.")
    )
    text = "0" + text if text.startswith(".") else text
    left, equals, right = text.partition("=")
    text = right if equals and "=" not in right and len(left) <= 2 else text
    text = re.sub(r"\\sqrt(?!\{)(.)", r"\\sqrt{\1}", text).replace(" ", "")
    text = re.sub(r"\\frac(?!\{)(.)(?!\{)(.)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\frac(?!\{)(.)\{", r"\\frac{\1}{", text)
    text = "\\frac{1}{2}" if text == "0.5" else text
    return re.sub(r"^(-?\d+)/(-?\d+)$", r"\\frac{\1}{\2}", text)


EXTRACT: dict[str, Callable[[str], str | None]] = {
    "last_box": last_box,
    "between_dollars": between_dollars,
    "after_hashes": after_hashes,
    "last_number": last_number,
    "final_answer": final_answer,
    "answer_line": answer_line,
}
Extract = Literal["last_box", "between_dollars", "after_hashes", "last_number", "final_answer", "answer_line"]


def _same_text(answer: str, gold: str) -> bool:
    return answer.strip() == gold.strip()


def _same_string(answer: str, gold: str) -> bool:
    return hendrycks(answer) == hendrycks(gold)


def _same_number(answer: str, gold: str) -> bool:
    try:
        return float(answer.replace(",", "")) == float(gold.replace(",", ""))
    except ValueError:
        return _same_text(answer, gold)


def _same_value(answer: str, gold: str) -> bool:
    return bool(training_verifier()(gold, f"\\boxed{{{answer}}}", kind="math").correct)


COMPARE: dict[str, Callable[[str, str], bool]] = {
    "text": _same_text,
    "hendrycks": _same_string,
    "number": _same_number,
    "value": _same_value,
}


@register("maths")
@dataclass(frozen=True)
class Maths(Scorer):
    """Mathematics: score = [extract(response) equals a gold answer under `compare`].

    Paper: the benchmark's own. `compare` is "text" (equal strings), "hendrycks" (MATH's normal form,
    arXiv:2103.03874), "number" (equal as floats, so that 042 is 42) or "value" (the training verifier's
    equality). `split` is the marker before the gold answer ("####" in GSM8K). Edge: without an extracted
    answer the score is 0.
    """

    extract: Extract = "last_box"
    compare: Literal["text", "hendrycks", "number", "value"] = "hendrycks"
    answer: str = "row.answer"
    split: str = ""

    def grade(self, response: Response, gold: Any, row: Record) -> Verdict:
        answer = EXTRACT[self.extract](response.text)
        correct = answer is not None and any(COMPARE[self.compare](answer, right) for right in gold)
        return self.scored(float(correct), answer, self.extract)

    def expected(self, record: Record) -> list[str]:
        """The accepted answers."""
        value = evaluate(self.answer, record)
        values = [str(entry) for entry in value] if isinstance(value, (list, tuple)) else [str(value)]
        return [
            entry.rpartition(self.split)[2].strip().replace(",", "") if self.split else entry.strip("$")
            for entry in values
        ]

    def demonstrations(self, record: Record) -> list[str]:
        gold = self.expected(record)[0]
        table = {
            "after_hashes": f"#### {gold}",
            "last_number": f"So it is {gold}",
            "final_answer": f"Final Answer: The final answer is ${gold}$. I hope it is correct.",
            "answer_line": f"Answer: {gold}",
        }
        return [table.get(self.extract, f"So $\\boxed{{{gold}}}$")]


def olympiad_golds(answer: str) -> list[str]:
    """The comma-separated parts of an answer; a part with \\pm gives one part per sign."""
    out = []
    for part in answer.strip("$ ").split(","):
        signs = (
            (part.replace("\\pm", "+").lstrip("+ "), part.replace("\\pm", "-")) if "\\pm" in part else (part,)
        )
        out += [sign.strip("$ ") for sign in signs]
    return out


@register("olympiad")
@dataclass(frozen=True)
class Olympiad(Scorer):
    """OlympiadBench: score = [the parts of all boxes and the gold parts match one to one].

    Numbers match within 1e-8, also with gold / 100 or gold * 100; other parts match by value. Paper:
    OlympiadBench, arXiv:2402.14008; rules of its auto-scoring judge. Deviates: symbolic equality is the
    training verifier's. Edge: no box, or another number of parts: 0.
    """

    answer: str = "row.final_answer"

    def expected(self, record: Record) -> list[str]:
        """The parts of the gold answer."""
        value = evaluate(self.answer, record)
        return olympiad_golds(",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value))

    def grade(self, response: Response, gold: Any, row: Record) -> Verdict:
        found = boxes(response.text)
        parts = olympiad_golds(",".join(found)) if found else []
        left = list(gold)
        for part in parts:
            same = next((gold for gold in left if self._same(part, gold)), None)
            if same is not None:
                left.remove(same)
        correct = bool(parts) and len(parts) == len(gold) and not left
        return self.scored(float(correct), ",".join(found) if found else None, "all boxes")

    @staticmethod
    def _same(answer: str, gold: str) -> bool:
        try:
            a, b = float(answer), float(gold)
            return any(abs(a - expected) <= 1.01e-8 for expected in (b, b / 100, b * 100))
        except ValueError:
            return hendrycks(answer) == hendrycks(gold) or _same_value(answer, gold)

    def demonstrations(self, record: Record) -> list[str]:
        value = evaluate(self.answer, record)
        return [
            " ".join(
                f"$\\boxed{{{str(entry).strip('$')}}}$"
                for entry in (value if isinstance(value, (list, tuple)) else [value])
            )
        ]
