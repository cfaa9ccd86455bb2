"""What separates a program from the machine: namespaces (bubblewrap; where it is missing, Landlock), a filter
of system calls (seccomp), and limits on the whole (control groups).

Each part is tried once; `missing()` names the parts that this machine lacks and what bounds the program
instead.
"""

from __future__ import annotations

import errno
import os
import platform
import secrets
import shutil
import signal
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple

INSIDE = "/opt/python"
PACKAGES = "/opt/packages"  # third-party packages, where a program is given them
FEW_PROCESSES = 8  # at the same time, where no control group bounds the memory of all of them together
_OVERHEAD = 128 << 20  # bytes that a control group allows besides the program's: interpreter and supervisor
_HELPERS = 10  # processes in a control group besides the program's: shell, bubblewrap, supervisor
_FILES = {
    "": ("memory.max", "pids.max"),
    "memory": ("memory.limit_in_bytes",),
    "pids": ("pids.max",),
}  # by controller; version 2 has no name
_ENTER = 'while [ "$1" != -- ]; do echo 0 > "$1/cgroup.procs" || exit 97; shift; done; shift; exec "$@"'


# --- namespaces ---------------------------------------------------------------------------------------------


def python(isolated: bool = False) -> str:
    """The path of the interpreter behind the link of a virtual environment; `isolated`: its path inside,
    under INSIDE unless it is in /usr."""
    real, prefix = os.path.realpath(sys.executable), os.path.realpath(sys.base_prefix)
    return INSIDE + real.removeprefix(prefix) if isolated and not prefix.startswith("/usr") else real


def packages() -> str:
    """The folder of this interpreter's third-party packages."""
    return sysconfig.get_paths()["purelib"]


def packages_inside(isolated: bool) -> str:
    """Where a program finds third-party packages that it is given."""
    return PACKAGES if isolated and backend() == "bubblewrap" else packages()


def bubblewrap(disk: int = 0, with_packages: bool = False) -> list[str]:
    """The command that isolates what follows it; [] where bubblewrap is not installed. `disk` (bytes) bounds
    the only folder that can be written; `with_packages` shows third-party packages at PACKAGES, read-only.

    Network, processes, System V memory and host name are the program's own; its files are /usr and the
    interpreter, read-only, and an empty /tmp.
    """
    found = shutil.which("bwrap")
    if found is None:
        return []
    mounts = [
        part
        for path in ("/usr", "/lib", "/lib64", "/bin")
        if os.path.exists(path)
        for part in ("--ro-bind", path, path)
    ]
    if python(isolated=True) != python():
        mounts += [
            "--perms",
            "0755",
            "--dir",
            os.path.dirname(INSIDE),
            "--ro-bind",
            os.path.realpath(sys.base_prefix),
            INSIDE,
        ]
    if with_packages:
        mounts += ["--perms", "0755", "--dir", os.path.dirname(PACKAGES), "--ro-bind", packages(), PACKAGES]
    # Root keeps its user namespace, so that the supervisor can give the program a user of its own: root is
    # exempt from the limit on processes.
    user = (
        ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_KILL"]
        if os.geteuid() == 0
        else ["--unshare-user"]
    )
    size = ["--size", str(disk)] if disk and sized() else []
    return [
        found, "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try",
        "--die-with-parent", "--new-session",
        "--cap-drop", "ALL", *user, *mounts,
        "--proc", "/proc", "--dev", "/dev", *size, "--tmpfs", "/tmp", "--perms", "0777", "--dir", "/tmp/box",
        "--remount-ro", "/dev",
        "--remount-ro", "/", "--chdir", "/tmp/box", "--clearenv", "--setenv", "PATH", "/usr/bin:/bin",
    ]  # fmt: skip


@lru_cache(maxsize=1)
def sized() -> bool:
    """Whether this bubblewrap can bound the size of a tmpfs (0.7 and newer)."""
    found = shutil.which("bwrap")
    return (
        found is not None
        and b"--size"
        in subprocess.run([found, "--help"], capture_output=True, timeout=30, check=False).stdout
    )


def landlock(program: int, interpreter: str, *more: str) -> list[str]:
    """The command that confines what follows it where there is no bubblewrap; `program`: the descriptor of
    the filter of system calls; `more`: folders that it may read. See `landlock.py`."""
    text = resources.files("vlrl_rewards.code").joinpath("landlock.py").read_text()
    prefix = os.path.dirname(os.path.dirname(interpreter))
    folders = [path for path in ("/usr", "/lib", "/lib64", "/bin", prefix, *more) if os.path.isdir(path)]
    return [interpreter, "-I", "-S", "-c", text, str(program), *folders, "--"]


@lru_cache(maxsize=1)
def interpreter_of_landlock() -> str:
    """An interpreter that runs confined by Landlock, as a user of its own where this one is root: this one,
    or the system's where other users cannot read this one; "" for none. It is tried once."""
    program = syscall_filter(bare=True)
    become = (
        "import os, resource\nos.geteuid() or os.setresuid(*[1 << 30] * 3)\nimport json, decimal\nprint(1)"
    )
    for interpreter in dict.fromkeys((python(), "/usr/bin/python3")) if program else ():
        with tempfile.TemporaryFile() as file, tempfile.TemporaryDirectory() as folder, suppress(OSError):
            file.write(program)
            file.seek(0)
            tried = subprocess.run(
                [*landlock(file.fileno(), interpreter), interpreter, "-I", "-S", "-c", become],
                capture_output=True, timeout=30, pass_fds=(file.fileno(),), cwd=folder, check=False,
            )  # fmt: skip
            if tried.stdout.strip() == b"1":
                return interpreter
    return ""


@lru_cache(maxsize=1)
def backend() -> str:
    """What isolates programs on this machine: "bubblewrap", else "landlock", else "". It is tried once."""
    return "bubblewrap" if not _no_bubblewrap() else "landlock" if interpreter_of_landlock() else ""


def unavailable() -> str:
    """The reason why programs cannot be isolated on this machine; "" if they can."""
    if backend():
        return ""
    return f"{_no_bubblewrap()}, and Landlock (Linux 6.12) cannot stand in"


@lru_cache(maxsize=1)
def _no_bubblewrap() -> str:
    """Why bubblewrap cannot isolate programs here; "" if it can."""
    prefix = bubblewrap()
    if not prefix:
        return "bubblewrap (bwrap) is not installed"
    tried = subprocess.run(
        [*prefix, python(isolated=True), "-I", "-S", "-c", "print(1)"],
        capture_output=True,
        timeout=30,
        check=False,
    )
    if tried.stdout.strip() != b"1":
        return f"bubblewrap does not work here: {tried.stderr.decode(errors='replace').strip()[:200]}"
    return ""


# --- system calls -------------------------------------------------------------------------------------------


class _Machine(NamedTuple):
    """A processor's number for seccomp (AUDIT_ARCH_*) and its numbers of system calls: those that are
    refused, and those judged by an argument."""

    audit: int
    refused: Mapping[str, int]
    socket: int
    clone: int
    bare: Mapping[str, int]  # refused, too, where no namespace hides files, addresses and other processes
    socketpair: int
    prlimit64: int


_NEWER_BARE = {
    "process_madvise": 440, "process_mrelease": 448, "fchmodat2": 452, "setxattrat": 463,
    "removexattrat": 466,
}  # fmt: skip
_NEWER = {
    "clone3": 435, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430,
    "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438, "mount_setattr": 442,
    "memfd_secret": 447,
}  # fmt: skip
MACHINES = {
    "x86_64": _Machine(0xC000003E, {
        "shmget": 29, "semget": 64, "msgget": 68, "ptrace": 101, "syslog": 103, "personality": 135,
        "pivot_root": 155, "chroot": 161, "acct": 163,
        "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169,
        "sethostname": 170, "setdomainname": 171,
        "iopl": 172, "ioperm": 173, "init_module": 175, "delete_module": 176, "quotactl": 179,
        "clock_settime": 227, "kexec_load": 246,
        "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272, "vmsplice": 278,
        "perf_event_open": 298, "name_to_handle_at": 303,
        "open_by_handle_at": 304, "clock_adjtime": 305, "setns": 308, "process_vm_readv": 310,
        "process_vm_writev": 311, "kcmp": 312,
        "finit_module": 313, "memfd_create": 319, "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323,
        **_NEWER,
    }, socket=41, clone=56, socketpair=53, prlimit64=302, bare={
        "chmod": 90, "fchmod": 91, "fchmodat": 268, "chown": 92, "fchown": 93, "lchown": 94, "fchownat": 260,
        "utime": 132, "utimes": 235, "futimesat": 261, "utimensat": 280, "setxattr": 188, "lsetxattr": 189,
        "fsetxattr": 190, "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199, "inotify_init": 253,
        "inotify_init1": 294, "fanotify_init": 300, "shmat": 30, "shmctl": 31, "semop": 65, "semctl": 66,
        "semtimedop": 220, "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "mq_open": 240, "mq_unlink": 241,
        "connect": 42, "setpriority": 141, "sched_setparam": 142, "sched_setscheduler": 144,
        "sched_setattr": 314, "sched_setaffinity": 203, "ioprio_set": 251, "migrate_pages": 256,
        "move_pages": 279, **_NEWER_BARE,
    }),
    "aarch64": _Machine(0xC00000B7, {
        "shmget": 194, "semget": 190, "msgget": 186, "ptrace": 117, "syslog": 116, "personality": 92,
        "pivot_root": 41, "chroot": 51, "acct": 89,
        "settimeofday": 170, "mount": 40, "umount2": 39, "swapon": 224, "swapoff": 225, "reboot": 142,
        "sethostname": 161, "setdomainname": 162,
        "init_module": 105, "delete_module": 106, "quotactl": 60, "clock_settime": 112, "kexec_load": 104,
        "add_key": 217, "request_key": 218,
        "keyctl": 219, "unshare": 97, "vmsplice": 75, "perf_event_open": 241, "name_to_handle_at": 264,
        "open_by_handle_at": 265,
        "clock_adjtime": 266, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272,
        "finit_module": 273,
        "memfd_create": 279, "kexec_file_load": 294, "bpf": 280, "userfaultfd": 282, **_NEWER,
    }, socket=198, clone=220, socketpair=199, prlimit64=261, bare={
        "fchmod": 52, "fchmodat": 53, "fchownat": 54, "fchown": 55, "utimensat": 88, "setxattr": 5,
        "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16,
        "inotify_init1": 26, "fanotify_init": 262, "shmat": 196, "shmctl": 195, "semop": 193, "semctl": 191,
        "semtimedop": 192, "msgsnd": 189, "msgrcv": 188, "msgctl": 187, "mq_open": 180, "mq_unlink": 181,
        "connect": 203, "setpriority": 140, "sched_setparam": 118, "sched_setscheduler": 119,
        "sched_setattr": 274, "sched_setaffinity": 122, "ioprio_set": 30, "migrate_pages": 238,
        "move_pages": 239, **_NEWER_BARE,
    }),
}  # fmt: skip
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NEW_NAMESPACES = 0x7E020080  # the CLONE_NEW* flags of clone
_AF_UNIX, _STREAM, _KIND_OF_SOCKET = 1, 1, 0xF


def syscall_filter(machine: str = "", bare: bool = False) -> bytes:
    """A seccomp program (classic BPF): refused calls fail with EPERM, sockets other than local ones with
    EAFNOSUPPORT, all else is allowed.

    Refused are calls that reach other processes, namespaces, mounts, keys, the clock and the kernel itself,
    and memory that no limit counts (memfd, System V). `clone3` fails with ENOSYS, so that the C library uses
    `clone`, whose flags are looked at. b"" for a processor not in MACHINES. `bare`, for Landlock: modes and
    owners of files, System V objects of others and limits of other processes, too, and all sockets but pairs
    of connected streams.
    """
    known = MACHINES.get(machine or platform.machine())
    if known is None:
        return b""

    def refuse(number: int) -> tuple[int, int, int, int]:
        return _RETURN, 0, 0, _REFUSE | number

    program = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, known.audit), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    program += [(_AT_LEAST, 0, 1, 0x40000000), refuse(errno.ENOSYS)]  # the x32 twins of all calls
    for name, number in {**known.refused, **(known.bare if bare else {})}.items():
        program += [(_EQUAL, 0, 1, number), refuse(errno.ENOSYS if name == "clone3" else errno.EPERM)]
    first_argument, allow = (_LOAD, 0, 0, 16), (_RETURN, 0, 0, _ALLOW)  # the low half of the argument
    program += [
        (_EQUAL, 0, 4, known.clone),
        first_argument,
        (_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        refuse(errno.EPERM),
        allow,
    ]
    any_socket = refuse(errno.EAFNOSUPPORT) if bare else first_argument
    program += [
        (_EQUAL, 0, 4, known.socket),
        any_socket,
        (_EQUAL, 1, 0, _AF_UNIX),
        refuse(errno.EAFNOSUPPORT),
        allow,
    ]
    if bare:
        program += [
            (_EQUAL, 0, 4, known.prlimit64),
            first_argument,
            (_EQUAL, 1, 0, 0),
            refuse(errno.EPERM),
            allow,
        ]
        program += [
            (_EQUAL, 0, 5, known.socketpair),
            (_LOAD, 0, 0, 24),  # the kind of socket
            (_AND, 0, 0, _KIND_OF_SOCKET),
            (_EQUAL, 1, 0, _STREAM),
            refuse(errno.EAFNOSUPPORT),
            allow,
        ]
    program += [allow]
    return b"".join(struct.pack("HBBI", *line) for line in program)


@lru_cache(maxsize=1)
def filtered() -> bool:
    """Whether bubblewrap can install the filter here. It is tried once."""
    program = syscall_filter()
    if backend() == "landlock":
        return True
    if not program or unavailable():
        return False
    read, write = os.pipe()
    try:
        os.write(write, program)
        os.close(write)
        tried = subprocess.run(
            [*bubblewrap(), "--seccomp", str(read), python(isolated=True), "-I", "-S", "-c", "print(1)"],
            capture_output=True, timeout=30, pass_fds=(read,), check=False,
        )  # fmt: skip
    finally:
        os.close(read)
    return tried.stdout.strip() == b"1"


# --- memory and processes in total --------------------------------------------------------------------------


def _own_groups() -> Iterator[tuple[str, Path, Path]]:
    """(controller, "" for version 2; the mount; the group) of the control groups that this process is in."""
    with suppress(OSError):
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for mount in mounts:
                kind, options = mount[mount.index("-") + 1], mount[-1].split(",")
                mine = (
                    kind == "cgroup2"
                    if not controllers
                    else kind == "cgroup" and set(controllers.split(",")) <= set(options)
                )
                if mine:
                    yield (
                        controllers,
                        Path(mount[4]),
                        Path(mount[4])
                        / os.path.relpath(path, mount[3] if path.startswith(mount[3]) else "/"),
                    )


def _parent(mount: Path, group: Path, files: tuple[str, ...]) -> Path | None:
    """The nearest group, from this process's own upwards, in which a group with these files can be made."""
    while group.is_relative_to(mount):
        trial = group / _name()
        with suppress(OSError):
            trial.mkdir()
            fits = all(os.access(trial / name, os.W_OK) for name in files)
            trial.rmdir()
            if fits:
                return group
        if group == mount:
            return None
        group = group.parent
    return None


def _name() -> str:
    return f"vlrl-{os.getpid()}-{secrets.token_hex(4)}"


@lru_cache(maxsize=1)
def groups() -> tuple[Path, ...]:
    """The groups in which groups for programs are made: one in version 2, one per controller in version 1; ()
    where none can be made."""
    found: dict[str, Path | None] = {}
    for controllers, mount, group in _own_groups():
        for need, files in _FILES.items():
            if need in (controllers.split(",") if controllers else ("",)):
                found[need] = found.get(need) or _parent(mount, group, files)
    chosen = [found[""]] if found.get("") else [found.get("memory"), found.get("pids")]
    usable = [parent for parent in chosen if parent is not None]
    if len(usable) < len(chosen):
        return ()
    for parent in usable:
        _remove_stale(parent)
    return tuple(usable)


def _remove_stale(parent: Path) -> None:
    """Remove the groups of processes that were killed before they could do it."""
    for folder in parent.glob("vlrl-*-*"):
        owner = folder.name.split("-")[1]
        if owner.isdigit() and not Path("/proc", owner).exists():
            with suppress(OSError):
                folder.rmdir()


@contextmanager
def bounded(memory: int, disk: int, processes: int) -> Iterator[list[str]]:
    """A control group for one program: `memory` and `disk` bytes (files in tmpfs are memory) and `processes`
    for all its processes together.

    Yields the command that enters it; [] where there is none. At the end all its processes are killed and the
    group is removed.
    """
    made: list[Path] = []
    whole = memory + disk + _OVERHEAD
    values = {
        "memory.max": whole,
        "memory.swap.max": 0,
        "memory.limit_in_bytes": whole,
        "memory.memsw.limit_in_bytes": whole,
    }
    values["pids.max"] = processes + _HELPERS
    try:
        for parent in groups():
            folder = parent / _name()
            folder.mkdir()
            made.append(folder)
            for name, value in values.items():
                if (folder / name).exists():
                    (folder / name).write_text(str(value))
        yield ["/bin/sh", "-c", _ENTER, "sh", *map(str, made), "--"] if made else []
    finally:
        for folder in made:
            _remove(folder)


def _remove(folder: Path) -> None:
    end = time.monotonic() + 5.0
    while time.monotonic() < end:
        try:
            folder.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:  # processes that were killed a moment ago
            with suppress(OSError):
                for pid in (folder / "cgroup.procs").read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.005)


def missing() -> list[str]:
    """What this machine lacks for full isolation, with what bounds a program instead; one sentence each."""
    if why := unavailable():
        return [f"no isolation: {why}; install bubblewrap and allow user namespaces"]
    lacks = []
    if not groups():
        lacks.append(
            "no control group that can be written (cgroup v2 with memory and pids): memory is bounded per "
            "process, and a program has at most "
            f"{FEW_PROCESSES} processes; delegate a group, for instance with systemd-run --user --scope -p "
            "Delegate=yes"
        )
    if not filtered():
        lacks.append(
            f"no seccomp filter for {platform.machine()}: system calls are bounded by namespaces and "
            "capabilities alone"
        )
    if backend() == "landlock":
        lacks.append(
            "no bubblewrap: Landlock and a filter of system calls confine programs; they see that files of "
            "others are there, and disk is bounded per file; install bubblewrap"
        )
    elif not sized():
        lacks.append(
            "bubblewrap is older than 0.7 and cannot bound the size of /tmp: disk is bounded per file; "
            "install a newer one"
        )
    return lacks


def processes_of_program(processes: int) -> int:
    """The limit on a program's processes on this machine."""
    return processes if groups() else min(processes, FEW_PROCESSES)
