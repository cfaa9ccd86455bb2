"""Pages that are served to the browser on this machine: a folder of files, and a shipped site whose tasks can
be verified."""

from __future__ import annotations

import html
import mimetypes
import random
import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

# what an expert sees of a page: every link, field and button, with the middle of its box
CONTROLS = """() => [...document.querySelectorAll('a,input,button')].map(one => {
    const box = one.getBoundingClientRect();
    return {
        name: one.name || one.localName, on: one.checked, text: one.value,
        here: one === document.activeElement, place: [box.x + box.width / 2, box.y + box.height / 2],
    }
})"""
PORTS: Mapping[str, int] = {"http": 80, "https": 443, "ws": 80, "wss": 443}  # schemes that a page may use
LAMPS = ("Hall", "Kitchen", "Office", "Stairs")
MOST = 1 << 16  # bytes of a form
STYLE = (
    "body{font:18px sans-serif;margin:16px;background:#fff;color:#111}"
    "a,button{display:inline-block;padding:6px 14px;margin:6px 6px 6px 0;"
    "background:#1b5fc1;color:#fff;border:0;text-decoration:none;font:18px sans-serif}"
    "label{display:inline-block;width:190px;margin:3px 0}"
    "input[type=checkbox]{width:22px;height:22px;vertical-align:middle}"
    "input[type=text]{width:60px;font:18px sans-serif}"
)


class Served:
    """A folder on a port of this machine. Only files of the folder are served; links out of it are not."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder.resolve() if folder is not None else None
        handler = type("Handler", (_Handler,), {"site": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.host = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.1}, name="pages", daemon=True
        ).start()

    def address(self, path: str) -> str:
        """The full address of a path of this server; a full address is returned as it is."""
        return path if "://" in path else f"http://{self.host}/{path.lstrip('/')}"

    def get(self, path: str) -> tuple[str, bytes] | None:
        """(type, content) of a page; None where there is none."""
        if self.folder is None:
            return None
        file = (self.folder / (path.lstrip("/") or "index.html")).resolve()
        if not file.is_relative_to(self.folder) or not file.is_file():
            return None
        return mimetypes.guess_type(file.name)[0] or "application/octet-stream", file.read_bytes()

    def post(self, path: str, form: Mapping[str, list[str]]) -> str | None:
        """The path to go to after a form was sent; None where there is no such form."""
        return None

    def close(self) -> None:
        """Stop serving."""
        self.server.shutdown()
        self.server.server_close()


class _Handler(BaseHTTPRequestHandler):
    """Requests of the browser."""

    site: Any = None
    timeout = 30.0  # seconds for a request to arrive

    def do_GET(self) -> None:
        found = self.site.get(unquote(urlsplit(self.path).path))
        self.answer(404, "text/plain", b"There is no such page.") if found is None else self.answer(
            200, *found
        )

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "0")
        size = int(length) if length.isdigit() else MOST + 1
        form = parse_qs(self.rfile.read(size).decode("utf-8", "replace")) if size <= MOST else None
        target = None if form is None else self.site.post(unquote(urlsplit(self.path).path), form)
        self.answer(404, "text/plain", b"There is no such form.") if target is None else self.answer(
            303, "text/plain", b"", target
        )

    def answer(self, status: int, kind: str, content: bytes, target: str = "") -> None:
        """Send an answer."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if target:
            self.send_header("Location", target)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""


@dataclass
class Visit:
    """One visit of the desk: what is asked for, and what the server was told."""

    site: Desk
    key: str
    goal: Mapping[str, str]
    saved: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The page that it begins with."""
        return self.site.address(f"/{self.key}/")

    @property
    def task(self) -> str:
        """What is to be done, for the policy."""
        lamps = [name for name in LAMPS if name in self.goal]
        return (
            f"Open the settings, switch on the lamps {' and '.join(lamps)}, no others, set the heating to "
            f"{self.goal['heating']}, and save."
        )

    def parts(self) -> dict[str, float]:
        """Whether anything was saved, and the share of settings that are right."""
        wanted = {name: self.goal.get(name, "") for name in (*LAMPS, "heating")}
        right = sum(self.saved.get(name, "") == value for name, value in wanted.items())
        return {"saved": float(bool(self.saved)), "right": right / len(wanted) if self.saved else 0.0}

    def reward(self) -> float:
        """1.0 where the server was told exactly what was asked for."""
        return float(self.parts()["right"] == 1.0)

    def next(self, controls: Sequence[Mapping[str, Any]]) -> tuple[str, Any] | None:
        """What brings the page whose `controls` (CONTROLS) are shown nearer to what is asked for: ("click",
        [x, y]), ("type_text", text) or ("press", key); None where it is done, or the page is none of the
        site's."""
        there = {str(one["name"]): one for one in controls}
        heating = there.get("heating")
        if self.reward() == 1.0:
            return None
        if heating is None:
            return ("click", there["a"]["place"]) if "a" in there else None
        wrong = [name for name in LAMPS if name in there and there[name]["on"] != (name in self.goal)]
        if wrong:
            return "click", there[wrong[0]]["place"]
        if heating["text"] == self.goal["heating"]:
            return "click", there["button"]["place"]
        if not heating["here"]:
            return "click", heating["place"]
        return ("press", "Backspace") if heating["text"] else ("type_text", self.goal["heating"])

    def close(self) -> None:
        """Forget the visit."""
        self.site.visits.pop(self.key, None)


class Desk(Served):
    """The settings of an office: lamps and the heating, on a page of their own. Each visit has an address and
    a state of its own."""

    def __init__(self) -> None:
        self.visits: dict[str, Visit] = {}
        super().__init__()

    def visit(self, seed: int) -> Visit:
        """A new visit, with the task of this seed."""
        rng = random.Random(f"desk {seed}")
        goal = {name: "on" for name in rng.sample(LAMPS, rng.randint(1, 2))}
        made = Visit(self, secrets.token_hex(8), {**goal, "heating": str(rng.randint(15, 28))})
        self.visits[made.key] = made
        return made

    def get(self, path: str) -> tuple[str, bytes] | None:
        key, _, page = path.lstrip("/").partition("/")
        visit = self.visits.get(key)
        if visit is None or page not in ("", "settings"):
            return None
        if page == "":
            saved = ", ".join(f"{name} {value}" for name, value in visit.saved.items()) or "nothing"
            body = f"<h2>Office</h2><p>Saved: {html.escape(saved)}</p><a href='/{key}/settings'>Settings</a>"
        else:
            lamps = "".join(
                f"<label><input type=checkbox name={name} value=on> {name}</label>" for name in LAMPS
            )
            heating = "<p>Heating <input type=text name=heating maxlength=3></p>"
            body = (
                "<h2>Settings</h2><form method=post "
                f"action='/{key}/save'>{lamps}{heating}<button>Save</button></form>"
            )
        page_text = f"<!doctype html><meta charset=utf-8><title>Office</title><style>{STYLE}</style>{body}"
        return "text/html; charset=utf-8", page_text.encode()

    def post(self, path: str, form: Mapping[str, list[str]]) -> str | None:
        key, _, page = path.lstrip("/").partition("/")
        visit = self.visits.get(key)
        if visit is None or page != "save":
            return None
        visit.saved = {name: form[name][-1].strip()[:20] for name in (*LAMPS, "heating") if name in form}
        return f"/{key}/"
