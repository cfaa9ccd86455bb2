"""Every `vlrl train`, `show`, `check`, `plan` and `compare` line of README, docs and the comments of configs
resolves, and its values hold where the text says; every other line names a command that is there."""

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command_from_info
from typer.models import CommandInfo

from vlrl.cli import _COMMANDS, _GROUPS, _named
from vlrl.cli.check import check
from vlrl.cli.plan import plan
from vlrl.cli.show import show
from vlrl.cli.train import train
from vlrl.compare.cli import compare
from vlrl.compare.plan import ComparisonPlan
from vlrl.config import at, load

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "data/README.md",
    "rewards/README.md",
    *(
        f"docs/{name}.md"
        for name in (
            "architecture",
            "benchmarks",
            "benchmarks_gpu",
            "benchmarks_shapes",
            "distributed",
            "engines",
        )
    ),
]
PAGES += [
    f"docs/{name}.md"
    for name in (
        "engines",
        "evaluation",
        "functional",
        "guide",
        "judges",
        "probes",
        "real_model",
        "index",
        "which_reward",
        "one_gpu",
        "errors",
        "trackers",
    )
] + [
    f"docs/coming_from/{name}.md" for name in ("trl", "verl", "ms_swift", "vlm_r1")
]  # LOG.md is a notebook of what was run, papers.md is made
FUNCTIONS = {
    "train": train,
    "show": show,
    "check": check,
    "plan": plan,
}  # their arguments are words of a config
LINE = re.compile(r"vlrl (?:train|show|check|plan|compare) [^`\n]*")
COMMENTED = re.compile(r"^#\s+(vlrl (?:train|show|check|plan|compare) [^`\n;]*)", re.MULTILINE)  # in a config
ANY = re.compile(r"(?:^ *|`)vlrl ([a-z][a-z-]*)(?: +([a-z][a-z-]*)(?![\w./=]))?", re.MULTILINE)
PLACEHOLDER = re.compile(r"(?<![\w/])(CONFIG|ID|NAME|RUN|TASK)(?![\w/])|\.\.\.|<")
# what the text around a command says: the value of a phase
SAID = {
    "tasks/lab_counting methods/dapo steps=50": {
        "rl": {"steps": 50, "group_size": 16, "policy_loss.high": 0.28},
        "cold_start": {"steps": 25},
    },
    "vlrl train configs/quickstart.yaml": {
        "rl": {"group_size": 16, "optimizer.lr": 5e-4},
        "cold_start": {"rollout.name": "expert"},
    },
    "methods/dapo steps=20 sampling.temperature=0.9": {"rl": {"steps": 20, "sampling.temperature": 0.9}},
    "experiments/text_math_1_5b": {"main": {"policy_loss.high": 0.28}},
    "grounding.yaml engine.name=vllm": {"main": {"engine.name": "vllm", "rewards.iou.weight": 1.0}},
    "data.train.refcoco.media_root=coco": {
        "main": {"data.train.refcoco.media_root": "coco", "policy.name": "qwen2_5_vl"}
    },
    "vlrl train grounding.yaml methods/limit_of_rlvr": {"main": {"group_size": 8, "steps": 500}},
    "data.train.mine={name: files": {
        "main": {"data.train.mine": {"name": "files", "path": "train.jsonl"}, "rewards.iou.name": "iou"}
    },
    "methods/dr_grpo policy_loss.high=0.28": {
        "rl": {"policy_loss.high": 0.28, "loss_aggregation.name": "constant", "advantage.scale": "none"}
    },
}


def commands():
    found = {}
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
        for line in LINE.findall(text):
            line = re.split(r"\s{2,}#|\s#\s", line)[0].strip()
            line = (
                line.removesuffix("; done")
                .replace("$RANK", "1")
                .replace("$HEAD", "10.0.0.1")
                .replace("$s", "1")
            )
            if not PLACEHOLDER.search(line) and line != "vlrl check --scripted":  # which names no config
                found[line] = page
    for path in sorted((ROOT / "configs").rglob("*.yaml")):
        for line in COMMENTED.findall(path.read_text(encoding="utf-8")):
            line = re.split(r"\s{2,}#|\s#\s", line)[0].strip()
            if not PLACEHOLDER.search(line):
                found[line] = path.name
    return sorted(found)


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with the repository's configs, and the files that the pages write."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    pages = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    for block in re.findall(r"^ *```yaml\n(.*?)^ *```", pages, re.DOTALL | re.MULTILINE):
        if named := re.match(r" *# (\w+\.yaml)\n", block):
            indent = len(block) - len(block.lstrip(" "))
            (tmp_path / named[1]).write_text(
                "\n".join(line[indent:] for line in block.splitlines()), encoding="utf-8"
            )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def parsed(function, words):
    """The arguments that a command's function would get."""
    info = CommandInfo(callback=function, context_settings={"ignore_unknown_options": True})
    command = get_command_from_info(info, pretty_exceptions_short=True, rich_markup_mode=None)
    return command.make_context("vlrl", list(words)).params


def test_there_are_commands_and_every_saying_is_of_one():
    assert len(commands()) >= 15
    for fragment in SAID:
        assert any(fragment in command for command in commands()), fragment


@pytest.mark.parametrize(
    "command", [command for command in commands() if not command.startswith("vlrl compare")]
)
def test_a_documented_run_resolves_to_what_the_text_says(command, workplace):
    _, name, *given = shlex.split(command)
    words = parsed(FUNCTIONS[name], given)["configs"]
    assert not [word for word in words if word.startswith("--")], "an option that the command has not"
    config = load([word for word in words if "=" not in word], [word for word in words if "=" in word])
    for word in words:
        path, equals, _ = word.partition("=")
        if equals and not path.startswith("phases"):
            keeping = {
                kept.phase for kept in config.kept if path.startswith(kept.path) or kept.path.startswith(path)
            }
            for phase in config.phases:
                assert phase in keeping or at(config.phase(phase), path) == at(config.tree, path), (
                    word,
                    phase,
                )
            assert len(keeping) < len(config.phases)
    for fragment, phases in SAID.items():
        for phase, values in phases.items() if fragment in command else ():
            for path, value in values.items():
                assert at(config.phase(phase), path) == value, (fragment, phase, path)


def test_every_line_names_a_command_that_is_there():
    pages = [*PAGES, "CONTRIBUTING.md", "docs/scaling.md", "docs/reliability.md", "docs/environments.md"]
    texts = [(ROOT / page).read_text(encoding="utf-8") for page in pages]
    shown = [
        block
        for text in texts
        for block in re.findall(r"^ *```.*?^ *```|`vlrl [^`\n]*", text, re.DOTALL | re.MULTILINE)
    ]
    lines = {found for block in shown for found in ANY.findall(block)}
    assert len(lines) > 20
    groups = {
        name: {command.name or command.callback.__name__ for command in _named(place).registered_commands}
        for name, place in _GROUPS.items()
    }
    for name, inner in lines - {("original", "")}:  # "vlrl original" in a docstring that a page shows
        assert name in _COMMANDS or name in groups, f"vlrl {name}"
        if inner and len(groups.get(name, ())) > 1:
            assert inner in groups[name], f"vlrl {name} {inner}"


@pytest.mark.parametrize("command", [command for command in commands() if command.startswith("vlrl compare")])
def test_a_documented_comparison_resolves(command, workplace):
    given = parsed(compare, shlex.split(command)[2:])
    sets = tuple(given["sets"] or ())
    lengths = (given["steps"], given["cold_start"], given["samples"])
    plan = ComparisonPlan(
        tuple(given["presets"]),
        given["task"],
        given["seeds"],
        workplace / "out",
        *lengths,
        given["model"],
        sets,
    )
    if given["cold_start"]:
        assert plan.cold_config(0).tree["steps"] == given["cold_start"]
    else:
        assert plan.pretrained
    for preset in plan.presets:
        config = plan.config(preset, 1, "weights")
        assert (
            all(config.phase(phase)["steps"] == given["steps"] for phase in config.phases)
            and config.tree["seed"] == 1
        )


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch):
    """The first block of Python, as it stands."""
    monkeypatch.chdir(tmp_path)
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    namespace: dict = {}
    exec(compile(code[1], "README", "exec"), namespace)
    assert code.start() < (ROOT / "README.md").read_text(encoding="utf-8").index("## Training")
    assert (
        namespace["trainer"].summary["steps"] == 3
        and (tmp_path / "runs" / "plain_python_model" / "config.json").is_file()
    )
