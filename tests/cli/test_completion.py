"""Shell completion: each shell, run for real, completes what the commands take."""

import os
import pty
import shutil
import subprocess
import sys
import time

import pytest

CASES = [
    ("vlrl tr", ["train"]),
    ("vlrl --v", ["--version"]),
    ("vlrl train quicks", ["quickstart"]),
    ("vlrl train quickstart --over", ["--overwrite"]),
    ("vlrl train quickstart --overwrite --res", ["--resume"]),
    ("vlrl list policy_l", ["policy_loss"]),
    ("vlrl data previ", ["preview"]),
    ("vlrl data check --quar", ["--quarantine"]),
    ("vlrl completion f", ["fish"]),
    ("vlrl train no-such-thing", []),
    ("vlrl check --quar", []),  # an option of `vlrl data check` alone
    ("vlrl data stats --quar", []),
    ("vlrl data check quicks", []),  # a config, which `vlrl check` takes
]


@pytest.fixture(scope="module")
def script():
    def of(shell):
        return subprocess.run(
            [sys.executable, "-m", "vlrl", "completion", shell], capture_output=True, text=True, check=True
        ).stdout

    return of


@pytest.fixture(scope="module")
def bash_script(script):
    return script("bash")


@pytest.mark.parametrize(("typed", "offered"), CASES)
def test_bash(bash_script, typed, offered):
    words = " ".join(f"'{word}'" for word in typed.split())
    code = (
        f"{bash_script}\nCOMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _vlrl; printf "
        f"'%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == offered


@pytest.fixture(scope="module")
def fish_file(script, tmp_path_factory):
    if not shutil.which("fish"):
        pytest.skip("fish is not installed")
    file = tmp_path_factory.mktemp("fish") / "vlrl.fish"
    file.write_text(script("fish"))
    return file


@pytest.mark.parametrize(("typed", "offered"), CASES)
def test_fish(fish_file, typed, offered):
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source {fish_file}; complete -C '{typed}'"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == offered and not done.stderr


@pytest.fixture(scope="module")
def zsh(script, tmp_path_factory):
    """`zsh(typed)`: the line that an interactive zsh has after Tab."""
    if not shutil.which("zsh"):
        pytest.skip("zsh is not installed")
    folder = tmp_path_factory.mktemp("zsh")
    (folder / "vlrl.zsh").write_text(script("zsh"))
    ours, its = pty.openpty()
    environment = {**os.environ, "TERM": "dumb", "HOME": str(folder), "ZDOTDIR": str(folder)}
    shell = subprocess.Popen(
        ["zsh", "-f", "-i"],
        stdin=its,
        stdout=its,
        stderr=its,
        cwd=folder,
        env=environment,
        start_new_session=True,
    )
    os.write(ours, b"unsetopt beep; source ./vlrl.zsh; echo rea''dy\n")
    read_until(ours, b"ready")
    count = 0

    def typed_and_tab(typed):
        nonlocal count
        count += 1
        file = folder / f"line-{count}"
        os.write(
            ours, f"{typed}\t\x01print -r -- \x05 > {file}; echo do''ne{count}\n".encode()
        )  # Tab, to the start of the line, to its end
        read_until(ours, f"done{count}".encode())
        return file.read_text().strip()

    yield typed_and_tab
    shell.kill()
    shell.wait()
    os.close(ours), os.close(its)


def read_until(handle, mark, seconds=60):
    """Read a terminal until `mark` appears in it."""
    seen, end = b"", time.monotonic() + seconds
    while mark not in seen:
        assert time.monotonic() < end, seen.decode(errors="replace")
        seen += os.read(handle, 4096)


@pytest.mark.parametrize(("typed", "offered"), CASES)
def test_zsh(zsh, typed, offered):
    assert zsh(typed) == (" ".join([*typed.split()[:-1], *offered]) if offered else typed)
