# ruff: noqa: SIM105
"""Confines a command where bubblewrap is missing: `python -I -S -c <this text> FILTER FOLDER... -- COMMAND`.

FILTER: the descriptor of a seccomp program, which refuses what Landlock leaves open: sockets, chmod, System V
memory, other processes' limits. In its Landlock domain (Linux 6.12, ABI 6) the command reads FOLDERs and
writes the working folder; other files, `/proc`, TCP, abstract sockets and signals to the outside are refused.

This process is the command's init: orphans are its children. Its own domain is around the command's, so
`kill(-1)` reaches every process of the command and none outside: when the command ends, on SIGTERM, and when
its own parent dies.

Exit status 98: this kernel has no such domains.
"""

import ctypes
import os
import signal
import struct
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same numbers on all processors
EXECUTE, WRITE, READ, READ_DIR, TRUNCATE = 1, 1 << 1, 1 << 2, 1 << 3, 1 << 14
EVERY_FILE, EVERY_PORT, EVERY_SCOPE = (1 << 16) - 1, 3, 3
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
NO_NEW_PRIVILEGES, DEATH_SIGNAL, SUBREAPER, DROP_BOUND, SECCOMP = 38, 1, 36, 24, 22
KEPT = (5, 6, 7)  # CAP_KILL, CAP_SETGID, CAP_SETUID: the supervisor gives programs a user of their own
CAPSET = {"x86_64": 126, "aarch64": 91}
UNSUPPORTED = 98


def checked(result):
    """The result of a system call. Raises OSError where it failed."""
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def ruleset(files=0, ports=0):
    """The descriptor of a set of rules that refuses these uses of files and ports, and every scope."""
    asked = struct.pack("QQQ", files, ports, EVERY_SCOPE)
    return checked(LIBC.syscall(CREATE_RULESET, asked, len(asked), 0))


def allow(rules, path, access):
    """Allow uses of a file, or of all that is below a folder."""
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    checked(LIBC.syscall(ADD_RULE, rules, 1, struct.pack("=Qi", access, place), 0))
    os.close(place)


def enter(rules):
    """Enter the domain of a set of rules, for good."""
    checked(LIBC.syscall(RESTRICT_SELF, rules, 0))
    os.close(rules)


def confine(program, folders):
    """Confine this process, which is about to become the command."""
    checked(LIBC.prctl(DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0))
    rules = ruleset(EVERY_FILE, EVERY_PORT)
    for folder in folders:
        allow(rules, folder, EXECUTE | READ | READ_DIR)
    for device in DEVICES:
        allow(rules, device, READ | WRITE | TRUNCATE)
    allow(rules, ".", EVERY_FILE & ~EXECUTE)
    enter(rules)
    if os.geteuid() == 0:
        for capability in range(64):
            if capability not in KEPT:
                LIBC.prctl(DROP_BOUND, capability, 0, 0, 0)
        kept = sum(1 << capability for capability in KEPT)
        header, sets = struct.pack("Ii", 0x20080522, 0), struct.pack("6I", kept, kept, 0, 0, 0, 0)
        checked(LIBC.syscall(CAPSET[os.uname().machine], header, sets))
    lines = ctypes.create_string_buffer(program, len(program))
    filter_ = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(lines))
    checked(LIBC.prctl(SECCOMP, 2, filter_, 0, 0))


def end(status):
    """Kill every process of the command, collect them all and exit."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        try:
            os.kill(-1, signal.SIGKILL)
        except OSError:  # none is left
            pass
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            os._exit(status)


def can_signal(pid):
    """Whether this process may send signals to another one of its user."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False
    return True


def main(words):
    """Run the command in its domain; this process stays around it."""
    cut = words.index("--")
    program, folders, command = os.read(int(words[0]), 1 << 20), words[1:cut], words[cut + 1 :]
    os.close(int(words[0]))
    os.chmod(".", 0o777)
    parent = os.getppid()
    try:
        checked(LIBC.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0))
        checked(LIBC.prctl(SUBREAPER, 1, 0, 0, 0))
        enter(ruleset())
    except OSError:
        os._exit(UNSUPPORTED)
    if can_signal(parent):  # `end` would reach every process of this user
        os._exit(UNSUPPORTED)
    signal.signal(signal.SIGTERM, lambda *_: end(1))
    checked(LIBC.prctl(DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0))
    if os.getppid() != parent:
        end(1)
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            confine(program, folders)
            os.execve(command[0], command, {"PATH": "/usr/bin:/bin", "TMPDIR": os.getcwd()})
        finally:
            os._exit(UNSUPPORTED)
    while True:
        done, status = os.waitpid(-1, 0)
        if done == pid:
            end(os.waitstatus_to_exitcode(status) & 0xFF)


if __name__ == "__main__":
    main(sys.argv[1:])
