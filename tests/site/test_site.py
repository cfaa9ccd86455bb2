"""The site: every page is in its order, the made pages are whole, and a strict build passes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import filelock
import pytest
import yaml
from screen_kit import browser, look
from site_kit import ROOT, made

LONGEST = 400  # lines of a page


def nav_pages(entry) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [page for part in parts for page in nav_pages(part)]


@pytest.fixture(scope="module")
def config():
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def pages():
    """Text of every page of the site by its place: those of docs/ and those that are made."""
    excluded = ("papers.md", "LOG.md")
    written = {
        path.relative_to(ROOT / "docs").as_posix(): path.read_text(encoding="utf-8")
        for path in sorted((ROOT / "docs").rglob("*.md"))
    }
    shown = {page: text for page, text in written.items() if page not in excluded}
    return {**shown, **made("pages").made(), **made("method_pages").made(), **made("reference").made()}


def test_every_written_page_is_in_the_order_and_every_page_of_it_is_there(config, pages):
    ordered = nav_pages(config["nav"])
    assert len(ordered) == len(set(ordered))
    assert set(ordered) <= set(pages)
    unlisted = {
        page
        for page in pages
        if not page.startswith(("papers/", "methods/", "notebook/", "changelog/", "reference/plugins/"))
    }
    assert unlisted <= set(ordered)


def test_every_link_between_pages_leads_to_a_page(pages):
    broken = []
    for page, text in pages.items():
        text = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
        for target in re.findall(r"\]\(([\w./-]+\.md)(?:#[\w-]+)?\)", text):
            place = os.path.normpath(Path(page).parent / target)
            if place not in pages and target not in ("LOG.md", "papers.md"):
                broken.append(f"{page}: {target}")
    assert not broken
    assert sum(text.count(".md)") for text in pages.values()) > 500


def test_no_page_is_long(pages):
    """A table that is searched and filtered is counted as one line."""
    text_of = {
        page: re.sub(r'<div class="filterable".*?</div>', "", text, flags=re.DOTALL)
        for page, text in pages.items()
    }
    long = {page: n for page, text in text_of.items() if (n := len(text.splitlines())) > LONGEST}
    assert not long


def test_no_committed_page_is_long_and_old_entries_move_to_files_of_their_own():
    books = made("split_pages")
    assert books.long_pages() == {}, "run python scripts/split_pages.py"
    entries = [
        f"## 2026-11-{day:02d} Day\n\n" + f"see [the guide](guide.md) {day}\n" * 90 for day in range(1, 7)
    ]
    kept, moved = books.split("# Log\n\n" + "".join(entries), "docs/LOG.md", there=7)
    assert list(moved) == [f"docs/notebook/{n:03d}_2026_11_{n - 7:02d}_day.md" for n in (8, 9, 10)]
    assert moved["docs/notebook/008_2026_11_01_day.md"].startswith(
        "# 2026-11-01 Day\n\nsee [the guide](../guide.md) 1\n"
    )
    assert kept == "# Log\n\n" + "".join(entries[3:]) and books.split(kept, "docs/LOG.md", 10) == (kept, {})


def test_a_paper_an_entry_of_the_notebook_and_a_plugin_have_pages_of_their_own(pages):
    assert pages["papers/papo.md"].partition("# ")[2].startswith("PAPO")
    row = next(line for line in pages["papers/index.md"].splitlines() if "(papo.md)" in line)
    assert row.split(" | ")[1:] == [
        "objective", "lab_digits", "method", "approximate", "image", "reference model", "works |",
    ]  # fmt: skip
    assert "outside" in pages["papers/agenticsearchsurvey.md"]
    assert len([page for page in pages if page.startswith("notebook/")]) > 30
    iou = pages["reference/plugins/reward/iou.md"]
    assert "Visual grounding reward" in iou and "| `binary` | `bool` | `False` |" in iou


def test_the_site_asks_no_other_host_for_anything(config):
    assert config["theme"]["font"] is False and "offline" in config["plugins"]
    for path in (ROOT / "docs" / "assets").iterdir():
        assert "http" not in path.read_text(encoding="utf-8").replace("http://www.w3.org/", "")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of a strict build: one for all processes of a parallel run, or that of `make docs`, which
    VLRL_BUILT_SITE names."""
    if "VLRL_BUILT_SITE" in os.environ:
        return Path(os.environ["VLRL_BUILT_SITE"])
    pytest.importorskip("material", reason="the site needs `pip install 'vlrl[docs]'`")
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / "built_site"
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    with filelock.FileLock(shared / "built_site.lock"):
        if not (shared / "built_site.whole").exists():
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=500, env=environment, check=False
            )
            assert done.returncode == 0, done.stderr[-3000:]
            (shared / "built_site.whole").touch()
    return folder


def test_a_strict_build_passes(built):
    page = (built / "api" / "trainer.html").read_text(encoding="utf-8")
    assert "GRPOTrainer" in page and "reward_funcs" in page
    assert (built / "search" / "search_index.js").stat().st_size > 100_000
    assert "(one_gpu.html): Memory decides" in (built / "llms.txt").read_text(encoding="utf-8")


@pytest.mark.needs("chromium")
def test_pages_of_the_site_fit_the_screen_and_ask_nobody(built, tmp_path):
    """The main pages, at two sizes in two themes."""
    pytest.importorskip("playwright")
    pages = [
        built / place
        for place in (
            "index.html",
            "one_gpu.html",
            "reference/config.html",
            "papers/index.html",
            "methods/papo.html",
        )
    ]
    pages += [
        built / place
        for place in (
            "coming_from/verl.html",
            "api/trainer.html",
            "guide.html",
            "tutorials/own_pictures.html",
        )
    ]
    for screen in look(pages, tmp_path):
        assert not screen.scrolls and not screen.wide and not screen.requests and not screen.errors, screen


def test_a_link_to_a_line_of_a_method_leads_to_that_line(built):
    """Every link of an implementation detail has its anchor, beside the text that the notes name."""
    script, count = made("method_pages"), 0
    for preset, note in script.notes().items():
        page = (built / "methods" / f"{preset}.html").read_text(encoding="utf-8")
        links = re.findall(r'href="(source/[\w.]+)#(__codelineno-0-(\d+))"><code>([\w./]+):', page)
        assert len(links) == len(note["details"]), preset
        for (place, anchor, number, file), (_, named, text) in zip(links, note["details"], strict=True):
            assert (
                file == named
                and text in (ROOT / file).read_text(encoding="utf-8").splitlines()[int(number) - 1]
            )
            assert f'name="{anchor}"' in (built / "methods" / place).read_text(encoding="utf-8"), (
                preset,
                place,
            )
            count += 1
    assert count >= 40


@pytest.mark.needs("chromium")
def test_the_table_of_papers_is_filtered_and_a_choice_can_be_linked(built):
    pytest.importorskip("playwright")
    with browser() as chromium:
        tab = chromium.new_page(viewport={"width": 390, "height": 844})
        tab.goto((built / "papers" / "index.html").as_uri() + "#family=objective&needs=reference+model")
        cells = [row.split("\n") for row in tab.locator(".filterable tbody tr:visible").all_inner_texts()]
        assert 5 < len(cells) < 37 and any("papo" in row for row in cells)
        tab.fill("form.filters input", "papo")
        assert tab.inner_text("form.filters output").startswith("1 of ") and "q=papo" in tab.url
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390  # rows are cards on a phone


@pytest.mark.needs("chromium")
def test_the_search_answers_from_a_file(built):
    pytest.importorskip("playwright")
    with browser() as chromium:
        tab = chromium.new_page(viewport={"width": 1400, "height": 900})
        tab.goto((built / "index.html").as_uri())
        field, said = tab.locator("input[data-md-component=search-query]"), ""
        field.click()
        for letter in "prompts_per_step":
            field.press(letter)
        for _ in range(60):  # the index is read first
            tab.wait_for_timeout(500)
            said = tab.inner_text("[data-md-component=search-result]")
            if "matching" in said:
                break
        assert "Keys of a config" in said


def test_language_models_get_a_list_of_the_pages(config, pages):
    text = made("pages").llms(config["nav"], pages, "# vlrl\n")
    lines = [line for line in text.splitlines() if line.startswith("- [")]
    assert len(lines) == len(nav_pages(config["nav"])) and "## Coming from" in text
    assert "(one_gpu.html): Memory decides what you can train on one GPU." in text
