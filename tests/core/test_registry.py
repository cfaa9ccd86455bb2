import importlib
import subprocess
import sys
from dataclasses import dataclass, field

import pytest

from vlrl.plugins.kinds import KINDS, stage_named
from vlrl.plugins.registry import (
    ConfigError,
    build,
    get,
    load_plugin_file,
    make,
    names,
    origin,
    register,
    shipped,
    stage_of,
)
from vlrl.plugins.stages import STAGES, GroupFilter, Reward, RolloutBudget
from vlrl.types import FilterDecision


@register("test_registry_gate")
@dataclass(frozen=True)
class Example(GroupFilter):
    """Keeps all."""

    share: float = 0.5
    bounds: tuple[float, float] = (0.0, 1.0)
    seen: list = field(init=False, default_factory=list, compare=False)

    def __post_init__(self):
        if self.share > 1:
            raise ValueError(f"share is at most 1, got {self.share}")

    def __call__(self, group):
        return FilterDecision(True)


def test_a_mapping_becomes_a_plugin_with_coerced_values():
    gate = build(GroupFilter, {"name": "test_registry_gate", "share": 1, "bounds": [0, 2]})
    assert gate == Example(1.0, (0.0, 2.0)) and isinstance(gate.bounds, tuple)
    assert build(GroupFilter, "test_registry_gate") == Example()


@pytest.mark.parametrize(
    "spec, message",
    [
        (
            {"name": "test_registry_gat"},
            "gate.g: no group_filter named 'test_registry_gat'. Did you mean 'test_registry_gate'",
        ),
        ({"name": "test_registry_gate", "shar": 1}, "gate.g.shar: unknown field .* Did you mean 'share'"),
        ({"name": "test_registry_gate", "share": "much"}, "gate.g.share: 'much' is not valid"),
        ({"name": "test_registry_gate", "share": 2}, "gate.g: share is at most 1"),
        ({"name": "test_registry_gate", "seen": [1]}, "gate.g.seen: unknown field"),
        ({"share": 1}, "expected a mapping with a `name`"),
        (3, "expected a mapping with a `name`"),
    ],
)
def test_mistakes_are_named(spec, message):
    with pytest.raises(ConfigError, match=message):
        build(GroupFilter, spec, "gate.g")


def test_missing_values_are_named():
    @dataclass(frozen=True)
    class Needs:
        size: int

    with pytest.raises(ConfigError, match="needs a value for size"):
        make(Needs, {}, "x")


def test_a_name_belongs_to_one_class():
    with pytest.raises(ValueError, match="registered twice"):

        @register("test_registry_gate")
        @dataclass(frozen=True)
        class Other(GroupFilter):
            def __call__(self, group):
                return FilterDecision(True)

    assert origin(Example).rpartition(":")[0].endswith("test_registry.py")
    assert stage_of(Example) is GroupFilter
    with pytest.raises(TypeError, match="not a plug-in"):
        stage_of(int)


def test_a_field_of_a_plug_in_may_be_named_as_one_of_its_stage():
    @dataclass(frozen=True)
    class Named(Example):
        kind: str = "linear"
        home: str = "here"

    assert stage_of(Named) is GroupFilter


def test_the_origin_of_a_class_without_source_is_its_module():
    made = type("MadeInASession", (), {"__module__": "__console__"})
    assert origin(made) == "__console__"


def test_every_stage_is_discovered_and_documented():
    assert len(STAGES) == 23
    for stage in STAGES.values():
        for name in names(stage):
            assert name and stage.kind and stage.__doc__
    assert "equal" in names(RolloutBudget)


def test_a_shipped_plugin_is_imported_alone_and_by_name():
    code = """
import sys
from vlrl.plugins.registry import find, origin, shipped
from vlrl.plugins.stages import PolicyLoss
assert find(PolicyLoss, "nothing_of_this_name") is None
cls = find(PolicyLoss, "gspo")
assert cls.name == "gspo" and "vlrl.methods.papers.sapo" not in sys.modules
path, _, line = origin(cls).rpartition(":")
assert open(path).read().splitlines()[int(line) - 1].startswith(f"class {cls.__name__}(")
assert "sapo" in shipped(PolicyLoss) and "grpo" not in shipped(PolicyLoss)  # another kind's
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_other_kinds_than_stages_have_plugins():
    assert {"reward", "family", "scorer", "aggregate"} <= set(KINDS)
    assert "text" in names(stage_named("family")) and "choice" in names(stage_named("scorer"))
    assert "test_registry_gate" not in shipped(GroupFilter)  # registered here, not shipped


def test_plugin_files(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\nfrom vlrl.plugins.registry import register\n"
        "from vlrl.plugins.stages import GroupFilter\nfrom vlrl.types import FilterDecision\n\n"
        "@register('from_a_file')\n@dataclass(frozen=True)\nclass Mine(GroupFilter):\n    'Mine.'\n"
        "    def __call__(self, group):\n        return FilterDecision(False, 'no')\n"
    )
    load_plugin_file(file)
    assert build(GroupFilter, "from_a_file")(None) == (False, "no")
    with pytest.raises(ConfigError, match="no file"):
        load_plugin_file(tmp_path / "missing.py")


PLUGIN = """from dataclasses import dataclass
from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward


@register("loaded_twice")
@dataclass(frozen=True)
class Twice(Reward):
    def __call__(self, rollout):
        return 1.0
"""


def test_a_plugin_file_that_is_loaded_already_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "loaded_twice_module.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    load_plugin_file(tmp_path / "loaded_twice_module.py")
    load_plugin_file(tmp_path / "loaded_twice_module.py")
    module = importlib.import_module(
        "loaded_twice_module"
    )  # the same file as a module of its own registers the same class once more
    load_plugin_file(tmp_path / "loaded_twice_module.py")
    assert get(Reward, "loaded_twice") is module.Twice


def test_a_plugin_file_that_fails_fails_again(tmp_path):
    (tmp_path / "fails.py").write_text("raise RuntimeError('not ready')")
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"fails\.py:1: RuntimeError: not ready; mend the file"):
            load_plugin_file(tmp_path / "fails.py")
