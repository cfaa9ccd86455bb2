"""Shell completion: the scripts complete what the commands really take."""

import shutil
import subprocess
import sys

import pytest

from vlrl.cli.completion import bash, commands, fish, zsh


@pytest.fixture(scope="module")
def tree():
    code = "from vlrl.cli.completion import commands, bash; print(bash(commands()))"  # in a process of its own: it adds all commands
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def completed(script, *words):
    """What bash offers for the last of `words`."""
    quoted = " ".join(f"'{word}'" for word in words)
    code = f"{script}\nCOMP_WORDS=({quoted}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _vlrl; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    return subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("vlrl", "tr"), ["train"]),
        (("vlrl", "--v"), ["--version"]),
        (("vlrl", "train", "quicks"), ["quickstart"]),
        (("vlrl", "train", "quickstart", "--over"), ["--overwrite"]),
        (("vlrl", "list", "policy_l"), ["policy_loss"]),
        (("vlrl", "data", "previ"), ["preview"]),
        (("vlrl", "data", "check", "--quar"), ["--quarantine"]),
        (("vlrl", "completion", "f"), ["fish"]),
        (("vlrl", "train", "no-such-thing"), []),
    ],
)
def test_bash_offers_commands_options_configs_and_kinds(tree, words, offered):
    assert completed(tree, *words) == offered


def test_the_scripts_of_other_shells_are_read_by_them():
    found = commands()
    scripts = {"zsh": zsh(found), "fish": fish(found)}
    assert bash(found) in scripts["zsh"]
    assert "complete -c vlrl -n '__fish_seen_subcommand_from train' -l overwrite" in scripts["fish"]
    for shell, script in scripts.items():
        assert script.count("'") % 2 == 0
        if shutil.which(shell):
            assert subprocess.run([shell, "-n", "-c", script], capture_output=True, check=False).returncode == 0
