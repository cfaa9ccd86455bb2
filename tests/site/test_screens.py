"""The pages that runs and comparisons write, in the real browser: nothing reaches over the edge of a desk or
a phone, in light and dark."""

from __future__ import annotations

import random

import pytest
from screen_kit import browser, look

from vlrl import Config, train
from vlrl.compare.page import page
from vlrl.logging.report import render_report

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
def written(tmp_path_factory):
    """A comparison of eight presets, and the report of a small run with pictures."""
    folder = tmp_path_factory.mktemp("pages")
    names = ["grpo", "dapo", "a_preset_with_a_rather_long_name", *(f"method_{n}" for n in range(5))]
    cells = {name: runs(number) for number, name in enumerate(names)}
    page(cells, f"experiments/lab_chains: {', '.join(names)} (50 steps, 3 seeds)", folder / "compare.html")
    page({"grpo": runs(0)[:1]}, "one", folder / "compare_one.html")
    words = ["base/rl", "models/tiny_qwen2_5_vl", "tasks/lab_grounding", "methods/grpo", "base/scripted"]
    small = ["steps=3", "watch.rollouts_every=1", "watch.heldout_every=2", "watch.heldout_answers=3"]
    source = ["data.heldout.grounding.count=4", f"output={folder}/run"]
    train(Config.load(words, [*small, *source]))
    return [folder / "compare.html", folder / "compare_one.html", render_report(folder / "run")]


def test_nothing_overflows(written, tmp_path):
    pytest.importorskip("playwright")
    screens = look(written, tmp_path)
    assert len(screens) == 12
    for screen in screens:
        assert not screen.scrolls and not screen.wide and not screen.requests and not screen.errors, screen


def test_a_page_that_is_too_wide_is_found(tmp_path):
    pytest.importorskip("playwright")
    (tmp_path / "wide.html").write_text(
        "<body><p style='width: 900px'>too wide for a phone</p>", encoding="utf-8"
    )
    found = {screen.size: screen for screen in look([tmp_path / "wide.html"], tmp_path)}
    assert not found["desk"].scrolls and found["phone"].scrolls and "too wide" in found["phone"].wide[0]


def test_the_choices_of_the_report_keep_what_they_say(written):
    """Each choice keeps rollouts that are as it says, and hides the others."""
    pytest.importorskip("playwright")
    data = """() => [...document.querySelectorAll(".rollout")].map(one => ({
        ...one.dataset, hidden: one.hidden,
        group: [...one.closest(".card").querySelectorAll(".rollout")].map(other => other.dataset.reward)}))"""
    fits = {
        "differ": lambda one, _: len(set(one["group"])) > 1,
        "disagree": lambda one, _: (
            min(map(float, one["parts"].split())) <= 0 < max(map(float, one["parts"].split()))
        ),
        "longest": lambda one, long: float(one["length"]) >= long,
        "unfinished": lambda one, _: one["finish"] != "stop",
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
