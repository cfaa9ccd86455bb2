"""Runs a server and ends it, with all its child processes, as soon as the process that launched it is gone.

Run as a script with the server's command line. Its standard input is a pipe that nobody writes to and that
closes when the launching process ends.
"""

import os
import signal
import subprocess
import sys
import threading
import time

GRACE = 15.0  # seconds between SIGTERM and SIGKILL


def _end(child: "subprocess.Popen[bytes]") -> None:
    """Terminate the whole process group, then kill it, this process included."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    limit = time.monotonic() + GRACE
    while not _has_ended(child) and time.monotonic() < limit:
        time.sleep(0.05)
    os.killpg(0, signal.SIGKILL)


def _has_ended(child: "subprocess.Popen[bytes]") -> bool:
    """Whether the child has ended. `Popen.poll` cannot tell: the interrupted `wait` holds its lock."""
    try:
        return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # it was waited for
        return True


def _watch_stdin() -> None:
    """Wait until the launching process is gone, then terminate this process."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main(command: "list[str]") -> int:
    """Run `command` to its end, in this process's group. Returns its exit code (128 + the number of the
    signal that ended it)."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: _end(child))
    threading.Thread(target=_watch_stdin, daemon=True).start()
    code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
