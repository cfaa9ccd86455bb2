"""data/README.md: its examples work as written, its tables are complete."""

import re
from pathlib import Path

import yaml
from vlrl_data.cli import app
from vlrl_data.record_families import FAMILIES

from vlrl.registry import build, names
from vlrl.stages import PromptSampler, PromptTemplate, Select, Source

README = (Path(__file__).parents[2] / "data" / "README.md").read_text()


def test_the_source_works_as_written(tmp_path):
    from vlrl.registry import load_plugin_file

    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    (tmp_path / "squares_plugin.py").write_text(code)
    load_plugin_file(tmp_path / "squares_plugin.py")
    rows = build(Source, {"name": "squares", "count": 5})()
    assert [row.answer for row in rows] == [0, 1, 4, 9, 16]


def test_the_config_builds():
    tree = yaml.safe_load(re.search(r"```yaml\n(.*?)```", README, re.DOTALL)[1])
    for stage, spec in ((PromptSampler, tree["prompt_sampler"]), (PromptTemplate, tree["prompt_template"]), (Select, tree["select"]["band"])):
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
