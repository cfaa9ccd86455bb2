"""`vlrl judge`: measures the judges of a config before they are trusted with a run."""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from vlrl.beside.benchmarks import pictures_of
from vlrl.beside.check import JudgeReport, check, labelled_rates
from vlrl.beside.judge import check_judge, open_judge
from vlrl.cli.judge_write import JudgeRun, rubrics, rules
from vlrl.cli.words import ConfigWords, load_words
from vlrl.config import Config
from vlrl.eval.media import SuitePicture
from vlrl.eval.records import FORMATS, read_file
from vlrl.pages.kit import render
from vlrl.plugins.registry import ConfigError, build, get, load_plugin_file
from vlrl.plugins.stages import Engine, Reward
from vlrl.policy.family import Family
from vlrl.services.files import write_whole
from vlrl.types import Media

app = typer.Typer(name="judge", help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False)
OPTIONS = ("--reward", "--data", "--limit", "--json", "--save", "--page", "--help")
NOT_RATES = ("kind", "data", "model", "template")  # what else a report has
app.command("rubrics")(rubrics)
app.command("rules")(rules)


@app.callback()
def _group() -> None:
    """Measures the judges of a config before they are trusted with a run."""


@app.command("check")
def check_judges(
    configs: ConfigWords,
    reward: Annotated[str, typer.Option("--reward", help="The slot of the reward; all with a judge.")] = "",
    data: Annotated[
        str,
        typer.Option(
            "--data",
            help="JSONL, JSON or parquet of question, answer, label (and reference), of question, chosen, "
            "rejected, or of RewardBench 2, JudgeBench, ProcessBench, VL-RewardBench or Multimodal "
            "RewardBench. Paths of pictures begin at the file's folder.",
        ),
    ] = "",
    limit: Annotated[int, typer.Option(help="Only the first items (0: all 12), and records.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
    save: Annotated[
        str, typer.Option("--save", help="Write the reports to this file, for the judge's `report` in a run.")
    ] = "",
    page: Annotated[
        Path | None, typer.Option("--page", help="Write an HTML page of it, which needs no network.")
    ] = None,
) -> None:
    """Attack the judges of a config: false accepts and rejects, unreadable replies, flips, cost. Exit code 1
    if one is not good."""
    logging.basicConfig(
        level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    config = load_words(configs, options=OPTIONS)
    for file in config.tree.get("plugins") or []:
        load_plugin_file(file)
    found = dict(judges_of(config, reward))
    if not found:
        raise ConfigError(
            "judge check: no reward of this config has a `judge`; name one, like rewards.answer={name: "
            "judged_answer, judge: {model: name@revision, engine: {...}}}"
        )
    rows = labelled_records(data)[: limit or None] if data else []
    reports: dict[str, dict[str, Any]] = {}
    with redirect_stdout(sys.stderr):
        for slot, (spec, template) in found.items():
            reports[slot] = _measured(config, slot, spec, template, rows, limit)
    if save:
        write_whole(Path(save), json.dumps(reports, indent=2) + "\n")
    typer.echo(
        json.dumps(reports, indent=2) if as_json else "\n\n".join(map(_shown, reports, reports.values()))
    )
    if page:
        write_whole(page, _page(reports, " ".join(word for word in configs if "=" not in word)))
    if any(report["kind"] != "good" for report in reports.values()):
        raise typer.Exit(1)


Labelled = tuple[dict[str, Any], tuple[Media, ...]]


def labelled_records(data: str) -> list[Labelled]:
    """The records of a file, each with its pictures. Raises ConfigError for a missing or empty file, and for
    a picture that is missing."""
    path = Path(data).expanduser()
    if not path.is_file() or path.suffix not in FORMATS:
        raise ConfigError(f"--data: {data!r} is no file that can be read ({', '.join(FORMATS)})")
    found: list[Labelled] = []
    for number, row in enumerate(read_file(path)):
        seen = []
        for value in pictures_of(row):
            entry = (
                value
                if isinstance(value, Mapping)
                else {"bytes" if isinstance(value, bytes) else "path": value}
            )
            file = path.parent / str(entry.get("path") or "")
            if not entry.get("bytes") and not file.is_file():
                raise ConfigError(
                    f"--data: record {number} of {data!r} names the picture {str(file)!r}, which is missing; "
                    "put the data's folder of pictures beside the file"
                )
            seen.append(SuitePicture(entry.get("bytes") or file, f"record {number} of {data!r}"))
        found.append((row, tuple(seen)))
    if not found:
        raise ConfigError(f"--data: {data!r} holds no records")
    return found


def judges_of(config: Config, only: str = "") -> Iterator[tuple[str, tuple[Mapping[str, Any], str]]]:
    """(slot, (the judge's config, the reward's template)) of the rewards that ask a judge."""
    for slot, spec in (config.tree.get("rewards") or {}).items():
        if isinstance(spec, Mapping) and spec.get("judge") and (not only or slot == only):
            template = getattr(get(Reward, spec["name"], f"rewards.{slot}"), "template", "correctness")
            yield slot, (spec["judge"], template)


def _measured(
    config: Config, slot: str, spec: Mapping[str, Any], template: str, rows: list[Labelled], limit: int
) -> dict[str, Any]:
    where = f"rewards.{slot}.judge"
    spec = {key: value for key, value in spec.items() if key not in ("report", "unless_good")}
    engine = build(Engine, check_judge(spec, where).engine, f"{where}.engine")
    policy = None
    if getattr(engine, "needs_policy", True):
        from vlrl.policy.policy import Policy  # imports torch

        policy = Policy(build(Family, config.tree["policy"], "policy"))
    with tempfile.TemporaryDirectory() as folder:
        run: Any = JudgeRun(Path(folder), policy)  # the part of a run that engines read
        judge = open_judge(spec, run, where, template)
        try:
            report = check(judge, limit).to_plain()
            report |= {"model": judge.config.model, "template": judge.template.name}
            if rows:
                report["data"] = labelled_rates(judge, *map(list, zip(*rows, strict=True)))
            return report
        finally:
            judge.service.close()


def _shown(slot: str, report: Mapping[str, Any]) -> str:
    """A report as lines."""
    rates = JudgeReport(**{key: value for key, value in report.items() if key not in NOT_RATES})
    cost = rates.per_1000
    lines = [
        f"{slot}: {report['kind']} ({rates.judgements} judgements)",
        f"  false accept {rates.false_accept:.1%}, false reject {rates.false_reject:.1%}, "
        f"null {rates.null:.1%}, flip {rates.flip:.1%}, agreement {rates.agreement:.1%}",
        f"  per 1,000 judgements: {cost['calls']:.0f} calls, {cost['tokens']:.0f} tokens, "
        f"cost {cost['cost']:.4g}",
        *(f"  {finding}" for finding in rates.findings),
        *(f"  accepted: {name} {rate:.0%}" for name, rate in rates.by_attack.items() if rate),
    ]
    if data := report.get("data"):
        macro = f" (mean over groups {data['macro']:.1%})" if "macro" in data else ""
        lines.append(
            f"  data: accuracy {data['accuracy']:.1%} of {data['rows']:.0f}{macro}, null {data['null']:.1%}, "
            f"flip {data['flip']:.1%}"
        )
        lines += [f"    {group or 'other'}: {rate:.1%}" for group, rate in data.get("by_group", {}).items()]
    return "\n".join(lines)


RATES = ("false_accept", "false_reject", "null", "flip", "agreement")


def _page(reports: Mapping[str, Mapping[str, Any]], title: str) -> str:
    rows = [
        [slot, r["kind"], str(r["judgements"]), *(f"{r[name]:.1%}" for name in RATES)]
        for slot, r in reports.items()
    ]
    sections: list[dict[str, Any]] = [
        {
            "heading": "Rates",
            "table": [["slot", "verdict", "judgements", *(n.replace("_", " ") for n in RATES)], *rows],
        }
    ]
    for slot, report in reports.items():
        attacks = [[name, f"{rate:.0%}"] for name, rate in report["by_attack"].items()]
        sections.append({"heading": f"Attacks on {slot}", "table": [["attack", "accepted"], *attacks]})
        sections.append({"heading": f"{slot} in full", "text": _shown(slot, report)})
    story = [f"{slot}: {'; '.join(report['findings']) or 'good'}." for slot, report in reports.items()]
    return render("sections", title, "vlrl judge check", story=story, sections=sections)
