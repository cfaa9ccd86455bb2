"""Environments of the package verifiers, in a process of their own: its 0.1 interface (`load_environment`)
and its 0.4 interface (tasksets)."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.episodes import PICTURE_REPLIES, Action, EnvironmentFailure, Episode, Observation, Picture
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Environment, State, transient
from vlrl.plugins.tool_calls import STOP, last_call
from vlrl.services.reaper import REAPER
from vlrl.types import MediaError, Row, RowError

WORKER = Path(__file__).with_name("verifiers_worker.py")
META = "verifiers"  # of a row: {"index", "split", "args"}
LATE = 3  # answers in a row that did not come, after which a process counts as hanging
TAIL = 2000  # characters of a process's own messages in an error


@dataclass
class VerifiersState(State):
    """The process that episodes share, its lock, and the schemas of the tools."""

    lock: Any = transient(factory=threading.Lock)
    process: Any = transient()
    tools: Any = transient()


@register("verifiers")
@dataclass(frozen=True, kw_only=True)
class Verifiers(Environment):
    """An environment of the package verifiers: it gives the turns, its rubric (0.1) or its task's rewards
    (0.4) give the reward.

        data: {train: {towns: {name: verifiers, id: towns, count: 500}}}
        environment: {name: verifiers, id: towns}

    vlrl original; interfaces: verifiers 0.1 (`load_environment`, run with 0.1.14) and 0.4 (`Taskset`, run
    with 0.4.0). Tools are called by <tool_call>. The reward comes at the end; its parts are the package's
    metrics. Refused: a conversation that rewrites what was said, rewards over groups (0.1), several agents
    (0.4). Edge: a call that cannot be parsed is told to the policy and never reaches the environment; an
    episode that ends at `rollout.max_turns` has no reward, so the environment's own `max_turns` should be
    smaller. A process that dies, or leaves three calls in a row unanswered, is replaced by the next episode.

    Attributes:
        python: Interpreter of the process it runs in (default: this one): both releases need other versions
            of packages than training does.
        id: The environment's module; `args` are its arguments (0.4: fields of its taskset), `path` folders
            with environments that are not installed.
        pictures: Shows the pictures of its conversation.
        start_seconds: Limit for loading the environment.
    """

    state_class = VerifiersState
    stops: ClassVar[tuple[str, ...]] = (STOP,)
    id: str
    args: Mapping[str, Any] = field(default_factory=dict)
    python: str = ""
    path: tuple[str, ...] = ()
    start_seconds: float = 120.0
    pictures: bool = False

    @property
    def provides(self) -> Sequence[Capability]:
        return (PICTURE_REPLIES,) if self.pictures else ()

    def check(self, phase: PhaseContext) -> None:
        self.tools()

    def process(self) -> VerifiersProcess:
        """The shared process; a dead one is replaced."""
        with self.state.lock:
            if self.state.process is None or self.state.process.dead:
                if self.state.process is not None:
                    self.state.process.close()
                self.state.process = VerifiersProcess(self.id, self.python, self.path)
            return self.state.process

    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The tools of the environment's first row; every row has the same ones."""
        if self.state.tools is None:
            process = self.process()
            key, answers = process.opened()
            try:
                process.send(do="begin", key=key, args=dict(self.args), split="train", index=0)
                asked = process.answer(answers, self.start_seconds)
                self.state.tools = list(asked.get("ask", {}).get("tools", ()))
            finally:
                process.forget(key)
        return self.state.tools

    def rows(self, split: str, skip: int, count: int) -> list[dict[str, Any]]:
        """The messages and the answer of rows `skip` to `skip + count` of a split. Raises ConfigError where
        there are none."""
        process = self.process()
        key, answers = process.opened()
        try:
            process.send(do="rows", key=key, args=dict(self.args), split=split, skip=skip, count=count)
            return process.answer(answers, self.start_seconds)["rows"]
        finally:
            process.forget(key)

    def episode(self) -> Episode:
        return VerifiersEpisode(self)

    def close(self) -> None:
        with self.state.lock:
            process, self.state.process = self.state.process, None
        if process is not None:
            process.close()


class VerifiersEpisode(Episode):
    """One rollout of the environment, which waits for the policy's turns."""

    def __init__(self, settings: Verifiers) -> None:
        self.settings = settings
        self.process: VerifiersProcess | None = None
        self.key = ""
        self.said: list[tuple[str, str]] = []  # (role, content) of the conversation so far
        self.has_tools = False

    def reset(self, row: Row, seed: int) -> Observation:
        place = row.meta.get(META)
        if not isinstance(place, Mapping):
            raise RowError(
                f"row {row.id!r}: environment 'verifiers' plays rows of source 'verifiers', which have "
                f"meta[{META!r}]"
            )
        self.process = self.settings.process()
        self.key, self.answers = self.process.opened()
        args = {**self.settings.args, **place.get("args", {})}
        self.process.send(do="begin", key=self.key, args=args, split=place["split"], index=place["index"])
        answer = self.process.answer(
            self.answers, max(self.settings.turn_seconds, self.settings.start_seconds)
        )
        if "ask" not in answer:
            raise EnvironmentFailure(
                f"environment {self.settings.id!r} ended row {row.id!r} before the first turn"
            )
        self.said = [(message["role"], plain_content(message["content"])) for message in row.messages]
        self.has_tools = bool(answer["ask"]["tools"])
        return self.shown(answer["ask"]["messages"])

    def step(self, action: Action) -> Observation:
        assert self.process is not None, "reset starts the rollout"
        call = last_call(action.text) if self.has_tools else None
        if isinstance(call, str):
            return Observation(call, invalid=True, role="tool")
        calls = [{"name": call[0], "arguments": call[1]}] if call else []
        text = action.text[: action.text.rfind("<tool_call>")].strip() if call else action.text
        self.said.append(("assistant", text))
        self.process.send(do="turn", key=self.key, text=text, calls=calls)
        answer = self.process.answer(self.answers, action.seconds)
        if "ask" in answer:
            return self.shown(answer["ask"]["messages"], len(calls))
        end = answer["end"]
        return Observation(reward=float(end["reward"]), parts=end["parts"], done=True, calls=len(calls))

    def shown(self, messages: Sequence[Mapping[str, Any]], calls: int = 0) -> Observation:
        """What is new in the conversation. Raises EnvironmentFailure where it does not continue what was
        said."""
        now = [(message["role"], plain_content(message.get("content"))) for message in messages]
        known = len(self.said)
        if now[:known] != self.said:
            place = next((i for i, (new, old) in enumerate(zip(now, self.said)) if new != old), len(now))
            raise EnvironmentFailure(
                f"environment {self.settings.id!r} rewrites its conversation at message {place}; only "
                "growing ones can be trained"
            )
        texts, media = [], []
        for message in messages[known:]:
            if message["role"] == "assistant":
                raise EnvironmentFailure(
                    f"environment {self.settings.id!r} speaks for the policy; its turns could not be trained"
                )
            text, pictures = content_of(message.get("content"))
            texts += [
                text,
                *(["[a picture, not shown]"] * len(pictures) if not self.settings.pictures else []),
            ]
            media += pictures if self.settings.pictures else []
        self.said = now
        by_tool = calls > 0 and all(message["role"] == "tool" for message in messages[known:])
        return Observation(
            "\n".join(filter(None, texts)), tuple(media), calls=calls, role="tool" if by_tool else "user"
        )

    def close(self) -> None:
        if self.process is not None:
            self.process.forget(self.key)


def content_of(content: Any) -> tuple[str, list[Picture]]:
    """The text and the pictures of a message; what cannot be shown is named in the text."""
    if not isinstance(content, list):
        return str(content or ""), []
    texts: list[str] = []
    pictures: list[Picture] = []
    for part in content:
        if part.get("type") == "text":
            texts.append(part["text"])
            continue
        url = (part.get("image_url") or {}).get("url", "")
        try:
            if not url.startswith("data:"):
                raise ValueError("only data: addresses are read")
            pictures.append(Picture.from_bytes(base64.b64decode(url.partition(",")[2])))
        except (MediaError, ValueError) as error:
            texts.append(f"[{part.get('type')}, not shown: {str(error)[:200]}]")
    return "\n".join(texts), pictures


def plain_content(content: Any) -> str:
    """The content of a message in one form, for comparison: its texts; pictures are left out, because rows
    hold them apart."""
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if part.get("type") == "text")
    return str(content or "")


class VerifiersProcess:
    """The process that holds the environment, and what it says about each episode."""

    def __init__(self, name: str, python: str, path: Sequence[str]) -> None:
        self.dead, self.late = "", 0
        self.lock = threading.Lock()
        self.numbers = itertools.count()
        self.queues: dict[str, queue.Queue[dict[str, Any]]] = {}
        self.folder = REAPER.folder()
        folders = [str(Path(folder).expanduser().resolve()) for folder in path]
        with open(self.folder / "log", "wb") as log:
            command = [python or sys.executable, str(WORKER), name, *folders]
            try:
                self.child = REAPER.spawn(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
            except OSError as error:
                REAPER.remove(self.folder)
                raise ConfigError(f"environment.python: {command[0]!r} cannot be started: {error}") from None
        threading.Thread(target=self._read, name="verifiers", daemon=True).start()

    def opened(self) -> tuple[str, queue.Queue[dict[str, Any]]]:
        """A new conversation: its key, and where its answers arrive."""
        key = f"e{next(self.numbers)}"
        with self.lock:
            self.queues[key] = queue.Queue()
            return key, self.queues[key]

    def send(self, **command: Any) -> None:
        """Send a command. Raises EnvironmentFailure where the process is gone."""
        line = (json.dumps(command) + "\n").encode()
        try:
            with self.lock:
                assert self.child.stdin is not None
                self.child.stdin.write(line)
                self.child.stdin.flush()
        except (OSError, ValueError) as error:  # a closed pipe
            raise EnvironmentFailure(
                f"the process of the environment is gone: {self.dead or error}{self.log()}"
            ) from error

    def answer(self, answers: queue.Queue[dict[str, Any]], seconds: float) -> dict[str, Any]:
        """The next answer. Raises ConfigError for what the user must change, EnvironmentFailure for a fault
        of the environment or no answer."""
        try:
            found = answers.get(timeout=max(seconds, 0.1))
        except queue.Empty:
            self.late += 1
            if self.late >= LATE:
                self.dead = f"{LATE} calls in a row had no answer"
            raise EnvironmentFailure(f"the environment did not answer within {seconds:.3g} seconds") from None
        self.late = 0
        if found.get("refused"):
            raise ConfigError(f"environment 'verifiers': {found['failed']}")
        if "failed" in found:
            if "No module named 'verifiers'" in found["failed"]:
                raise ConfigError(
                    "environment 'verifiers' needs the package verifiers: install it (pip install "
                    "verifiers) in an environment "
                    "of its own and name its interpreter in environment.python"
                )
            raise EnvironmentFailure(found["failed"] + self.log())
        return found

    def forget(self, key: str) -> None:
        """End a conversation. A second call does nothing."""
        with self.lock:
            known = self.queues.pop(key, None)
        if known is None:
            return
        known.put({"failed": "the episode was closed"})  # for a step that still waits
        if not self.dead:
            with contextlib.suppress(EnvironmentFailure):
                self.send(do="end", key=key)

    def log(self) -> str:
        """The end of what the process printed, for an error message."""
        try:
            said = (self.folder / "log").read_text(errors="replace").strip()
        except OSError:
            return ""
        return f"; it printed: {said[-TAIL:]}" if said else ""

    def _read(self) -> None:
        assert self.child.stdout is not None
        with contextlib.suppress(OSError, ValueError):  # closed by `close`
            for line in self.child.stdout:
                event = json.loads(line)
                with self.lock:
                    found = self.queues.get(event.pop("key"))
                if found is not None:
                    found.put(event)
        self.dead = self.dead or "it ended"
        with self.lock:
            waiting = list(self.queues.values())
        for one in waiting:
            one.put({"failed": f"the process of the environment is gone: {self.dead}"})

    def close(self) -> None:
        """End the process and everything that it started."""
        self.dead = self.dead or "closed"
        REAPER.end(self.child)
        REAPER.remove(self.folder)
