"""The result of a comparison: a table, and a page with the curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlrl.compare.statistics import Summary, bootstrap, improvement_interval, iqm, paired_difference

Runs = Sequence[Mapping[str, Any]]  # by seed
Cells = Mapping[str, Runs]  # of each preset
MISSING = Summary(
    math.nan, math.nan, math.nan
)  # a number that no run has: the entropy, say, of runs that learned nothing
COLOURS = (
    "#1b6ca8",
    "#d1495b",
    "#2e933c",
    "#8f5db7",
    "#e08e0b",
    "#3aa6a6",
    "#7a7a7a",
    "#a0522d",
    "#5566cc",
    "#c71585",
    "#556b2f",
    "#111111",
)


def summarise(cells: Cells) -> dict[str, dict[str, Any]]:
    """Per preset: every number's mean over seeds with its interval, `iqm` of the held-out score, and how
    likely a run beats the first preset's."""
    first = next(iter(cells))
    out: dict[str, dict[str, Any]] = {}
    for preset, runs in cells.items():
        names = [
            name
            for name, value in runs[0].items()
            if isinstance(value, (int, float, type(None))) and name != "seed"
        ]
        known = {name: [run[name] for run in runs if run[name] is not None] for name in names}
        row: dict[str, Any] = {
            name: bootstrap(values) if values else MISSING for name, values in known.items()
        }
        row["iqm"] = bootstrap([run["final"] for run in runs], iqm)
        row["better"] = improvement_interval(
            [run["final"] for run in runs], [run["final"] for run in cells[first]]
        )
        row["seeds"] = len(runs)
        out[preset] = row
    return out


def columns(cells: Cells) -> list[tuple[str, str]]:
    """(number, heading) of the table."""
    run = next(iter(cells.values()))[0]
    passes = sorted((name for name in run if name.startswith("pass@")), key=lambda name: int(name[5:]))
    middle = [(name, name) for name in passes]
    first = [
        ("final", "held-out"),
        ("iqm", "IQM"),
        ("better", f"P(> {next(iter(cells))})"),
        ("auc", "mean reward"),
    ]
    return [
        *first,
        *middle,
        ("sampled_entropy", "entropy"),
        ("length", "length"),
        ("correct_length", "correct"),
        ("wrong_length", "wrong"),
        ("kl", "KL"),
        ("tokens", "tokens"),
        ("cpu_seconds", "CPU s"),
    ]


def shown(name: str, value: Summary) -> str:
    """A number with its interval, where it has one."""
    if name in ("tokens", "cpu_seconds"):
        return f"{value.value:,.0f}"
    if name.endswith("length"):
        return f"{value.value:.1f}"
    if name in ("final", "better", "auc") or name.startswith("pass@"):
        return str(value)
    return f"{value.value:.3f}"


def grid(cells: Cells, starts: Runs = ()) -> list[list[str]]:
    """The table: a line of headings, then one per preset, best held-out score first, then the cold start."""
    rows, heads = summarise(cells), columns(cells)
    best_first = sorted(rows, key=lambda preset: -rows[preset]["final"].value)
    lines = [
        ["preset", *(head for _, head in heads)],
        *([p, *(shown(name, rows[p][name]) for name, _ in heads)] for p in best_first),
    ]
    if starts:
        begun = {
            name: values
            for name, _ in heads
            if (values := [run[name] for run in starts if run.get(name) is not None])
        }
        lines.append(
            [
                "(cold start)",
                *(shown(name, bootstrap(begun[name])) if name in begun else "" for name, _ in heads),
            ]
        )
    return lines


def differences(cells: Cells) -> list[list[str]]:
    """Each preset against the first one, seed by seed, where seeds share a cold start; a star where the
    interval excludes zero."""
    first, *others = cells
    heads = [(name, head) for name, head in columns(cells) if name not in ("iqm", "better", "cpu_seconds")]
    lines = [[f"less {first}", *(head for _, head in heads)]]
    for preset in others:
        line = [preset]
        for name, _ in heads:
            pairs = [
                (x[name], y[name])
                for x, y in zip(cells[preset], cells[first])
                if x[name] is not None and y[name] is not None
            ]
            gap = paired_difference(*zip(*pairs)) if pairs else MISSING
            digits = ",.0f" if name == "tokens" else ".1f" if name.endswith("length") else ".3f"
            line.append(
                f"{gap.value:+{digits}} ± {gap.high - gap.value:{digits}}"
                + "*" * (gap.low > 0 or gap.high < 0)
            )
        lines.append(line)
    return lines


def note(cells: Cells) -> str:
    """How to read the table."""
    seeds = ", ".join(map(str, sorted({len(runs) for runs in cells.values()})))
    means = (
        "Means over seeds with 95% bootstrap intervals; IQM: interquartile mean of the held-out score; "
        "mean reward: over all training steps."
    )
    rest = (
        "Entropy (nats) and KL: per sampled token, held out. Length: last tenth of the steps; correct, "
        "wrong: mean length of such held-out samples."
    )
    paired = (
        "Second table: mean differences of runs from the same cold start, ± half of Student's 95% "
        "interval; of twenty stars one is luck."
    )
    return f"{means} Seeds: {seeds}. {rest} {paired}"


def markdown(cells: Cells, title: str, starts: Runs = ()) -> str:
    """The table as Markdown."""
    return "\n".join(
        [f"# {title}", "", *_table(grid(cells, starts)), *_table(differences(cells)), note(cells), ""]
    )


def _table(grid: Sequence[Sequence[str]]) -> list[str]:
    head, *body = (f"| {' | '.join(line)} |" for line in grid)
    return [head, "|---" * len(grid[0]) + "|", *body, ""]


def page(cells: Cells, title: str, path: Path, starts: Runs = ()) -> None:
    """The table and two charts (reward, entropy; mean over seeds) as one file without a network or a
    script."""
    from html import escape

    tables: list[str] = []
    body = [
        f"<h1>{escape(title)}</h1>",
        legend(list(cells)),
        "<h2>Reward in training</h2>",
        chart(cells, "curve"),
    ]
    for lines in (grid(cells, starts), differences(cells)):
        rows = [
            "".join(f"<{'td' if y else 'th'}>{escape(value)}" for value in line)
            for y, line in enumerate(lines)
        ]
        tables.append("<div><table><tr>" + "<tr>".join(rows) + "</table></div>")
    body += [
        "<h2>Entropy of the tokens trained on</h2>",
        chart(cells, "entropy_curve"),
        "<h2>Held-out score and the rest</h2>",
        *tables,
        f"<p>{escape(note(cells))}",
    ]
    style = (
        "body{font:14px/1.5 system-ui;max-width:1150px;margin:2em auto;padding:0 "
        "1em}.key{margin-right:1em}div{overflow:auto}"
        "table{border-collapse:collapse;font-size:12px;font-variant-numeric:tabular-nums}td,th{padding:.2em "
        ".6em;text-align:left;white-space:nowrap;"
        "border-bottom:1px solid #ddd}"
    )
    # no script runs
    closed = (
        "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    )
    page_text = (
        "<!doctype html><meta "
        f"charset=utf-8>{closed}<title>{escape(title)}</title><style>{style}</style>{''.join(body)}"
    )
    path.write_text(page_text, encoding="utf-8")


def legend(presets: Sequence[str]) -> str:
    """The colour legend."""
    from html import escape

    return (
        "<p>"
        + "".join(
            f'<span class=key style="color:{COLOURS[i % len(COLOURS)]}">&#9632; {escape(p)}</span>'
            for i, p in enumerate(presets)
        )
        + "</p>"
    )


def chart(cells: Cells, key: str, width: int = 900, height: int = 300) -> str:
    """One line per preset, the mean over its seeds."""
    lines = {preset: mean_curve([run[key] for run in runs]) for preset, runs in cells.items()}
    values = [v for line in lines.values() for v in line if v is not None]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    span, most = (high - low) or 1.0, max(max(map(len, lines.values())) - 1, 1)
    out = [
        f'<svg viewBox="0 0 {width} {height}" role="img">',
        f'<text x="0" y="12">{high:.3g}</text><text x="0" y="{height - 4}">{low:.3g}</text>',
    ]
    for i, line in enumerate(lines.values()):
        points = " ".join(
            f"{50 + (width - 60) * x / most:.1f},{height - 10 - (height - 25) * (v - low) / span:.1f}"
            for x, v in enumerate(line)
            if v is not None
        )
        out.append(
            f'<polyline fill="none" stroke="{COLOURS[i % len(COLOURS)]}" stroke-width="1.5" '
            f'points="{points}"/>'
        )
    return "".join([*out, "</svg>"])


def mean_curve(curves: Sequence[Sequence[float | None]]) -> list[float | None]:
    """The mean over runs at each step that all of them reached, of the runs that have a number there."""
    known = [[v for v in values if v is not None] for values in zip(*curves)]
    return [sum(values) / len(values) if values else None for values in known]
