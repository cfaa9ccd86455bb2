"""What a probe found: a table, one sentence, a figure; printed, as JSON, or as a page without a network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from vlrl.eval.statistics import compare
from vlrl.pages.chart import Chart, Line
from vlrl.pages.kit import render

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Figure:
    """Lines over one axis, by name. `up` says what is drawn, `unit` is the short title of the vertical axis
    (else `up`); `labels` names the places 0, 1, ... of an axis without numbers."""

    lines: Mapping[str, Points]
    across: str
    up: str
    labels: Sequence[str] = ()
    unit: str = ""


@dataclass(frozen=True)
class ProbeResult:
    """The result of a probe. `statement` says what the numbers show, with the paper's threshold; `head` and
    `rows` are the table (numbers as float)."""

    title: str
    statement: str
    head: Sequence[str]
    rows: Sequence[Sequence[Any]]
    figure: Figure | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)


def cell(value: Any) -> str:
    """A value of the table as text: numbers with four significant digits, None as a dash."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def against(after: Sequence[float], before: Sequence[float]) -> str:
    """The mean difference of two scores per question as words, with its 95% interval, and whether chance
    alone may give it (the two-sided p-value of `compare`, 5%)."""
    found = compare(before, after)
    told = f"{found.difference:+.1%}, 95% interval {found.low:+.1%} to {found.high:+.1%}"
    return told if found.p_value < 0.05 else f"{told}: not told from chance by {found.n} questions"


def as_text(finding: ProbeResult) -> str:
    """The table in columns, then the statement."""
    lines = [list(finding.head), *([cell(value) for value in row] for row in finding.rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(finding.head))]
    table = ["  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in lines]
    return "\n".join([finding.title, "", *table, "", finding.statement])


def as_json(finding: ProbeResult) -> str:
    """The finding as one JSON object: title, statement, table (a list of objects) and further numbers."""
    table = [dict(zip(finding.head, row, strict=True)) for row in finding.rows]
    plain = {"title": finding.title, "statement": finding.statement, "table": table, **finding.numbers}
    return json.dumps(plain, ensure_ascii=False, indent=1)


def as_page(finding: ProbeResult) -> str:
    """An HTML page: statement, figure, table. No network."""
    sections: list[dict[str, Any]] = []
    if finding.figure and any(finding.figure.lines.values()):
        figure = finding.figure
        lines = [Line(name, points) for name, points in figure.lines.items()]
        up = figure.unit or figure.up
        chart = Chart(figure.up, lines, figure.across, up, labels=figure.labels, dots=True)
        sections.append({"heading": "Figure", "chart": chart})
    table = [list(finding.head), *([cell(value) for value in row] for row in finding.rows)]
    sections.append({"heading": "Table", "table": table})
    return render("sections", finding.title, "vlrl probe", story=[finding.statement], sections=sections)


def tell(finding: ProbeResult, output: Path, json_only: bool) -> None:
    """Print the finding, and write its page to `output`."""
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(as_page(finding), encoding="utf-8")
    typer.echo(as_json(finding) if json_only else f"{as_text(finding)}\n\npage: {output}")
