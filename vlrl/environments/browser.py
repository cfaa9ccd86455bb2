"""A web browser: Chromium through Playwright. Screenshots are observations; clicks, typing, scrolling and
addresses are actions."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from vlrl.environments.browser_sites import CONTROLS, PORTS, Desk, Served
from vlrl.environments.tools import Tool, ToolEnvironment, ToolEpisode
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.episodes import PICTURE_REPLIES, Action, EnvironmentFailure, Observation, Picture
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import State, transient
from vlrl.plugins.tool_calls import call_text, written
from vlrl.services.reaper import REAPER
from vlrl.types import Row, RowError

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SETTLE = 1.0  # seconds that a page is given to load before it is shown
TRIES = 3  # looks at a page that goes on to other pages
SLACK = 5.0  # seconds beyond `call_seconds` for leaving a page that does not answer
Work = Callable[[Any], Coroutine[Any, Any, Any]]  # what is done to a page
Key = Literal[
    "Enter",
    "Tab",
    "Escape",
    "Backspace",
    "Delete",
    "ArrowUp",
    "ArrowDown",
    "ArrowLeft",
    "ArrowRight",
    "PageUp",
    "PageDown",
    "Home",
    "End",
]
NOWHERE = "http://127.0.0.1:9"  # the proxy of everything that is not allowed
FLAGS = (
    *(
        "--headless=new",
        "--remote-debugging-port=0",
        "--no-first-run",
        "--no-default-browser-check",
        "--disable-gpu",
        "--disable-dev-shm-usage",
    ),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-extensions",
        "--disable-default-apps",
    ),
    *(
        "--deny-permission-prompts",
        "--mute-audio",
        "--hide-scrollbars",
        "--disable-features=Translate,OptimizationHints,MediaRouter,DialMediaRouteProvider",
    ),
    *(
        "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
        "--webrtc-ip-handling-policy=disable_non_proxied_udp",
        "--disable-quic",
    ),
    *("--dns-prefetch-disable", "--no-pings", "--password-store=basic", "--use-mock-keychain"),
)


def allowed(address: str, hosts: Sequence[str]) -> bool:
    """Whether an address may be reached: http(s) or ws(s) to one of `hosts` ("name" on its usual ports, or
    "name:port"), without a user name."""
    try:
        parts = urlsplit(address)
        port = parts.port or PORTS.get(parts.scheme, 0)
    except ValueError:
        return False
    if parts.scheme not in PORTS or parts.username is not None or not parts.hostname:
        return False
    return f"{parts.hostname}:{port}" in hosts or (parts.hostname in hosts and port in (80, 443))


@dataclass
class BrowserState(State):
    """The browser that episodes share, the local server, and their lock."""

    lock: Any = transient(factory=threading.Lock)
    session: Any = transient()
    server: Any = transient()


@register("browser")
@dataclass(frozen=True, kw_only=True)
class Browser(ToolEnvironment):
    """A web browser: tools click, type_text, press, scroll, go_to and back; every answer is a screenshot of
    `size` pixels.

        environment: {name: browser, site: desk}                                    # the shipped site, with
        its own reward environment: {name: browser, pages: my_pages, url: /index.html}             # a folder,
        served locally
        environment: {name: browser, url: "http://127.0.0.1:8000/", allow: ["127.0.0.1:8000"]}

    vlrl original, by Playwright's API (1.48 or newer) and the system's Chromium (`executable`; default: the
    first of chromium, google-chrome ... that is installed). An episode has a browser context of its own:
    cookies and storage are empty. `row.meta["url"]` replaces `url`. Only the local server and the hosts of
    `allow` ("name" on ports 80 and 443, or "name:port") are reached: everything else, redirects and web
    sockets included, is refused before it is asked for, and would go to a proxy that does not exist. No
    downloads, service workers, permissions or dialogs; windows that a page opens are closed. Coordinates are
    the policy's, of the newest screenshot. `text` characters of the page's text are shown, too. Site "desk"
    (source `episodes`) asks for settings of an office by `row.meta["seed"]` and pays 1.0 for what its server
    was told, when the episode ends; its expert (rollout `expert_turns`) looks at the page's fields and
    clicks, types and saves. Other pages pay nothing and have no expert: use rewards that read the last turn.
    Edge: a page that does not load or answer within `call_seconds` is left,
    which the policy is told; a browser that is dead is the environment's failure, and the next episode starts
    it again.
    """

    site: Literal["", "desk"] = ""
    pages: str = ""
    url: str = ""
    allow: tuple[str, ...] = ()
    size: tuple[int, int] = (448, 336)
    text: int = 0
    executable: str = ""
    concurrency: int = 4
    call_seconds: float = 10.0
    start_seconds: float = 60.0
    provides = (PICTURE_REPLIES,)

    def __post_init__(self) -> None:
        if bool(self.site) + bool(self.pages) > 1 or not (self.site or self.pages or self.url):
            raise ValueError(
                f"site={self.site!r}, pages={self.pages!r} and url={self.url!r}: give `site`, or `pages` "
                "with `url`, or `url`"
            )
        if min(self.size) < 64 or max(self.size) > 4096:
            raise ValueError(f"size={self.size} must be between 64 and 4096 pixels")

    def init_state(self) -> BrowserState:
        return BrowserState()

    def program(self) -> str:
        """The browser's program. Raises ConfigError where there is none, or no Playwright."""
        if find_spec("playwright") is None:
            raise ConfigError(
                "environment 'browser' needs the package playwright; install it: pip install 'vlrl[browser]'"
            )
        found = (
            shutil.which(self.executable)
            if self.executable
            else next(filter(None, map(shutil.which, PROGRAMS)), None)
        )
        if found is None:
            raise ConfigError(
                f"environment.executable: no {self.executable or ' or '.join(PROGRAMS)}; install Chromium "
                "(apt-get install chromium)"
            )
        return found

    def check(self, phase: PhaseContext) -> None:
        self.program()
        if self.pages and not Path(self.pages).expanduser().is_dir():
            raise ConfigError(f"environment.pages: no folder {self.pages!r}")

    def server(self) -> Served | None:
        """The local server of the site or the pages; None where pages come from elsewhere."""
        if not self.site and not self.pages:
            return None
        with self.state.lock:
            if self.state.server is None:
                self.state.server = Desk() if self.site else Served(Path(self.pages).expanduser())
            return self.state.server

    def session(self) -> BrowserSession:
        """The shared browser; a dead one is replaced."""
        server = self.server()
        with self.state.lock:
            if self.state.session is None or self.state.session.dead:
                if self.state.session is not None:
                    self.state.session.close()
                hosts = (*self.allow, *([server.host] if server is not None else []))
                self.state.session = BrowserSession(self.program(), hosts, self.start_seconds)
            return self.state.session

    def toolbox(self) -> Sequence[Tool]:
        return list(BrowserEpisode(self).tools.values())

    def episode(self) -> ToolEpisode:
        return BrowserEpisode(self)

    def close(self) -> None:
        with self.state.lock:
            session, server = self.state.session, self.state.server
            self.state.session = self.state.server = None
        for one in (session, server):
            if one is not None:
                one.close()


class BrowserEpisode(ToolEpisode):
    """One tab in a context of its own."""

    def __init__(self, settings: Browser) -> None:
        self.settings = settings
        self.session: BrowserSession | None = None
        self.tab: Tab | None = None
        self.visit: Any = None  # of the shipped site: what was asked for, and what the server was told
        self.paid = 0.0
        self.home = ""
        super().__init__(
            [
                Tool.of(tool)
                for tool in (self.click, self.type_text, self.press, self.scroll, self.go_to, self.back)
            ]
        )

    def reset(self, row: Row, seed: int) -> Observation:
        server = self.settings.server()
        self.home = str(row.meta.get("url") or self.settings.url)
        if isinstance(server, Desk):
            self.visit = server.visit(int(row.meta.get("seed", seed)))
            self.home = self.visit.url
        elif server is not None:
            self.home = server.address(self.home)
        self.session = self.settings.session()
        if not allowed(self.home, self.session.hosts):
            raise RowError(f"row {row.id!r}: its page {self.home!r} is not on the list `environment.allow`")
        self.tab = self.session.ask(self.session.open(self.settings.size), self.settings.start_seconds)
        return self.shown(
            self.session.ask(self.tab.go(self.home, self.limit), self.limit + SLACK),
            self.visit.task if self.visit else "",
        )

    @property
    def limit(self) -> float:
        """Seconds for an action."""
        return max(0.1, min(self.settings.call_seconds, self.action.seconds - SETTLE - SLACK))

    def click(self, x: float, y: float) -> Observation:
        """Clicks on the page. x, y: the place on the newest screenshot."""
        place = self.action.spaces[-1].to_original((x, y)) if self.action.spaces else (x, y)
        width, height = self.settings.size
        if not (0 <= place[0] < width and 0 <= place[1] < height):
            raise ValueError("the place is outside the screenshot")
        return self.done(lambda page: page.mouse.click(*place))

    def type_text(self, text: str) -> Observation:
        """Types a text where the cursor is."""
        return self.done(lambda page: page.keyboard.insert_text(text[:2000]))

    def press(self, key: Key) -> Observation:
        """Presses a key."""
        return self.done(lambda page: page.keyboard.press(key))

    def scroll(self, pixels: int) -> Observation:
        """Scrolls down (up if negative) by so many pixels."""
        return self.done(lambda page: page.mouse.wheel(0, max(-10_000, min(pixels, 10_000))))

    def go_to(self, address: str) -> Observation:
        """Opens an address."""
        assert self.session is not None
        server = self.settings.server()
        address = server.address(address) if server is not None and address.startswith("/") else address
        if not allowed(address, self.session.hosts):
            raise ValueError("this address is not allowed")
        return self.done(lambda page: page.goto(address, wait_until="commit", timeout=1000 * self.limit))

    def back(self) -> Observation:
        """Goes back to the page before."""
        return self.done(lambda page: page.go_back(wait_until="commit", timeout=1000 * self.limit))

    def done(self, work: Work) -> Observation:
        """Do something to the page and show it."""
        assert self.session is not None and self.tab is not None
        shown = self.shown(
            self.session.ask(self.tab.act(work, self.home, self.limit), 3 * self.limit + SLACK)
        )
        return replace(shown, reward=self.earned())

    def earned(self) -> float | None:
        """What the site pays now less what it paid so far, so that the sum is worth the last state; None for
        other pages."""
        if self.visit is None:
            return None
        before, self.paid = self.paid, self.visit.reward()
        return self.paid - before

    def shown(self, view: View, task: str = "") -> Observation:
        """A view of the page as an observation."""
        words = view.words[: self.settings.text]
        picture = () if view.picture is None else (Picture.from_bytes(view.picture),)
        return Observation(
            "\n".join(filter(None, (task, *view.notes, words))), picture, role="user" if task else "tool"
        )

    def finished(self) -> Observation:
        return Observation(
            done=True, reward=self.earned(), parts={} if self.visit is None else self.visit.parts()
        )

    def expert(self, view: Action) -> str | None:
        if self.visit is None or self.session is None or self.tab is None:
            return None
        step = self.visit.next(self.session.ask(self.tab.page.evaluate(CONTROLS), self.limit))
        if step is None:
            return "Saved."
        tool, what = step
        if tool != "click":
            return call_text(tool, **{"text" if tool == "type_text" else "key": what})
        x, y = written(what, view.spaces[-1])
        return call_text("click", x=x, y=y)

    def close(self) -> None:
        tab, self.tab = self.tab, None
        if tab is not None and self.session is not None and not self.session.dead:
            with contextlib.suppress(EnvironmentFailure):
                self.session.ask(tab.close(), SLACK)
        if self.visit is not None:
            self.visit.close()


@dataclass(frozen=True)
class View:
    """What a page looks like: a screenshot (None where there is none), its text, and what happened."""

    picture: bytes | None
    words: str
    notes: tuple[str, ...]


class Tab:
    """A page and its context. Methods run in the session's loop."""

    def __init__(self, context: Any, hosts: Sequence[str]) -> None:
        self.context, self.hosts = context, hosts
        self.page: Any = None
        self.notes: list[str] = []

    async def start(self) -> Tab:
        """Refuse what is not allowed, then open the page."""
        await self.context.route("**/*", self._route)
        await self.context.route_web_socket("**/*", self._route_socket)
        self.context.on("page", self._popup)
        await self._open()
        return self

    async def _open(self) -> None:
        """Open the page."""
        self.page = None  # until it is there, a new page is this one
        self.page = await self.context.new_page()
        self.page.on("dialog", self._dialog)
        self.page.on("download", self._download)

    async def _route(self, route: Any) -> None:
        if allowed(route.request.url, self.hosts):
            await route.continue_()
        else:
            if route.request.is_navigation_request():
                self.notes.append("An address that is not allowed was not opened.")
            await route.abort("accessdenied")

    def _route_socket(self, socket: Any) -> Any:
        return socket.connect_to_server() if allowed(socket.url, self.hosts) else socket.close()

    async def _popup(self, page: Any) -> None:
        if self.page is not None and page is not self.page:
            self.notes.append("A window that the page opened was closed.")
            await self._left(page)

    async def _dialog(self, dialog: Any) -> None:
        self.notes.append(f"The page said: {dialog.message[:200]}")
        await dialog.dismiss()

    async def _download(self, download: Any) -> None:
        self.notes.append("A download was refused.")
        await download.cancel()

    @staticmethod
    async def _left(page: Any) -> None:
        """Close a page, for two seconds at most."""
        with contextlib.suppress(Exception):  # of a page that hangs, or is closed already
            await asyncio.wait_for(page.close(), 2.0)

    async def go(self, address: str, seconds: float) -> View:
        """Open an address and look at it."""
        return await self.act(
            lambda page: page.goto(address, wait_until="commit", timeout=1000 * seconds), "", seconds
        )

    async def act(self, work: Work, home: str, seconds: float) -> View:
        """Do something to the page, and look at it. A page that does not answer is left for `home`."""
        from playwright.async_api import Error

        try:
            try:
                await asyncio.wait_for(work(self.page), seconds)
            except Error as error:
                self.notes.append(
                    f"The page could not be opened or reached: {str(error).splitlines()[0][:160]}"
                )
            return await self._settled(seconds)
        except (asyncio.TimeoutError, Error):
            self.notes.append("The page does not answer and was left.")
            await self._left(self.page)
            await self._open()
            return await self.go(home, seconds) if home else View(None, "", self._noted())

    async def _settled(self, seconds: float) -> View:
        """A view of the page once it is loaded, or after `SETTLE` seconds; looks again where it went to
        another page meanwhile."""
        from playwright.async_api import Error

        await asyncio.sleep(0.1)  # a form that was sent begins to go to its page
        for attempt in range(TRIES):
            with contextlib.suppress(Error):
                await self.page.wait_for_load_state("load", timeout=1000 * SETTLE)
            try:
                return await asyncio.wait_for(self._view(), seconds)
            except Error:
                if attempt == TRIES - 1:
                    raise
                await asyncio.sleep(0.2)
        raise AssertionError("the last try returns or raises")

    async def _view(self) -> View:
        picture = await self.page.screenshot(type="png", animations="disabled", caret="initial")
        words = await self.page.evaluate(
            "() => (document.body ? document.body.innerText : '').slice(0, 20000)"
        )
        return View(picture, str(words), self._noted())

    def _noted(self) -> tuple[str, ...]:
        notes, self.notes = tuple(dict.fromkeys(self.notes))[:5], []
        return notes

    async def close(self) -> None:
        """Close the page and everything of its context."""
        with contextlib.suppress(Exception):  # of a browser that hangs or is gone
            await asyncio.wait_for(self.context.close(), SLACK)


class BrowserSession:
    """A browser and Playwright's connection to it, in a thread with an event loop. It may reach `hosts`
    alone."""

    def __init__(self, program: str, hosts: Sequence[str], seconds: float) -> None:
        self.hosts, self.dead = tuple(hosts), ""
        self.folder = REAPER.folder()
        reachable = ";".join(["<-loopback>", *(host for host in self.hosts)])
        flags = [
            *FLAGS,
            f"--user-data-dir={self.folder / 'profile'}",
            f"--proxy-server={NOWHERE}",
            f"--proxy-bypass-list={reachable}",
        ]
        flags += ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium's own refuses to start for root
        quiet = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
            "cwd": self.folder,
        }
        self.process = REAPER.spawn(
            [program, *flags, "about:blank"], env={**os.environ, "HOME": str(self.folder)}, **quiet
        )
        self.loop = asyncio.new_event_loop()
        self.stop: asyncio.Event = asyncio.Event()
        self.ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.thread = threading.Thread(target=self._run, args=(seconds,), name="browser", daemon=True)
        self.thread.start()
        try:
            self.ready.result(seconds + SLACK)
        except BaseException as error:
            self.dead = f"{type(error).__name__}: {error}"
            self.close()
            if isinstance(error, Exception):
                raise EnvironmentFailure(f"the browser {program!r} did not start: {self.dead}") from error
            raise

    def _run(self, seconds: float) -> None:
        try:
            self.loop.run_until_complete(self._own(seconds))
        except BaseException as error:  # noqa: BLE001  # a thread has nobody above it
            self.dead = self.dead or f"{type(error).__name__}: {error}"
            if not self.ready.done():
                self.ready.set_exception(EnvironmentFailure(self.dead))
        finally:
            self.dead = self.dead or "closed"
            left = asyncio.all_tasks(self.loop)  # of calls that wait for a browser that is gone
            for task in left:
                task.cancel()
            if left:  # without tasks `gather` asks for the thread's current loop, which there is none of
                self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self.loop.close()

    async def _own(self, seconds: float) -> None:
        from playwright.async_api import async_playwright

        port = await self._port(seconds)
        async with async_playwright() as playwright:
            self.browser = await playwright.chromium.connect_over_cdp(
                f"http://127.0.0.1:{port}", timeout=1000 * seconds
            )
            self.browser.on("disconnected", self._gone)
            self.ready.set_result(None)
            await self.stop.wait()

    async def _port(self, seconds: float) -> int:
        """The port that the browser writes to its profile."""
        file, end = self.folder / "profile" / "DevToolsActivePort", time.monotonic() + seconds
        while not (file.is_file() and (lines := file.read_text().split())):
            if self.process.poll() is not None or time.monotonic() > end:
                raise EnvironmentFailure(
                    f"it ended with code {self.process.poll()}"
                    if self.process.poll() is not None
                    else "it opened no port"
                )
            await asyncio.sleep(0.05)
        return int(lines[0])

    def _gone(self, *_: Any) -> None:
        self.dead = self.dead or "the browser is gone"
        self.stop.set()

    async def open(self, size: tuple[int, int]) -> Tab:
        """A tab in a new context."""
        viewport: Any = {"width": size[0], "height": size[1]}
        context = await self.browser.new_context(
            viewport=viewport, accept_downloads=False, service_workers="block", permissions=[]
        )
        return await Tab(context, self.hosts).start()

    def ask(self, work: Coroutine[Any, Any, Any], seconds: float) -> Any:
        """Run something in the loop and wait. Raises EnvironmentFailure where the browser is gone or does not
        answer."""
        if self.dead:
            work.close()
            raise EnvironmentFailure(f"the browser is gone: {self.dead}")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(seconds)
        except (concurrent.futures.TimeoutError, TimeoutError, concurrent.futures.CancelledError) as error:
            raise EnvironmentFailure(f"the browser did not answer within {seconds:.3g} seconds") from error
        except Exception as error:  # Playwright's, for a browser that is gone
            raise EnvironmentFailure(f"the browser failed: {str(error)[:500]}") from error
        finally:
            future.cancel()

    def close(self) -> None:
        """End the browser, its processes and its profile."""
        self.dead = self.dead or "closed"
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self.loop.call_soon_threadsafe(self.stop.set)
        if threading.current_thread() is not self.thread:
            self.thread.join(3.0)
        REAPER.end(self.process)
        REAPER.remove(self.folder)
