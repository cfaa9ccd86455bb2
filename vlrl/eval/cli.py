"""`vlrl eval`: draw and score (`run`, or no word at all), score again (`score`), compare (`report`), look (`suites`, `contamination`)."""

from __future__ import annotations

import json
import logging
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from vlrl.registry import ConfigError

app = typer.Typer(name="eval", help=__doc__, invoke_without_command=True, no_args_is_help=True, pretty_exceptions_enable=False)

Suites = Annotated[list[str], typer.Option("--suite", "-s", help="A suite, or several: -s mathvista,vsi_bench or -s twice.")]
Model = Annotated[str, typer.Option("--model", "-m", help="A run's folder, a model folder, a config such as tiny_qwen2_5_vl, or a hub id.")]
Engine = Annotated[str, typer.Option("--engine", "-e", help="hf, vllm, vllm_server, openai (any compatible endpoint), ...")]
EngineOptions = Annotated[list[str], typer.Option("--engine-option", "-E", help="A field of the engine, as name=value.")]
Data = Annotated[str, typer.Option("--data", help="hub, fixture (rows of ours), or a folder laid out as on the hub. auto: hub, else fixture.")]
MediaFolder = Annotated[str, typer.Option("--media", help="The folder that paths of pictures and videos are under.")]
Limit = Annotated[int, typer.Option(help="Only the first rows of each suite (0: all).")]
Samples = Annotated[int, typer.Option("--samples", "-k", help="Responses per row.")]
Temperature = Annotated[float, typer.Option("--temperature", "-t", help="0 is greedy.")]
TopP = Annotated[float, typer.Option(help="Nucleus sampling.")]
MaxTokens = Annotated[int, typer.Option(help="Cap on a response (0: the suite's).")]
Seed = Annotated[int, typer.Option(help="Of the random streams.")]
Protocol = Annotated[str, typer.Option(help="direct, or thinking: asked to think, with the suite's long cap, scored after </think>.")]
Floors = Annotated[bool, typer.Option("--floors", help="Also without the picture, with a wrong one, and with the options moved.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16 instead of the model's own.")]
Output = Annotated[str, typer.Option("--output", "-o", help="The run's folder.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Delete what the folder holds instead of going on.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Say what it would take (tokens, time, disk, price) and stop.")]
Prices = Annotated[str, typer.Option(help="Prices per million prompt and response tokens, as 0.5,1.5.")]
Json = Annotated[bool, typer.Option("--json", help="JSON on standard output and nothing else.")]
Card = Annotated[str, typer.Option("--card", help="Replay a run from its card.json.")]


def _start(
    ctx: typer.Context, suite: Suites = [], model: Model = "", engine: Engine = "hf", engine_option: EngineOptions = [],  # noqa: B006
    data: Data = "auto", media: MediaFolder = "", limit: Limit = 0, samples: Samples = 1, temperature: Temperature = 0.0, top_p: TopP = 1.0,
    max_tokens: MaxTokens = 0, seed: Seed = 0, protocol: Protocol = "direct", floors: Floors = False, dtype: Dtype = "", output: Output = "",
    overwrite: Overwrite = False, dry_run: Dry = False, prices: Prices = "0,0", as_json: Json = False, card: Card = "",
) -> None:  # fmt: skip
    """Draw responses and score them: `vlrl eval --suite mathvista --model runs/x`."""
    if ctx.invoked_subcommand is not None:
        return
    from vlrl.eval.runner import Options, run

    _logging(as_json)
    if card:
        options = _of_card(Path(card))
    else:
        if not model:
            raise ConfigError("--model: not given; a run's folder, a model folder, a config such as tiny_qwen2_5_vl, or a hub id")
        options = Options(
            suites=_split(suite), model=model, engine=engine, engine_options=_pairs(engine_option), data=data, media=media, limit=limit,
            samples=samples, temperature=temperature, top_p=top_p, max_tokens=max_tokens, seed=seed, protocol=protocol, floors=floors, dtype=dtype,
        )  # fmt: skip
    folder = Path(output or f"runs/eval-{Path(options.model).name}-{'-'.join(options.suites)}"[:120])
    with redirect_stdout(sys.stderr):  # what libraries print is no part of the result
        result = run(options, folder, overwrite, dry_run, lambda text: typer.echo(text, err=True), _prices(prices))
    if as_json:
        typer.echo(json.dumps({**result, "folder": str(folder)} if not dry_run else result, indent=2, ensure_ascii=False, default=str))
    elif dry_run:
        from vlrl.eval.plan import describe

        typer.echo(describe(result))
    elif result:
        typer.echo(table(result["results"]))
        typer.echo(f"summary: {folder / 'summary.json'}\ncompare: vlrl eval report {folder} OTHER")


app.callback()(_start)
app.command("run")(_start)


@app.command()
def score(
    run: Annotated[str, typer.Argument(help="The folder of a run, or a JSONL of {id, response}.")],
    profile: Annotated[list[str], typer.Option("--profile", "-p", help="official, lmms_eval, vlmevalkit, vlrl; several: by comma or twice.")] = [],  # noqa: B006
    suite: Suites = [],  # noqa: B006
    data: Data = "auto",
    media: MediaFolder = "",
    protocol: Protocol = "",
    as_json: Json = False,
) -> None:
    """Score responses that exist, by any profile. Nothing is generated."""
    from vlrl.eval.rescore import rescore

    _logging(as_json)
    results = rescore(Path(run), _split(profile), _split(suite), data, media, protocol)
    if as_json:
        typer.echo(json.dumps({"results": results}, indent=2, ensure_ascii=False, default=str))
    else:
        typer.echo(table(results))


@app.command()
def report(
    runs: Annotated[list[str], typer.Argument(help="Folders of one or two runs (A B: what B changed).")],
    output: Annotated[str, typer.Option("--output", "-o", help="The page; default report.html in the last run's folder.")] = "",
    profile: Annotated[str, typer.Option("--profile", "-p", help="Whose verdicts the flipped items are by.")] = "official",
    as_json: Json = False,
) -> None:
    """Write a page: scores with intervals and floors, flipped items with pictures, boxes and both extractions."""
    from vlrl.eval.page import write_page

    _logging(as_json)
    target = Path(output) if output else Path(runs[-1]) / "report.html"
    facts = write_page([Path(run) for run in runs], target, profile)
    typer.echo(json.dumps(facts, indent=2, default=str) if as_json else f"page: {target}")


@app.command()
def suites(as_json: Json = False) -> None:
    """List the suites."""
    from vlrl.eval.suite import load, names

    found = {name: load(name) for name in names()}
    if as_json:
        typer.echo(json.dumps({name: {"hub": s.data.hub, "split": s.data.split, "profiles": list(s.built)} for name, s in found.items()}, indent=2))
    else:
        for name, suite_ in found.items():
            typer.echo(f"{name:18} {suite_.data.hub} [{suite_.data.split}]  {', '.join(suite_.built)}")


@app.command()
def contamination(
    suite: Suites,
    training: Annotated[list[str], typer.Option("--training", help="Training data: a JSONL or parquet file, or a folder of them.")],
    data: Data = "auto",
    media: MediaFolder = "",
    model: Annotated[str, typer.Option("--model", "-m", help="Also: how much of each question this model completes from its first 60%.")] = "",
    engine: Engine = "hf",
    engine_option: EngineOptions = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Look for a suite's questions (13-grams) and pictures (hashes) in training data of your own."""
    from vlrl.eval.contamination import check_suites, probe_suites

    _logging(as_json)
    found = check_suites(_split(suite), [Path(path) for path in training], data, media)
    if model:
        probes = probe_suites(_split(suite), model, {"name": engine, **_pairs(engine_option)}, data, media)
        found = {name: {**part, "completion": probes[name]} for name, part in found.items()}
    typer.echo(json.dumps(found, indent=2, ensure_ascii=False) if as_json else "\n".join(_contaminated(name, part) for name, part in found.items()))


@app.command()
def judge(
    run: Annotated[str, typer.Argument(help="The folder of a run.")],
    judge_model: Annotated[str, typer.Option("--judge", help="The judge, pinned: model@revision.")],
    engine: Engine = "openai",
    engine_option: EngineOptions = [],  # noqa: B006
    suite: Suites = [],  # noqa: B006
    profile: Annotated[str, typer.Option("--profile", "-p", help="The rule that the judge is set beside.")] = "official",
    prices: Prices = "0,0",
    dry_run: Dry = False,
    as_json: Json = False,
) -> None:
    """Ask a language model for its verdicts, beside the rule's and never in their place. Replies are cached in the run's folder."""
    from vlrl.eval.rescore import judged

    _logging(as_json)
    options = {"model": judge_model.partition("@")[0], **_pairs(engine_option)} if engine == "openai" else _pairs(engine_option)
    found = judged(Path(run), judge_model, engine, options, _split(suite), profile, _prices(prices), dry_run)
    typer.echo(json.dumps(found, indent=2, ensure_ascii=False, default=str))


def _contaminated(name: str, part: dict[str, Any]) -> str:
    known = part.get("completion")
    completed = f"; {known['exact']:.1%} of the questions are completed word for word (ROUGE-L {known['rouge_l']:.3f})" if known else ""
    found = f"{part['text_share']:.1%} of {part['rows']} questions and {part['image_share']:.1%} of the pictures are in the training data"
    return f"{name}: {found}{completed}"


def table(results: list[dict[str, Any]]) -> str:
    """One line per suite and profile: score, interval, floors, warnings."""
    lines = []
    for part in results:
        below = part["floors"]
        random = "" if below["random"] is None else f", random {below['random']:.1%}"
        lines.append(
            f"{part['suite']:16} {part['profile']:12} {part['overall']:7.2%}  [{part['interval']['low']:.2%}, {part['interval']['high']:.2%}]  "
            f"blank {below['blank']:.1%}, constant {below['constant']:.1%}{random}, master key {below['master_key']:.1%}"
        )
        lines += [f"{'':30}! {warning}" for warning in part["warnings"]]
    return "\n".join(lines)


def _of_card(path: Path) -> Any:
    from vlrl.eval.card import read_card
    from vlrl.eval.runner import Options

    stored = dict(read_card(path)["options"])
    return Options(**{**stored, "suites": tuple(stored["suites"])})


def _split(words: list[str]) -> tuple[str, ...]:
    return tuple(part for word in words for part in word.split(",") if part)


def _pairs(words: list[str]) -> dict[str, Any]:
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


def _logging(quiet: bool) -> None:
    logging.basicConfig(level=logging.ERROR if quiet else logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
