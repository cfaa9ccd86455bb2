"""The reference is complete: every key of a config, every metric of runs, every error that users meet."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
import types
from fnmatch import fnmatchcase

import pytest
from site_kit import ROOT, made

from vlrl import Config, train
from vlrl.cli.schema import key_docs
from vlrl.config import OTHER_KEYS, SLOTS

RUNS = {  # what each run is there for
    "grpo": (["methods/grpo"], []),
    "everything": (
        ["methods/dapo"],
        [
            "loss_terms={kl: {name: kl, coef: 0.01}}",
            "num_minibatches=2",
            "metrics={groups: {name: groups}, lengths: {name: lengths}, answers: {name: answer_diversity}}",
        ],
    ),
    "cold start": (["base/lab"], ["phases.cold_start.steps=1", "watch.heldout_every=1"]),
    "critic": (["methods/ppo"], ["num_minibatches=2"]),
    "ahead": (["methods/grpo"], ["loop=one_step_off"]),
}


def test_every_key_of_a_config_is_described_and_nothing_else():
    reference = made("reference")
    wanted = {*reference.settings(), "optimizer", "watch", *SLOTS, *OTHER_KEYS, "extends"}
    assert set(key_docs()) == wanted
    page = reference.config_page()
    for key in wanted - {"optimizer", "watch"}:
        assert f"| `{key}` |" in page, key
    for key in reference.settings():
        assert key_docs()[key]["means"].endswith("."), key
        assert reference.readers(key) or key in ("optimizer.warmup",), f"nothing reads {key}"


@pytest.fixture(scope="module", params=list(RUNS))
def logged(request, tmp_path_factory):
    """The metrics of a run of two steps."""
    names, words = RUNS[request.param]
    folder = tmp_path_factory.mktemp("run")
    small = ["steps=2", "group_size=4", "prompts_per_step=2", "sampling.max_tokens=4", f"output={folder}/run"]
    order = [
        "base/rl",
        *(n for n in names if n == "base/lab"),
        "models/tiny_text",
        "tasks/lab_arithmetic",
        "base/scripted",
    ]
    train(Config.load([*order, *(n for n in names if n != "base/lab")], [*small, *words]))
    lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return {name for line in lines for name in json.loads(line)}


def test_every_metric_of_a_run_is_in_the_glossary(logged):
    metrics = made("metrics")
    own = {m.name for m in metrics.logged() if set(m.name) - {"*", "/"}}
    missing = {
        name for name in logged if not metrics.described(name) and not any(fnmatchcase(name, n) for n in own)
    }
    assert len(logged) > 20 and not missing


def test_the_glossary_says_what_is_healthy_and_what_to_do():
    for name, entry in made("metrics").glossary().items():
        assert set(entry) == {"means", "healthy", "otherwise"} and entry["means"].endswith("."), name


def test_a_pattern_is_the_most_exact_one():
    described = made("metrics").described
    assert described("reward/errors") == "reward/errors" and described("reward/iou") == "reward/*"
    assert described("environment/end/done") == "environment/end/*" and described("no_such_thing") == ""


def test_the_text_of_plugins_is_searched_for_metrics():
    found = {metric.name for metric in made("metrics").logged()}
    assert {"clip_fraction", "latr/share", "environment/turns", "*/unique"} <= found
    page = made("reference").metrics_page()
    assert all("|" in name or f"`{name}`" in page for name in found if not made("metrics").described(name))


def errors():
    """(class, exit code) of every public exception in the packages that a user can meet."""
    inner = (
        "NotMath",
        "TooBig",
        "NoValue",
        "Refused",
        "NoRoom",
        "OverdueError",
    )  # caught where they are raised
    for root in ("vlrl", "rewards/vlrl_rewards", "data/vlrl_data"):
        for path in sorted((ROOT / root).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                bases = [ast.unparse(base) for base in node.bases] if isinstance(node, ast.ClassDef) else []
                known = any(re.fullmatch(r"\w*(Error|Exception|Failure)", base) for base in bases)
                if (
                    known
                    and not node.name.startswith("_")
                    and node.name not in inner
                    and "audit" not in path.parts
                ):
                    codes = [
                        s.value.value
                        for s in node.body
                        if isinstance(s, ast.Assign) and ast.unparse(s.targets[0]) == "exit_code"
                    ]
                    yield node.name, (codes or [None])[0]


def test_every_error_is_on_the_page_with_its_exit_code():
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    found = dict(errors())
    assert len(found) > 15
    for name, code in found.items():
        assert f"| `{name}` |" in page, name
        if code is not None:
            assert re.search(rf"^\| {code} \| `{name}` \|", page, re.MULTILINE), (name, code)
    named = set(re.findall(r"^\| (?:\d+ \| )?`(\w+)` \|", page, re.MULTILINE))
    assert named == set(found)


PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))
OFFERED = ("vlrl", "vlrl.functional", "vlrl_rewards", "vlrl.eval")


def code_of(page):
    return "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("page", [page for page in PAGES if code_of(page)], ids=lambda page: page.stem)
def test_examples_of_the_python_pages_run(page, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", code_of(page)], cwd=tmp_path, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_every_name_that_a_package_offers_is_in_the_reference():
    pages = {page.stem: page.read_text() for page in PAGES}
    listed = set()  # what mkdocstrings shows: modules with their members, or one name
    for name, members in re.findall(
        r"^::: ([\w.]+)(?:\n    options: \{members: \[([^\]]*)\]\})?", "\n".join(pages.values()), re.MULTILINE
    ):
        listed |= {name} | {f"{name}.{member.strip()}" for member in members.split(",") if member}
    for package in map(importlib.import_module, OFFERED):
        for name in package.__all__:
            value = getattr(package, name)
            if isinstance(value, types.ModuleType):
                continue
            place = f"{value.__module__}.{name}"
            assert {place, value.__module__, f"{package.__name__}.{name}"} & listed, place
            used = rf"\b{name}\b"
            shown = ">>>" in (value.__doc__ or "") or any(re.search(used, code_of(page)) for page in PAGES)
            assert shown, f"{place}: no example"
