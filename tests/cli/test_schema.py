"""`vlrl schema`: every shipped config fits it, and mistakes do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from vlrl.cli.schema import config_schema, json_type
from vlrl.config import SLOTS, folders
from vlrl.config.yaml import read_file

jsonschema = pytest.importorskip(
    "jsonschema", reason="needs jsonschema, which many of the test packages bring"
)
SHIPPED = next(folder for folder in folders() if folder.is_absolute())
OTHER = ("accelerate", "deepspeed", "launch", "eval")  # no configs of runs


@pytest.fixture(scope="module")
def validator():
    return jsonschema.Draft202012Validator(config_schema())


CONFIGS = [
    path for path in sorted(SHIPPED.rglob("*.yaml")) if path.relative_to(SHIPPED).parts[0] not in OTHER
]


def test_there_are_configs():
    assert len(CONFIGS) > 300


PARTS = sorted({"", "phase", "source", *SLOTS.values()})


def parts():
    """The schema's definitions by name, and the rest: checking the whole takes long."""
    whole = config_schema()
    return whole["$defs"] | {"": whole | {"$defs": {}}}


@pytest.mark.sweep
@pytest.mark.parametrize("name", PARTS)
def test_a_part_is_a_json_schema(name):
    jsonschema.Draft202012Validator.check_schema(parts()[name])


def test_the_parts_are_the_whole():
    assert sorted(parts()) == PARTS


@pytest.mark.sweep
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.relative_to(SHIPPED).as_posix())
def test_a_shipped_config_fits(validator, path):
    broken = [f"{e.json_path} {e.message[:200]}" for e in validator.iter_errors(read_file(path)[0])]
    assert not broken


@pytest.mark.parametrize(
    "mistake",
    [
        "stepz: 3",
        "steps: many",
        "optimizer: {lr: 1.0e-6, momentum: 0.9}",
        "loop: sometimes",
        "rewards: {mine: {name: iou, binari: true}}",
        "rewards: {mine: {name: iou, binary: perhaps}}",
        "phases: {rl: {stepz: 3}}",
        "data: {train: {mine: {name: files, pth: a}}}",
        "extends: base/rl",
    ],
)
def test_mistakes_do_not_fit(validator, mistake):
    assert list(validator.iter_errors(yaml.safe_load(mistake)))


@pytest.mark.parametrize(
    "fine",
    [
        "rewards: {mine: {name: a_reward_of_mine, anything: 1}}",
        "policy: {attn: flex}",
        "rewards: {'*': null}",
        "steps: '${STEPS}'",
        "prompt_sampler: shuffle",
    ],
)
def test_what_a_config_may_say_fits(validator, fine):
    assert not list(validator.iter_errors(yaml.safe_load(fine)))


def test_types():
    assert {"type": "integer"} in json_type(int)["anyOf"] and {"type": "null"} in json_type(int)["anyOf"]
    assert {"type": "array"} in json_type(tuple[str, ...] | str)["anyOf"]
    assert json_type(object) == {}


def test_the_command_writes_a_file(tmp_path):
    from vlrl.cli.schema import schema

    schema(output=tmp_path / "vlrl.schema.json")
    found = json.loads((tmp_path / "vlrl.schema.json").read_text(encoding="utf-8"))
    assert "Peak learning rate" in found["properties"]["optimizer"]["properties"]["lr"]["description"]
    assert "iou" in Path(tmp_path / "vlrl.schema.json").read_text(encoding="utf-8")
