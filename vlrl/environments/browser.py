"""A web browser: Chromium through Playwright. Screenshots are observations; clicks, typing, scrolling and
addresses are actions."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from vlrl.environments.browser_session import SETTLE, SLACK, BrowserSession, Tab, View, Work, allowed
from vlrl.environments.browser_sites import CONTROLS, Desk, Served
from vlrl.environments.tools import Tool, ToolEnvironment, ToolEpisode
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.episodes import PICTURE_REPLIES, Action, EnvironmentFailure, Observation, Picture
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import State, transient
from vlrl.plugins.tool_calls import call_text, written
from vlrl.services.third_party import pip_install
from vlrl.types import Row, RowError

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
Key = Literal[
    "Enter", "Tab", "Escape", "Backspace", "Delete", "ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight",
    "PageUp", "PageDown", "Home", "End",
]  # fmt: skip


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

        environment: {name: browser, site: desk}   # the shipped site, with a reward of its own
        environment: {name: browser, pages: my_pages, url: /index.html}   # a folder, served locally
        environment: {name: browser, url: "http://127.0.0.1:8000/", allow: ["127.0.0.1:8000"]}

    vlrl original, by Playwright's API (1.48 or newer) and the system's Chromium. An episode has a browser
    context of its own: cookies and storage are empty. Only the local server and the hosts of `allow` are
    reached; everything else, redirects and web sockets included, is refused unasked. No downloads, workers,
    permissions or dialogs. Coordinates are the policy's, of the newest screenshot. Site "desk" and its
    reward: docs/environments.md. Edge: a page that does not load or answer within `call_seconds` is left,
    which the policy is told; a browser that is dead is the environment's failure, and the next episode starts
    it again.

    Attributes:
        executable: The browser; default: the first of chromium, google-chrome ... that is installed.
        url: First page; `row.meta["url"]` replaces it.
        allow: Hosts, "name" (ports 80 and 443) or "name:port".
        text: Characters of the page's text that are shown, too.
    """

    state_class = BrowserState
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

    def program(self) -> str:
        """The browser's program. Raises ConfigError where there is none, or no Playwright."""
        if find_spec("playwright") is None:
            raise ConfigError(
                f"environment 'browser' needs the package playwright; install it: {pip_install('browser')}"
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
