"""`vlrl eval`: run suites on a model (also as `vlrl eval run`), score responses again, compare two runs,
check for contamination, ask a judge."""

from __future__ import annotations

import json
import logging
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from vlrl.config.model_folder import check_there
from vlrl.eval.card import read_card
from vlrl.eval.contamination import check_suites, probe_suites
from vlrl.eval.generate import describe_cost
from vlrl.eval.judge import judge_run
from vlrl.eval.model import check_named, engine_spec
from vlrl.eval.page import write_page
from vlrl.eval.records import read_records
from vlrl.eval.runner import EvalOptions, rescore, run_eval
from vlrl.eval.suite import load_suite, suite_names
from vlrl.plugins.registry import ConfigError

if TYPE_CHECKING:
    from vlrl.eval.runner import EvalOptions

app = typer.Typer(
    name="eval",
    help=__doc__,
    invoke_without_command=True,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Suites = Annotated[
    list[str],
    typer.Option(
        "--suite", "-s", help="A suite's name or YAML path; several: -s mathvista,vsi_bench or -s twice."
    ),
]
Model = Annotated[
    str,
    typer.Option(
        "--model", "-m", help="A run's folder, a model folder, a config such as tiny_qwen2_5_vl, or a hub id."
    ),
]
Engine = Annotated[
    str, typer.Option("--engine", "-e", help="hf, vllm, vllm_server, openai (any compatible endpoint), ...")
]
EngineOptions = Annotated[
    list[str], typer.Option("--engine-option", "-E", help="A field of the engine, as name=value.")
]
Data = Annotated[
    str,
    typer.Option(
        "--data",
        help=(
            "hub, fixture (packaged synthetic rows), or a folder laid out as on the hub. auto: hub, else "
            "fixture."
        ),
    ),
]
MediaFolder = Annotated[
    str, typer.Option("--media", help="The folder that paths of pictures and videos are relative to.")
]
Profiles = Annotated[
    list[str],
    typer.Option(
        "--profile", "-p", help="official, lmms_eval, vlmevalkit, vlrl; several: by comma, or -p twice."
    ),
]
Limit = Annotated[int, typer.Option(help="Only the first rows of each suite (0: all).")]
Samples = Annotated[int, typer.Option("--samples", "-k", help="Responses per row.")]
Temperature = Annotated[float, typer.Option("--temperature", "-t", help="Sampling temperature; 0 is greedy.")]
TopP = Annotated[float, typer.Option(help="Nucleus sampling.")]
MaxTokens = Annotated[int, typer.Option(help="Most tokens of a response (0: the suite's limit).")]
Seed = Annotated[int, typer.Option(help="Random seed.")]
Protocol = Annotated[
    str,
    typer.Option(
        help=(
            "direct, or thinking: asks for thinking, uses the suite's long limit, scores the text after "
            "</think>."
        )
    ),
]
Floors = Annotated[
    bool,
    typer.Option(
        "--floors", help="Also run without the picture, with a wrong picture, and with the options moved."
    ),
]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16 instead of the model's own.")]
Output = Annotated[str, typer.Option("--output", "-o", help="The run's folder.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Delete an existing run in the folder instead of resuming it.")
]
Dry = Annotated[bool, typer.Option("--dry-run", help="Estimate tokens, time, disk and price, and stop.")]
Prices = Annotated[str, typer.Option(help="Prices per million prompt and response tokens, as 0.5,1.5.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")]
Card = Annotated[str, typer.Option("--card", help="Replay a run from its card.json.")]


def _run(
    ctx: typer.Context,
    suite: Suites = [],  # noqa: B006
    model: Model = "",
    engine: Engine = "hf",
    engine_option: EngineOptions = [],  # noqa: B006
    data: Data = "auto",
    media: MediaFolder = "",
    limit: Limit = 0,
    samples: Samples = 1,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    max_tokens: MaxTokens = 0,
    seed: Seed = 0,
    protocol: Protocol = "direct",
    floors: Floors = False,
    dtype: Dtype = "",
    output: Output = "",
    overwrite: Overwrite = False,
    dry_run: Dry = False,
    prices: Prices = "0,0",
    as_json: Json = False,
    card: Card = "",
) -> None:
    """Generate responses and score them: `vlrl eval --suite mathvista --model runs/x`."""
    if ctx.invoked_subcommand is not None:
        return
    check_there(model, "--model")  # before torch is imported
    _set_up_logging(as_json)
    if card:
        options = _options_of_card(Path(card))
    elif not model:
        raise ConfigError(
            "--model: not given; a run's folder, a model folder, a config such as tiny_qwen2_5_vl, or a "
            "hub id"
        )
    else:
        sampling: dict[str, Any] = {
            "samples": samples,
            "temperature": temperature,
            "top_p": top_p,
            "max_tokens": max_tokens,
            "seed": seed,
        }
        source: dict[str, Any] = {
            "data": data,
            "media": media,
            "limit": limit,
            "protocol": protocol,
            "floors": floors,
            "dtype": dtype,
        }
        options = EvalOptions(
            _split(suite), model, engine, _engine_options(engine_option), **source, **sampling
        )
    _run_and_print(options, output, overwrite, dry_run, _prices(prices), as_json)


app.callback()(_run)
app.command("run")(_run)


def _run_and_print(
    options: EvalOptions,
    output: str,
    overwrite: bool,
    dry_run: bool,
    prices: tuple[float, float],
    as_json: bool,
) -> None:
    check_named(
        options.model, engine_spec(options.engine, options.engine_options), options.dtype
    )  # before a folder is written
    suites = "-".join(
        Path(name).stem if name.endswith((".yaml", ".yml")) else name for name in options.suites
    )
    folder = Path(output or f"runs/eval-{Path(options.model).name}-{suites}"[:120])
    with redirect_stdout(sys.stderr):  # libraries print to standard output, which is for the result
        result = run_eval(
            options, folder, overwrite, dry_run, lambda text: typer.echo(text, err=True), prices
        )
    if as_json:
        typer.echo(
            json.dumps(
                {**result, "folder": str(folder)} if not dry_run else result,
                indent=2,
                ensure_ascii=False,
                default=str,
            )
        )
    elif dry_run:
        typer.echo(describe_cost(result))
    elif result:
        typer.echo(score_table(result["results"]))
        typer.echo(f"summary: {folder / 'summary.json'}\ncompare: vlrl eval report {folder} OTHER")


@app.command()
def score(
    run: Annotated[str, typer.Argument(help="The folder of a run, or a JSONL of {id, response}.")],
    profile: Profiles = [],  # noqa: B006
    suite: Suites = [],  # noqa: B006
    data: Data = "auto",
    media: MediaFolder = "",
    protocol: Protocol = "",
    as_json: Json = False,
) -> None:
    """Score existing responses by any profile. Nothing is generated."""
    _set_up_logging(as_json)
    results = rescore(Path(run), _split(profile), _split(suite), data, media, protocol)
    typer.echo(
        json.dumps({"results": results}, indent=2, ensure_ascii=False, default=str)
        if as_json
        else score_table(results)
    )


@app.command()
def report(
    runs: Annotated[
        list[str], typer.Argument(help="The folders of one or two runs (A B: the changes from A to B).")
    ],
    output: Annotated[
        str,
        typer.Option("--output", "-o", help="The HTML file; default report.html in the last run's folder."),
    ] = "",
    profile: Annotated[
        str, typer.Option("--profile", "-p", help="The profile that decides which items are correct.")
    ] = "official",
    as_json: Json = False,
) -> None:
    """Write an HTML report: scores with intervals and floors, flipped items with pictures, boxes and both
    extracted answers."""
    _set_up_logging(as_json)
    target = Path(output) if output else Path(runs[-1]) / "report.html"
    facts = write_page([Path(run) for run in runs], target, profile)
    typer.echo(json.dumps(facts, indent=2, default=str) if as_json else f"page: {target}")


@app.command()
def suites(
    name: Annotated[str, typer.Argument(help="A suite: its prompt and its columns.")] = "",
    as_json: Json = False,
) -> None:
    """List the suites, or describe one."""
    if name:
        facts = suite_facts(name)
        typer.echo(json.dumps(facts, indent=2, ensure_ascii=False) if as_json else _described(facts))
        return
    found = {name: load_suite(name) for name in suite_names()}
    if as_json:
        typer.echo(
            json.dumps(
                {
                    name: {"hub": s.data.hub, "split": s.data.split, "profiles": list(s.built)}
                    for name, s in found.items()
                },
                indent=2,
            )
        )
    else:
        for name, entry in found.items():
            typer.echo(f"{name:18} {entry.data.hub} [{entry.data.split}]  {', '.join(entry.built)}")


def suite_facts(name: str) -> dict[str, Any]:
    """What a suite reads: prompt, media, answer, options, and the columns of its records with their types (of
    the packaged rows)."""
    suite = load_suite(name)
    columns: dict[str, str] = {}
    for record in read_records(suite, "fixture").records:
        columns |= {
            key: type(value).__name__
            for key, value in record.items()
            if not key.startswith("_") and (value is not None or key not in columns)
        }
    return {
        "suite": suite.name, "hub": suite.data.hub, "split": suite.data.split, "prompt": suite.prompt,
        "images": list(suite.media.images), "answer": suite.answer, "choices": suite.choices,
        "profiles": list(suite.built), "columns": columns,
    }  # fmt: skip


def _described(facts: dict[str, Any]) -> str:
    lines = [
        f"{key}: {', '.join(value) if isinstance(value, list) else value}"
        for key, value in facts.items()
        if value and key != "columns"
    ]
    return "\n".join([*lines, "columns:", *(f"  {key}: {kind}" for key, kind in facts["columns"].items())])


@app.command()
def contamination(
    suite: Suites,
    training: Annotated[
        list[str],
        typer.Option("--training", help="Training data: a JSONL or parquet file, or a folder of them."),
    ],
    data: Data = "auto",
    media: MediaFolder = "",
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            help="Also test how much of each question this model completes from its first 60%.",
        ),
    ] = "",
    engine: Engine = "hf",
    engine_option: EngineOptions = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Look for a suite's questions (13-grams) and pictures (hashes) in training data."""
    _set_up_logging(as_json)
    found = check_suites(_split(suite), [Path(path) for path in training], data, media)
    if model:
        probes = probe_suites(
            _split(suite), model, {"name": engine, **_engine_options(engine_option)}, data, media
        )
        found = {name: {**part, "completion": probes[name]} for name, part in found.items()}
    lines = [_contamination_line(name, part) for name, part in found.items()]
    typer.echo(json.dumps(found, indent=2, ensure_ascii=False) if as_json else "\n".join(lines))


@app.command()
def judge(
    run: Annotated[str, typer.Argument(help="The folder of a run.")],
    judge_model: Annotated[str, typer.Option("--judge", help="The judge, pinned: model@revision.")],
    engine: Engine = "openai",
    engine_option: EngineOptions = [],  # noqa: B006
    suite: Suites = [],  # noqa: B006
    profile: Annotated[
        str, typer.Option("--profile", "-p", help="The profile whose rule the judge is compared with.")
    ] = "official",
    prices: Prices = "0,0",
    dry_run: Dry = False,
    as_json: Json = False,
) -> None:
    """Ask a language model whether the responses are correct; reported beside the rule's scores. Replies are
    cached in the run's folder."""
    _set_up_logging(as_json)
    options = {
        **({"model": judge_model.partition("@")[0]} if engine == "openai" else {}),
        **_engine_options(engine_option),
    }
    found = judge_run(
        Path(run), judge_model, {"name": engine, **options}, _split(suite), profile, _prices(prices), dry_run
    )
    typer.echo(json.dumps(found, indent=2, ensure_ascii=False, default=str))


def _contamination_line(name: str, part: dict[str, Any]) -> str:
    completion = part.get("completion")
    completed = (
        (
            f"; {completion['exact']:.1%} of the questions are completed word for word (ROUGE-L "
            f"{completion['rouge_l']:.3f})"
        )
        if completion
        else ""
    )
    found = (
        f"{part['text_share']:.1%} of {part['rows']} questions and {part['image_share']:.1%} of the "
        "pictures are in the training data"
    )
    return f"{name}: {found}{completed}"


def score_table(results: list[dict[str, Any]]) -> str:
    """One line per suite and profile: score, interval, floors; warnings below it."""
    lines = []
    for part in results:
        floors = part["floors"]
        random = "" if floors["random"] is None else f", random {floors['random']:.1%}"
        lines.append(
            f"{part['suite']:16} {part['profile']:12} {part['overall']:7.2%}  "
            f"[{part['interval']['low']:.2%}, {part['interval']['high']:.2%}]  "
            f"blank {floors['blank']:.1%}, constant {floors['constant']:.1%}{random}, master key "
            f"{floors['master_key']:.1%}"
        )
        lines += [f"{'':30}! {warning}" for warning in part["warnings"]]
    return "\n".join(lines)


def _options_of_card(path: Path) -> EvalOptions:
    return EvalOptions.from_card(read_card(path))


def _split(words: list[str]) -> tuple[str, ...]:
    return tuple(part for word in words for part in word.split(",") if part)


def _engine_options(words: list[str]) -> dict[str, Any]:
    for word in words:
        if "=" not in word:
            raise ConfigError(f"--engine-option {word!r}: expected name=value")
    return {word.partition("=")[0]: yaml.safe_load(word.partition("=")[2]) for word in words}


def _prices(text: str) -> tuple[float, float]:
    parts = text.split(",")
    try:
        return float(parts[0]), float(parts[-1])
    except ValueError:
        raise ConfigError(f"--prices {text!r}: expected two numbers, as 0.5,1.5") from None


def _set_up_logging(quiet: bool) -> None:
    logging.basicConfig(
        level=logging.ERROR if quiet else logging.WARNING,
        format="%(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
