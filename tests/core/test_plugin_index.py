"""The index that is read from source files says what the registry says after everything is imported."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys

import pytest

from vlrl.config import SLOTS, load
from vlrl.config.settings import Settings
from vlrl.plugins import renamed
from vlrl.plugins.index import entries
from vlrl.plugins.registry import ConfigError, discover, get, make, names, registered
from vlrl.plugins.stages import STAGES
from vlrl.policy import Family


@pytest.mark.parametrize("kind", STAGES)
def test_the_index_agrees_with_the_imported_classes(kind):
    stage = STAGES[kind]
    if kind == "engine":
        pytest.importorskip("vllm")  # a module that vLLM itself loads is in the engines' package
    discover(stage)
    homes = tuple(f"{home}." for home in stage.home.split(","))
    imported = {name: cls for name, cls in registered(stage).items() if cls.__module__.startswith(homes)}
    shipped = {name: entry for (entry_kind, name), entry in entries(stage.home).items() if entry_kind == kind}
    assert sorted(shipped) == sorted(imported)
    for name, entry in shipped.items():
        cls = get(stage, name)
        assert (entry.module, entry.cls) == (cls.__module__, cls.__qualname__)
        assert (
            entry.doc == (inspect.getdoc(cls) or "") and 0 <= entry.line - inspect.getsourcelines(cls)[1] <= 2
        )  # the first decorator's line
        assert sorted(f.name for f in entry.fields) == sorted(
            f.name for f in dataclasses.fields(cls) if f.init
        ), name
    assert set(shipped) <= set(names(stage))


@pytest.mark.parametrize(
    "words",
    [["--help"], ["list"], ["list", "reward"], ["list", "policy_loss", "gspo"], ["show", "quickstart"]],
)
def test_looking_around_imports_no_torch(words):
    code = (
        f"import sys; sys.argv = {['vlrl', *words]}\ntry:\n    from vlrl.cli import main; "
        "main()\nfinally:\n    assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout, done.stderr


def test_the_package_offers_its_api_without_torch():
    code = (
        "import sys, vlrl; vlrl.Row, vlrl.Config, vlrl.register; assert 'torch' not in sys.modules; assert "
        "set(vlrl.__all__) <= set(dir(vlrl))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
    import vlrl

    assert all(getattr(vlrl, name) is not None for name in vlrl.__all__)
    with pytest.raises(AttributeError, match="it offers Config"):
        _ = vlrl.trainn


@pytest.mark.parametrize("old", renamed.KEYS)
def test_an_old_key_names_the_new_one(old, tmp_path):
    file = tmp_path / "old.yaml"
    file.write_text(f"extends: [base/rl]\n{old}: {{}}\n")
    with pytest.raises(
        ConfigError, match=f"{old}: this key is now called {renamed.KEYS[old]!r} \\(.*old.yaml:2\\)"
    ):
        load([file])
    file.write_text(f"extends: [base/rl]\nphases:\n  rl:\n    {old}: {{}}\n")
    with pytest.raises(ConfigError, match=f"phases.rl.{old}: this key is now called {renamed.KEYS[old]!r}"):
        load([file])
    assert renamed.KEYS[old] in {*SLOTS, *Settings.__dataclass_fields__}


def test_old_plugins_and_fields_name_the_new_ones():
    for kind, table in renamed.PLUGINS.items():
        for old, new in table.items():
            assert new in names(STAGES[kind]) and old not in names(STAGES[kind]), (kind, old, new)
            with pytest.raises(ConfigError, match=f"no {kind} named '{old}'. It is now called '{new}'"):
                get(STAGES[kind], old)
    for (kind, name), table in renamed.FIELDS.items():
        cls = get(STAGES[kind], name) if name else get(Family, "text")
        for old, new in table.items():
            fields = {f.name for f in dataclasses.fields(cls)}
            assert new in fields and old not in fields
            with pytest.raises(ConfigError, match=f"unknown field of .* It is now called '{new}'"):
                make(cls, {old: 1}, "here")
