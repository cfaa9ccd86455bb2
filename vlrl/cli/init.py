"""`vlrl init`: five questions, a look at the rows, and a commented config of about twenty lines."""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from vlrl.activity.check import check as run_check
from vlrl.cli.proposal import FORMATS, RewardProposal, propose
from vlrl.config import find, load
from vlrl.eval.model import policy_spec
from vlrl.plan.gpus import gpu as gpu_named
from vlrl.plan.plan import Ask, CostPlan, make_plan
from vlrl.plan.setup import Assumed
from vlrl.plugins.registry import ConfigError, build, names, renames, suggest
from vlrl.plugins.stages import Reward, Source
from vlrl.trainer.plan import Plan
from vlrl.types import Row

LOOKED_AT = 500  # rows that are read for the proposal
GIB = 2**30
_SPLITS = ("val", "valid", "validation", "heldout", "test", "dev")  # names of held-out files beside `train`


@dataclass
class Answers:
    """What was asked. `count` GPUs named `gpu`; 0 for none."""

    data: str
    reward: str
    model: str
    count: int
    gpu: str
    method: str
    reading: str = ""  # options of commands that read the rows


def init(
    data: Annotated[str, typer.Argument(help="Your rows: a file, a folder of pictures, or a hub id.")] = "",
    reward: Annotated[
        str, typer.Option("--reward", help="What checks an answer; proposed from the rows.")
    ] = "",
    model: Annotated[str, typer.Option("--model", help="A config of models/, a folder or a hub id.")] = "",
    gpus: Annotated[str, typer.Option("--gpus", help="Such as 1xl4 or 8xh100; 0 for none.")] = "",
    method: Annotated[str, typer.Option("--method", help="A preset of methods/.")] = "",
    media_root: Annotated[str, typer.Option("--media-root", help="The folder of pictures and videos.")] = "",
    fields: Annotated[str, typer.Option("--fields", help="Columns to rename: label=answer,file=image.")] = "",
    output: Annotated[Path, typer.Option("--output", "-o", help="The config to write.")] = Path(
        "my_task.yaml"
    ),
    check: Annotated[bool, typer.Option(help="Train two steps with a tiny model and a script.")] = True,
) -> None:
    """Look at rows, propose reward and prompt, check and plan them, and write a config."""
    ask = sys.stdin.isatty()
    data = data or _answer("data", "Where are your rows (a file, a folder, a hub id)?", "", ask)
    if output.exists():
        raise ConfigError(f"init: {str(output)!r} is there already; choose another --output")
    spec = source_spec(data, media_root, renames(fields))
    rows = read(spec)
    found = propose(rows)
    typer.echo(f"read {len(rows)} rows: {described(rows)}")
    if found:
        typer.echo(f"answers are {found.says} ({found.share:.0%} of the rows): reward {found.reward!r}")
    reward = reward or _answer("reward", "What checks an answer?", found.reward if found else "", ask)
    if reward not in names(Reward):
        raise ConfigError(f"--reward: no reward named {reward!r}.{suggest(reward, names(Reward))}")
    gpus = gpus or _answer("gpus", "Which GPUs (1xl4, 8xh100; 0 for none)?", "0", ask)
    count, gpu = parse_gpus(gpus)
    model = model or _answer("model", "Which model?", default_model(rows, count), ask)
    method = method or _answer("method", "Which method?", "grpo", ask)
    given = {"--media-root": media_root, "--fields": fields}
    reading = "".join(f" {option} {shlex.quote(value)}" for option, value in given.items() if value)
    answers = Answers(data, reward, model, count, gpu, method, reading)
    text = written(answers, spec, rows, found)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8")
    try:
        text = planned(output, text, answers)
        checked(output, any(row.images or row.videos for row in rows), train=check)
    except ConfigError as error:
        raise ConfigError(f"{error} (the config is in {str(output)!r}: change it there)") from None
    typer.echo(f"\n{text}\nwrote {output}")
    typer.echo(
        f"look at the rows:  vlrl data preview {data}{reading}\ntrain:             vlrl train {output}"
    )


def _answer(name: str, question: str, default: str, ask: bool) -> str:
    """What the user types; without a terminal the default. Raises ConfigError where there is none."""
    if ask:
        return str(typer.prompt(question, default=default or None))
    if default:
        return default
    raise ConfigError(
        f"init: give {'DATA' if name == 'data' else f'--{name}'}; there is no terminal to ask in"
    )


# --- the rows -----------------------------------------------------------------------------------------------


def source_spec(data: str, media_root: str = "", fields: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The source of the rows, as a config has it. Raises ConfigError."""
    path = Path(data)
    renamed = {"fields": dict(fields)} if fields else {}
    if path.is_dir():
        return {"name": "folder", "path": data, **renamed}
    if path.is_file() or any(sign in data for sign in "*?:"):
        return {
            "name": "files",
            "path": data,
            **({"media_root": media_root} if media_root else {}),
            **renamed,
        }
    if re.fullmatch(r"[\w.-]+/[\w.-]+", data) and not path.suffix:
        return {"name": "hub", "path": data, "split": "train", **renamed}
    raise ConfigError(f"init: no file, folder or hub id {data!r}")


def read(spec: dict[str, Any]) -> list[Row]:
    """The first rows. Raises ConfigError where none can be used."""
    rows = list(islice(iter(build(Source, {**spec, "limit": LOOKED_AT}, "data")()), LOOKED_AT))
    if not rows:
        raise ConfigError(f"init: no row of {spec['path']!r} can be used; `vlrl data check` says why")
    return rows


def described(rows: Sequence[Row]) -> str:
    """How many rows have what, in a few words."""
    counts = {
        "with pictures": sum(bool(row.images) for row in rows),
        "with videos": sum(bool(row.videos) for row in rows),
        "with choices": sum(bool(row.choices) for row in rows),
        "text only": sum(not (row.images or row.videos) for row in rows),
    }
    return ", ".join(f"{n} {what}" for what, n in counts.items() if n)


def heldout_beside(data: str) -> str:
    """A file of held-out rows beside the training file: `train` in its name replaced; "" for none."""
    path = Path(data)
    places = [path.with_name(path.name.replace("train", split)) for split in _SPLITS if "train" in path.name]
    return next((str(place) for place in places if place.is_file()), "")


# --- the machine and the model ------------------------------------------------------------------------------


def parse_gpus(text: str) -> tuple[int, str]:
    """ "8xh100" as (8, "h100"); "0" as (0, ""). Raises ConfigError."""
    if text.strip().lower() in ("0", "none", "no"):
        return 0, ""
    found = re.fullmatch(r"\s*(?:(\d+)\s*x\s*)?([a-z]\w*)\s*", text.lower())
    if not found or found[1] == "0":
        raise ConfigError(f"--gpus: expected COUNTxNAME, like 1xl4 or 8xh100, or 0 for none, got {text!r}")
    return int(found[1] or 1), gpu_named(found[2]).name


def default_model(rows: Sequence[Row], gpus: int) -> str:
    """A model that fits rows and machine."""
    if any(row.images or row.videos for row in rows):
        return "qwen2_5_vl_3b" if gpus else "tiny_qwen2_5_vl"
    return "qwen2_5_1_5b" if gpus else "smollm2_135m"


def policy_of(model: str) -> tuple[list[str], str]:
    """(config to extend, line of the policy) of a model: a config of models/, or a folder or hub id."""
    name = model.removeprefix("models/")
    if "/" not in name and not Path(model).is_dir():
        find(f"models/{name}")
        return [f"models/{name}"], ""
    return [], f"policy: {_flow(policy_spec(model))}\n"


# --- the config ---------------------------------------------------------------------------------------------


def written(answers: Answers, spec: dict[str, Any], rows: Sequence[Row], found: RewardProposal | None) -> str:
    """The config as commented YAML."""
    models, policy = policy_of(answers.model)
    tiny = answers.model.removeprefix("models/").startswith("tiny_")
    style = "answer" if tiny else found.style if found and found.reward == answers.reward else "think"
    find(f"methods/{answers.method}")
    extends = ["base/rl", *(["base/lab"] if tiny else []), *models, f"methods/{answers.method}"]
    if tiny:  # it has to be shown answers first
        spec = {**spec, "target": "<answer>{answer}</answer>"}
    beside = heldout_beside(answers.data) if spec["name"] == "files" else ""
    split = f"vlrl data split {answers.data}{answers.reading} -o parts --parts train=0.9,heldout=0.1"
    heldout = f"    # held-out rows: {split}\n"
    if beside:
        spec, heldout = {**spec, "heldout": {"path": beside, "limit": 300}}, ""
    says = f"answers are {found.says}" if found else "chosen by hand"
    tags = ", tags: [answer]" if style == "answer" else ""
    length = 32 if tiny else 256 if not answers.count else 1024 if style == "boxed" else 512
    lines = f"""# Written by `vlrl init {answers.data}`: {described(rows)}; {says}.
extends: {_flow(extends)}   # merged from left to right
output: runs/{Path(answers.data).stem.replace("*", "all") or "mine"}
{policy}data:
  train:
    mine: {_flow(spec)}
{heldout}prompt_template: {{name: chat, style: {style}}}   # the form of answer that it asks for
rewards:
  answer: {{name: {answers.reward}, weight: 1.0}}   # `vlrl list reward {answers.reward}` says more
  format: {{name: {FORMATS[style]}, weight: 0.1{tags}}}   # the form; it must not outweigh the answer
outcome: answer   # decides what counts as correct
sampling: {{max_tokens: {length}}}   # raise it if the metric `truncated` is above 0.05
"""
    if not tiny:
        lines += f"""group_size: 8   # answers to each prompt; they are compared with each other
prompts_per_step: {max(16, answers.count)}
max_prompt_tokens: 2048   # pictures counted; longer rows are set aside
micro_batch_tokens: {8 * length + 2048}   # memory, not the result
steps: 200
optimizer: {{lr: 1.0e-6}}
watch: {{rollouts_every: 10, checkpoint_every: 50, heldout_every: {50 if beside else 0}}}
"""
    return lines


def _flow(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False).strip()


def planned(path: Path, text: str, answers: Answers) -> str:
    """Print what the config needs on the GPUs, and add the smallest change that makes it fit. Returns the
    text of the config."""
    if not answers.count:
        return text
    ask = Ask(gpu_named(answers.gpu), answers.count, assumed=Assumed())
    made = make_plan(load([path]), [str(path)], ask)
    if made.chosen is None and made.changed is not None and not made.change[0].startswith("--"):
        typer.echo(f"does not fit {answers.count} x {answers.gpu} as it is; added: {' '.join(made.change)}")
        if any(change.startswith("trainable") for change in made.change):
            text = text.replace(
                "lr: 1.0e-6}", "lr: 1.0e-5}   # adapters take ten times the rate of all weights"
            )
        text += "# so that it fits: `vlrl plan` proposed these\n"
        text += "".join(f"{nested(change)}\n" for change in made.change)
        path.write_text(text, encoding="utf-8")
        made = make_plan(load([path]), [str(path)], ask)
    typer.echo(said(made, path, answers))
    return text


def nested(change: str) -> str:
    """ "policy.attn=flex" as a line of YAML: `policy: {attn: flex}`."""
    key, _, value = change.partition("=")
    for part in reversed(key.split(".")[1:]):
        value = f"{{{part}: {value}}}"
    return f"{key.split('.')[0]}: {value}"


def said(made: CostPlan, path: Path, answers: Answers) -> str:
    """The plan in one line."""
    gpus, best = f"{answers.count} x {answers.gpu}", made.chosen
    if best is None:
        return f"does not fit {gpus}: vlrl plan {path} --gpu {answers.gpu} --count {answers.count}"
    return (
        f"fits {gpus}: {best.memory.peak / GIB:.1f} of {best.usable / GIB:.0f} GiB at the longest batch, "
        f"about {best.step_seconds:.0f} s a step (planned)"
    )


def checked(path: Path, pictures: bool, train: bool) -> None:
    """Score the rows' own gold answers, and train two steps of the config with a tiny model whose answers
    come from a script. Prints what is dead or contradictory. Raises ConfigError."""
    tiny = load(["base/rl", f"models/tiny_{'qwen2_5_vl' if pictures else 'text'}"]).tree["policy"]
    config = load([path, "base/scripted"], ["group_size=4", "prompts_per_step=4", "num_minibatches=1"])
    config.tree["policy"] = tiny
    config.tree["trainable"] = {"name": "full"}
    with redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as folder:
        config.tree["output"] = folder
        plan = Plan.of(config)
        plan.check()
    typer.echo(f"checked {plan.row_count} rows: the reward reads their gold answers")
    if not train:
        return
    with redirect_stdout(sys.stderr):
        results = run_check(config, 2)
    bad = [f"{result.phase}: {finding}" for result in results for finding in result.bad]
    typer.echo("checked two steps with a tiny model: " + ("; ".join(bad) if bad else "every part acts"))
