"""`vlrl judge rubrics` and `vlrl judge rules`: models write the criteria that a run is then scored by."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from vlrl.beside.judge import open_service
from vlrl.beside.rubric_writer import write_rubrics, write_rules
from vlrl.beside.service import ModelService
from vlrl.plugins.registry import ConfigError
from vlrl.services.files import read_jsonl, write_whole

WRITER = "A model that writes: {model: name@revision, engine: {...}}, as a reward's `judge`."
Writers = Annotated[list[str], typer.Option("--writer", help=f"{WRITER} Several: their rubrics are merged.")]
Writer = Annotated[str, typer.Option("--writer", help=WRITER)]
Out = Annotated[Path, typer.Option("-o", "--output", help="The file to write.")]


@dataclass
class JudgeRun:
    """What an engine's `setup` and a judge read of a run."""

    output: Path
    policy: Any = None
    seed: int = 0
    rank: int = 0
    ranks: int = 1
    params_sharded: bool = False

    def shared(self, name: str, make: Callable[[], Any]) -> Any:
        """Made for the one who asks."""
        return make()

    def warn(self, message: str) -> None:
        """Logs a warning."""
        logging.getLogger("vlrl").warning(message)


def rubrics(
    data: Annotated[str, typer.Argument(help="JSONL of question, and responses (a list of texts).")],
    output: Out,
    writer: Writers,
) -> None:
    """Write a rubric for each question, coarse to fine (RubricHub): JSONL of question, id, rubrics."""
    records = _records(data, ("question",))
    questions = [(str(one["question"]), list(map(str, one.get("responses", ())))) for one in records]
    with _opened(writer, output) as services:
        made = write_rubrics(questions, services)
    lines = [
        json.dumps(
            {"question": one["question"], "id": str(one.get("id", place)), "rubrics": own.criteria},
            ensure_ascii=False,
        )
        for place, (one, own) in enumerate(zip(records, made, strict=True))
        if own.criteria
    ]
    problems = [problem for own in made for problem in own.problems]
    _written(output, "".join(f"{line}\n" for line in lines), problems)
    typer.echo(f"{output}: {len(lines)} of {len(records)} questions have a rubric")


def rules(
    data: Annotated[str, typer.Argument(help="JSONL of question (or prompt), chosen, rejected.")],
    output: Out,
    writer: Writer,
) -> None:
    """Extract rules from preferences (AutoRule): a rubric file for `bank` of the reward `rubric`."""
    records = _records(data, ("chosen", "rejected"))
    pairs = [(str(r.get("question") or r.get("prompt") or ""), r["chosen"], r["rejected"]) for r in records]
    with _opened([writer], output) as (service,):
        found = write_rules(pairs, service)
    if not found.criteria:
        raise ConfigError(f"judge rules: no rule could be read; the first problem: {found.problems[:1]}")
    _written(output, yaml.safe_dump(found.criteria, sort_keys=False, allow_unicode=True), found.problems)
    typer.echo(f"{output}: {len(found.criteria)} rules from {len(records)} pairs")


def _records(data: str, keys: Sequence[str]) -> list[dict[str, Any]]:
    """The records of a file. Raises ConfigError where there are none, and for one without a key's text."""
    records = read_jsonl(data)
    if not records:
        raise ConfigError(f"judge: {data!r} is missing, or holds no records")
    for place, record in enumerate(records):
        if missing := [key for key in keys if not isinstance(record.get(key), str)]:
            raise ConfigError(f"judge: record {place} of {data!r} has no text {', '.join(missing)}")
    return records


@contextmanager
def _opened(specs: Sequence[str], output: Path) -> Iterator[list[ModelService]]:
    """The models of `--writer`, closed at the end. Replies are kept beside the output, so that a second try
    asks only what failed."""
    run: Any = JudgeRun(output.with_name(f"{output.name}.replies"))  # the part of a run that engines read
    with ExitStack() as stack, redirect_stdout(sys.stderr):
        found = []
        for place, text in enumerate(specs):
            spec = yaml.safe_load(text)
            if not isinstance(spec, dict):
                raise ConfigError(f"--writer: {text!r} is no map of model and engine")
            service, _ = open_service(spec, run, "--writer", folder=f"writer-{place}")
            stack.callback(service.close)
            found.append(service)
        yield found


def _written(output: Path, text: str, problems: Sequence[str]) -> None:
    """Write a file, and say what could not be read."""
    output.parent.mkdir(parents=True, exist_ok=True)
    write_whole(output, text)
    if problems:
        logging.getLogger("vlrl").warning(
            "%d replies could not be used and made no criterion; the first: %s", len(problems), problems[0]
        )
