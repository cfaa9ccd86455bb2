"""Pages in the real browser: screenshots, what is wider than the screen, and faults of accessibility."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

SIZES = {"desk": (1400, 900), "phone": (390, 844)}
THEMES = ("light", "dark")
AXE = Path(__file__).parents[2] / "build/npm/node_modules/axe-core/axe.min.js"  # as in tests/conftest.py
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
# Elements that reach over the right edge and stand in nothing that scrolls or clips.
WIDE = """() => {
  const edge = document.documentElement.clientWidth + 1, found = [];
  const held = node => {
    for (let up = node.parentElement; up && up !== document.body; up = up.parentElement)
      if (getComputedStyle(up).overflowX !== "visible") return true;
    return false;
  };
  for (const node of document.body.querySelectorAll("*")) {
    const box = node.getBoundingClientRect();
    const out = box.width && box.right > edge && box.left < edge;
    if (out && getComputedStyle(node).position !== "fixed" && !held(node))
      found.push(`${node.tagName}.${node.className}: ${node.textContent.trim().slice(0, 40)}`);
  }
  return {scrolls: document.documentElement.scrollWidth > edge, found: found.slice(0, 5)};
}"""


class Screen(NamedTuple):
    """A page at one size in one theme: what reaches over the edge, whom it asked, its errors."""

    page: str
    size: str
    theme: str
    scrolls: bool
    wide: list[str]
    requests: list[str]
    errors: list[str]


@contextmanager
def browser() -> Iterator[Any]:
    """Chromium of the system, driven by playwright."""
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield chromium
        chromium.close()


FAULTS = """async () => (await axe.run(document, {resultTypes: ["violations"]})).violations
  .filter(fault => ["serious", "critical"].includes(fault.impact))
  .map(fault => `${fault.id}: ${fault.nodes.slice(0, 3).map(node => node.html.slice(0, 120)).join(" | ")}`)"""


def faults_of(pages: Iterable[Path], axe: Path) -> dict[str, list[str]]:
    """What axe-core (the file `axe`) calls serious or critical, by page, size and theme."""
    script, found = axe.read_text(encoding="utf-8"), {}
    with browser() as chromium:
        for size, theme in (("desk", "light"), ("phone", "dark")):
            width, height = SIZES[size]
            context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
            for path in pages:
                tab = context.new_page()
                tab.goto(path.as_uri(), wait_until="load")
                tab.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
                tab.evaluate(script)
                found[f"{path.name} {size} {theme}"] = tab.evaluate(FAULTS)
                tab.close()
            context.close()
    return found


def look(pages: Iterable[Path], folder: Path, whole: bool = False) -> list[Screen]:
    """Open every page from its file at all sizes, in both themes. Pictures go to `folder`, or to the folder
    that VLRL_SCREENSHOTS names. `whole`: of the whole page, not of the first screen."""
    folder = Path(os.environ.get("VLRL_SCREENSHOTS") or folder)
    folder.mkdir(parents=True, exist_ok=True)
    screens = []
    with browser() as chromium:
        for size, (width, height) in SIZES.items():
            for theme in THEMES:
                context = chromium.new_context(
                    viewport={"width": width, "height": height}, color_scheme=theme
                )
                for path in pages:
                    asked: list[str] = []
                    errors: list[str] = []
                    tab = context.new_page()
                    tab.on("request", lambda request, asked=asked: asked.append(request.url))
                    tab.on("pageerror", lambda error, errors=errors: errors.append(str(error)))
                    tab.goto(path.as_uri(), wait_until="load")
                    seen = tab.evaluate(WIDE)
                    name = f"{path.parent.name}-{path.stem}" if path.stem == "index" else path.stem
                    tab.screenshot(path=folder / f"{name}-{size}-{theme}.png", full_page=whole)
                    away = [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]
                    screens.append(
                        Screen(path.name, size, theme, seen["scrolls"], seen["found"], away, errors)
                    )
                    tab.close()
                context.close()
    return screens
