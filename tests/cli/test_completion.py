"""Shell completion: what typer's scripts are told for each shell, and each shell that is there, run for
real."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from imports_kit import run_forked

CASES = [
    ("vlrl tr", ["train"]),
    ("vlrl --v", ["--version"]),
    ("vlrl train quicks", ["quickstart"]),
    ("vlrl train quickstart --over", ["--overwrite"]),
    ("vlrl train quickstart --overwrite --res", ["--resume"]),
    ("vlrl list policy_l", ["policy_loss"]),
    ("vlrl data previ", ["preview"]),
    ("vlrl data check --quar", ["--quarantine"]),
    ("vlrl train no-such-thing", []),
    ("vlrl check --quar", []),  # an option of `vlrl data check` alone
    ("vlrl data stats --quar", []),
    ("vlrl data check quicks", []),  # a config, which `vlrl check` takes
]


@pytest.mark.parametrize(("typed", "offered"), CASES)
def test_what_a_shell_is_offered(typed: str, offered: list[str], tmp_path: Path) -> None:
    asked = {
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split()) - 1),
        "_VLRL_COMPLETE": "complete_bash",
    }
    done, _ = run_forked(tmp_path, tmp_path / "modules.json", **asked)
    assert (done.stdout.split(), done.stderr, done.returncode) == (offered, "", 0)


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a `vlrl` that runs this interpreter."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "vlrl").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m vlrl "$@"\n')
    (folder / "vlrl").chmod(0o755)
    return folder


TRIED = {  # shell -> (flags, code behind the script that prints what is offered for `vlrl train quicks`)
    "bash": ([], 'COMP_WORDS=(vlrl train quicks); COMP_CWORD=2; _vlrl_completion vlrl; echo "$COMPREPLY"'),
    "zsh": (["-f"], "whence -w _vlrl_completion"),  # completes in an interactive shell alone
    "fish": (["--no-config"], "complete -C 'vlrl train quicks'"),
}


@pytest.mark.parametrize("shell", [pytest.param(s, marks=pytest.mark.needs(s)) for s in TRIED])
def test_a_shell_reads_its_script(command: Path, shell: str) -> None:
    environment = {**os.environ, "PATH": f"{command}:{os.environ['PATH']}"}
    asked = {**environment, "_VLRL_COMPLETE": f"source_{shell}"}
    script = subprocess.run([command / "vlrl"], env=asked, capture_output=True, text=True, check=True).stdout
    flags, code = TRIED[shell]
    program = shutil.which(shell) or shell
    loaded = f"autoload -U compinit; compinit -D; {script}" if shell == "zsh" else script
    done = subprocess.run(
        [program, *flags, "-c", f"{loaded}\n{code}"], env=environment, capture_output=True, text=True
    )
    assert "quickstart" in done.stdout or "_vlrl_completion: function" in done.stdout, done
