"""What docs/papers.csv counts of a preset (the release's values, the trainer's, ours) is what the resolved
preset has, counted again from the origins of its values."""

import sys
from pathlib import Path

import pytest
from test_generated_docs import script

from vlrl.config import at, own_tree

sys.path.insert(0, str(Path(__file__).parents[1]))
from test_fidelity import CODE, MAX_OURS, PRESETS, SETTINGS, comment_of, is_ours  # noqa: E402


def leaves(preset):
    """(path, "file:line") of the values of a resolved preset, `about` and what is taken away left out."""
    config = script().resolved(preset.removeprefix("methods/"))
    for path, origin in config.origins.items():
        value = at(config.tree, path)
        if not path.startswith("about") and value not in (None, {}, []) and not isinstance(value, dict):
            yield path, origin


def row_of(preset):
    return next(row for row in script().listed() if row["id"] == preset.removeprefix("methods/"))


@pytest.mark.sweep
@pytest.mark.parametrize("preset", PRESETS)
def test_counts_are_those_of_the_preset(preset):
    row, own, inherited = row_of(preset), {"script": 0, "ours_count": 0, "unsourced": 0}, {}
    named = own_tree(preset)["about"].get("ours") or {}
    for path, origin in leaves(preset):
        file = origin.rpartition(":")[0]
        if file != f"configs/{preset}.yaml":
            base = file.removeprefix("configs/").removesuffix(".yaml").removeprefix("base/trainers/")
            inherited[base] = inherited.get(base, 0) + 1
            continue
        comment = comment_of(origin)
        ours = is_ours(path, named) or comment.startswith("ours")
        own["ours_count" if ours else "script" if comment else "unsourced"] += 1
    assert {key: int(row[key]) for key in own} == own
    if inherited:
        counts = {name: int(count) for count, name in (one.split(" ") for one in row["trainer"].split(", "))}
        assert counts == inherited
    assert int(row["values"]) == sum(own.values()) + sum(inherited.values())


@pytest.mark.sweep
@pytest.mark.parametrize("preset", CODE)
def test_released_code_leaves_us_two_settings(preset):
    """Of the objective, the sampling and the optimizer, outside phases that have a test of their own."""
    named = [name for name in row_of(preset)["ours"].split() if name.partition(".")[0] in SETTINGS]
    assert len(named) <= MAX_OURS, named


def test_the_page_shows_the_sums():
    page = script().render()
    rows = [row for row in script().listed() if f"methods/{row['id']}" in CODE]
    total, ours = (sum(int(row[key]) for row in rows) for key in ("values", "ours_count"))
    line = next(line for line in page.splitlines() if line.startswith(f"| code | {total} |"))
    assert line.split(" | ")[4] == str(ours)
