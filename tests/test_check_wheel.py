"""`scripts/check_wheel.py` names each file that a wheel lacks, changes or has beyond the checkout."""

import importlib.util
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "check_wheel.py"


@pytest.fixture(scope="module")
def script():
    if not SCRIPT.is_file():
        pytest.skip("scripts/ is part of the checkout, not of the wheel")
    spec = importlib.util.spec_from_file_location("check_wheel", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel_of(files, place):
    with zipfile.ZipFile(place, "w") as archive:
        for name, content in {**files, "vlrl-1.dist-info/RECORD": b""}.items():
            archive.writestr(name, content)
    return place


def test_a_whole_wheel_passes_and_every_fault_is_named(script, tmp_path, capsys):
    whole = {name: path.read_bytes() for name, path in script.files().items()}
    packages = {"vlrl/__init__.py", "vlrl_rewards/__init__.py", "vlrl_data/__init__.py"}
    assert packages | {"vlrl/configs/quickstart.yaml"} <= set(whole)
    assert script.main([str(wheel_of(whole, tmp_path / "whole.whl"))]) == 0
    faulty = {**whole, "vlrl/py.typed": b"changed", "vlrl/left_over.py": b""}
    del faulty["vlrl/configs/quickstart.yaml"]
    assert script.problems(wheel_of(faulty, tmp_path / "faulty.whl")) == [
        "missing: vlrl/configs/quickstart.yaml",
        "differs: vlrl/py.typed",
        "not of the checkout: vlrl/left_over.py",
    ]
    assert script.main([str(tmp_path / "faulty.whl")]) == 1 and script.main([]) == 1
    assert "missing: vlrl/configs/quickstart.yaml" in capsys.readouterr().out
