"""The model card of a run: README.md of an exported model. What was trained, on what, by which reward, what
happened, what was measured and what was not; all read from the run's folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from vlrl.activity.report import BAD
from vlrl.logging.browse import evenly
from vlrl.logging.glossary import described, glossary
from vlrl.logging.recorder import EVENTS, METRICS, SESSIONS, read_record
from vlrl.logging.report import heldout_table, read_config, read_summary, reward_weights, run_name
from vlrl.logging.story import story
from vlrl.pages.chart import number
from vlrl.plugins.registry import ConfigError
from vlrl.services.redaction import blank_all

CARD = "README.md"
CURVES = ("reward/total", "length/mean", "entropy", "kl", "loss", "grad_norm")
ROWS = 12  # steps of the table of curves
SETTINGS = (
    *("steps", "group_size", "prompts_per_step", "num_minibatches", "ppo_epochs", "optimizer.lr"),
    *("sampling.temperature", "sampling.max_tokens", "advantage.name", "policy_loss.name"),
    *("loss_aggregation.name", "trainable.name", "engine.name", "seed"),
)
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def model_card(
    run: Path,
    step: int,
    model: Path,
    is_adapter: bool = False,
    evaluations: Sequence[Path] = (),
    title: str = "",
) -> str:
    """The card of a run's checkpoint in Markdown, with the header that the hub reads.

    Args:
        run: The folder of the run.
        step: The step of the checkpoint.
        model: The checkpoint, or the folder that is exported.
        is_adapter: Whether the model is an adapter alone.
        evaluations: Folders of `vlrl eval`, beside those that the run wrote itself.
        title: The first heading, OWNER/NAME on the hub; the run's name by default.

    Raises:
        ConfigError: Where the folder holds no run, or an evaluation is none.
    """
    metrics = read_record(run, METRICS)
    config = without_places(blank_all(read_config(run)))
    if not metrics or not config:
        raise ConfigError(f"{str(run)!r} holds no config.yaml with metrics.jsonl; give the folder of a run")
    summary = read_summary(run)
    heldout = heldout_table(read_record(run, EVENTS), summary)
    suites = _suites(run, evaluations)
    findings = _findings(run)
    parts = [
        _header(config, is_adapter),
        f"# {title or run_name(run, summary)}",
        _opening(run, config, step, metrics),
        "## What happened\n\n"
        + "\n".join(f"- {one}" for one in story(metrics, heldout, findings, reward_weights(config))),
        "## Load it\n\n" + _loading(model, is_adapter, title),
        "## Training\n\n" + _training(run, config, summary),
        "## Data\n\n" + _data(config),
        "## Rewards\n\n" + _rewards(config),
        "## Curves\n\n" + _curves(metrics),
        "## Evaluation\n\n" + _evaluation(heldout, suites, step, metrics[-1]["step"]),
        "## What was not tested\n\n" + _untested(summary, heldout, suites, step, metrics),
        "## Config\n\n<details><summary>config.yaml</summary>\n\n"
        + f"```yaml\n{_dumped(config)}```\n\n</details>",
    ]
    return "\n\n".join(parts) + "\n"


def without_places(tree: Any) -> Any:
    """A copy of a config in which absolute paths keep their last part only: where files lay on the machine
    that trained is nobody's business."""
    if isinstance(tree, Mapping):
        return {key: without_places(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [without_places(value) for value in tree]
    if isinstance(tree, str) and re.fullmatch(r"(?:~|[A-Za-z]:)?[/\\]\S.*", tree):
        return ".../" + re.split(r"[/\\]", tree.rstrip("/\\"))[-1]
    return tree


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join([*lines, *("| " + " | ".join(map(_cell, row)) + " |" for row in rows)])


def _cell(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    text = number(value) if isinstance(value, (int, float)) else str(value)
    return " ".join(text.replace("|", "\\|").split())


def _dumped(tree: Mapping[str, Any]) -> str:
    return yaml.safe_dump(json.loads(json.dumps(tree, default=str)), sort_keys=False, allow_unicode=True)


def _base(config: Mapping[str, Any]) -> str:
    return str((config.get("policy") or {}).get("model") or "")


def _header(config: Mapping[str, Any], is_adapter: bool) -> str:
    base, family = _base(config), str((config.get("policy") or {}).get("name") or "")
    said: dict[str, Any] = {"library_name": "peft" if is_adapter else "transformers"}
    if _HUB_ID.fullmatch(base):
        said |= {"base_model": base, "base_model_relation": "adapter" if is_adapter else "finetune"}
    tags = ["vlrl", "reinforcement-learning", "rlvr", *([family] if family else [])]
    return "---\n" + yaml.safe_dump({**said, "tags": tags}, sort_keys=False) + "---"


def _opening(run: Path, config: Mapping[str, Any], step: int, metrics: Sequence[Mapping[str, Any]]) -> str:
    base = _base(config)
    policy = str((config.get("policy") or {}).get("name") or "a model")
    start = (
        f"`{base}`"
        if base
        else f"a model of family `{policy}` that was built at random (no pretrained weights)"
    )
    about = config.get("about") or {}
    method = (
        f" Its preset follows {about['paper']}." if isinstance(about, Mapping) and about.get("paper") else ""
    )
    sessions = read_record(run, SESSIONS)
    version = f" {sessions[-1]['vlrl']}" if sessions else ""
    return (
        f"Trained from {start} by reinforcement learning with verifiable rewards, with vlrl{version}. "
        f"These are the weights of step {step}; the run has {metrics[-1]['step']} steps.{method}"
    )


def auto_class(model: Path) -> str:
    """The class of transformers that loads an exported folder."""
    is_multimodal = (model / "processor_config.json").is_file()
    return "AutoModelForImageTextToText" if is_multimodal else "AutoModelForCausalLM"


def _loading(model: Path, is_adapter: bool, title: str) -> str:
    auto = auto_class(model)
    kind = "An adapter: transformers loads it with PEFT, on its base model.\n\n" if is_adapter else ""
    load = f'from transformers import {auto}\n\nmodel = {auto}.from_pretrained("{title or "FOLDER"}")'
    return (
        f"{kind}```python\n{load}\n```\n\nThe processor or tokenizer stands beside the weights. Its chat "
        "template does not contain the prompt of the training: `prompt_template` in the config below has it."
    )


def _training(run: Path, config: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    rows = [(f"`{key}`", value) for key in SETTINGS if (value := _at(config, key)) is not None]
    phases = config.get("phases")
    if isinstance(phases, Mapping) and phases:
        rows.append(("`phases`", ", ".join(map(str, phases))))
    sessions = read_record(run, SESSIONS)
    if sessions:
        last = sessions[-1]
        rows.append(("devices", ", ".join(map(str, last["devices"]))))
        rows.append(
            ("packages", ", ".join(f"{name} {version}" for name, version in last["packages"].items()))
        )
        rows.append(("starts", len(sessions)))
    if seconds := (summary.get("seconds") or {}).get("total"):
        rows.append(("hours", f"{float(seconds) / 3600:.3g}"))
    return table(("what", "value"), rows)


def _at(tree: Mapping[str, Any], key: str) -> Any:
    value: Any = tree
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _data(config: Mapping[str, Any]) -> str:
    rows = []
    for split in ("train", "heldout"):
        sources = (config.get("data") or {}).get(split)
        for slot, source in sources.items() if isinstance(sources, Mapping) else ():
            values = source if isinstance(source, Mapping) else {}
            own = "; ".join(f"{k}: {_short(v)}" for k, v in values.items() if k not in ("name", "heldout"))
            rows.append((split, slot, f"`{values.get('name', '')}`", own))
            if split == "train" and values.get("heldout"):
                rows.append(("heldout", slot, "of the same source", _short(values["heldout"])))
    return table(("split", "entry", "source", "options"), rows)


def _short(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False) if not isinstance(value, str) else value
    return text if len(text) <= 120 else text[:117] + "..."


def _rewards(config: Mapping[str, Any]) -> str:
    slots = config.get("rewards")
    rows = [
        (slot, f"`{value.get('name', '')}`", value.get("weight", 1.0), _short(_options(value)))
        for slot, value in (slots.items() if isinstance(slots, Mapping) else ())
        if isinstance(value, Mapping)
    ]
    if not rows:
        return "The rewards come with the rows of the data."
    return table(("entry", "reward", "weight", "options"), rows)


def _options(value: Mapping[str, Any]) -> str:
    return "; ".join(f"{key}: {_short(one)}" for key, one in value.items() if key not in ("name", "weight"))


def _curves(metrics: Sequence[Mapping[str, Any]]) -> str:
    heldout = sorted({name for row in metrics for name in row if name.startswith("heldout/")})
    names = [name for name in (*CURVES, *heldout[:4]) if any(row.get(name) is not None for row in metrics)]
    rows = [(row["step"], row["phase"], *(row.get(name) for name in names)) for row in evenly(metrics, ROWS)]
    legend = [f"- `{name}`: {glossary()[entry]['means']}" for name in names if (entry := described(name))]
    return "\n".join([table(("step", "phase", *names), rows), "", *legend])


def _suites(run: Path, evaluations: Sequence[Path]) -> list[dict[str, Any]]:
    """The results of suites: those of callback `eval` at its last step, and those of `evaluations`."""
    own = sorted((run / "eval").glob("step-*/summary.json"))[-1:]
    found = []
    for folder in evaluations:
        if not (folder / "summary.json").is_file():
            raise ConfigError(
                f"--eval: {str(folder)!r} holds no summary.json; give a folder that `vlrl eval` wrote"
            )
    for file in (*own, *(folder / "summary.json" for folder in evaluations)):
        said = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(said.get("results"), list):
            raise ConfigError(f"--eval: {str(file)!r} has no results; give a folder that `vlrl eval` wrote")
        found += [
            {**result, "of": said.get("step") or without_places(said.get("model"))}
            for result in said["results"]
        ]
    return found


def _evaluation(heldout: Mapping[str, Any], suites: Sequence[Mapping[str, Any]], step: int, last: int) -> str:
    parts = []
    if heldout["rows"]:
        rows = [(row["task"], *row["values"], row["change"]) for row in heldout["rows"]]
        parts.append("Accuracy on held-out rows of the training's own sources:")
        parts.append(table(("task", *heldout["columns"], "change"), rows))
        if step != last:
            parts.append(f"The last column is of step {last}; these weights are of step {step}.")
    else:
        parts.append("No held-out rows were scored.")
    if suites:
        rows = [
            (
                one["suite"],
                one["profile"],
                (one.get("figures") or {}).get("overall"),
                one.get("origin"),
                one["of"],
            )
            for one in suites
        ]
        parts.append("Benchmark suites of `vlrl eval`:")
        parts.append(table(("suite", "profile", "overall", "rows from", "step or model"), rows))
    return "\n\n".join(parts)


def _findings(run: Path) -> list[dict[str, Any]]:
    return [
        finding
        for row in read_record(run, EVENTS)
        if row["kind"] == "activity"
        for finding in row.get("findings") or ()
        if finding.get("level") in BAD
    ]


def _untested(
    summary: Mapping[str, Any],
    heldout: Mapping[str, Any],
    suites: Sequence[Mapping[str, Any]],
    step: int,
    metrics: Sequence[Mapping[str, Any]],
) -> str:
    """What a reader must not conclude, each line from what the run's folder lacks."""
    lines = [f"One seed ({summary.get('seed', 'unknown')}): how much another seed would change is not known."]
    if not heldout["rows"]:
        lines.append("No held-out accuracy: nothing here says that the model is better than its base.")
    elif len(heldout["columns"]) < 2:
        lines.append("Held-out accuracy was measured once: there is no figure of the base to compare with.")
    if heldout["rows"]:
        lines.append(
            "Held-out rows come from the training's own sources; other data of the task was not tried."
        )
    if step != metrics[-1]["step"]:
        lines.append(f"These weights (step {step}) were not scored as such; the scores are of other steps.")
    if not summary:
        lines.append("The run has not finished, or its summary is lost.")
    if errors := summary.get("heldout_errors"):
        lines.append(f"Held-out rows that could not be scored are not counted: {_short(errors)}.")
    if not suites:
        lines.append("No benchmark suite was run, so other abilities may have become better or worse.")
    if toys := sorted({str(one["suite"]) for one in suites if "fixture" in str(one.get("origin"))}):
        lines.append(f"{', '.join(toys)}: on a few packaged synthetic rows; that is no benchmark result.")
    lines.append(
        "Safety, bias, other languages and the overlap of benchmarks with training data: not tested."
    )
    return "\n".join(f"- {line}" for line in lines)
