"""What pages of the site say is so: rewards score as their table says, models need the memory that theirs
says, names of other trainers lead to keys that are there."""

from __future__ import annotations

import json
import re

import pytest
from site_kit import ROOT

from vlrl.config import SLOTS, find, load
from vlrl.config.settings import Settings, nested_fields
from vlrl.config.trl_config import TRL_NAMES
from vlrl.plan.gpus import GPUS, gpu
from vlrl.plan.plan import Ask, make_plan
from vlrl.plan.setup import Assumed
from vlrl.plugins.registry import build
from vlrl.plugins.stages import Reward

DOCS = ROOT / "docs"
TRAINERS = ("trl", "verl", "ms_swift", "vlm_r1")


def rows(page: str, columns: int) -> list[list[str]]:
    """Cells of the lines of tables with so many columns, heads left out."""
    lines = re.findall(r"^\| (.*) \|$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)
    cells = [[cell.strip() for cell in line.split(" | ")] for line in lines]
    return [line for line in cells if len(line) == columns]


@pytest.mark.parametrize("line", rows("which_reward.md", 5)[1:], ids=lambda line: line[1])
def test_a_reward_scores_as_its_table_says(line):
    name, gold, right, wrong = (cell.strip("`") for cell in line[1:])
    reward = build(Reward, name)
    assert reward.score(right, json.loads(gold)) >= reward.correct_at > reward.score(wrong, json.loads(gold))


def test_the_table_of_rewards_is_long_enough():
    assert len(rows("which_reward.md", 5)) > 15


@pytest.mark.parametrize("line", rows("one_gpu.md", 4)[1:], ids=lambda line: line[0].strip("`"))
def test_memory_is_what_the_planner_says(line):
    model, *figures = line
    for tune, figure in zip(([], ["tune/lora"], ["tune/qlora"]), figures, strict=True):
        words = ["base/rl", f"models/{model.strip('`')}", "tasks/lab_grounding", "methods/grpo", *tune]
        config = load(words, ["sampling.max_tokens=512", "max_prompt_tokens=1024", "micro_batch_tokens=6144"])
        ask = Ask(gpu("h200"), 1, 0.0, "single", "", Assumed(256, 256, 1, 640, 480))
        peak = make_plan(config, words, ask).trials[0].memory.peak / 2**30
        assert f"{peak:.1f}" == figure, (model, tune)


def test_the_usable_shares_are_those_of_the_planner():
    text = (DOCS / "one_gpu.md").read_text(encoding="utf-8")
    for name, size in (("l4", "24 GB"), ("l40s", "48 GB"), ("a100", "80 GB"), ("h200", "141 GB")):
        assert f"{int(GPUS[name].usable / 2**30)} GiB of {size}" in text


def test_every_name_of_trl_that_is_refused_is_in_the_table():
    table = {line[0].strip("`"): line[1] for line in rows("coming_from/trl.md", 2)}
    for name, ours in TRL_NAMES.items():
        assert ours.split()[0].removesuffix(".coef") in table[name], name


@pytest.mark.parametrize("trainer", TRAINERS)
def test_our_names_are_keys_configs_or_options(trainer):
    known = {*Settings.__dataclass_fields__, *nested_fields(), *SLOTS, "plugins", "seed", "output"}
    loose = (
        "data.",
        "rewards",
        "--",
        "vlrl ",
        "fields:",
        ".",
        "overlong_filter",
        "detection",
        "iou",
        "form",
        "group",
        "none",
        "rollouts/",
        "weight",
        "grpo",
    )
    checked = 0
    for line in rows(f"coming_from/{trainer}.md", 3 if trainer == "verl" else 2)[1:]:
        for name in re.findall(r"`([^`]+)`", line[-1]):
            if name.endswith("/") or name == ":":
                continue
            if "/" in name:
                assert find(name), name
            elif not name.startswith(loose) and "num_generations" not in name:
                assert name in known or name.partition("=")[0].partition(".")[0] in SLOTS, name
            checked += 1
    assert checked > 12


@pytest.mark.parametrize("trainer", TRAINERS)
def test_configs_beside_other_trainers_load(trainer, tmp_path):
    text = (DOCS / "coming_from" / f"{trainer}.md").read_text(encoding="utf-8")
    for block in re.findall(r"^    ```yaml\n(.*?)^    ```", text, re.DOTALL | re.MULTILINE):
        path = tmp_path / "page.yaml"
        path.write_text("\n".join(line[4:] for line in block.splitlines()), encoding="utf-8")
        config = load([path])
        assert config.tree["policy"]["model"] and config.tree["group_size"] > 1
    assert "## Limits" in text and "## A script beside ours" in text


def test_the_script_beside_trl_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "coming_from" / "trl.md").read_text(encoding="utf-8")
    code = re.search(r"^    ```python\n(.*?)^    ```", text, re.DOTALL | re.MULTILINE)[1]
    namespace: dict = {}
    exec(compile("\n".join(line[4:] for line in code.splitlines()), "trl.md", "exec"), namespace)
    assert namespace["trainer"].summary["steps"] == 2


@pytest.mark.parametrize(
    "page",
    ["index.md", "which_reward.md", "one_gpu.md", "errors.md", *(f"coming_from/{t}.md" for t in TRAINERS)],
)
def test_each_guide_ends_with_its_limits(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)", text, re.MULTILINE)[-1] == "Limits"
