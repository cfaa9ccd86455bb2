"""Writes docs/papers.md from the presets, whose comments source each value, and docs/lab.csv: `python
scripts/make_papers_doc.py [--check]`."""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from pathlib import Path

import yaml

from vlrl.config import load
from vlrl.config.config import at

ROOT = Path(__file__).parents[1]
HEAD = """# Papers

Made by `scripts/make_papers_doc.py`; do not edit. Per preset of `configs/methods`: the paper, what follows it
and what does not, each value with where it comes from, and what the lab showed (`docs/LOG.md` has the runs).
A value without a source is a plug-in's default, whose docstring names it.

Whose a value is: the **paper**'s, the **release**'s (the authors' script and code), the **trainer**'s (what
the release's trainer does where its script is silent: `configs/base/trainers`, with file, line and commit), or
**ours**, with the reason. `tests/test_fidelity.py` holds presets labelled `code` to at most two of ours.

Kinds: a `method` has a mechanism of its own, a `recipe` has values and data only, a `probe` measures only.
**Proof**: a number that the mechanism moves through the whole pipeline, on the named task, with a scripted
policy that is right about half of the time: switched off (then the run is bit-identical to what the preset
extends), on, and turned round (its sign, order, choice or mask): then it must not move as stated. `python
scripts/run_proofs.py --reversed` measures it, `tests/proofs` checks it. The number's name says what it is:
`log/...` is a metric of the log, another name with a slash is a figure of `vlrl check`, and a name without a
slash is a function in `tests/proofs/proof_kit/`.

{counts}
"""  # noqa: E501


def titles() -> dict[str, tuple[str, str]]:
    """(name, title) of the catalogue's papers, by id."""
    with (ROOT / "docs" / "catalogue.csv").open(newline="", encoding="utf-8") as file:
        return {row["id"]: (row["name"], row["title"]) for row in csv.DictReader(file)}


def seen() -> dict[str, str]:
    """What the lab showed, by preset."""
    with (ROOT / "docs" / "lab.csv").open(newline="", encoding="utf-8") as file:
        return {row["preset"]: row["seen"] for row in csv.DictReader(file)}


def proven() -> dict[str, dict[str, str]]:
    """The figures of the proofs (`scripts/run_proofs.py`), by preset."""
    with (ROOT / "docs" / "proofs.csv").open(newline="", encoding="utf-8") as file:
        return {row["preset"]: row for row in csv.DictReader(file)}


def counts(abouts: list[dict]) -> str:
    """How many presets there are of each kind and fidelity, as a table."""
    kinds = Counter(str(about.get("kind", "?")) for about in abouts)
    fidelities = {
        kind: Counter(str(about.get("fidelity", "?")) for about in abouts if about.get("kind", "?") == kind)
        for kind in kinds
    }
    levels = ("code", "paper", "approximate")
    rows = [
        f"| {kind} | {kinds[kind]} | {' | '.join(str(fidelities[kind][level]) for level in levels)} |"
        for kind in sorted(kinds)
    ]
    return "\n".join(["| kind | presets | code | paper | approximate |", "|---|---|---|---|---|", *rows])


def proof_line(row: dict[str, str]) -> str:
    """One sentence about a proof."""
    directions = {"up": "is higher", "down": "is lower", "changes": "differs"}
    turned = row.get("reversed", "")
    turned = turned if turned in ("", "no opposite") else f"reversed {turned}"
    figures = f"off {row['off'] or 'absent'}, on {row['on']}{f', {turned}' if turned else ''}"
    return f"Proof on `tasks/{row['task']}`: `{row['observe']}` {directions[row['direction']]} ({figures})."


def values(text: str) -> list[tuple[str, str]]:
    """(setting, source) of each commented line of a preset."""
    found, slot = [], ""
    for line in text.splitlines():
        if re.match(r"\w+:\s*$", line):
            slot = line.strip()
        elif not line.startswith(" "):
            slot = ""
        setting, mark, source = line.partition(" # ")
        if mark and setting.strip():
            found.append(
                (f"{slot} {setting.strip()}" if line.startswith(" ") else setting.strip(), source.strip())
            )
    return found


def whose(source: str) -> str:
    """Whether a source is the paper, the release or we."""
    if source.startswith("ours"):
        return "ours"
    return (
        "paper"
        if re.match(r"(\w+ )?(sec|eq|app|table|fig|algorithm|abstract|paper)\b", source)
        else "release"
    )


def of_trainer(name: str) -> str:
    """What a preset leaves to the file of base/trainers that it extends; "" where it extends none."""
    config = load([f"methods/{name}"])
    found: dict[str, list[str]] = {}
    for path, origin in config.origins.items():
        if (
            "base/trainers/" not in origin
            or path.endswith(".name")
            or at(config.tree, path) in (None, {}, [])
        ):
            continue
        value = at(config.tree, path)
        if not isinstance(value, dict):
            found.setdefault(Path(origin.partition(":")[0]).stem, []).append(
                f"{path.removesuffix('.name')} {value}"
            )
    return "; ".join(f"`{base}`: {', '.join(sorted(values))}" for base, values in sorted(found.items()))


def released_data(name: str) -> str:
    """Where the paper's own data set is configured, and whether a record of it is tested; "" without one."""
    rooms = [
        room for room in ("datasets", "experiments") if (ROOT / "configs" / room / f"{name}.yaml").exists()
    ]
    tested = (ROOT / "tests" / "papers" / name / "case.yaml").exists()
    said = " and ".join(f"`{room}/{name}`" for room in rooms)
    ending = ", with a record in `tests/papers`" if tested else ""
    return f"Its data as released: {said}{ending}." if said else ""


def entry(
    path: Path, known: dict[str, tuple[str, str]], lab: dict[str, str], proofs: dict[str, dict[str, str]]
) -> list[str]:
    """One preset's section."""
    text = path.read_text(encoding="utf-8")
    tree = yaml.safe_load(text) or {}
    about = tree.get("about") or {}
    name, title = known.get(path.stem, (path.stem, text.partition("\n")[0].lstrip("# ").rstrip(".")))
    lines = [
        f"## {name}: `{path.stem}`",
        "",
        (
            f"{title}. {about.get('paper', '')}; {about.get('kind', '?')}, fidelity: "
            f"{about.get('fidelity', '?')}. {about.get('notes', '')}"
        ).strip(),
        "",
    ]
    if path.stem in proofs:
        lines += [proof_line(proofs[path.stem]), ""]
    if tree.get("extends"):
        lines += [f"Extends {', '.join(f'`{base}`' for base in tree['extends'])}.", ""]
    if trainer := of_trainer(path.stem):
        lines += [f"The trainer's: {trainer}.", ""]
    elif about.get("trainer"):
        lines += [f"Trainer: {about['trainer']}.", ""]
    if ours := about.get("ours"):
        lines += ["Ours: " + "; ".join(f"{key}: {reason}" for key, reason in ours.items()) + ".", ""]
    rows = values(text)
    if rows:
        lines += [
            "| setting | whose | source |",
            "|---|---|---|",
            *(
                f"| `{setting}` | {whose(source)} | {source} |".replace("\\", "\\\\")
                for setting, source in rows
            ),
            "",
        ]
    if data := released_data(path.stem):
        lines += [data, ""]
    if path.stem in lab:
        lines += [f"Lab: {lab[path.stem]}", ""]
    return lines


def render() -> str:
    """The whole page."""
    known, lab, proofs = titles(), seen(), proven()
    paths = sorted((ROOT / "configs" / "methods").glob("*.yaml"))
    sections = [entry(path, known, lab, proofs) for path in paths]
    abouts = [(yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get("about") or {} for path in paths]
    return (
        "\n".join(
            [HEAD.format(counts=counts(abouts)), *(line for section in sections for line in section)]
        ).rstrip()
        + "\n"
    )


if __name__ == "__main__":
    target = ROOT / "docs" / "papers.md"
    if "--check" in sys.argv:
        sys.exit(
            0
            if target.read_text(encoding="utf-8") == render()
            else "docs/papers.md is stale: run python scripts/make_papers_doc.py"
        )
    target.write_text(render(), encoding="utf-8")
