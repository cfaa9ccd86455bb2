"""The browser behind environment `browser`: a process of Chromium, Playwright's connection to it in a thread
with an event loop, and tabs that reach the allowed hosts alone."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from vlrl.environments.browser_sites import PORTS
from vlrl.plugins.episodes import EnvironmentFailure
from vlrl.services.reaper import REAPER

SETTLE = 1.0  # seconds that a page is given to load before it is shown
TRIES = 3  # looks at a page that goes on to other pages
SLACK = 5.0  # seconds beyond `call_seconds` for leaving a page that does not answer
Work = Callable[[Any], Coroutine[Any, Any, Any]]  # what is done to a page
NOWHERE = "http://127.0.0.1:9"  # the proxy of everything that is not allowed
FLAGS = (
    "--headless=new", "--remote-debugging-port=0", "--no-first-run", "--no-default-browser-check",
    "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-default-apps",
    "--deny-permission-prompts", "--mute-audio", "--hide-scrollbars",
    "--disable-features=Translate,OptimizationHints,MediaRouter,DialMediaRouteProvider",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp", "--disable-quic", "--dns-prefetch-disable",
    "--no-pings", "--password-store=basic", "--use-mock-keychain",
)  # fmt: skip


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
