"""Stands between us and a server: when we are gone, however that came, the server and all that it started are ended.

Run as a script with the server's command line; its standard input is a pipe that nobody writes to and that closes with us.
"""

import os
import signal
import subprocess
import sys
import threading
import time

PATIENCE = 15.0  # seconds between the request to end and the end


def _end(child: "subprocess.Popen[bytes]") -> None:
    """Ask the whole group to end, then end it, ourselves with it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    limit = time.monotonic() + PATIENCE
    while child.poll() is None and time.monotonic() < limit:
        time.sleep(0.05)
    os.killpg(0, signal.SIGKILL)


def _watch() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main(command: "list[str]") -> int:
    """Run `command` to its end; we lead the group that it belongs to. Its exit code (128 + the signal that ended it)."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: _end(child))
    threading.Thread(target=_watch, daemon=True).start()
    code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
