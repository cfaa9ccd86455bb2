# ruff: noqa: SIM105, SIM115, UP031
"""Runs inside the sandbox (`python -I -S -c <this text>`): a child per test, its output collected, its time and size limited.

Standard input: {"code", "fn", "tests": [stdin text | [arguments]], "seconds", "memory", "output"}. Standard output: a JSON line per test. The
expected outputs stay outside, so the program cannot read or fake them.
"""

import io
import json
import os
import resource
import select
import signal
import sys
import time

PRELUDE = """
import sys, math, re, string, itertools, functools, collections, heapq, bisect, random, copy, operator, datetime, decimal, fractions, statistics
from typing import *
from collections import *
from itertools import *
from functools import *
from heapq import *
from bisect import *
from math import *
from operator import itemgetter, attrgetter
from string import ascii_lowercase, ascii_uppercase
from copy import deepcopy
"""


def limits(job):
    """Apply the resource limits to this process."""
    seconds, memory = job["seconds"], job["memory"]
    for name, value in (
        ("RLIMIT_CPU", int(seconds) + 1),
        ("RLIMIT_AS", memory),
        ("RLIMIT_FSIZE", 1 << 24),
        ("RLIMIT_NOFILE", 64),
        ("RLIMIT_NPROC", job["processes"]),
        ("RLIMIT_CORE", 0),
    ):
        resource.setrlimit(getattr(resource, name), (value, value))


def call(job, test):
    """The function's result as JSON."""
    scope: dict = {"__name__": "solution"}
    exec(compile(PRELUDE, "<prelude>", "exec"), scope)
    exec(compile(job["code"], "<solution>", "exec"), scope)
    owner = scope["Solution"]() if "Solution" in scope and job["fn"] not in scope else None
    function = getattr(owner, job["fn"]) if owner is not None else scope[job["fn"]]
    return json.dumps({"result": function(*test)}, default=lambda value: sorted(value) if isinstance(value, (set, frozenset)) else list(value))


def child(job, test, out):
    """Run one test in this (forked) process and exit."""
    os.setsid()
    limits(job)
    if job["nobody"]:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
    source = os.memfd_create("input")
    os.write(source, test.encode() if isinstance(test, str) else b"")
    os.lseek(source, 0, os.SEEK_SET)
    os.dup2(source, 0)
    os.dup2(out, 1)
    os.dup2(out if job["fn"] is None else source, 2)
    sys.stdin = io.TextIOWrapper(os.fdopen(0, "rb", closefd=False))
    sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False), write_through=False)
    sys.stderr = io.StringIO()
    sys.setrecursionlimit(50_000)
    code = 0
    try:
        if job["fn"] is None:
            exec(compile(PRELUDE, "<prelude>", "exec"), scope := {"__name__": "__main__"})
            exec(compile(job["code"], "<solution>", "exec"), scope)
        else:
            printed, sys.stdout = sys.stdout, io.StringIO()
            result = call(job, test)
            sys.stdout = printed
            sys.stdout.write(result)
    except SystemExit as stop:
        code = 0 if stop.code in (None, 0) else 1
    except BaseException as error:  # an exception of the program is its result
        code = 1
        sys.stdout.flush()
        os.write(1, ("\x00" + type(error).__name__ + ": " + str(error)[:300]).encode(errors="replace"))
    try:
        sys.stdout.flush()
    finally:
        os._exit(code)


def run(job, test):
    """The status and output of one test, which runs in a child process."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            child(job, test, write)
        finally:
            os._exit(71)
    os.close(write)
    deadline, out, status = time.monotonic() + job["seconds"], b"", "ok"
    while True:
        left = deadline - time.monotonic()
        ready = select.select([read], [], [], max(0.0, left))[0]
        if not ready:
            status = "timeout"
            break
        chunk = os.read(read, 65536)
        if not chunk:
            break
        out += chunk
        if len(out) > job["output"]:
            status = "too much output"
            break
    if status == "ok":  # the pipe is closed, the process may still run
        while time.monotonic() < deadline and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            time.sleep(0.002)
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    try:
        os.kill(pid, signal.SIGKILL)  # it may have left its group
    except (ProcessLookupError, PermissionError):
        pass
    _, code = os.waitpid(pid, 0)
    os.close(read)
    text, _, error = out[: job["output"]].decode(errors="replace").partition("\x00")
    if status == "ok" and code != 0:
        status = error or ("killed by signal %d" % os.WTERMSIG(code) if os.WIFSIGNALED(code) else "exit status %d" % os.WEXITSTATUS(code))
    return {"status": status, "out": text}


def adopt():
    """Make orphaned descendants children of this process, so that `sweep` finds them."""
    import ctypes

    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def sweep():
    """Kill every process that a test left running."""
    me = os.getpid()
    for _ in range(50):
        left = []
        for name in os.listdir("/proc"):
            try:
                if name.isdigit() and int(open(f"/proc/{name}/stat").read().rpartition(")")[2].split()[1]) == me:
                    left.append(int(name))
            except (OSError, IndexError, ValueError):
                continue
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, PermissionError, ChildProcessError):
                continue


def main():
    """Run the tests of standard input."""
    adopt()
    job = json.loads(sys.stdin.buffer.read())
    os.write(1, b'{"ready": true}\n')
    for i, test in enumerate(job["tests"]):
        result = run(job, test)
        sweep()
        os.write(1, (json.dumps({"i": i, **result}) + "\n").encode())
        if result["status"] != "ok" and job["stop"]:
            break


if __name__ == "__main__":
    main()
