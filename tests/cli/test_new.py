import re
import subprocess
import sys

import pytest

from vlrl.cli.new import render
from vlrl.plugins.registry import ConfigError
from vlrl.plugins.stages import STAGES


def test_every_kind_comes_with_a_test_that_passes_and_can_fail(tmp_path):
    """All of them in one process. The last file is a reward with a mistake put in: its test, and no other,
    must notice."""
    for kind in STAGES:
        for file, text in render(kind, f"my_{kind}").items():
            (tmp_path / file).write_text(text)
    plugin, test = render("reward", "broken").values()
    assert plugin.count("self.partial") == 1
    (tmp_path / "broken.py").write_text(plugin.replace("self.partial", "1.0"))
    (tmp_path / "test_broken.py").write_text(test)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        "--rootdir",
        tmp_path,
        tmp_path,
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    failed = set(re.findall(r"^FAILED \S*?(test_\w+)\.py", result.stdout, re.MULTILINE))
    assert failed == {"test_broken"}, result.stdout[-3000:] + result.stderr[-1000:]
    assert int(re.search(r"(\d+) passed", result.stdout).group(1)) >= 2 * len(STAGES)


@pytest.mark.parametrize("kind", STAGES)
def test_files_are_documented_and_tidy(kind):
    for file, text in render(kind, "my_own_thing").items():
        assert "$" not in text
        assert max(map(len, text.splitlines())) <= 110 and text.endswith("\n") and not text.endswith("\n\n")
        assert text.startswith('"""') or file.startswith("test_")
    assert "class MyOwnThing(" in text or "vlrl original" in render(kind, "my_own_thing")["my_own_thing.py"]


def test_the_command_writes_says_how_to_go_on_and_never_overwrites(vlrl, tmp_path):
    code, text = vlrl("new", "reward", "my_points", "--folder", tmp_path / "sub")
    assert code == 0 and sorted(path.name for path in (tmp_path / "sub").iterdir()) == [
        "my_points.py",
        "test_my_points.py",
    ]
    assert "vlrl list reward --plugin" in text and "rewards: {mine: {name: my_points}}" in text
    with pytest.raises(ConfigError, match=r"my_points\.py' is there already"):
        vlrl("new", "reward", "my_points", "--folder", tmp_path / "sub")


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("rewrd", "x", "Did you mean 'reward'"),
        ("reward", "My Reward", "cannot be a name"),
        ("reward", "../x", "cannot be"),
        ("reward", "class", "cannot"),
    ],
)
def test_mistakes(kind, name, message):
    with pytest.raises(ConfigError, match=message):
        render(kind, name)
