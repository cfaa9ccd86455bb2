"""Pages from templates: `render` puts content into one of `templates/*.html.j2`, with the style and the
script of all pages inside.

The content security policy of a page lets no script run but its own, which carries the page's nonce (new for
every page), and loads nothing.
"""

from __future__ import annotations

import secrets
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from vlrl.pages.chart import number

TEMPLATES = Path(__file__).parent / "templates"


def clock(seconds: float) -> str:
    """`59 s`, `12:34` or `3:04:05`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


@cache
def environment() -> Environment:
    """The templates. Everything is escaped, and a name that is missing is an error."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"number": number, "clock": clock}
    return made


def asset(name: str) -> str:
    """The text of a file beside the templates: a style or a script."""
    return (TEMPLATES / name).read_text(encoding="utf-8")


def render(template: str, title: str, kind: str, scripts: tuple[str, ...] = (), **content: Any) -> str:
    """A page. `kind` stands behind the title in the browser's tab; `scripts` are run after the common one.

    Content of the frame: `follows` (True: served by `vlrl report --serve`, the page may ask its server).
    """
    return (
        environment()
        .get_template(f"{template}.html.j2")
        .render(
            title=title,
            kind=kind,
            nonce=secrets.token_urlsafe(16),
            style=asset("page.css"),
            script="\n".join(asset(name) for name in ("page.js", *scripts)),
            **{"follows": False, **content},
        )
    )
