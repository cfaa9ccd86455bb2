"""The pages that runs and comparisons write, in the real browser: nothing reaches over the edge of a desk or
a phone, in light and dark."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest
from screen_kit import AXE, browser, faults_of, look

from vlrl import Config, train
from vlrl.compare.page import page
from vlrl.logging.overlay import overlay_text
from vlrl.logging.report import render_report
from vlrl.plan.gpus import gpu
from vlrl.plan.plan import Ask, make_plan
from vlrl.plan.report import as_page

pytestmark = pytest.mark.needs("chromium")


def runs(preset: int) -> list[dict]:
    """Three runs of a preset, as a comparison has them."""
    rng = random.Random(preset)
    numbers = (
        "auc",
        "pass@1",
        "pass@4",
        "pass@16",
        "sampled_entropy",
        "length",
        "correct_length",
        "wrong_length",
    )
    return [
        {
            "seed": seed,
            "final": rng.random(),
            **{name: rng.random() * 100 for name in numbers},
            "kl": None,
            "tokens": 1_234_567.0,
            "cpu_seconds": 12_345.0,
            "curve": [rng.random() for _ in range(50)],
            "entropy_curve": [None if step % 9 == 0 else rng.random() for step in range(50)],
        }
        for seed in range(3)
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small run with pictures."""
    folder = tmp_path_factory.mktemp("run")
    words = ["base/rl", "models/tiny_qwen2_5_vl", "tasks/lab_grounding", "methods/grpo", "base/scripted"]
    small = ["steps=6", "watch.rollouts_every=1", "watch.heldout_every=3", "watch.heldout_answers=3"]
    train(Config.load(words, [*small, "data.heldout.grounding.count=4", f"output={folder}/run"]))
    return folder / "run"


JUDGE = """
from dataclasses import dataclass
from vlrl.engine.fake import Fake
from vlrl.plugins.registry import register
@register("believes_all")
@dataclass(frozen=True)
class BelievesAll(Fake):
    needs_policy = False
    def _respond(self, request, index):
        return "Verdict: yes", 0.0
"""


def command(*words):
    """A command of its own, which may say with its exit code what it found."""
    done = subprocess.run([sys.executable, "-m", "vlrl", *map(str, words)], capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr


@pytest.fixture(scope="module")
def written(tmp_path_factory, run):
    """Every page: a comparison of eight presets and of one, a report, an overlay, rows, a check, a judge, a
    plan."""
    folder = tmp_path_factory.mktemp("pages")
    names = ["grpo", "dapo", "a_preset_with_a_rather_long_name", *(f"method_{n}" for n in range(5))]
    cells = {name: runs(number) for number, name in enumerate(names)}
    page(cells, f"experiments/lab_chains: {', '.join(names)} (50 steps, 3 seeds)", folder / "compare.html")
    page({"grpo": runs(0)[:1]}, "one", folder / "compare_one.html")
    (folder / "overlay.html").write_text(overlay_text([run, run]))
    command("data", "preview", "lab_grounding", "--limit", 4, "-o", folder / "preview.html")
    scripted = ["quickstart", "steps=1"]
    command("check", *scripted, "--steps", 1, "--scripted", "--page", folder / "check.html")
    (folder / "judge.py").write_text(JUDGE)
    spec = "{name: judged_answer, judge: {model: mine@1, engine: {name: believes_all}}}"
    judged = ["base/rl", "models/tiny_text", "tasks/lab_arithmetic", f"plugins=[{folder / 'judge.py'}]"]
    command(
        "judge", "check", *judged, f"rewards.answer={spec}", "--limit", 2, "--page", folder / "judge.html"
    )
    words = ["base/rl", "models/qwen2_5_vl_3b", "tasks/lab_grounding", "methods/grpo"]
    (folder / "plan.html").write_text(as_page(make_plan(Config.load(words), words, Ask(gpu("h100"))), "3B"))
    return [*sorted(folder.glob("*.html")), render_report(run)]


def test_nothing_overflows(written, tmp_path):
    pytest.importorskip("playwright")
    screens = look(written, tmp_path)
    assert len(screens) == 4 * len(written) == 32
    for screen in screens:
        assert not screen.scrolls and not screen.wide and not screen.requests and not screen.errors, screen


@pytest.mark.needs("axe-core")
def test_axe_finds_no_serious_fault(written):
    pytest.importorskip("playwright")
    faults = faults_of(written, AXE)
    assert len(faults) == 2 * len(written) and not any(faults.values()), {
        k: v for k, v in faults.items() if v
    }


def test_a_page_that_is_too_wide_is_found(tmp_path):
    pytest.importorskip("playwright")
    (tmp_path / "wide.html").write_text(
        "<body><p style='width: 900px'>too wide for a phone</p>", encoding="utf-8"
    )
    found = {screen.size: screen for screen in look([tmp_path / "wide.html"], tmp_path)}
    assert not found["desk"].scrolls and found["phone"].scrolls and "too wide" in found["phone"].wide[0]


def flags(one):
    return one["flags"].split()


def test_the_choices_of_the_report_keep_what_they_say(written):
    """Each choice keeps rollouts that are as it says, and hides the others; at most six groups are shown."""
    pytest.importorskip("playwright")
    data = """() => [...document.querySelectorAll(".rollout")].map(one => ({
        ...one.dataset, hidden: one.hidden,
        group: [...one.closest(".card").querySelectorAll(".rollout")].map(other => other.dataset.reward)}))"""
    fits = {
        "differ": lambda one, _: len(set(one["group"])) > 1,
        "disagree": lambda one, _: "disagree" in flags(one),
        "underpaid": lambda one, _: "underpaid" in flags(one),
        "failed": lambda one, _: "failed" in flags(one),
        "longest": lambda one, long: float(one["length"]) >= long,
    }
    with browser() as chromium:
        tab = chromium.new_page()
        tab.goto(written[-1].as_uri())
        for choice, wanted in fits.items():
            tab.select_option("select[name=show]", choice)
            rollouts = tab.evaluate(data)
            lengths = sorted((float(one["length"]) for one in rollouts), reverse=True)
            long = lengths[max(-(-len(lengths) // 10) - 1, 0)]
            assert [one["hidden"] for one in rollouts] == [not wanted(one, long) for one in rollouts], choice
        tab.select_option("select[name=show]", "")
        assert not any(one["hidden"] for one in tab.evaluate(data)) and len(rollouts) > 10
        shown = "document.querySelectorAll('article.card:not([hidden])').length"
        total = tab.evaluate("document.querySelectorAll('article.card').length")
        seen = [tab.evaluate(shown)]
        while not tab.locator("[data-page='1']").first.is_disabled():
            tab.locator("[data-page='1']").first.click()
            seen.append(tab.evaluate(shown))
        assert sum(seen) == total > max(seen) == 6
        tab.select_option("select[name=colour]", "differences")
        assert tab.locator(".text mark").count() > 0


def test_charts_show_values_switch_scale_and_are_saved(written, tmp_path):
    """With the keyboard alone: values, CSV and PNG of a chart."""
    pytest.importorskip("playwright")
    with browser() as chromium:
        tab = chromium.new_page()
        tab.goto((written[0].parent / "compare.html").as_uri())
        chart = tab.locator("svg.chart").first
        chart.focus()
        tab.keyboard.press("ArrowRight")
        told = tab.locator("figure output").first.inner_text()
        data = json.loads(chart.get_attribute("data-chart"))
        assert told.startswith("step 1: grpo 0.") and " to " in told and len(data["lines"]) == 8
        tab.locator(".tools summary").first.press("Enter")
        with tab.expect_download() as saved:
            tab.locator("[data-do=csv]").first.press("Enter")
        saved.value.save_as(tmp_path / "c.csv")
        lines = (tmp_path / "c.csv").read_text().splitlines()
        assert lines[0].startswith("step,grpo,grpo lowest,grpo highest,dapo") and len(lines) == 51
        assert float(lines[1].split(",")[1]) == data["lines"][0]["points"][0][1]
        with tab.expect_download() as saved:
            tab.locator("[data-do=png]").first.press("Enter")
        saved.value.save_as(tmp_path / "c.png")
        assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
