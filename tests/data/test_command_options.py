"""Options that all `vlrl data` commands that read rows have, and demonstrations made from answers."""

import inspect
import json

import pytest
import typer
from PIL import Image
from vlrl_data.cli import app, renames
from vlrl_data.row_builder import demonstration

from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Source
from vlrl.types import RowError

ROWS = [{"frage": f"{n}+1?", "antwort": str(n + 1), "bild": "a.png"} for n in range(4)]


@pytest.fixture
def theirs(tmp_path):
    (tmp_path / "rows").mkdir()
    (tmp_path / "media").mkdir()
    Image.new("RGB", (32, 32)).save(tmp_path / "media" / "a.png")
    path = tmp_path / "rows" / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def run(*words):
    from typer.testing import CliRunner

    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.output + (str(result.exception) if result.exception else "")


FIELDS = "frage=question,antwort=answer,bild=image"


@pytest.mark.parametrize("command", ["check", "stats", "preview", "convert", "dedup", "split"])
def test_fields_and_media_root_act(theirs, tmp_path, command):
    out = ["--out", tmp_path / "out"] if command not in ("check", "stats") else []
    code, said = run(command, theirs, *out, "--fields", FIELDS, "--media-root", tmp_path / "media")
    assert code == 0, said
    if command in ("check", "stats"):
        assert run(command, theirs, "--fields", FIELDS) != (
            code,
            said,
        )  # without the root no picture is found
    assert run("check", theirs)[0] != 0  # and nothing is left of the options afterwards


def test_every_command_that_reads_rows_has_them():
    group = typer.main.get_command(app)
    for name, command in group.commands.items():
        options = {option for parameter in command.params for option in parameter.opts}
        reads = any(parameter.name in ("source", "against") for parameter in command.params)
        assert {"--media-root", "--fields", "--plugin"} <= options or not reads, name


def test_a_plugin_gives_sources(tmp_path):
    (tmp_path / "mine.py").write_text(
        inspect.cleandoc(
            """
            from dataclasses import dataclass
            from vlrl.plugins.registry import register
            from vlrl.plugins.stages import Source
            from vlrl.types import Row

            @register("three_rows_of_a_plugin")
            @dataclass(frozen=True, kw_only=True)
            class ThreeRowsOfAPlugin(Source):
                def __call__(self):
                    return [Row(str(n), "?", answer="1") for n in range(3)]
            """
        )
    )
    code, said = run("check", "three_rows_of_a_plugin", "--plugin", tmp_path / "mine.py", "--json")
    assert code == 0 and json.loads(said)["usable"] == 3


def test_renames():
    assert renames("a=question,b=answer") == {"a": "question", "b": "answer"} and renames("") == {}
    with pytest.raises(ConfigError, match="theirs=ours"):
        renames("question")


@pytest.mark.parametrize(
    ("answer", "text"),
    [("cat", "<answer>cat</answer>"), (3, "<answer>3</answer>"), (["a", "b"], '<answer>["a", "b"]</answer>')],
)
def test_a_demonstration_is_made_from_the_answer(answer, text):
    assert demonstration("<answer>{answer}</answer>", answer) == text


def test_a_demonstration_of_boxes_is_refused():
    with pytest.raises(RowError, match="coordinates"):
        demonstration("{answer}", [0, 0, 10, 10])


def test_a_source_fills_targets_that_are_missing(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(
        '{"question": "1?", "answer": "1"}\n{"question": "2?", "answer": "2", "target": "It is {2}."}\n'
    )
    rows = build(Source, {"name": "files", "path": str(path), "target": "<answer>{answer}</answer>"})()
    assert [row.target for row in rows] == ["<answer>1</answer>", "It is {2}."]
    assert [row.target for row in build(Source, {"name": "files", "path": str(path)})()] == ["", "It is {2}."]
