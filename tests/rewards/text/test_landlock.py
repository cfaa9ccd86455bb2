"""The attacks on the sandbox where bubblewrap is missing: Landlock and a filter of system calls in its
place."""

import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest
from test_forged_results import (  # noqa: F401 - they run here, too
    test_honest_programs_are_paid,
    test_no_forged_result_is_paid,
)
from test_sandbox_attacks import (  # noqa: F401
    ATTACKS,
    LIMITS,
    RIGHT,
    judge,
    test_bombs_leave_nothing,
    test_memory_is_bounded_in_total,
)
from vlrl_rewards.code import isolation
from vlrl_rewards.code.sandbox import SandboxLimits, run

if not isolation.interpreter_of_landlock():
    pytest.skip("this kernel has no Landlock of ABI 6 (Linux 6.12)", allow_module_level=True)


@pytest.fixture(autouse=True)
def without_bubblewrap(monkeypatch):
    monkeypatch.setattr(isolation, "backend", lambda: "landlock")


def status(code):
    """The status of a program without input."""
    return run(code, [""], limits=LIMITS)[0].status


def test_right_and_wrong_programs():
    assert judge(RIGHT, "bubblewrap") == "ok"
    assert judge("def f(x): pass", "bubblewrap").startswith("AssertionError")
    assert [ran.out for ran in run("print(int(input()) ** 2)", ["7", "8"], limits=LIMITS)] == ["49\n", "64\n"]
    assert status("import subprocess\nassert subprocess.run(['/bin/echo', 'a']).returncode == 0") == "ok"
    assert status("import tempfile\nwith tempfile.TemporaryFile() as file: file.write(b'a')") == "ok"
    assert status("import asyncio\nasync def f(): pass\nasyncio.run(f())") == "ok"


@pytest.mark.parametrize("name", ATTACKS)
def test_no_attack_passes_the_check(name):
    assert judge(ATTACKS[name], "bubblewrap") != "ok"


OUTSIDE = {
    "a file of the machine": "open('/etc/hostname').read()",
    "a file of the user": f"open({__file__!r}).read()",
    "a folder": "__import__('os').listdir('/')",
    "processes": "__import__('os').listdir('/proc')",
    "its own memory": "open('/proc/self/mem', 'rb')",
    "shared memory": "open('/dev/shm/evil', 'w')",
    "a new file": "open('/tmp/evil', 'w')",
    "a new file of the interpreter": "open('/usr/evil', 'w')",
    "a device": "__import__('os').mknod('x', 0o20666, 0x103)",
    "a hard link": "__import__('os').link('/etc/hostname', 'x')",
    "a symbolic link": "(__import__('os').symlink('/etc/hostname', 'x'), open('x').read())",
    "modes": f"__import__('os').chmod({tempfile.gettempdir()!r}, 0o700)",
    "times": f"__import__('os').utime({tempfile.gettempdir()!r})",
    "attributes": f"__import__('os').setxattr({tempfile.gettempdir()!r}, 'user.a', b'a')",
    "the supervisor": "__import__('os').kill(__import__('os').getppid(), 9)",
    "limits of others": "__import__('resource').prlimit(__import__('os').getppid(), 0, (1, 1))",
    "priority of others": "(o := __import__('os')).setpriority(o.PRIO_PROCESS, o.getppid(), 19)",
    "the network": "__import__('socket').create_connection(('127.0.0.1', 22), 1)",
    "a server": "__import__('socket').create_server(('', 0))",
    "datagrams": "__import__('socket').socketpair(type=__import__('socket').SOCK_DGRAM)",
    "a local socket": "__import__('socket').socket(__import__('socket').AF_UNIX)",
    "a change of root": "__import__('os').chroot('.')",
    "another user": "__import__('os').setuid(0)" if os.geteuid() == 0 else "__import__('os').setuid(1)",
    "another process's memory": "__import__('ctypes').CDLL(None)"
    ".ptrace(16, __import__('os').getppid(), 0, 0) and 1 / 0",
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_nothing_outside_is_reached(name):
    refused = re.compile(r"PermissionError|OSError: \[Errno 97\]|ZeroDivisionError")
    assert refused.match(status(OUTSIDE[name])), status(OUTSIDE[name])


def sleeping(mark):
    """The number of processes that are `sleep MARK`."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found += path.read_bytes() == f"sleep\0{mark}\0".encode()
    return found


def test_its_own_processes_end_with_it():
    """What a program starts in sessions of its own is gone when the run is over."""
    mark = f"{os.getpid()}.25"
    code = f"""
import os
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        os.execv('/bin/sleep', ['sleep', '{mark}'])
"""
    run(code, [""], limits=SandboxLimits(seconds=1, total_seconds=3))
    assert not sleeping(mark)


def test_its_processes_end_with_a_trainer_that_is_killed():
    mark = f"{os.getpid()}.75"
    program = f"import os\nif os.fork() == 0:\n    os.setsid()\nos.execv('/bin/sleep', ['sleep', '{mark}'])"
    trainer = (
        "from vlrl_rewards.code import isolation, sandbox\nisolation.backend = lambda: 'landlock'\n"
        f"sandbox.run({program!r}, [''], limits=sandbox.SandboxLimits(seconds=60))"
    )

    with subprocess.Popen([sys.executable, "-c", trainer], stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + 60
        while sleeping(mark) < 2 and time.monotonic() < end:
            time.sleep(0.2)
        assert sleeping(mark) == 2
        process.kill()
    end = time.monotonic() + 30
    while sleeping(mark) and time.monotonic() < end:
        time.sleep(0.2)
    assert not sleeping(mark)


def test_without_a_domain_nothing_is_run_or_killed(tmp_path):
    """Where the kernel refuses the domain, the supervisor ends before it starts or kills anything."""
    text = "".join(isolation.landlock(0, sys.executable)[4])
    broken = text.replace(
        "CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446",
        "CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 9999, 9999, 9999",
    )  # noqa: E501
    assert broken != text
    command = [sys.executable, "-I", "-S", "-c", broken, "0", "--", sys.executable, "-c", "print(1)"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, cwd=tmp_path, check=False)
    assert done.returncode == 98 and not done.stdout


def test_the_machine_is_told_what_is_missing():
    assert any(sentence.startswith("no bubblewrap: Landlock") for sentence in isolation.missing())
    assert isolation.filtered() and not isolation.unavailable()
    assert set(isolation.MACHINES) >= {platform.machine()}
