"""Signals: SIGTERM, SIGINT, SIGUSR1 and SIGHUP end a run after the current step, with a checkpoint, within a
bounded time.

SLURM sends SIGTERM, and before the time limit the signal of `--signal`; spot instances, Kubernetes and
systemd send SIGTERM, a terminal that is closed SIGHUP (`nohup` has it ignored). A rank whose launcher is gone
gets SIGTERM. A file `stop` in the run's folder asks for the same. A second signal, or
`watch.stop_seconds` after the first, ends the process at once, without a checkpoint of this step.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vlrl.services.parent import signal_at_parents_death
from vlrl.trainer.ranks.launch import LAUNCHED

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
STOP_FILE = "stop"
# seconds within which a signal that arrives again (from a terminal and from the launcher) is one signal
_SAME = 1.0
_POLL = 1.0  # seconds between two looks at the stop file


class StopRequest:
    """Receives the signals of a process while the context is open. `reason` names the first one.

    The signals are read in a thread, so that a process that waits for other ranks or for a device is ended in
    time too. Outside the main thread (a notebook's worker, a server) no signal is received.

    Args:
        output: The run's folder, for the stop file.
        seconds: Time from the first signal to the forced end.
        at_end: Called before a forced end (it releases the lock).
        speak: Whether this process prints what it does, and removes the stop file.
    """

    def __init__(
        self, output: Path, seconds: float, at_end: Callable[[], None] = lambda: None, speak: bool = True
    ) -> None:
        self.output, self.seconds, self.at_end, self.speak = output, seconds, at_end, speak
        self.reason = ""
        self.since = 0.0
        self._old: dict[int, Any] = {}
        self._finished = threading.Event()
        self._old_wakeup = -1

    def __enter__(self) -> StopRequest:
        if (
            LAUNCHED not in os.environ
        ):  # our launcher has removed that of an earlier run, and may have made one already
            self._forget()
        if threading.current_thread() is not threading.main_thread():
            return self
        # Python runs handlers in the main thread between bytecodes, which a collective or a kernel delays
        # without limit; the wakeup descriptor is written by the C handler, at once
        self._inner, self._outer = socket.socketpair()
        self._inner.setblocking(False)
        self._old_wakeup = signal.set_wakeup_fd(self._inner.fileno(), warn_on_full_buffer=False)
        wanted = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._old = {number: signal.signal(number, self._ignore) for number in wanted}
        if LAUNCHED in os.environ:
            signal_at_parents_death(signal.SIGTERM)
        threading.Thread(target=self._listen, name="signals", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._finished.set()
        self._forget()
        if self._old:
            for number, handler in self._old.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._old_wakeup)
            self._inner.close()
            self._outer.close()

    def _forget(self) -> None:
        if self.speak:
            (self.output / STOP_FILE).unlink(missing_ok=True)

    def asked(self) -> str:
        """Why the run should stop after this step: the signal's name or the stop file; "" for no reason."""
        if not self.reason and (self.output / STOP_FILE).exists():
            self._note(f"the file {str(self.output / STOP_FILE)!r}")
        return self.reason

    def _ignore(self, number: int, _: Any) -> None:
        """The handler in the main thread: the listening thread acts; here, waiting calls (sleep, select)
        return."""

    def _listen(self) -> None:
        while not self._finished.is_set():
            left = self.since + self.seconds - time.monotonic() if self.asked() else _POLL
            if left <= 0:
                self._end_now(
                    f"the step and its checkpoint took longer than watch.stop_seconds ({self.seconds:g} s)",
                    signal.SIGTERM,
                )
            try:
                self._outer.settimeout(min(left, _POLL))
                data = self._outer.recv(1)
            except TimeoutError:
                continue
            except (OSError, ValueError):
                return
            if not data:
                return
            number = data[0]
            if number not in self._old:
                continue
            if number == signal.SIGHUP:
                _leave_terminal()
            name = signal.Signals(number).name
            if not self.reason:
                self._note(name)
            elif time.monotonic() - self.since > _SAME:
                self._end_now(f"{name} arrived again", number)

    def _note(self, reason: str) -> None:
        self.reason, self.since = reason, time.monotonic()
        self._print(
            f"{reason}: the run stops after this step, with a checkpoint (in at most {self.seconds:g} s); "
            "a second signal ends it at once"
        )

    def _end_now(self, why: str, number: int) -> None:
        self._print(
            f"{why}: the run ends without a checkpoint of this step; go on with --resume from the last one"
        )
        self.at_end()
        sys.stderr.flush()
        os._exit(128 + number)  # the main thread may be stuck, so no exception would end the process

    def _print(self, line: str) -> None:
        if self.speak and not self._finished.is_set():
            with contextlib.suppress(OSError):  # the terminal may be gone
                sys.stderr.write(f"vlrl: {line}\n")
                sys.stderr.flush()


def _leave_terminal() -> None:
    """Let what is written to a terminal that was closed go nowhere: it would be an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        if os.isatty(number):
            os.dup2(nowhere, number)
    os.close(nowhere)
