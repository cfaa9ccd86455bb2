"""`vlrl probe`: diagnostic papers as commands (docs/probes.md)."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Reward
from vlrl.probes.result import ProbeResult, tell


class Axis(str, Enum):
    """What curves are drawn over."""

    step = "step"
    samples = "samples"
    seconds = "seconds"


app = typer.Typer(no_args_is_help=True, help="Diagnostic papers as commands: a table, a statement, a figure.")

Words = Annotated[
    list[str],
    typer.Argument(help="Configs and overrides, as of `vlrl train`: a model, a task, engine.name=vllm."),
]
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        "-m",
        help="A run's folder, a model folder or a hub id; again for more, in the order of training.",
    ),
]
Rows = Annotated[int, typer.Option(help="Most rows that are asked.")]
Samples = Annotated[int, typer.Option("--samples", "-k", help="Samples per row.")]
Temperature = Annotated[float, typer.Option("--temperature", "-t", help="Sampling temperature.")]
Sweep = Annotated[
    list[float] | None, typer.Option("--temperature", "-t", help="Again for a sweep; 0.6 and 1 by default.")
]
Rewards = Annotated[
    list[str],
    typer.Option(
        "--reward", "-r", help="A reward: a name, or {name: numeric, tolerance: 0.01}. Again for more."
    ),
]
Output = Annotated[Path, typer.Option("--output", "-o", help="The page.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Records = Annotated[Path, typer.Argument(help="JSON lines.")]


def records(path: Path, keys: tuple[str, ...]) -> list[dict[str, Any]]:
    """The rows of a JSON lines file. Raises ConfigError for a file that is not there or empty, and for a line
    without one of `keys`."""
    if not path.is_file():
        raise ConfigError(f"probe: {str(path)!r} is no file; give JSON lines with {', '.join(keys)}")
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"probe: {path}, line {number}: not JSON ({error})") from None
        missing = [key for key in keys if not isinstance(row, dict) or key not in row]
        if missing:
            raise ConfigError(
                f"probe: {path}, line {number}: no {', '.join(missing)}; a row needs {', '.join(keys)}"
            )
        rows.append(row)
    if not rows:
        raise ConfigError(f"probe: {path} holds no rows")
    return rows


def rewards(named: list[str]) -> dict[str, Any]:
    """The rewards that options name, by what the options say."""
    return {text: build(Reward, yaml.safe_load(text), "--reward") for text in named}


def score_with(reward: Any) -> Any:
    """A reward as a function of a response and its record."""

    def score(text: str, row: Mapping[str, Any]) -> float:
        columns = {key: row[key] for key in ("question", "choices", "task", "meta") if key in row}
        return float(reward.score(text, row.get("gold"), **columns))

    return score


def measure_of(probe: str) -> Callable[..., ProbeResult]:
    """`measure` of a probe's module, imported when its command runs: most of them import torch."""
    found: Callable[..., ProbeResult] = importlib.import_module(f"vlrl.probes.{probe}").measure
    return found


def several(models: list[str] | None, least: int = 1) -> list[str]:
    """The models of --model; the config's own where none is named. Raises ConfigError for fewer than
    `least`."""
    found = models or [""]
    if len(found) < least:
        raise ConfigError(
            f"--model: {len(found)} given, this probe compares {least} or more; repeat the option"
        )
    return found


@app.command()
def shortcuts(
    words: Words,
    model: Models = None,
    rows: Rows = 50,
    output: Output = Path("runs/probes/shortcuts.html"),
    as_json: Json = False,
) -> None:
    """Memorisation shortcuts (arXiv:2601.11061): perplexities of prompt and answer, logit lens, path
    patching."""
    tell(measure_of("shortcuts")(words, several(model, 2), rows), output, as_json)


@app.command()
def verifiers(
    file: Records,
    reward: Rewards,
    output: Output = Path("runs/probes/verifiers.html"),
    as_json: Json = False,
) -> None:
    """Pitfalls of verifiers (arXiv:2505.22203): precision, recall and patterns that fool them, over rows
    with gold, response and correct."""

    def judge_of(one: Any) -> Any:
        score = score_with(one)
        return lambda text, row: score(text, row) >= one.correct_at - 1e-9

    judges = {name: judge_of(one) for name, one in rewards(reward).items()}
    tell(measure_of("verifiers")(records(file, ("gold", "response", "correct")), judges), output, as_json)


@app.command()
def rewardmath(
    file: Records,
    reward: Rewards,
    output: Output = Path("runs/probes/rewardmath.html"),
    as_json: Json = False,
) -> None:
    """RewardMATH (arXiv:2410.01729): one correct solution against many, over rows with gold, chosen and
    rejected."""
    scorers = {name: score_with(one) for name, one in rewards(reward).items()}
    tell(measure_of("rewardmath")(records(file, ("gold", "chosen", "rejected")), scorers), output, as_json)


@app.command()
def inference(
    words: Words,
    model: Models = None,
    rows: Rows = 50,
    samples: Samples = 8,
    temperature: Sweep = None,
    output: Output = Path("runs/probes/inference.html"),
    as_json: Json = False,
) -> None:
    """Inference-time methods under one budget (arXiv:2502.07191): votes, best-of-N, beams, refinement."""
    tell(
        measure_of("inference")(words, several(model)[0], rows, samples, temperature or (0.6, 1.0)),
        output,
        as_json,
    )


@app.command("self-prm")
def self_prm(
    words: Words,
    model: Models = None,
    rows: Rows = 50,
    samples: Samples = 8,
    temperature: Temperature = 1.0,
    output: Output = Path("runs/probes/self_prm.html"),
    as_json: Json = False,
) -> None:
    """Self-PRM (arXiv:2505.11227): the policy's verdicts on its own samples against majority voting."""
    tell(measure_of("self_prm")(words, several(model), rows, samples, temperature), output, as_json)


@app.command()
def sparkle(
    words: Words,
    model: Models = None,
    rows: Rows = 100,
    output: Output = Path("runs/probes/sparkle.html"),
    as_json: Json = False,
) -> None:
    """SPARKLE (arXiv:2506.04723): each problem plain, with a plan, with knowledge, as subproblems."""
    tell(measure_of("sparkle")(words, several(model), rows), output, as_json)


@app.command()
def hierarchy(
    words: Words,
    model: Models = None,
    rows: Rows = 100,
    output: Output = Path("runs/probes/hierarchy.html"),
    as_json: Json = False,
) -> None:
    """HierTraversal (arXiv:2511.05933): recall in a hierarchy, plain and level by level, before and after
    RL."""
    before, after = several(model, 2)[:2]
    tell(measure_of("hierarchy")(words, before, after, rows), output, as_json)


@app.command()
def curves(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs.")],
    metric: Annotated[str, typer.Option(help="A metric of metrics.jsonl.")] = "reward/total",
    axis: Annotated[Axis, typer.Option(help="Seconds count pauses, too.")] = Axis.step,
    by: Annotated[str, typer.Option(help="The setting that tells runs apart.")] = "advantage.name",
    keep: Annotated[list[str] | None, typer.Option("--filter", help="SETTING=VALUE; again for more.")] = None,
    output: Output = Path("runs/probes/curves.html"),
    as_json: Json = False,
) -> None:
    """Open RL Benchmark (arXiv:2402.03046): curves of tracked runs over steps, samples or seconds, by
    setting."""
    tell(measure_of("curves")(folders, metric, axis.value, by, keep or ()), output, as_json)


@app.command()
def profiles(
    file: Annotated[Path, typer.Argument(help='JSON: {"method": [[score of each task] of each run]}.')],
    output: Output = Path("runs/probes/profiles.html"),
    as_json: Json = False,
) -> None:
    """rliable (arXiv:2108.13264): interquartile means, optimality gap, performance profiles of runs x
    tasks."""
    if not file.is_file():
        raise ConfigError(f'probe: {str(file)!r} is no file; give JSON {{"grpo": [[0.5, 0.7], [0.4, 0.8]]}}')
    try:
        found: ProbeResult = measure_of("profiles")(json.loads(file.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ConfigError(f"probe: {file}: {error}") from None
    tell(found, output, as_json)
