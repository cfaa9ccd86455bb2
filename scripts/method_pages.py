"""Pages of the methods that people come for: docs/method_notes.yaml, and facts from the code.

`made()` has the pages for the site: formula, the plug-ins as a picture, details with the line that does each,
proof, lab curves, cost beside GRPO, whose each value is. A line is found by its text, so a link never goes
stale: a text that is not in its file is an error.
"""

from __future__ import annotations

import ast
import csv
import re
from collections.abc import Mapping
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import make_papers_doc
import yaml

from vlrl.cli.list import rows_of
from vlrl.config import MAP_SLOTS, SLOTS, load

ROOT = Path(__file__).parents[1]
FLOW = {  # stage of a step: its slots, in the order of the step
    "sample": ("rollout", "environment", "rollout_budget"),
    "score": ("rewards", "reward_shaping", "group_filters", "replay"),
    "credit": ("advantage", "token_credit", "callbacks"),
    "loss": ("aux_tensors", "policy_loss", "token_weights", "loss_terms", "loss_aggregation"),
}
QUIET = "---\nsearch: {boost: 0.2}\n---\n"  # found, but after the pages that explain
CURVES, COSTS = ROOT / "docs" / "method_curves.csv", ROOT / "docs" / "method_costs.csv"


@cache
def notes() -> dict[str, dict[str, Any]]:
    """The hand-written part, by preset."""
    return yaml.safe_load((ROOT / "docs" / "method_notes.yaml").read_text(encoding="utf-8"))


@cache
def plugins(preset: str) -> dict[str, list[str]]:
    """Names of the plug-ins of a preset, by slot."""
    tree, out = load([f"methods/{preset}"]).tree, {}
    for slots in FLOW.values():
        for slot in slots:
            held = tree.get(slot) or {}
            every = held.values() if slot in MAP_SLOTS else [held]
            if found := [one["name"] for one in every if isinstance(one, Mapping) and one.get("name")]:
                out[slot] = list(dict.fromkeys(found))
    return out


@cache
def docs_of(kind: str) -> dict[str, dict[str, Any]]:
    """The rows of `vlrl list KIND`, by name."""
    return {row["name"]: row for row in rows_of(kind)}


def changed(preset: str) -> dict[str, list[str]]:
    """The plug-ins that GRPO does not have, by slot; of GRPO all."""
    base = plugins("grpo") if preset != "grpo" else {}
    own = plugins(preset).items()
    return {slot: new for slot, names in own if (new := [n for n in names if n not in base.get(slot, [])])}


def picture(preset: str) -> str:
    """The step as a row of boxes, which wraps on a phone; plug-ins that GRPO lacks are marked."""
    new, boxes = changed(preset) if preset != "grpo" else {}, []
    for stage, slots in FLOW.items():
        items = [
            f'<li class="{"new" if name in new.get(slot, []) else "same"}"><code>{escape(name)}</code>'
            f"<small>{slot.replace('_', ' ')}</small></li>"
            for slot in slots
            for name in plugins(preset).get(slot, [])
        ]
        empty = "<li><small>the lab's, or your own</small></li>"
        boxes.append(f"<li><b>{stage}</b><ul>{''.join(items) or empty}</ul></li>")
    return f'<ol class="flow" aria-label="plug-ins of a step">{"".join(boxes)}</ol>'


def formulas(preset: str) -> list[str]:
    """First paragraph and formulas of the docstrings of the plug-ins that make the method."""
    lines = []
    for slot, names in changed(preset).items():
        for name in names:
            row = docs_of(SLOTS[slot]).get(name)
            if row is None or slot in ("rewards", "callbacks"):
                continue
            first, *rest = row["doc"].split("\n\n")
            blocks = [block for block in rest if all(line.startswith("    ") for line in block.splitlines())]
            text = "\n\n".join([first, *blocks[:1]])
            lines += [f"`{slot}: {name}`", "", "``` { .text .formula }", text, "```", ""]
    return lines or ["The loss is GRPO's; the method is in its data, rewards and values.", ""]


def line_of(file: str, text: str) -> int:
    """Number of the first line that contains a text. Raises ValueError where none does."""
    for number, line in enumerate((ROOT / file).read_text(encoding="utf-8").splitlines(), start=1):
        if text in line:
            return number
    raise ValueError(f"docs/method_notes.yaml: no line of {file} contains {text!r}")


def excerpt(file: str, number: int) -> tuple[str, int, str]:
    """(name, first line, text) of the class or function that holds a line; the file where none does."""
    text = (ROOT / file).read_text(encoding="utf-8")
    nodes = ast.parse(text).body if file.endswith(".py") else []
    for node in nodes:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and first <= number <= (node.end_lineno or 0):
            return node.name, first, "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    return Path(file).stem, 1, text.rstrip()


def source(file: str, number: int) -> tuple[str, str]:
    """(place, page) of the lines around a line, numbered as in the file."""
    name, first, text = excerpt(file, number)
    language = "python" if file.endswith(".py") else "yaml"
    place = f"methods/source/{re.sub(r'[^a-z0-9]+', '_', file.lower())}_{name}.md"
    head = f"{QUIET}# {name}\n\n`{file}`, from line {first}.\n\n"
    return place, f'{head}``` {language} linenums="{first}"\n{text}\n```\n'


def details(preset: str) -> tuple[list[str], dict[str, str]]:
    """(the numbered details, pages of the lines that they link to)."""
    lines, sources = [], {}
    for index, (said, file, text) in enumerate(notes()[preset]["details"], start=1):
        number = line_of(file, text)
        place, page = source(file, number)
        sources[place] = page
        link = f"{place.removeprefix('methods/').removesuffix('.md')}.html#__codelineno-0-{number}"
        lines.append(f'{index}. {said} <a href="{link}"><code>{file}:{number}</code></a>')
    return [*lines, ""], sources


@cache
def rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def curve(preset: str) -> dict[int, list[float]]:
    """Mean reward of each step, one value per seed."""
    found: dict[int, list[float]] = {}
    for row in rows(CURVES):
        if row["preset"] == preset:
            found.setdefault(int(row["step"]), []).append(float(row["reward"]))
    return found


def chart(preset: str) -> str:
    """Mean reward over the steps: the mean of the seeds and the band between them, GRPO's beside it."""
    width, height, left, bottom = 480, 260, 52, 44
    curves = {name: curve(name) for name in dict.fromkeys(("grpo", preset))}
    last = max(max(steps) for steps in curves.values())
    values = [value for steps in curves.values() for seeds in steps.values() for value in seeds]
    low, high = min(values), max(values)
    span = max(high - low, 1e-9)

    def at(step: int, value: float) -> str:
        x = left + (width - left - 12) * (step - 1) / max(last - 1, 1)
        return f"{x:.1f},{12 + (height - bottom - 12) * (1 - (value - low) / span):.1f}"

    drawn = []
    for name, steps in curves.items():
        kind = "own" if name == preset else "base"
        band = [at(s, max(v)) for s, v in steps.items()]
        band += [at(s, min(v)) for s, v in reversed(steps.items())]
        mean = " ".join(at(s, sum(v) / len(v)) for s, v in steps.items())
        drawn.append(
            f'<polygon class="{kind}" points="{" ".join(band)}"/><polyline class="{kind}" points="{mean}"/>'
        )
    ground, right = height - bottom, width - 12
    labels = (  # x, y, anchor, text
        (left - 6, 20, "end", f"{high:.2f}"), (left - 6, ground, "end", f"{low:.2f}"),
        (left, ground + 18, "start", "1"), (right, ground + 18, "end", str(last)),
        ((width + left) / 2, height - 8, "middle", "step"), (left, 10, "start", "mean reward"),
    )  # fmt: skip
    axes = f'<path d="M{left} 14V{ground}H{right}"/>' + "".join(
        f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>' for x, y, anchor, text in labels
    )
    said = f"mean reward of {preset} and grpo over {last} steps"
    head = f'<svg class="curve" viewBox="0 0 {width} {height}" role="img" aria-label="{said}">'
    return f"{head}{axes}{''.join(drawn)}</svg>"


def lab(preset: str) -> list[str]:
    """What the lab showed: curves over seeds, the sentence of docs/lab.csv, the cost of a step."""
    lines = []
    if curve(preset):
        seeds = len(next(iter(curve(preset).values())))
        lines += [chart(preset), ""]
        said = "one seed" if seeds == 1 else f"{seeds} seeds: mean, and the band between them"
        other = "" if preset == "grpo" else " Grey: GRPO from the same cold starts."
        lines += [
            f"Mean reward on `lab_arithmetic`, {said}.{other}",
            "",
        ]
    if sentence := make_papers_doc.seen().get(preset):
        lines += [sentence, ""]
    costs = {row["preset"]: row for row in rows(COSTS)}
    if preset in costs:
        own, base = (float(costs[name]["cpu_seconds_a_step"]) for name in (preset, "grpo"))
        lines += [
            f"**Cost**: {own:.2f} CPU-seconds a step, {own / base:.2f} times GRPO's {base:.2f} in that run.",
            "",
        ]
    if curve(preset) or preset in costs:
        lines += [
            "```bash",
            f"python scripts/measure_methods.py grpo {'' if preset == 'grpo' else preset}".rstrip(),
            "```",
            "",
        ]
    return lines or ["No lab curve: the method needs a task of its own kind. Its proof below is on one.", ""]


def proof(preset: str) -> list[str]:
    """The three runs of the proof, as a table."""
    row = make_papers_doc.proven().get(preset)
    if row is None:
        return ["It is the base of the others, and has no proof of its own.", ""]
    goes = {"up": "higher", "down": "lower", "changes": "different"}[row["direction"]]
    return [
        f"With the mechanism `{row['observe']}` must be {goes}.", "",
        f"Measured on `tasks/{row['task']}` with a scripted policy.", "",
        "| off | on | reversed |", "|---|---|---|",
        f"| {row['off'] or 'absent'} | {row['on']} | {row['reversed'] or '-'} |", "",
    ]  # fmt: skip


def page(preset: str) -> tuple[str, dict[str, str]]:
    """(the page of a method, the source pages that it links to)."""
    note = notes()[preset]
    row = next(row for row in make_papers_doc.listed() if row["id"] == preset)
    about = make_papers_doc.about_of(make_papers_doc.presets()[preset])
    numbered, sources = details(preset)
    whose = [("the paper's or its release's", row["script"] or "0"), ("the trainer's", row["trainer"] or "-")]
    whose.append(("ours", ", ".join(f"`{name}`" for name in row["ours"].split()) or "-"))
    task = row["task"] or "lab_arithmetic"
    lines = [
        f"# {note['name']}", "",
        f"{row['title']}. {about.get('paper', '')}; fidelity: {row['fidelity']}.", "",
        f"[All values](../papers/{preset}.md) of the preset, each with its source.", "",
        f"**Use it for**: {note['use']}", "", f"**Not for**: {note['avoid']}", "",
        "```bash", f"vlrl show tasks/{task} methods/{preset}", "```", "",
        "## The formula", "", *formulas(preset),
        "## The plug-ins of a step", "", picture(preset), "",
        "Every other method is shown against these." if preset == "grpo" else "Marked: what GRPO lacks.", "",
        "## Implementation details", "", *numbered,
        "## In the lab", "", *lab(preset),
        "## The proof", "", *proof(preset),
        "## Whose each value is", "", "| whose | values |", "|---|---|",
        *(f"| {who} | {what} |" for who, what in whose), "",
    ]  # fmt: skip
    return "\n".join(lines), sources


@cache
def made() -> dict[str, str]:
    """Every page, by its place in the site."""
    out: dict[str, str] = {}
    table = ["| method | use it for | cost of a step |", "|---|---|---|"]
    costs = {row["preset"]: float(row["cpu_seconds_a_step"]) for row in rows(COSTS)}
    for preset, note in notes().items():
        text, sources = page(preset)
        out |= {f"methods/{preset}.md": text, **sources}
        cost = f"{costs[preset] / costs['grpo']:.2f} x GRPO" if preset in costs else ""
        table.append(f"| [{note['name']}]({preset}.md) | {note['use']} | {cost} |")
    head = (
        "# Methods\n\nThirty methods that people come for: when to use each, its formula, its plug-ins, the "
        "lines that do it, its proof and its cost. [All papers](../papers/index.md) has the others.\n\n"
    )
    out["methods/index.md"] = head + "\n".join([*table, ""])
    return out
