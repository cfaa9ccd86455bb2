"""Paths, configs, commands, plug-ins and code in the pages exist and run."""

import re
import shlex
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from vlrl.config import SLOTS, find, load
from vlrl.plugins.registry import get
from vlrl.plugins.stages import STAGES

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / name for name in ("architecture.md", "guide.md")]


def blocks(language):
    for page in PAGES:
        for code in re.findall(
            rf"^ *```{language}\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
        ):
            indent = len(code) - len(code.lstrip(" "))
            yield "\n".join(line[indent:] for line in code.splitlines())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_exist(page):
    text = page.read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:vlrl|rewards|data|configs|tests|docs)/[\w./]*)`", text)) | {
        f"docs/{p}" for p in re.findall(r"\]\((\w[\w./]*)\)", text)
    }
    assert paths
    missing = [path for path in paths if not (ROOT / path).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_configs_that_are_named_exist(page):
    for name in set(
        re.findall(r"`((?:methods|experiments|tasks|models|base)/\w+)`", page.read_text(encoding="utf-8"))
    ):
        assert find(name).is_file()


def commands():
    lines = [line for block in [*blocks("bash"), *blocks("")] for line in block.splitlines()]
    return sorted({line for line in lines if line.startswith("vlrl train") or line.startswith("vlrl show")})


@pytest.mark.parametrize("command", commands())
def test_commands_name_configs_that_load(command):
    words = [
        word
        for word in shlex.split(command)[2:]
        if not word.startswith("--") and word not in ("rl", "8", "zero2")
    ]
    if not any(word.endswith("grounding.yaml") for word in words):
        config = load([word for word in words if "=" not in word], [word for word in words if "=" in word])
        assert config.tree["policy"]


@pytest.mark.parametrize("text", list(blocks("yaml")), ids=lambda text: text.partition("\n")[0])
def test_configs_in_the_pages_load_and_name_real_plugins(text, tmp_path):
    (tmp_path / "page.yaml").write_text(text)
    (tmp_path / "my_points.py").write_text("")  # `vlrl new reward my_points` writes it
    tree = load([tmp_path / "page.yaml"]).tree
    for slot in ("prompt_template", "sampling"):
        if slot in tree:
            assert get(STAGES[SLOTS[slot]], tree[slot]["name"])
    for kind, slots in (
        ("source", tree.get("data", {}).get("train", {})),
        ("reward", tree.get("rewards", {})),
    ):
        for spec in slots.values():
            if spec["name"] != "my_points":
                known = get(STAGES[kind], spec["name"]).__dataclass_fields__
                assert set(spec) - {"name"} <= set(known)


def test_python_in_the_pages_runs(tmp_path, monkeypatch):
    """Every Python block of the guide, but for the quickstart's training; architecture's is an outline."""
    monkeypatch.chdir(tmp_path)
    guide = PAGES[1].read_text(encoding="utf-8")
    namespace = {}
    for code in re.findall(r"^```python\n(.*?)^```", guide, re.DOTALL | re.MULTILINE):
        code = "\n".join(line for line in code.splitlines() if not line.startswith(("summary = ", "print(")))
        exec(compile(code, "guide", "exec"), namespace)
    assert namespace["config"].tree["output"] == "runs/from_python" and callable(namespace["vlrl"].train)
    assert (
        set(namespace["accuracy"]) == {"default"}
        and (tmp_path / "runs" / "trainer_model" / "model.safetensors").is_file()
    )
    assert (
        namespace["run"].phase_step == 2
        and namespace["run"].policy.version == 2
        and namespace["step"].metrics["grad_norm"] >= 0
    )
    assert namespace["advantages"].tolist() == pytest.approx([0.7070, -0.7070, -0.7070, 0.7070], abs=1e-3)


def test_every_stage_is_in_the_table():
    table = PAGES[0].read_text(encoding="utf-8")
    for stage in STAGES.values():
        assert f"`{stage.__name__}`" in table


def test_the_picture_is_whole():
    root = ET.parse(ROOT / "docs" / "pipeline.svg").getroot()
    text = " ".join(root.itertext())
    assert all(
        word in text for word in ("Reward", "AdvantageEstimator", "PolicyLoss", "Engine", "GroupFilter")
    )
    assert root.get("viewBox") == "0 0 1120 470"
