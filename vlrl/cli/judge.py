"""`vlrl judge`: measures the judges and reward models of a config before they are trusted with a run."""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from vlrl.beside.benchmarks import pictures_of
from vlrl.beside.check import JudgeReport, check, labelled_rates
from vlrl.beside.judge import Judge, check_judge, open_judge
from vlrl.beside.reward_model import REWARD_MODEL
from vlrl.beside.scored import ScoredByModel
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
    """Measures the judges and reward models of a config before they are trusted with a run."""


@app.command("check")
def check_judges(
    configs: ConfigWords,
    reward: Annotated[
        str, typer.Option("--reward", help="The slot of the reward; all with a judge or a reward model.")
    ] = "",
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
    """Attack the judges and reward models of a config: false accepts and rejects, unreadable replies, flips,
    cost. Exit code 1 if one is not good."""
    logging.basicConfig(
        level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    config = load_words(configs, options=OPTIONS)
    for file in config.tree.get("plugins") or []:
        load_plugin_file(file)
    found = dict(asked_of(config, reward))
    if not found:
        raise ConfigError(
            f"judge check: no reward of this config {f'is in slot {reward!r} and ' if reward else ''}has a "
            "`judge` or a reward model; name one, like rewards.answer={name: judged_answer, judge: "
            "{model: name@revision, engine: {...}}} or rewards.preference={name: reward_model, model: FOLDER}"
        )
    rows = labelled_records(data)[: limit or None] if data else []
    reports: dict[str, dict[str, Any]] = {}
    with redirect_stdout(sys.stderr):
        for slot, spec in found.items():
            reports[slot] = _measured(config, slot, spec, rows, limit)
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


def asked_of(config: Config, only: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(slot, config) of the rewards that ask a judge or a reward model."""
    for slot, spec in (config.tree.get("rewards") or {}).items():
        if not isinstance(spec, Mapping) or (only and slot != only):
            continue
        provides = getattr(get(Reward, spec["name"], f"rewards.{slot}"), "provides", ())
        if spec.get("judge") or (isinstance(provides, tuple) and REWARD_MODEL in provides):
            yield slot, spec


def _measured(
    config: Config, slot: str, spec: Mapping[str, Any], rows: list[Labelled], limit: int
) -> dict[str, Any]:
    measured = _judge if spec.get("judge") else _reward_model
    with tempfile.TemporaryDirectory() as folder, measured(config, slot, spec, Path(folder)) as (judge, name):
        report = check(judge, limit).to_plain()
        report |= {"model": name, "template": judge.name}
        if rows:
            report["data"] = labelled_rates(judge, *map(list, zip(*rows, strict=True)))
        return report


@contextmanager
def _judge(config: Config, slot: str, reward: Mapping[str, Any], folder: Path) -> Iterator[tuple[Judge, str]]:
    """The judge of a reward, and its model's name."""
    where = f"rewards.{slot}.judge"
    template = getattr(get(Reward, reward["name"], f"rewards.{slot}"), "template", "correctness")
    spec = {key: value for key, value in reward["judge"].items() if key not in ("report", "unless_good")}
    engine = build(Engine, check_judge(spec, where).engine, f"{where}.engine")
    policy = _policy(config) if getattr(engine, "needs_policy", True) else None
    run: Any = JudgeRun(folder, policy)  # the part of a run that engines read
    judge = open_judge(spec, run, where, template)
    try:
        yield judge, judge.config.model
    finally:
        judge.service.close()


@contextmanager
def _reward_model(
    config: Config, slot: str, spec: Mapping[str, Any], folder: Path
) -> Iterator[tuple[ScoredByModel, str]]:
    """The reward by a reward model, and the model's name; beside the policy, as in a run."""
    reward = build(Reward, spec, f"rewards.{slot}")
    run: Any = JudgeRun(folder, _policy(config))
    reward.setup(run)
    yield ScoredByModel(reward), str(spec.get("model", ""))


def _policy(config: Config) -> Any:
    from vlrl.policy.policy import Policy  # imports torch

    return Policy(build(Family, config.tree["policy"], "policy"))


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
