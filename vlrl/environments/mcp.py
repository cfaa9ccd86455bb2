"""The tools of an MCP server, started as a process or reached by HTTP, through the official SDK."""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import contextlib
import json
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from vlrl.environments.tools import Tool, ToolEnvironment, ToolEpisode
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.episodes import PICTURE_REPLIES, EnvironmentFailure, Observation, Picture
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import State, transient
from vlrl.services.reaper import REAPER
from vlrl.services.third_party import pip_install
from vlrl.types import MediaError, Row

LEASH = """import os, sys
with open(sys.argv[1], "w") as file:
    file.write(str(os.getpid()))
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
os.execvp(sys.argv[2], sys.argv[2:])
"""  # tells its pid, then becomes the server; what a server logs is nobody's
SLACK = 2.0  # seconds that a call may take beyond its deadline, for the SDK's own time-out to arrive first
MAX_TOOLS = 500
HEADER = re.compile(r"[A-Za-z0-9-]{1,80}")
LATE = 3  # calls in a row without an answer, after which a server counts as dead


@dataclass
class MCPState(State):
    """The session that episodes share, its lock, and the tools of the server."""

    lock: Any = transient(factory=threading.Lock)
    session: Any = transient()
    tools: tuple[Tool, ...] = transient(())


@register("mcp")
@dataclass(frozen=True, kw_only=True)
class MCP(ToolEnvironment):
    """The tools of a server of the Model Context Protocol.

        environment: {name: mcp, command: [python, my_server.py], allow: [search]}
        environment: {name: mcp, url: "http://127.0.0.1:8000/mcp",
                      headers: {Authorization: "Bearer ${MY_TOKEN}"}}

    vlrl original; protocol: modelcontextprotocol.io, by the official Python SDK 2.x. The tools' schemas stand
    in the prompt, and calls are checked against them. All episodes share one session, and calls run at the
    same time. Edge: a tool's own error (`is_error`) and refused arguments are told to the policy; a server
    that is dead, hangs or breaks the protocol is the environment's failure, and the next episode starts it
    again. Servers end with the run, also when it is killed.

    Attributes:
        command: Starts a server on standard input and output; `env` is added to the few variables that the
            SDK passes on.
        url: A server on HTTP, which is sent `headers` with every request: `${NAME}` stands for an environment
            variable, whose value stays out of configs, logs and error messages.
        allow: The tools that the policy may call; empty: all.
        isolated: Every episode has a session (and a process) of its own, for servers with state.
        call_seconds: Limit of a call.
        pictures: Shows pictures; without it they are named in the text, as are broken and too large ones,
            audio and links.
    """

    state_class = MCPState
    command: tuple[str, ...] = ()
    url: str = ""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    allow: tuple[str, ...] = ()
    isolated: bool = False
    start_seconds: float = 30.0
    pictures: bool = False

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise ValueError(f"command={list(self.command)} and url={self.url!r}: give one of them")
        if self.headers and not self.url:
            raise ValueError("headers are sent to a server on HTTP; give `url`, or `env` for a command")
        for name, value in self.headers.items():  # the value is not told: it is a secret
            if (
                not HEADER.fullmatch(name)
                or not isinstance(value, str)
                or not value.isprintable()
                or not value.isascii()
            ):
                raise ValueError(
                    f"headers.{name}: a header has a name of letters, digits and dashes, and a text of "
                    "printable ASCII characters"
                )

    @property
    def provides(self) -> Sequence[Capability]:
        return (PICTURE_REPLIES,) if self.pictures else ()

    def check(self, phase: PhaseContext) -> None:
        known = [tool.name for tool in self.all_tools()]
        missing = [name for name in self.allow if name not in known]
        if missing:
            raise ConfigError(
                f"environment.allow: the server has no tool {missing[0]!r}; it has "
                f"{', '.join(known[:20]) or 'none'}"
            )

    def target(self) -> Any:
        """What the SDK's client connects to."""
        if self.url:
            return self.url
        from mcp import StdioServerParameters

        return StdioServerParameters(
            command=self.command[0], args=list(self.command[1:]), env=dict(self.env) or None
        )

    def connect(self) -> McpSession:
        """A new session. Raises EnvironmentFailure where the server does not start, ConfigError where the SDK
        is not installed."""
        try:
            from mcp import Client  # noqa: F401  # the SDK's second major version
        except ImportError as error:
            raise ConfigError(
                f"environment 'mcp' needs the package mcp, 2.0 or newer ({error}); install it: "
                f"{pip_install('mcp')}"
            ) from None
        return McpSession(self.target(), self.start_seconds, self.headers, self.pictures)

    def session(self) -> McpSession:
        """The shared session; a dead one is replaced."""
        with self.state.lock:
            if self.state.session is None or self.state.session.dead:
                if self.state.session is not None:
                    self.state.session.close()
                self.state.session = self.connect()
            return self.state.session

    def all_tools(self) -> tuple[Tool, ...]:
        """The tools of the server, also those that are not allowed."""
        if not self.state.tools:
            with (
                contextlib.closing(self.connect())
                if self.isolated
                else contextlib.nullcontext(self.session()) as session
            ):
                self.state.tools = tuple(session.tools)
        return self.state.tools

    def toolbox(self) -> Sequence[Tool]:
        return [tool for tool in self.all_tools() if not self.allow or tool.name in self.allow]

    def episode(self) -> ToolEpisode:
        return MCPEpisode(self)

    def close(self) -> None:
        with self.state.lock:
            session, self.state.session = self.state.session, None
        if session is not None:
            session.close()


class MCPEpisode(ToolEpisode):
    """Calls of one episode."""

    def __init__(self, settings: MCP) -> None:
        super().__init__([])
        self.settings = settings
        self.session: McpSession | None = None

    def reset(self, row: Row, seed: int) -> Observation:
        self.session = self.settings.connect() if self.settings.isolated else self.settings.session()
        self.tools = {tool.name: tool for tool in self.settings.toolbox()}
        return Observation()

    @property
    def stateless(self) -> bool:
        return not self.settings.isolated  # episodes that share a session have nothing of their own

    def called(self, name: str, arguments: Mapping[str, Any]) -> Observation:
        if self.session is None:
            raise EnvironmentFailure("the episode has no session")
        return self.session.call(
            name, arguments, min(self.settings.call_seconds, max(self.action.seconds, 0.1))
        )

    def close(self) -> None:
        session, self.session = self.session, None
        if session is not None and self.settings.isolated:
            session.close()


class McpSession:
    """A connection to a server, owned by one task of an event loop in a thread of its own: the SDK wants to
    be entered and left by the same task."""

    def __init__(self, target: Any, seconds: float, headers: Mapping[str, str], pictures: bool) -> None:
        self.seconds, self.headers, self.pictures, self.dead = seconds, dict(headers), pictures, ""
        self.pid_folder: Path | None = None
        self.late = 0
        self.tools: list[Tool] = []
        self.target = self._leashed(target)
        self.ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.loop = asyncio.new_event_loop()
        self.stop = asyncio.Event()
        self.thread = threading.Thread(target=self._run, name="mcp", daemon=True)
        self.thread.start()
        try:
            self.ready.result(seconds)
        except BaseException as error:
            self.dead = f"{type(error).__name__}: {error}"
            self.close()
            if isinstance(error, Exception):
                raise EnvironmentFailure(
                    f"the MCP server did not start: {self.dead}; run its command by hand to see what it "
                    "prints"
                ) from error
            raise

    def _leashed(self, target: Any) -> Any:
        """A command that tells the number of its process before it becomes the server, so that the reaper can
        end it."""
        if not hasattr(target, "command"):
            return target
        self.pid_folder = REAPER.folder()
        args = ["-S", "-E", "-c", LEASH, str(self.pid_folder / "pid"), target.command, *target.args]
        return target.model_copy(update={"command": sys.executable, "args": args})

    def _run(self) -> None:
        try:
            self.loop.run_until_complete(self._own())
        except BaseException as error:  # noqa: BLE001  # a thread has nobody above it; anyio raises groups of errors
            self.dead = self.dead or f"{type(error).__name__}: {error}"
            if not self.ready.done():
                self.ready.set_exception(EnvironmentFailure(self.dead))
        finally:
            self.dead = self.dead or "closed"
            self.loop.close()

    async def _own(self) -> None:
        from mcp import Client
        from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client

        async with contextlib.AsyncExitStack() as stack:
            target = self.target
            if self.headers:
                web = await stack.enter_async_context(create_mcp_http_client(headers=self.headers))
                target = streamable_http_client(target, http_client=web)
            self.client = client = await stack.enter_async_context(
                Client(target, read_timeout_seconds=self.seconds)
            )
            if self.pid_folder is not None and (self.pid_folder / "pid").is_file():
                REAPER.watch(int((self.pid_folder / "pid").read_text()))
            cursor = None
            while len(self.tools) < MAX_TOOLS:
                page = await client.list_tools(cursor=cursor)
                self.tools += [
                    Tool(tool.name, tool.description or "", tool.input_schema, partial(_never, tool.name))
                    for tool in page.tools
                ]
                cursor = page.next_cursor
                if not cursor:
                    break
            self.ready.set_result(None)
            await self.stop.wait()

    def call(self, name: str, arguments: Mapping[str, Any], seconds: float) -> Observation:
        """Call a tool. Raises EnvironmentFailure where the server is dead, hangs or breaks the protocol."""
        from mcp import MCPError
        from mcp_types import INVALID_PARAMS, REQUEST_TIMEOUT

        if self.dead:
            raise EnvironmentFailure(f"the MCP server is gone: {self.dead}")
        work = self.client.call_tool(name, dict(arguments), read_timeout_seconds=seconds)
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            answer = shown(future.result(seconds + SLACK), self.pictures)
            self.late = 0
            return answer
        except MCPError as error:
            if error.error.code == INVALID_PARAMS:
                return ToolEpisode.refused(f"Error: {error.error.message[:500]}")
            if error.error.code == REQUEST_TIMEOUT:
                raise self._late(name, seconds) from error
            self.dead = f"tool {name!r}: {error.error.message}"
            raise EnvironmentFailure(self.dead) from error
        except (concurrent.futures.TimeoutError, TimeoutError, concurrent.futures.CancelledError) as error:
            raise self._late(name, seconds) from error
        finally:
            future.cancel()

    def _late(self, name: str, seconds: float) -> EnvironmentFailure:
        """The failure for a call without an answer. After `LATE` of them in a row the server counts as
        dead."""
        self.late += 1
        said = f"tool {name!r} did not answer within {seconds:.3g} seconds"
        if self.late >= LATE:
            self.dead = said
        return EnvironmentFailure(said)

    def close(self) -> None:
        """Leave the session, and end the server where it is ours."""
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self.loop.call_soon_threadsafe(self.stop.set)
        if threading.current_thread() is not self.thread:
            self.thread.join(3.0)
        folder, self.pid_folder = self.pid_folder, None
        if folder is not None:
            if (folder / "pid").is_file():
                REAPER.end_watched(int(Path(folder / "pid").read_text()))
            REAPER.remove(folder)


def _never(name: str, **arguments: Any) -> None:
    raise EnvironmentFailure(f"tool {name!r} is called through its session")


def shown(result: Any, pictures: bool) -> Observation:
    """A tool's result as an observation: texts and pictures; what cannot be shown is named."""
    texts: list[str] = []
    media: list[Picture] = []
    for item in result.content or ():
        if item.type == "text":
            texts.append(item.text)
        elif item.type == "image" and pictures:
            try:
                media.append(Picture.from_bytes(base64.b64decode(item.data)))
            except (MediaError, ValueError) as error:
                texts.append(f"[a picture that is not shown: {str(error)[:200]}]")
        elif item.type == "resource" and getattr(item.resource, "text", None) is not None:
            texts.append(item.resource.text)
        else:
            texts.append(f"[{item.type}, not shown]")
    if not texts and not media and result.structured_content is not None:
        texts.append(json.dumps(result.structured_content, ensure_ascii=False))
    failed = bool(result.is_error)
    text = "\n".join(texts) or ("" if media else "(no output)")
    return Observation(
        f"Error: {text}" if failed else text, tuple(media), invalid=failed, calls=int(not failed), role="tool"
    )
