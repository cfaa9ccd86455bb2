"""Writes docs/papers.md from the presets, whose comments source each value, and docs/lab.csv: `python
scripts/make_papers_doc.py [--check]`."""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from collections.abc import Sequence
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
the release's trainer does where its script is silent: `configs/base/trainers`, with file, line and commit),
or **ours**, with the reason. `tests/test_fidelity.py` holds presets labelled `code` to at most two of ours,
and to no value of another paper's preset.

Kinds: a `method` has a mechanism of its own, a `recipe` has values and data only, a `probe` measures only.
**Record**: rows in the released schema, and what the release's reward code pays for right, wrong and
malformed answers to them, are in `tests/papers`; they pass through source, template, units and rewards of
the experiment. **Proof**: a number that the mechanism moves through the whole pipeline, on the named task,
with a scripted policy that is right about half of the time: switched off (then the run is bit-identical to
what the preset extends), on, and turned round (its sign, order, choice or mask): then it must not move as
stated. `python scripts/run_proofs.py --reversed` measures it, `tests/proofs` checks it. The number's name
says what it is: `log/...` is a metric of the log, another name with a slash is a figure of `vlrl check`, and
a name without a slash is a function in `tests/proofs/proof_kit/`.

{counts}

## At a glance

Numbers of values. **Script**: the paper's, or its release's. **Trainer**: of the file of
`configs/base/trainers` that stands beside it, or of the preset that it extends. **Ours**: by name. Records
of experiments that extend no preset: {others}.

{glance}
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


def records() -> dict[str, list[str]]:
    """The folders of tests/papers by preset: those whose experiment extends it; "": that of no preset."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests" / "papers").glob("*/case.yaml")):
        case = yaml.safe_load(path.read_text(encoding="utf-8"))
        for name in case["config"]:
            tree = yaml.safe_load((ROOT / "configs" / f"{name}.yaml").read_text(encoding="utf-8")) or {}
            bases = [base for base in (name, *tree.get("extends", ())) if base.startswith("methods/")]
            for base in bases or [""]:
                found.setdefault(base.removeprefix("methods/"), []).append(path.parent.name)
    return found


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


def owner(setting: str, source: str, about: dict) -> str:
    """Whose a setting is, `about.ours` counted."""
    return "ours" if setting.partition(":")[0] in (about.get("ours") or {}) else whose(source)


def inherited(name: str) -> dict[str, list[tuple[str, object]]]:
    """What a preset leaves to the files that it extends: (setting, value) by file, the preset's own left
    out."""
    config = load([f"methods/{name}"])
    found: dict[str, list[tuple[str, object]]] = {}
    for path, origin in config.origins.items():
        place, value = Path(origin.partition(":")[0]), at(config.tree, path)
        if (
            place.parts[-2:] == ("methods", f"{name}.yaml")
            or path.startswith("about")
            or value in (None, {}, [])
        ):
            continue
        if not isinstance(value, dict):
            base = place.stem if place.parent.name == "trainers" else f"{place.parent.name}/{place.stem}"
            found.setdefault(base, []).append((path.removesuffix(".name"), value))
    return dict(sorted(found.items()))


def of_bases(found: dict[str, list[tuple[str, object]]]) -> list[str]:
    """A line for each file: its values, slot by slot."""
    lines = []
    for base, settings in found.items():
        slots: dict[str, list[str]] = {}
        for path, value in sorted(settings, key=lambda item: item[0]):
            slot, _, key = path.partition(".")
            slots.setdefault(slot, []).append(f"{key} {value}".strip())
        texts = "; ".join(f"**{slot}** {', '.join(texts)}" for slot, texts in slots.items())
        lines.append(f"- {'Of' if '/' in base else 'The trainer, '} `{base}`: {texts}".replace(",  ", ", "))
    return lines


def ours(path: Path, about: dict) -> dict[str, str]:
    """Our settings with the reason: those that `about.ours` names, and those whose comment says so."""
    reasons = {str(key): str(reason) for key, reason in (about.get("ours") or {}).items()}
    for setting, source in values(path.read_text(encoding="utf-8")):
        name = re.sub(r"^(\w+): (\w+):.*$", r"\1.\2", setting) if re.match(r"\w+: \w+:", setting) else setting
        name = name.partition(":")[0].strip("{} ")
        if whose(source) == "ours" and name not in reasons:
            reasons[name] = source.removeprefix("ours").lstrip(":,; ")
    return reasons


def glance(paths: Sequence[Path], abouts: Sequence[dict], tested: dict[str, list[str]]) -> str:
    """One line for each preset: how many values are whose, and where its record is tested."""
    lines = ["| preset | fidelity | script | trainer | ours | record |", "|---|---|---|---|---|---|"]
    for path, about in zip(paths, abouts, strict=True):
        found = values(path.read_text(encoding="utf-8"))
        script = sum(owner(setting, source, about) != "ours" for setting, source in found)
        bases = ", ".join(f"{len(settings)} `{base}`" for base, settings in inherited(path.stem).items())
        own = str(about.get("trainer", "")) or "-"
        names = ", ".join(f"`{name}`" for name in ours(path, about)) or "-"
        record = ", ".join(f"`{name}`" for name in tested.get(path.stem, [])) or "-"
        cells = (f"`{path.stem}`", about.get("fidelity", "?"), script, bases or own, names, record)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


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
    path: Path,
    known: dict[str, tuple[str, str]],
    lab: dict[str, str],
    proofs: dict[str, dict[str, str]],
    tested: dict[str, list[str]],
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
    if path.stem in tested:
        lines += [f"Record: {', '.join(f'`tests/papers/{name}`' for name in tested[path.stem])}.", ""]
    if lines_of_bases := of_bases(inherited(path.stem)):
        lines += ["Not of the paper or its script:", "", *lines_of_bases, ""]
    if about.get("trainer"):
        lines += [f"Trainer: {about['trainer']}.", ""]
    if reasons := ours(path, about):
        lines += [
            "Ours:",
            "",
            *(f"- `{key}`: {reason}" if reason else f"- `{key}`" for key, reason in reasons.items()),
            "",
        ]
    rows = values(text)
    if rows:
        lines += [
            "| setting | whose | source |",
            "|---|---|---|",
            *(
                f"| `{setting}` | {owner(setting, source, about)} | {source} |".replace("\\", "\\\\")
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
    known, lab, proofs, tested = titles(), seen(), proven(), records()
    paths = sorted((ROOT / "configs" / "methods").glob("*.yaml"))
    abouts = [(yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get("about") or {} for path in paths]
    others = ", ".join(f"`tests/papers/{name}`" for name in sorted(set(tested.get("", [])))) or "none"
    head = HEAD.format(counts=counts(abouts), glance=glance(paths, abouts, tested), others=others)
    sections = [line for path in paths for line in entry(path, known, lab, proofs, tested)]
    return "\n".join([head, *sections]).rstrip() + "\n"


if __name__ == "__main__":
    target = ROOT / "docs" / "papers.md"
    if "--check" in sys.argv:
        sys.exit(
            0
            if target.read_text(encoding="utf-8") == render()
            else "docs/papers.md is stale: run python scripts/make_papers_doc.py"
        )
    target.write_text(render(), encoding="utf-8")
