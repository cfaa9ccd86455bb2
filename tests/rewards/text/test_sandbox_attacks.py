"""Programs that attack the machine, the supervisor or the check: each ends within its limits and scores
nothing."""

import json
import os
import platform
import re
import struct
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from vlrl_rewards import verify
from vlrl_rewards.code import isolation, sandbox
from vlrl_rewards.code.sandbox import SandboxLimits, run, run_check
from vlrl_rewards.code.verifier import check_in

HAS = not sandbox.available()
isolated = pytest.mark.needs("bwrap")
namespaces = pytest.mark.skipif(isolation.backend() != "bubblewrap", reason="needs the program bwrap")
MODES = [pytest.param("bubblewrap", marks=isolated), "unsafe"]
LIMITS = SandboxLimits(seconds=3, total_seconds=8, memory=256 << 20)
MARK = "marigold"
CHECK = f"""
def check(candidate):
    word = "{MARK}"
    assert candidate([1, 2]) == (3, 2), word
    assert candidate([]) == (0, 1)
"""
RIGHT = "def f(x):\n    return sum(x), (2 if x else 1)"


def judge(code, mode, check=CHECK, limits=LIMITS):
    return run_check(code, check, ["f"], "import math\nhelper = 3", limits, mode).status


# --- a check that is a program ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_right_solution_passes_and_a_wrong_one_does_not(mode):
    assert judge(RIGHT, mode) == "ok"
    assert judge("def f(x): pass", mode) == f"AssertionError: {MARK}"
    assert judge("def f(x): return [3, 2]", mode).startswith("AssertionError"), (
        "a list is no tuple, as in the check's own process"
    )
    assert judge("def g(x): return 1", mode) == "NameError: the program defines no function 'f'"
    assert judge("def f(:", mode) == "SyntaxError: invalid syntax (<solution>, line 1)"
    assert judge("class Solution:\n  def f(self, x): return sum(x), (2 if x else 1)", mode) == "ok"


PLAIN = [
    None,
    True,
    2**200,
    -7,
    0.1,
    float("inf"),
    1 + 2j,
    "ä\ud800\n",
    b"\xff",
    [1, [2]],
    (1, (2,)),
    {1, 2},
    frozenset({3}),
    {(1, 2): {"a": None}},
]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_data_crosses_unchanged(value):
    check = (
        f"def check(candidate):\n    v = {value!r}\n    got = candidate(v, k=v)\n    assert got == (v, v) "
        "and type(got[0]) is type(v), got"
    )
    assert judge("def f(x, k): return x, k", "unsafe", check.replace("inf", "float('inf')")) == "ok"


# Each of these made a body of `pass` pass, or might, where check and solution share a process.
ATTACKS = {
    "exits": "import os\nos._exit(0)",
    "exits in the call": "def f(x):\n    import sys\n    sys.exit(0)",
    "quits": "def f(x):\n    quit()",
    "always equal": "class E(int):\n    def __eq__(self, o): return True\n    __hash__ = None\ndef f(x): return E(5)",  # noqa: E501
    "an equal tuple": "class E(tuple):\n    def __eq__(self, o): return True\ndef f(x): return E((5,))",
    "an object": (
        "class E:\n    def __eq__(self, o): return True\n    def __bool__(self): return True\ndef f(x): "
        "return E()"
    ),
    "patched builtins": (
        "import builtins\nbuiltins.AssertionError = ValueError\nbuiltins.exec = builtins.compile = "
        "print\ndef f(x): pass"
    ),
    "replaced check": (
        "import sys\nm = sys.modules['__main__']\nm.check = m.report = m.unpack = m.pack = lambda *a: (3, "
        "2)\ndef f(x): pass"
    ),
    "frames": (
        "import sys\ndef f(x):\n    g = sys._getframe()\n    while g:\n        g.f_globals['check'] = "
        "lambda c: None\n        g = g.f_back"
    ),
    "verdict on every descriptor": 'import os\nfor n in range(64):\n    try:\n        os.write(n, b\'{"i": 0, "status": "ok", "out": '  # noqa: E501
    '""}\\n\')\n'
    "    except OSError:\n        pass\ndef f(x): pass",
    "verdict in every process": "import glob\nfor n in glob.glob('/proc/[0-9]*/fd/[0-9]*'):\n    try:\n        with open(n, 'w') "  # noqa: E501
    "as h:\n"
    '            h.write(\'{"i": 0, "status": "ok", "out": ""}\\n\')\n    except OSError:\n        '
    "pass\ndef f(x): pass",
    "a forged answer": "import os\ndef f(x):\n    for n in range(3, 64):\n        try:\n"
    '            os.write(n, b\'{"result": {"Opaque": 1}}\\n\' * 9)\n'
    "        except OSError:\n            pass",
    "kills the parent": "import os\nos.kill(os.getppid(), 9)\ndef f(x): pass",
    "an assertion of its own": "def f(x): raise AssertionError",
    "out of time by itself": "def f(x): raise TimeoutError",
    "an endless answer": "def f(x): return 'x' * 10**8",
    "a deep answer": "def f(x):\n    a = []\n    for _ in range(10**5): a = [a]\n    return a",
    "an exception that cannot be shown": "class E(Exception):\n    def __str__(self): raise KeyError\ndef f(x): raise E",  # noqa: E501
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ATTACKS)
def test_no_attack_passes_the_check(name, mode):
    if mode == "unsafe" and ("kills" in name or "process" in name):
        pytest.skip("without isolation a program may end this very process")
    start = time.perf_counter()
    assert judge(ATTACKS[name], mode) != "ok"
    assert time.perf_counter() - start < 60


@pytest.mark.parametrize("mode", [pytest.param("bubblewrap", marks=namespaces), "unsafe"])
def test_nothing_of_the_check_is_in_the_solutions_process(mode):
    """The frames, the objects and the memory of the solution's process hold its own text and not the
    check's."""
    code = """
import gc, sys
canary = "own-canary"
def f(backwards):
    found, frame = [], sys._getframe()
    while frame:
        found += [repr(value) for value in (*frame.f_locals.values(), *frame.f_globals.values())]
        frame = frame.f_back
    found += [repr(thing) for thing in gc.get_objects() if isinstance(thing, (dict, list, tuple)) and len(thing) < 100]
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            low, high = (int(part, 16) for part in line.split()[0].split("-"))
            if " rw-p " in line and high - low < 1 << 25:
                memory.seek(low)
                found.append(memory.read(high - low).decode("latin-1"))
    return [any(word in text for text in found) for word in (backwards[::-1], canary)]
"""  # noqa: E501
    check = "def check(candidate):\n    word = 'marigold'\n    assert candidate(word[::-1]) == [False, True]"
    assert judge(code, mode, check, SandboxLimits(seconds=8, memory=1 << 30)) == "ok"


@namespaces
def test_solution_and_check_are_two_users_in_two_namespaces():
    code = (
        "import os\ndef f(x): return [os.getuid(), sorted(p for p in os.listdir('/proc') if p.isdigit()), "
        "os.readlink('/proc/self/ns/pid')]"
    )
    check = """
def check(candidate):
    import os
    uid, processes, namespace = candidate(0)
    assert namespace != os.readlink("/proc/self/ns/pid")
    assert len(processes) <= 4, processes
    if %r:
        assert uid != os.getuid() and uid >= 2**30 and os.getuid() >= 2**30
"""
    assert judge(code, "bubblewrap", check % (os.geteuid() == 0)) == "ok"


def test_the_gold_of_a_check(rollout):
    gold = {"check": CHECK, "fn_name": "f"}
    for form in (gold, json.dumps(gold)):
        assert verify(form, f"```python\n{RIGHT}\n```", "code", sandbox="unsafe").correct
        assert (
            verify(form, "```python\ndef f(x): pass\n```", "code", sandbox="unsafe").reason
            == f"the check failed; AssertionError: {MARK}"
        )
    two = {"check": "assert f(2) == g(2)\nassert {1, f(2)} == {1, 4}", "fn_name": ["f", "g"]}
    assert verify(
        two, "```python\ndef f(x): return x + x\ndef g(x): return x * x\n```", "code", sandbox="unsafe"
    ).correct
    assert (
        check_in({"inputs": ["1"], "outputs": ["2"]}) is None
        and check_in("assert f(1) == 2") is None
        and check_in("{") is None
    )
    for broken in (
        {"check": "def", "fn_name": "f"},
        {"check": CHECK},
        {"check": 5, "fn_name": "f"},
        {"check": CHECK, "fn_name": [], "setup": ""},
    ):
        with pytest.raises(ValueError, match="gold: "):
            check_in(broken)


# --- the machine --------------------------------------------------------------------------------------------


@isolated
def test_memory_is_bounded_in_total():
    """Children that each touch 100 MB: together they get no more than the program's memory, its disk and the
    overhead."""
    code = """
import os, time
kids = []
for _ in range(7):
    pid = os.fork()
    if pid == 0:
        block = bytearray(100 << 20)
        for i in range(0, len(block), 4096): block[i] = 1
        time.sleep(1.5)
        os._exit(0)
    kids.append(pid)
print(sum(os.waitpid(pid, 0)[1] == 0 for pid in kids))
"""
    ran = run(code, [""], limits=SandboxLimits(seconds=8, total_seconds=12, memory=200 << 20))
    survivors = int(ran[0].out or 0) if ran and ran[0].out.strip().isdigit() else 0
    if isolation.groups():
        assert survivors * 100 <= 200 + 64 + 128
    else:
        assert survivors <= isolation.FEW_PROCESSES


@isolated
@pytest.mark.skipif(HAS and not isolation.sized(), reason="this bubblewrap cannot bound the size of /tmp")
def test_disk_is_bounded_in_total():
    code = """
import os
written = 0
try:
    for n in range(1000):
        with open(f"fill{n}", "wb") as h:
            for _ in range(15): written += h.write(bytes(1 << 20))
except OSError as error:
    print(error.errno, written >> 20)
for place in ("/", "/dev", "/dev/shm", "/usr", "/opt", "/var", "/run"):
    try:
        open(os.path.join(place, "evil"), "wb").write(bytes(1 << 20)); print("wrote", place)
    except OSError:
        pass
"""
    number, mib = run(code, [""], limits=SandboxLimits(seconds=8, disk=32 << 20))[0].out.split()
    assert int(number) == 28 and 15 <= int(mib) <= 32  # ENOSPC


@isolated
@pytest.mark.parametrize(
    "bomb",
    [
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
        "import os, time\nfor _ in range(40):\n    try:\n        if os.fork() == 0:\n            "
        "os.setsid()\n            time.sleep(97531)\n"
        "    except OSError:\n        pass\nprint(1)",
        (
            "import threading, time\nfor _ in range(500):\n    threading.Thread(target=time.sleep, "
            "args=(97531,)).start()"
        ),
        "import os\nos.kill(-1, 9)",
        "import os\nwhile True: os.write(1, b'x' * 65536)",
        "x = []\nwhile True: x.append(bytearray(1 << 20))",
    ],
    ids=["fork bomb", "daemons", "threads", "kills all", "endless output", "memory"],
)
def test_bombs_leave_nothing(bomb):
    def programs():
        found = set()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                found |= {path.parent.name} if b"Runs inside the sandbox" in path.read_bytes() else set()
        return found

    before, start = programs(), time.perf_counter()
    run(
        bomb,
        ["", ""],
        limits=SandboxLimits(seconds=1, total_seconds=6, memory=128 << 20, output=1 << 16),
        stop=False,
    )
    assert time.perf_counter() - start < 60
    left = programs() - before
    while left and time.perf_counter() - start < 90:  # programs of other tests end, too
        time.sleep(0.1)
        left &= programs()
    assert not left
    for parent in isolation.groups():
        assert not list(parent.glob(f"vlrl-{os.getpid()}-*"))


@isolated
def test_refused_system_calls():
    code = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    return ctypes.get_errno() if libc.syscall(number, *arguments) == -1 else 0
def tries(f):
    try:
        f(); return 0
    except OSError as error:
        return error.errno
print(%s)
print(tries(lambda: os.memfd_create("x")), *(tries(lambda: socket.socket(family, socket.SOCK_RAW)) for family in (socket.AF_INET, socket.AF_NETLINK)))
print(tries(lambda: socket.socketpair()), tries(lambda: os.kill(1, 0)), os.cpu_count() > 0)
"""  # noqa: E501
    if not isolation.filtered():
        pytest.skip("no filter for this processor")
    numbers = isolation.MACHINES[platform.machine()].refused
    names = [name for name in numbers if name not in ("clone3",)]
    calls = ", ".join(f"call({numbers[name]}, 0, 0, 0, 0)" for name in names)
    first, second, third = run(code % calls, [""], limits=SandboxLimits(seconds=4))[0].out.splitlines()
    assert dict(zip(names, map(int, first.split()), strict=True)) == dict.fromkeys(names, 1)  # EPERM
    assert second.split() == ["1", "97", "97"]  # EPERM, EAFNOSUPPORT
    assert third.split()[0] == "0" and third.split()[2] == "True"


def test_the_filters_numbers_are_those_of_the_kernels_headers():
    headers = {
        "x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
        "aarch64": "/usr/include/asm-generic/unistd.h",
    }
    compared = 0
    for machine, path in headers.items():
        if not Path(path).is_file():
            continue
        known = {
            name: int(number)
            for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)\b", Path(path).read_text())
        }
        ours = isolation.MACHINES[machine]
        for name, number in {
            **ours.refused,
            **ours.bare,
            **{n: getattr(ours, n) for n in ("socket", "clone", "socketpair", "prlimit64")},
        }.items():
            if name in known:
                assert known[name] == number, (machine, name)
                compared += 1
    if not compared:
        pytest.skip("no kernel headers here")
    assert compared > 30


def by_hand(program, audit, number, first=0, second=0):
    """What a filter says of a system call, by a small interpreter of classic BPF."""
    lines = [struct.unpack("HBBI", program[i : i + 8]) for i in range(0, len(program), 8)]
    data, at, value = {0: number, 4: audit, 16: first, 24: second}, 0, 0
    while True:
        code, yes, no, k = lines[at]
        at += 1
        if code == 0x06:
            return k
        if code == 0x20:
            value = data[k]
        elif code == 0x54:
            value &= k
        else:
            at += yes if {0x15: value == k, 0x35: value >= k, 0x45: bool(value & k)}[code] else no


@pytest.mark.parametrize("machine", sorted(isolation.MACHINES))
def test_the_filter_by_hand(machine):
    """The program run by a small interpreter of classic BPF: refused, allowed, foreign and judged calls."""
    ours = isolation.MACHINES[machine]
    verdict = partial(by_hand, isolation.syscall_filter(machine), ours.audit)
    allow, refuse = 0x7FFF0000, 0x00050000
    assert {verdict(number) for name, number in ours.refused.items() if name != "clone3"} == {refuse | 1}
    assert (
        verdict(435) == refuse | 38
        and verdict(0x40000001) == refuse | 38
        and by_hand(isolation.syscall_filter(machine), 7, 0) == 0x80000000
    )
    assert verdict(ours.clone, 0x1200011) == allow and verdict(ours.clone, 0x10000000) == refuse | 1
    assert verdict(ours.socket, 1) == allow and verdict(ours.socket, 2) == refuse | 97 and verdict(3) == allow
    assert isolation.syscall_filter("riscv64") == b""


@pytest.mark.parametrize("machine", sorted(isolation.MACHINES))
def test_the_filter_of_landlock_by_hand(machine):
    """It refuses more: modes of files, limits of others, sockets but pairs of streams."""
    ours, allow, refuse = isolation.MACHINES[machine], 0x7FFF0000, 0x00050000
    verdict = partial(by_hand, isolation.syscall_filter(machine, bare=True), ours.audit)
    both = {**ours.refused, **ours.bare}
    assert {verdict(number) for name, number in both.items() if name != "clone3"} == {refuse | 1}
    assert verdict(ours.socket, 1) == verdict(ours.socket, 2) == refuse | 97
    assert [verdict(ours.socketpair, 1, kind) for kind in (1, 0x80801, 2, 5)] == [
        allow,
        allow,
        *[refuse | 97] * 2,
    ]
    assert [verdict(ours.prlimit64, pid) for pid in (0, 1)] == [allow, refuse | 1]
    assert verdict(ours.clone, 0x1200011) == verdict(3) == allow


def test_what_is_missing_is_said_once(monkeypatch, caplog):
    monkeypatch.setattr(isolation, "unavailable", lambda: "")
    monkeypatch.setattr(isolation, "backend", lambda: "bubblewrap")
    monkeypatch.setattr(isolation, "groups", lambda: ())
    monkeypatch.setattr(isolation, "filtered", lambda: False)
    monkeypatch.setattr(isolation, "sized", lambda: False)
    sandbox.announce.cache_clear()
    for _ in range(3):
        sandbox.require("bubblewrap")
    said = [record.getMessage() for record in caplog.records]
    assert [sentence.split(":")[1].split(" that")[0].split(" for")[0].strip() for sentence in said] == [
        "no control group",
        "no seccomp filter",
        "bubblewrap is older than 0.7 and cannot bound the size of /tmp",
    ]
    assert isolation.processes_of_program(64) == isolation.FEW_PROCESSES
    sandbox.announce.cache_clear()
