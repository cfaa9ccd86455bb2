"""SPARKLE's probes: each problem plain, with a plan, with the knowledge it needs, and as a chain of
subproblems.

    delta(mode) = accuracy(mode) - accuracy(plain), over the problems that have the mode, by level, for
    every model

Paper: Wang et al. 2025 (SPARKLE), arXiv:2506.04723: plans hurt on hard problems, and hurt RL models less;
knowledge helps RL models; subproblems stay hard for both. Rows bring `meta.plan`, `meta.knowledge` and
`meta.subproblems` (a list of {"question", "answer"}, the last one the problem itself), and `meta.level`; a
mode that no row has is left out. Words of the prompts are ours (sparkle-reasoning/sparkle at c3581c9d
releases the training only)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from vlrl.plugins.registry import ConfigError
from vlrl.probes.probed_model import ProbedModel
from vlrl.probes.result import Figure, ProbeResult, against
from vlrl.types import Row

PLAN = "{question}\nFollow this plan:\n{plan}"
KNOWLEDGE = "{question}\nWhat you need to know:\n{knowledge}"
SOLVED = "{question}\nThe answer is {answer}.\n\n"
MODES = ("plain", "plan", "knowledge", "subproblems")
Right = dict[tuple[str, str, str], dict[str, float]]  # model, level, mode -> by row id, 1 where it is right


def questions(row: Row, mode: str) -> list[Row]:
    """The rows that a mode asks of a problem: itself, or its subproblems, each with those before it solved.
    Empty where the row lacks what the mode needs."""
    if mode == "plain":
        return [row]
    given = row.meta.get(mode)
    if not given:
        return []
    if mode != "subproblems":
        form = PLAN if mode == "plan" else KNOWLEDGE
        return [replace(row, question=form.format(question=row.question, **{mode: given}))]
    before, out = "", []
    for place, part in enumerate(given):
        text = before + part["question"]
        out.append(replace(row, id=f"{row.id}/{place}", question=text, answer=part["answer"], target=""))
        before += SOLVED.format(**part)
    return out


def in_order(levels: Iterable[str]) -> list[str]:
    """Levels from easy to hard: numbers in them by value, so that 10 comes after 9."""

    def key(level: str) -> list[Any]:
        parts = re.split(r"(\d+(?:\.\d+)?)", level)  # text and numbers take turns
        return [float(part) if place % 2 else part for place, part in enumerate(parts)]

    return sorted(levels, key=key)


def pairs(right: Right, model: str, level: str, mode: str) -> tuple[list[float], list[float]]:
    """What a mode and the plain problem earn, on the rows of a level that have the mode."""
    found = right.get((model, level, mode), {})
    plain = right[model, level, "plain"]
    return list(found.values()), [plain[row] for row in found]


def deltas(right: Right, model: str, level: str) -> dict[str, float | None]:
    """Accuracy of each mode less the plain one's, on the rows of a level that have it; None without any."""
    each = {mode: pairs(right, model, level, mode) for mode in MODES[1:]}
    return {
        mode: (sum(found) - sum(plain)) / len(found) if found else None
        for mode, (found, plain) in each.items()
    }


def measure(words: Sequence[str], models: Sequence[str], rows: int) -> ProbeResult:
    """The deltas of every model. A chain of subproblems is right where all of them are.

    Raises ConfigError for rows without anything to probe.
    """
    right: Right = defaultdict(dict)
    labels, levels = [], set()
    for name in models:
        with ProbedModel(words, name, rows) as subject:
            labels.append(subject.name)
            asked = [(row, mode, questions(row, mode)) for row in subject.rows for mode in MODES]
            if not any(parts for _, mode, parts in asked if mode != "plain"):
                raise ConfigError(
                    "probe: no row has meta.plan, meta.knowledge or meta.subproblems; give rows "
                    "with one, such as "
                    "tasks/gen_planned"
                )
            groups = iter(subject.ask([subject.prompt(part) for _, _, parts in asked for part in parts]))
            for row, mode, parts in asked:
                found = [next(groups) for _ in parts]
                level = str(row.meta.get("level", row.task))
                levels.add(level)
                if parts:
                    whole = all(len(group) and group.rollouts[0].correct for group in found)
                    right[subject.name, level, mode][row.id] = float(whole)
    return finding(right, labels, in_order(levels))


def finding(right: Right, labels: Sequence[str], levels: Sequence[str]) -> ProbeResult:
    """The table by model and level, and what the last model's deltas say."""
    table: list[list[Any]] = []
    lines = {}
    for label in labels:
        for level in levels:
            plain = right[label, level, "plain"].values()
            found = deltas(right, label, level)
            table.append([label, level, sum(plain) / len(plain), *found.values()])
        hardest = deltas(right, label, levels[-1])
        lines[label] = [(float(i), value) for i, value in enumerate(hardest.values()) if value is not None]
    words = [
        f"{mode} {'hurts' if value < 0 else 'helps' if value > 0 else 'changes nothing'} "
        f"({against(*pairs(right, labels[-1], levels[-1], mode))})"
        for mode, value in deltas(right, labels[-1], levels[-1]).items()
        if value is not None
    ]
    statement = f"{labels[-1]}, level {levels[-1]}: {', '.join(words)}, against the plain problem."
    head = ("model", "level", "plain", *(f"{mode} - plain" for mode in MODES[1:]))
    figure = Figure(
        lines, "what is given", f"accuracy less that of the plain problem, level {levels[-1]}", MODES[1:]
    )
    return ProbeResult("SPARKLE: plan, knowledge, subproblems", statement, head, table, figure)
