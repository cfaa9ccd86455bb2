"""What a probe found: a table, one sentence, a figure; printed, as JSON, or as a page without a network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import typer

COLOURS = ("#1b6ca8", "#d1495b", "#2e933c", "#8f5db7", "#e08e0b", "#3aa6a6", "#7a7a7a", "#a0522d")
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 300, 60, 52, 12
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Figure:
    """Lines over one axis, by name. `labels` names the places 0, 1, ... of an axis without numbers."""

    lines: Mapping[str, Points]
    across: str
    up: str
    labels: Sequence[str] = ()


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
    """An HTML page: statement, figure, table. No script, no network."""
    head = "".join(f"<th>{escape(text)}" for text in finding.head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell(value))}" for value in row) for row in finding.rows)
    style = (
        "body{font:15px/1.5 system-ui;max-width:900px;margin:2em auto;padding:0 1em}table{border-collapse:"
        "collapse}td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #ddd}text{font-size:12px}"
    )
    closed = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        f'<!doctype html><meta charset=utf-8><meta http-equiv=Content-Security-Policy content="{closed}">'
        f"<title>{escape(finding.title)}</title><style>{style}</style><h1>{escape(finding.title)}</h1>"
        f"<p><b>{escape(finding.statement)}</b></p>{drawn(finding.figure) if finding.figure else ''}"
        f"<table><tr>{head}{body}</table>\n"
    )


def drawn(figure: Figure) -> str:
    """The figure as inline SVG: axes with their ends and the middle, one coloured line with dots per name, a
    legend. Every other line is dashed, so that equal ones are seen."""
    points = [point for line in figure.lines.values() for point in line]
    if not points:
        return ""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = min(ys), max(ys)
    if low == high:
        low, high = (0.0, 1.0) if 0 <= low <= 1 else (low - 0.5, high + 0.5)
    first, last = min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + (x - first) / (last - first) * (WIDTH - LEFT - 20),
            TOP + (high - y) / (high - low) * (HEIGHT - TOP - BOTTOM),
        )

    floor, middle = HEIGHT - BOTTOM, (low + high) / 2
    level = place(first, middle)[1]
    marks = list(enumerate(figure.labels)) if figure.labels else [(first, cell(first)), (last, cell(last))]
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(figure.up)}">',
        f'<path d="M{LEFT} {TOP}V{floor}H{WIDTH - 20}" fill="none" stroke="#888"/>',
        f'<text x="4" y="{TOP + 10}">{cell(float(high))}</text>',
        f'<text x="4" y="{floor}">{cell(float(low))}</text>',
        f'<text x="4" y="{level + 4:.0f}">{cell(float(middle))}</text>',
        f'<path d="M{LEFT} {level:.1f}H{WIDTH - 20}" stroke="#ddd"/>',
        f'<text x="{WIDTH // 2}" y="{HEIGHT - 4}" text-anchor="middle">{escape(figure.across)}</text>',
    ]
    for number, (x, text) in enumerate(marks):
        anchor = "start" if number == 0 else "end" if number == len(marks) - 1 else "middle"
        down = floor + 15 + 13 * (number % 2 if figure.labels else 0)  # long labels stand in two rows
        parts.append(
            f'<text x="{place(x, low)[0]:.0f}" y="{down}" text-anchor="{anchor}">{escape(text)}</text>'
        )
    for number, line in enumerate(figure.lines.values()):
        colour = COLOURS[number % len(COLOURS)]
        at = [place(x, y) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        dashes = ' stroke-dasharray="7 5"' if number % 2 else ""
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.8"{dashes} points="{path}"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in at]
    legend = "".join(
        f'<span style="color:{COLOURS[number % len(COLOURS)]};margin-right:1em">&#9632; {escape(name)}</span>'
        for number, name in enumerate(figure.lines)
    )
    return f"<h2>{escape(figure.up)}</h2><p>{legend}</p>{''.join(parts)}</svg>"


def tell(finding: ProbeResult, output: Path, json_only: bool) -> None:
    """Print the finding, and write its page to `output`."""
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(as_page(finding), encoding="utf-8")
    typer.echo(as_json(finding) if json_only else f"{as_text(finding)}\n\npage: {output}")
