# ruff: noqa: SIM105, SIM115, UP031
"""Runs inside the sandbox (`python -I -S -c <this text>`), started with a job as JSON on standard input.
Three modes:

"tests": {"code", "fn", "tests": [stdin text | [arguments]]}: a child per test; standard output: a JSON line
per test. The expected outputs stay outside, so the program cannot read or fake them. The result of a function
counts only with the nonce of its test, and an error has a pipe of its own: what a program writes to a
descriptor is output and nothing else.

"serve" and "check" are the two halves of a check that is itself a program (HumanEval's `check(candidate)`):
two processes in two sandboxes, each with a user of its own, joined by two pipes. "serve" answers calls of the
solution; "check" sends them and writes the verdict. Only plain data crosses (`pack`, `unpack`), and an answer
counts only with the nonce of its call.

All modes: {"seconds", "memory", "output", "processes", "uid": int | null, "isolated": bool}.
"""

import builtins
import ctypes
import decimal
import fractions
import io
import json
import os
import resource
import secrets
import select
import signal
import sys
import time

PRELUDE = """
import sys, math, re, string, itertools, functools, collections, heapq, bisect, random, copy, operator
import datetime, decimal, fractions, statistics
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
LIBC = ctypes.CDLL(None)
SUBREAPER, DUMPABLE = 36, 4  # options of prctl


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


def become(job):
    """Bound this process, which is about to run what it was given, and give it its own user."""
    limits(job)
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # where memory ends, the program ends before its supervisor
    except OSError:
        pass
    if job["uid"] is not None:
        os.setgroups([])
        os.setresgid(job["uid"], job["uid"], job["uid"])
        os.setresuid(job["uid"], job["uid"], job["uid"])
    LIBC.prctl(DUMPABLE, 1, 0, 0, 0)


def scope_of(code, name):
    """The names that a program defines, with the usual imports."""
    scope: dict = {"__name__": name}
    exec(compile(PRELUDE, "<prelude>", "exec"), scope)
    exec(compile(code, "<solution>", "exec"), scope)
    return scope


def function_of(scope, fn):
    """A function of the program, or a method of its class Solution."""
    if fn not in scope and "Solution" not in scope:
        raise NameError("the program defines no function %r" % fn)
    owner = scope["Solution"]() if fn not in scope else None
    return getattr(owner, fn) if owner is not None else scope[fn]


def call(code, fn, test):
    """The function's result as JSON."""
    function = function_of(scope_of(code, "solution"), fn)
    return json.dumps(
        function(*test),
        default=lambda value: sorted(value) if isinstance(value, (set, frozenset)) else list(value),
    )


# --- tests --------------------------------------------------------------------------------------------------


def child(job, test, out, errors, nonce):
    """Run one test in this (forked) process and exit. The job is emptied first: the program finds no other
    test in this process.

    out, errors: the descriptors of its output and of its exception. nonce: one from which the nonce of the
    test is read when the function has returned."""
    os.setsid()
    become(job)
    code, fn = job["code"], job["fn"]
    job["tests"].clear()
    job.clear()
    with open(os.open("input", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "r+b") as source:
        source.write(test.encode(errors="replace") if isinstance(test, str) else b"")
        source.seek(0)
        os.unlink("input")
        os.dup2(source.fileno(), 0)
    os.dup2(out, 1)
    os.dup2(out if fn is None else 0, 2)
    if out > 2:
        os.close(out)
    sys.stdin = io.TextIOWrapper(os.fdopen(0, "rb", closefd=False))
    sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False), write_through=False)
    sys.stderr = io.StringIO()
    sys.setrecursionlimit(50_000)
    status = 0
    try:
        if fn is None:
            scope_of(code, "__main__")
        else:
            printed, sys.stdout = sys.stdout, io.StringIO()
            result = call(code, fn, test)
            sys.stdout = printed
            sys.stdout.write('{"nonce": "%s", "result": %s}' % (os.read(nonce, 64).decode(), result))
    except SystemExit as stop:
        status = 0 if stop.code in (None, 0) else 1
    except BaseException as error:  # an exception of the program is its result
        status = 1
        os.write(errors, described(error).encode(errors="replace")[:1000])
    try:
        sys.stdout.flush()
    finally:
        os._exit(status)


def parts(error):
    """The name and the text of an exception; no text where its own __str__ fails."""
    try:
        return [type(error).__name__, str(error)[:300]]
    except BaseException:  # the program's own exception
        return [type(error).__name__, ""]


def described(error):
    """An exception as text."""
    return ": ".join(parts(error))


def run(job, test):
    """The status and output of one test, which runs in a child process."""
    nonce = secrets.token_hex(16)
    (read, write), (failed, errors), (asked, tell) = os.pipe(), os.pipe(), os.pipe()
    os.write(tell, nonce.encode())
    pid = os.fork()
    if pid == 0:
        try:
            for fd in (read, failed, tell):
                os.close(fd)
            child(job, test, write, errors, asked)
        finally:
            os._exit(71)
    for fd in (write, errors, asked, tell):
        os.close(fd)
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
        while (
            time.monotonic() < deadline
            and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        ):
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
    os.set_blocking(failed, False)
    try:
        error = os.read(failed, 1000).decode(errors="replace")
    except BlockingIOError:  # a process that it started still has the pipe
        error = ""
    os.close(read)
    os.close(failed)
    text = out[: job["output"]].decode(errors="replace")
    if status == "ok" and job["fn"] is not None and not code:
        status, text = answered(text, nonce)
    if status == "ok" and code != 0:
        status = error or (
            "killed by signal %d" % os.WTERMSIG(code)
            if os.WIFSIGNALED(code)
            else "exit status %d" % os.WEXITSTATUS(code)
        )
    return {"status": status, "out": text}


def answered(text, nonce):
    """(status, the function's result as JSON) of the output of a test; without the nonce it is no result."""
    head, tail = '{"nonce": "%s", "result": ' % nonce, "}"
    if not (text.startswith(head) and text.endswith(tail)):
        return "no result", ""
    return "ok", text[len(head) : -len(tail)]


def collect():
    """Collect the children that have ended; whether one is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    time.sleep(0.002)
    return True


def sweep(isolated):
    """Kill every process that a test left running: all others of the namespace, or without one this process's
    descendants."""
    me = os.getpid()
    for _ in range(50):
        if isolated:
            try:
                os.kill(-1, signal.SIGKILL)  # all at once, so that none can fork away
            except (ProcessLookupError, PermissionError):
                pass
            if not collect():
                return
            continue
        left = []
        for name in os.listdir("/proc"):
            try:
                if (
                    name.isdigit()
                    and int(open(f"/proc/{name}/stat").read().rpartition(")")[2].split()[1]) == me
                ):
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


def tests(job):
    """Run the tests, one after the other."""
    for i in range(len(job["tests"])):
        result = run(job, job["tests"][i])
        sweep(job["isolated"])
        report({"i": i, **result})
        if result["status"] != "ok" and job["stop"]:
            break


# --- a check that is a program ------------------------------------------------------------------------------


def pack(value):
    """Plain data as JSON data: exact types survive, a subclass becomes its base, anything else only its
    type's name."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        value = int.__index__(value)
        return value if -(2**53) < value < 2**53 else {"int": hex(value)}
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": bytes(value).decode("latin-1")}
    if isinstance(value, list):
        return [pack(item) for item in list.__iter__(value)]
    collections: dict = {"tuple": tuple, "set": set, "frozenset": frozenset}
    for name, kind in collections.items():
        if isinstance(value, kind):
            return {name: [pack(item) for item in kind.__iter__(value)]}
    if isinstance(value, dict):
        return {"dict": [[pack(key), pack(item)] for key, item in dict.items(value)]}
    if isinstance(value, (decimal.Decimal, fractions.Fraction)):
        kind = decimal.Decimal if isinstance(value, decimal.Decimal) else fractions.Fraction
        return {kind.__name__: kind.__str__(value)}
    return {"object": type(value).__name__}


class Opaque:
    """A result that is no plain data: equal to nothing."""

    def __init__(self, kind):
        self.kind = kind

    def __eq__(self, other):
        return False  # a class with __eq__ alone has no hash


def unpack(data):
    """The value of JSON data made by `pack`. Raises ValueError or TypeError on anything else."""
    if isinstance(data, list):
        return [unpack(item) for item in data]
    if not isinstance(data, dict):
        return data
    ((kind, value),) = data.items()
    if kind == "dict":
        return {unpack(key): unpack(item) for key, item in value}
    make = {
        "int": lambda text: int(text, 16), "complex": lambda parts: complex(*parts),
        "bytes": lambda text: text.encode("latin-1"),
        "tuple": lambda items: tuple(map(unpack, items)), "set": lambda items: set(map(unpack, items)),
        "frozenset": lambda items: frozenset(map(unpack, items)), "Decimal": decimal.Decimal,
        "Fraction": fractions.Fraction, "object": Opaque,
    }  # fmt: skip
    return make[kind](value)


def serve(job):
    """Answer calls of the solution's functions until the check closes the pipe."""
    wanted, answers = os.fdopen(job["read"], "rb"), os.fdopen(job["write"], "wb", buffering=0)
    code = job["code"]
    become(job)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(nothing, fd)
    answers.write(b'"started"\n')
    scope, failed = {}, None
    sys.setrecursionlimit(50_000)
    try:
        scope = scope_of(code, "solution")
    except BaseException as error:  # an exception of the program is its answer
        failed = {"error": parts(error)}
    for line in iter(wanted.readline, b""):
        nonce, name, arguments, named = json.loads(line)
        try:
            answer = failed or {"result": pack(function_of(scope, name)(*unpack(arguments), **unpack(named)))}
            text = json.dumps({**answer, "nonce": nonce}).encode()
        except BaseException as error:  # the same
            text = json.dumps({"error": parts(error), "nonce": nonce}).encode()
        answers.write(text + b"\n")


class Caller:
    """Calls functions of the solution, which is at the other end of two pipes.

    `fault`: what ended the conversation, or "". The verdict is never "ok" then, whatever the check caught.
    """

    def __init__(self, read, write, most):
        self.answers, self.calls, self.most = os.fdopen(read, "rb"), os.fdopen(write, "wb", buffering=0), most
        self.fault = ""

    def line(self):
        """The next line of the solution's process. Raises ConnectionError where it is gone, writes too much
        or writes what is no JSON."""
        text = b"" if self.fault else self.answers.readline(self.most)
        try:
            if text.endswith(b"\n"):
                return json.loads(text)
            self.fault = self.fault or (
                "too much output" if len(text) >= self.most else "the solution's process ended"
            )
        except (ValueError, RecursionError):
            self.fault = "an answer that cannot be read"
        raise ConnectionError(self.fault)

    def answer(self, nonce):
        """The answer to the call with this nonce. Raises ConnectionError on any other line."""
        found = self.line()
        if not (isinstance(found, dict) and found.get("nonce") == nonce and len(found) == 2):
            self.fault = "an answer to no call"
            raise ConnectionError(self.fault)
        return found

    def function(self, name):
        """A function that stands for the solution's function `name`."""

        def candidate(*arguments, **named):
            nonce = secrets.token_hex(16)
            call = json.dumps([nonce, name, pack(list(arguments)), pack(named)])
            try:
                self.calls.write(call.encode() + b"\n")
            except BrokenPipeError:
                self.fault = self.fault or "the solution's process ended"
            answer = self.answer(nonce)
            if "error" in answer:
                raise exception(*answer["error"])
            return unpack(answer["result"])

        candidate.__name__ = name
        return candidate


# Exceptions that Python or a check takes for something else than an error: the end of a `map`, a failed
# assertion, the check's own time.
ENDS = (AssertionError, StopIteration, StopAsyncIteration, TimeoutError, UnicodeError)


def exception(kind, text):
    """The builtin exception of that name; RuntimeError for any other, and for `ENDS`."""
    known = getattr(builtins, str(kind), None)
    if not (isinstance(known, type) and issubclass(known, Exception)) or issubclass(known, ENDS):
        return RuntimeError("%s: %s" % (kind, text))
    try:
        return known(str(text))
    except TypeError:  # ExceptionGroup
        return RuntimeError("%s: %s" % (kind, text))


def check(job):
    """Run the check against the solution's answers, and report the verdict."""
    caller = Caller(job["read"], job["write"], job["output"])
    verdict = os.dup(1)
    become(job)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(nothing, fd)
    status = "ok"

    def out_of_time(*_):
        raise TimeoutError("out of time")

    signal.signal(signal.SIGALRM, out_of_time)
    try:
        caller.line()
        signal.setitimer(signal.ITIMER_REAL, job["seconds"])
        scope = scope_of(job["setup"], "check")
        functions = {name: caller.function(name) for name in job["names"]}
        scope.update(functions)
        exec(compile(job["code"], "<check>", "exec"), scope)
        if "check" in scope and "check" not in functions:
            scope["check"](functions[job["names"][0]])
    except BaseException as error:  # an exception of the check is its verdict
        status = "timeout" if isinstance(error, TimeoutError) else described(error)
    signal.setitimer(signal.ITIMER_REAL, 0)
    status = caller.fault if status == "ok" and caller.fault else status
    report({"i": 0, "status": status, "out": ""}, verdict)


def report(row, fd=1):
    """Write a line of JSON, whole."""
    data = (json.dumps(row) + "\n").encode()
    while data:
        data = data[os.write(fd, data) :]


def main():
    """Run the job of standard input. Orphaned descendants become children of this process, so that `sweep`
    finds them; no other process may look into it."""
    LIBC.prctl(SUBREAPER, 1, 0, 0, 0)
    LIBC.prctl(DUMPABLE, 0, 0, 0, 0)
    job = json.loads(sys.stdin.buffer.read())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # no program reads the job again
    os.close(nothing)
    if job["mode"] != "serve":
        report({"ready": True})
    {"tests": tests, "serve": serve, "check": check}[job["mode"]](job)


if __name__ == "__main__":
    main()
