"""Writes docs/papers.md and docs/papers.csv from the catalogue and the presets, whose comments source each
value: `python scripts/make_papers_doc.py [--check]`. `pages` has the page of each paper, for the site."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path

import yaml

from vlrl.config import MAP_SLOTS, SLOTS, Config, load
from vlrl.config.config import at

ROOT = Path(__file__).parents[1]
HEAD = """# Papers

Made by `scripts/make_papers_doc.py`; do not edit. A paper is a preset: `vlrl train tasks/lab_counting
methods/ID`. The page of each says what follows the paper and what does not, each value with where it comes
from, and what the lab showed ([notebook](LOG.md)). A value without a source is a plug-in's default, whose
docstring names it.

Whose a value is: the **paper**'s, the **release**'s (the authors' script and code), the **trainer**'s (what
the release's trainer does where its script is silent: `configs/base/trainers`, with file, line and commit),
or **ours**, with the reason. `tests/test_fidelity.py` holds presets labelled `code` to at most two of ours,
and to no value of another paper's preset. Rewards that a preset takes from its lab task read
an answer wherever a text commits to it (tags, a box, a phrase, the text itself), and no thought; most
releases read one place alone, and some the thought too: `rewards.SLOT.answer_in=tags`, `box` or
`marked`.

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

Whose the values of the presets are, by fidelity. Without a source: names of plug-ins, whose docstrings name
it, and of tasks and rows.

{owned}

## The list

[papers.csv](papers.csv) has one line for each paper: family, task, kind, fidelity, modality, what it needs,
how many values are ours, and its tested record. The site, which `make docs` builds, has the same as a table
that is searched and filtered, and a page for each paper.

| family | papers | work | outside | not yet |
|---|---|---|---|---|
{families}

In the list, `values` counts the values of a preset: `script` those of the paper or of its release, `trainer`
those of the file of `configs/base/trainers` or of the preset that it extends, `ours_count` our own, which
`ours` names, and `unsourced` those whose line names no source. Records of experiments that extend no preset:
{others}.
"""
FIELDS = (
    "id", "name", "title", "family", "task", "kind", "fidelity", "modality", "needs", "status", "values",
    "script", "trainer", "ours", "ours_count", "unsourced", "record", "proof",
)  # fmt: skip
NEEDS = {  # what a run needs beyond policy, rows and rewards: (slot, name of the plug-in)
    "reference model": r"loss_terms \w*(kl|trust_region|divergence)\w*|(reward_shaping|token_credit) kl_\w+",
    "critic": r"callbacks critic\w*",
    "teacher": r"\w+ [\w.]*teacher\w*",
    "environment": r"environment (?!single)\w+|rollout (multi_turn|arpo|agentrl)",
    "judge": r"rewards (judged|rubric)\w*",
    "demonstrations": r"loss_terms nll|rollout luffy",
}


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


@cache
def tree_of(path: Path) -> dict:
    """What a YAML file says; libyaml reads it ten times as fast where it is there."""
    return yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}


@cache
def records() -> dict[str, list[str]]:
    """The folders of tests/papers by preset: those whose experiment extends it."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests" / "papers").glob("*/case.yaml")):
        case = tree_of(path)
        for name in case["config"]:
            tree = tree_of(ROOT / "configs" / f"{name}.yaml")
            bases = [base for base in (name, *tree.get("extends", ())) if base.startswith("methods/")]
            for base in bases:
                found.setdefault(base.removeprefix("methods/"), []).append(path.parent.name)
    return found


def without_preset(tested: dict[str, list[str]]) -> list[str]:
    """The folders of tests/papers that no preset's experiment names, once each."""
    named = {name for names in tested.values() for name in names}
    return sorted({path.parent.name for path in (ROOT / "tests" / "papers").glob("*/case.yaml")} - named)


def places() -> dict[str, dict[str, str]]:
    """Kind, task, proof and fidelity of papers whose place is no preset (docs/places.csv), by id."""
    with (ROOT / "docs" / "places.csv").open(newline="", encoding="utf-8") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def proof_of(name: str, tested: dict[str, list[str]]) -> str:
    """Where a preset's paper is proven: its proof, else its records, else its values alone."""
    if (ROOT / "tests" / "proofs" / f"{name}.yaml").exists():
        return f"tests/proofs/{name}.yaml"
    return " ".join(f"tests/papers/{folder}" for folder in sorted(set(tested.get(name, [])))) or "values"


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


def whose_values() -> str:
    """How many values of the presets of each fidelity are the release's, the trainer's and ours, as a
    table."""
    lines = [
        "| fidelity | values | paper, release | trainer, preset extended | ours | without a source |",
        "|---|---|---|---|---|---|",
    ]
    for level in ("code", "paper", "approximate"):
        rows = [row for row in listed() if row["fidelity"] == level and row["id"] in presets()]
        total, script, own, plain = (
            sum(int(row[key]) for row in rows) for key in ("values", "script", "ours_count", "unsourced")
        )
        lines.append(f"| {level} | {total} | {script} | {total - script - own - plain} | {own} | {plain} |")
    return "\n".join(lines)


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


@cache
def resolved(name: str) -> Config:
    """A preset with the files that it extends."""
    return load([f"methods/{name}"])


@cache
def inherited(name: str) -> dict[str, list[tuple[str, object]]]:
    """What a preset leaves to the files that it extends: (setting, value) by file, the preset's own left
    out."""
    config = resolved(name)
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


def comment_of(lines: Sequence[str], number: int) -> str:
    """The comment of line `number`, from 1, or of the line that opens its block."""
    depth = 1 << 10
    for line in reversed(lines[:number]):
        indent = len(line) - len(line.lstrip())
        if line.strip() and indent < depth:
            if " # " in line or not indent:
                return line.partition(" # ")[2].strip()
            depth = indent
    return ""


@cache
def owned(name: str) -> dict[str, int]:
    """How many values that a preset states itself are of the paper or its release (`script`), of us
    (`ours_count`), or have no source in their line (`unsourced`); what it takes away does not count."""
    path = ROOT / "configs" / "methods" / f"{name}.yaml"
    config, lines = resolved(name), path.read_text(encoding="utf-8").splitlines()
    named = tuple(about_of(path).get("ours") or {})
    found: Counter[str] = Counter(script=0, ours_count=0, unsourced=0)
    for key, origin in config.origins.items():
        place, _, number = origin.rpartition(":")
        value = at(config.tree, key)
        if not place.endswith(f"methods/{name}.yaml") or key.startswith("about") or value in (None, {}, []):
            continue
        if not isinstance(value, dict):
            source = comment_of(lines, int(number))
            is_ours = any(key == one or key.startswith(f"{one}.") for one in named) or whose(source) == "ours"
            found["ours_count" if is_ours else "script" if source else "unsourced"] += 1
    return dict(found)


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


def needs(tree: dict) -> list[str]:
    """What a run of a resolved preset needs beyond policy, rows and rewards, by the plug-ins of its slots."""
    named = []
    for slot in SLOTS:
        held = tree.get(slot) or {}
        for plugin in held.values() if slot in MAP_SLOTS else [held]:
            named.append(f"{slot} {plugin.get('name', '') if isinstance(plugin, dict) else plugin}")
    return [need for need, pattern in NEEDS.items() if any(re.fullmatch(pattern, one) for one in named)]


def status(row: dict[str, str], known: Collection[str]) -> str:
    """What there is of a paper of the catalogue."""
    if row["id"] in known:
        return "works"
    if row["feature"]:
        return f"works: {row['feature']}"
    return f"outside: {row['reason']}" if row["reason"] else "not yet"


def catalogue() -> dict[str, dict[str, str]]:
    """The rows of docs/catalogue.csv, with the modality of docs/modality.csv, by id."""
    with (ROOT / "docs" / "modality.csv").open(newline="", encoding="utf-8") as file:
        modality = {row["id"]: row["modality"] for row in csv.DictReader(file)}
    with (ROOT / "docs" / "catalogue.csv").open(newline="", encoding="utf-8") as file:
        return {row["id"]: {**row, "modality": modality.get(row["id"], "")} for row in csv.DictReader(file)}


def presets() -> dict[str, Path]:
    """The files of configs/methods, by id."""
    return {path.stem: path for path in sorted((ROOT / "configs" / "methods").glob("*.yaml"))}


def about_of(path: Path) -> dict:
    """`about` of a preset."""
    return tree_of(path).get("about") or {}


@cache
def listed() -> list[dict[str, str]]:
    """A row for each paper of the catalogue and each preset beside it, in the order of the ids."""
    known, files, tested = catalogue(), presets(), records()
    rows = []
    for name in sorted({*known, *files}):
        paper = known.get(name, {"id": name, "feature": "", "reason": ""})
        row = dict.fromkeys(FIELDS, "") | {
            key: paper.get(key, "") for key in ("name", "title", "family", "modality")
        }
        row |= {"id": name, "name": row["name"] or name, "status": status(paper, files)}
        row["family"] = row["family"] or "classic"
        row |= {key: places().get(name, {}).get(key, "") for key in ("kind", "task", "proof", "fidelity")}
        if name in files:
            row["proof"] = proof_of(name, tested)
            about = about_of(files[name])
            bases = [f"{len(settings)} {base}" for base, settings in inherited(name).items()]
            own = owned(name)
            row |= {key: str(about.get(key, "?")) for key in ("task", "kind", "fidelity")}
            row["title"] = row["title"] or first_line(files[name])
            shown = (
                [f"tasks/{row['task']}"] if (ROOT / "configs/tasks" / f"{row['task']}.yaml").exists() else []
            )
            row["needs"] = ", ".join(needs(load([*shown, f"methods/{name}"]).tree))
            row |= {key: str(count) for key, count in own.items()}
            row["values"] = str(sum(own.values()) + sum(map(len, inherited(name).values())))
            row["trainer"] = ", ".join(bases) or str(about.get("trainer", ""))
            row["ours"] = " ".join(ours(files[name], about))
            row["record"] = " ".join(tested.get(name, []))
        rows.append(row)
    return rows


def first_line(path: Path) -> str:
    """The comment at the top of a preset."""
    return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ").rstrip(".")


def table_of_papers() -> str:
    """Text of docs/papers.csv."""
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(listed())
    return text.getvalue()


def families() -> str:
    """How many papers of each family work, are outside, and are not built yet."""
    lines = []
    for family in sorted({row["family"] for row in listed()}):
        said = Counter(row["status"].partition(":")[0] for row in listed() if row["family"] == family)
        lines.append(
            f"| {family} | {said.total()} | {said['works']} | {said['outside']} | {said['not yet']} |"
        )
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


@cache
def render() -> str:
    """Text of docs/papers.md: how to read the list, and its counts."""
    others = ", ".join(f"`tests/papers/{name}`" for name in without_preset(records())) or "none"
    abouts = [about_of(path) for path in presets().values()]
    return HEAD.format(counts=counts(abouts), owned=whose_values(), families=families(), others=others)


@cache
def pages() -> dict[str, str]:
    """A page for each paper of the list, by id: with a preset its section, else what there is of it."""
    known, lab, proofs, tested, files = titles(), seen(), proven(), records(), presets()
    out = {}
    for row in listed():
        if row["id"] in files:
            _head, *lines = entry(files[row["id"]], known, lab, proofs, tested)
            text = "\n".join([f"# {row['name']}", "", f"`vlrl show methods/{row['id']}`", *lines])
        else:
            text = (
                f"# {row['name']}\n\n{row['title']}.\n\nFamily: {row['family']}. Status: {row['status']}.\n"
            )
        out[row["id"]] = text
    return out


def made() -> dict[Path, str]:
    """The files that this script writes."""
    docs = ROOT / "docs"
    return {docs / "papers.md": render(), docs / "papers.csv": table_of_papers()}


if __name__ == "__main__":
    for target, text in made().items():
        if "--check" not in sys.argv:
            target.write_text(text, encoding="utf-8")
        elif target.read_text(encoding="utf-8") != text:
            sys.exit(f"docs/{target.name} is stale: run python scripts/make_papers_doc.py")
