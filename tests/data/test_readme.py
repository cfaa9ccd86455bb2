"""data/README.md: its examples work as written, its tables are complete."""

import re
from pathlib import Path

import yaml
from vlrl_data.cli import app
from vlrl_data.record_families import FAMILIES

from vlrl.plugins.registry import build, names
from vlrl.plugins.stages import PromptSampler, PromptTemplate, Select, Source

README = (Path(__file__).parents[2] / "data" / "README.md").read_text()


def section(title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", README, re.DOTALL | re.MULTILINE)[1]


def test_the_large_dataset_works_as_written(tmp_path, monkeypatch):
    """Its shards and its command's sources; those of its config build."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VLRL_CACHE", str(tmp_path / "cache"))
    text = section("Large datasets")
    tree = yaml.safe_load(re.search(r"```yaml\n(.*?)```", text, re.DOTALL)[1])
    assert build(PromptSampler, tree["prompt_sampler"]).workers == 4
    assert {build(Source, spec).name for spec in tree["data"]["train"].values()} == {"files", "webdataset"}
    exec(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1].replace("50_000", "500"), {})
    command = next(line for line in text.splitlines() if line.startswith("vlrl train"))
    rows = build(Source, yaml.safe_load(re.search(r"'data\.train=(.*?)'", command)[1])["sums"])()
    assert len(rows) == 2000 and rows[1999].target == "<answer>2000</answer>" and rows[0].task == "digits"


def test_the_source_works_as_written(tmp_path):
    from vlrl.plugins.registry import load_plugin_file

    code = re.search(r"```python\n(.*?)```", section("Write a source"), re.DOTALL)[1]
    (tmp_path / "squares_plugin.py").write_text(code)
    load_plugin_file(tmp_path / "squares_plugin.py")
    rows = build(Source, {"name": "squares", "count": 5})()
    assert [row.answer for row in rows] == [0, 1, 4, 9, 16]


def test_the_config_builds():
    tree = yaml.safe_load(re.search(r"```yaml\n(.*?)```", README, re.DOTALL)[1])
    for stage, spec in (
        (PromptSampler, tree["prompt_sampler"]),
        (PromptTemplate, tree["prompt_template"]),
        (Select, tree["select"]["band"]),
    ):
        assert build(stage, spec).name == spec["name"]
    assert {build(Source, spec).name for spec in tree["data"]["train"].values()} == {"files", "hub"}


def test_tables_are_complete():
    assert all(f"| `{name}` |" in README for name in FAMILIES)
    for kind in ("lab", "gen"):
        listed = (
            re.search(rf"\| `{kind}_\*` \| ([^|]*)", README)[1].partition(":")[0]
            if kind == "lab"
            else re.search(r"\| `gen_\*` \| ([^|;]*)", README)[1]
        )
        told = {f"{kind}_{name}" for name in re.findall(r"\w+", re.sub(r"\(.*?\)", "", listed))}
        assert told and told <= set(names(Source)), told - set(names(Source))
    assert all(f"| `{name}` |" in README for name in ("files", "folder", "webdataset", "hub"))
    commands = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert all(f"vlrl data {command}" in README for command in commands)
