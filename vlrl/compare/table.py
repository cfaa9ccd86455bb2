"""The result of a comparison as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vlrl.compare.statistics import Summary, bootstrap, improvement_interval, iqm, paired_difference

Runs = Sequence[Mapping[str, Any]]  # by seed
Cells = Mapping[str, Runs]  # of each preset
MISSING = Summary(
    math.nan, math.nan, math.nan
)  # a number that no run has: the entropy, say, of runs that learned nothing


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
    """A number with its interval, where it has one; a dash where no run has the number."""
    if math.isnan(value.value):
        return "–"
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
            line.append(gap_text(gap, digits))
        lines.append(line)
    return lines


def gap_text(gap: Summary, digits: str) -> str:
    """A difference with half of its interval, and a star where the interval excludes zero. One seed has no
    interval, and a number that no run has is a dash."""
    if math.isnan(gap.value):
        return "–"
    if not math.isfinite(gap.high):
        return f"{gap.value:+{digits}}"
    star = "*" if gap.low > 0 or gap.high < 0 else ""
    return f"{gap.value:+{digits}} ± {gap.high - gap.value:{digits}}{star}"


def verdict(cells: Cells) -> str:
    """The result in one or two sentences: the best held-out score, and how sure its lead over the first
    preset is."""
    rows, first = summarise(cells), next(iter(cells))
    best = max(rows, key=lambda preset: rows[preset]["final"].value)
    score = f"{best} has the highest held-out score, {rows[best]['final'].value:.3f}."
    if best == first:
        return f"{score} No other preset is above it."
    gap = paired_difference(*([run["final"] for run in cells[preset]] for preset in (best, first)))
    if not math.isfinite(gap.high):
        return f"{score} That is {gap.value:+.3f} against {first}; one seed cannot say whether it is luck."
    sure = "excludes" if gap.low > 0 or gap.high < 0 else "includes"
    return (
        f"{score} Against {first} it is {gap.value:+.3f}, and the 95% interval "
        f"[{gap.low:+.3f}, {gap.high:+.3f}] {sure} zero."
    )


def short(cells: Cells, starts: Runs = ()) -> list[str]:
    """The table for a terminal: the columns that decide, padded."""
    whole = grid(cells, starts)
    kept = [
        whole[0].index(name) for name in ("preset", "held-out", "mean reward", "length", "tokens", "CPU s")
    ]
    gaps = {line[0]: line[1] for line in differences(cells)[1:]} if len(cells) > 1 else {}
    head, *lines = [[line[place] for place in kept] for line in whole]
    head.insert(2, f"less {next(iter(cells))}")
    for line in lines:
        line.insert(2, gaps.get(line[0], ""))
    widths = [max(len(line[place]) for line in [head, *lines]) for place in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in [head, *lines]
    ]


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
        [
            f"# {title}",
            "",
            verdict(cells),
            "",
            *_table(grid(cells, starts)),
            *_table(differences(cells)),
            note(cells),
            "",
        ]
    )


def _table(grid: Sequence[Sequence[str]]) -> list[str]:
    head, *body = (f"| {' | '.join(line)} |" for line in grid)
    return [head, "|---" * len(grid[0]) + "|", *body, ""]
