"""vlrl compare: the statistics by hand, the plan, and a whole tiny comparison that is not run twice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vlrl.compare import work
from vlrl.compare.page import page
from vlrl.compare.plan import ComparisonPlan
from vlrl.compare.statistics import (
    bootstrap,
    improvement_interval,
    iqm,
    paired_difference,
    probability_of_improvement,
)
from vlrl.compare.table import differences, markdown, short, summarise, verdict
from vlrl.config import load
from vlrl.plugins.registry import ConfigError


def test_iqm_cuts_a_quarter_from_either_end():
    assert iqm([1, 2, 3, 100]) == 2.5 and iqm([7.0]) == 7.0
    assert iqm([0, 1, 2, 3, 4]) == pytest.approx(2.0) and iqm([0, 0, 0, 10, 10]) == pytest.approx(
        (0.75 * 0 + 0 + 0.75 * 10) / 2.5
    )
    with pytest.raises(ValueError, match="nothing"):
        iqm([])


def test_iqm_agrees_with_scipy_where_scipy_cuts_whole_values():
    from scipy.stats import trim_mean

    values = np.random.default_rng(0).normal(size=40)
    assert iqm(values) == pytest.approx(trim_mean(values, 0.25))


def test_probability_of_improvement():
    assert probability_of_improvement([2, 3], [1, 2]) == pytest.approx((1 + 0.5 + 1 + 1) / 4)
    assert probability_of_improvement([1, 1], [1, 1]) == 0.5 and improvement_interval([2, 2], [1, 1]) == (
        1.0,
        1.0,
        1.0,
    )


def test_paired_differences_by_hand():
    # gaps 1, 2, 3: mean 2, deviation 1; t(0.975, 2) = 4.302653, times 1 / sqrt(3)
    assert paired_difference([2, 4, 6], [1, 2, 3]) == pytest.approx((2, 2 - 2.484138, 2 + 2.484138), abs=1e-6)
    assert paired_difference([3.0], [1.0]) == (2.0, -np.inf, np.inf) and paired_difference(
        [2, 2], [1, 1]
    ) == (1, 1, 1)
    table = differences(cells())
    assert table[0][:4] == ["less grpo", "held-out", "mean reward", "pass@1"] and len(table) == 2
    assert (
        table[1][:3] == ["dapo", "+0.300 ± 0.000*", "+0.000 ± 0.000"]
        and table[1][table[0].index("wrong")] == "–"
    )


def test_bootstrap_covers_and_collapses():
    assert bootstrap([3.0]) == (3.0, 3.0, 3.0)
    summary = bootstrap([0.0, 1.0, 2.0, 3.0])
    assert (
        summary.value == 1.5
        and 0 <= summary.low < 1.5 < summary.high <= 3
        and bootstrap([0.0, 1.0, 2.0, 3.0]) == summary
    )


def cells():
    run = {
        "final": 0.5,
        "auc": 0.3,
        "pass@1": 0.4,
        "pass@8": 0.9,
        "sampled_entropy": 1.0,
        "length": 5.0,
        "correct_length": 4.0,
        "wrong_length": None,
        "kl": 0.1,
        "tokens": 100.0,
        "cpu_seconds": 2.0,
    }
    curves = {"curve": [0.1, 0.5], "entropy_curve": [2.0, None]}
    better = {**run, "final": 0.8}
    return {
        "grpo": [{**run, **curves, "seed": s} for s in (0, 1)],
        "dapo": [{**better, **curves, "seed": s} for s in (0, 1)],
    }


def test_table_and_page(tmp_path):
    table = markdown(cells(), "a title")
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    assert lines[1].startswith("| dapo | 0.800 [0.800, 0.800] | 0.800 | 1.000") and lines[2].startswith(
        "| grpo | 0.500"
    )
    assert "P(> grpo)" in lines[0] and "pass@8" in lines[0]
    begun = markdown(
        cells(),
        "t",
        [{"seed": 0, "final": 0.25, "wrong_length": 7.0}, {"seed": 1, "final": 0.35, "wrong_length": None}],
    ).splitlines()
    assert "| correct | wrong |" in lines[0] and "| 4.0 | – |" in lines[1]
    assert begun[8].startswith("| (cold start) | 0.300 [0.250, 0.350] |") and "| 7.0 |" in begun[8]
    page(cells(), "a <title>", tmp_path / "x.html")
    text = (tmp_path / "x.html").read_text()
    assert "a &lt;title&gt;" in text and text.count("<polyline") == 2 and text.count("<polygon") == 4
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/", "")
    assert (
        text.count("<script nonce=") == 1
        and 'name="viewport"' in text
        and "prefers-color-scheme: dark" in text
    )
    assert ">mean reward</text>" in text and ">step</text>" in text
    assert text.index("Against grpo it is +0.300") < text.index("<svg")
    assert summarise(cells())["grpo"]["better"].value == 0.5


def test_the_result_is_one_sentence_and_fits_a_terminal():
    assert verdict(cells()).startswith(
        "dapo has the highest held-out score, 0.800. Against grpo it is +0.300"
    )
    assert "excludes zero" in verdict(cells())
    once = {preset: runs[:1] for preset, runs in cells().items()}
    assert "one seed cannot say whether it is luck" in verdict(once)
    assert verdict({"grpo": once["grpo"]}).endswith("No other preset is above it.")
    assert not any(word in line for line in map(" ".join, differences(once)) for word in ("inf", "nan"))
    lines = short(cells())
    assert lines[0].split()[:4] == ["preset", "held-out", "less", "grpo"] and len(lines) == 3
    assert max(map(len, lines)) <= 110 and "+0.300 ± 0.000*" in lines[1]


@pytest.mark.parametrize(
    "bad", [{"presets": ("grpo", "grpo")}, {"presets": ()}, {"seeds": 0}, {"steps": 0}, {"cold_steps": -1}]
)
def test_senseless_plans_are_refused(tmp_path, bad):
    with pytest.raises(ConfigError, match="compare"):
        ComparisonPlan(**{"presets": ("grpo",), "task": "arithmetic", "seeds": 1, "output": tmp_path, **bad})


def plan(folder, *presets):
    words = (
        "policy.tiny={hidden: 32, layers: 2, heads: 2, kv_heads: 1, intermediate: 64}",
        "prompts_per_step=4",
        "group_size=4",
        "data.heldout.arithmetic.count=6",
        "sampling.max_tokens=8",
    )
    return ComparisonPlan(presets, "arithmetic", 1, folder, steps=2, cold_steps=2, samples=2, overrides=words)


def test_presets_keep_their_own_values(tmp_path):
    config = plan(tmp_path, "dapo").config("dapo", 3, "some/folder")
    tree = config.tree
    assert (
        tree["policy_loss"]["high"] == 0.28
        and tree["seed"] == 3
        and tree["policy"]["model"] == "some/folder"
        and "phases" not in tree
    )
    assert tree["optimizer"]["lr"] == 1e-3, "the lab's own second phase is the base"
    assert plan(tmp_path, "prorl").config("prorl", 0, "").tree["sampling"]["temperature"] == 1.2


PLUGIN = """from dataclasses import dataclass
from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward


@register("compare_{0}")
@dataclass(frozen=True)
class Points(Reward):
    def __call__(self, rollout):
        return 1.0
"""


def test_a_preset_names_its_own_plugins(tmp_path):
    from vlrl.compare.run import check

    for name in ("a", "b"):
        (tmp_path / f"{name}.py").write_text(PLUGIN.format(name))
    rewards = "rewards: {{{0}: {{name: compare_{0}, tasks: [arithmetic]}}}}\n"
    (tmp_path / "a.yaml").write_text("plugins: [a.py]\n" + rewards.format("a"))
    (tmp_path / "b.yaml").write_text("plugins: [b.py]\n" + rewards.format("b"))
    (tmp_path / "forgot.yaml").write_text(rewards.format("a"))
    both = plan(tmp_path / "out", str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml"))
    check(both)
    with pytest.raises(
        ConfigError,
        match=(
            r"forgot\.yaml: rewards\.a: 'compare_a' is of .*a\.py, which its config does not name; add "
            r"`plugins"
        ),
    ):
        check(replace(both, presets=(*both.presets, str(tmp_path / "forgot.yaml"))))


def test_an_override_of_a_phase_is_for_that_phase(tmp_path):
    small = plan(tmp_path, "grpo")
    small = replace(
        small,
        overrides=(
            *small.overrides,
            "phases.rl.sampling.temperature=0.7",
            "phases.cold_start.optimizer.lr=0.5",
        ),
    )
    cold, run = small.cold_config(0).tree, small.config("grpo", 0, "w").tree
    assert (cold["optimizer"]["lr"] == 0.5 and "temperature" not in cold["sampling"]) or cold["sampling"][
        "temperature"
    ] != 0.7
    assert run["optimizer"]["lr"] == 1e-3 and run["sampling"]["temperature"] == 0.7 and "phases" not in run


def test_an_override_of_the_tasks_data_is_none_of_a_phase_without_them(tmp_path):
    config = plan(tmp_path, "mr_rlvr").config("mr_rlvr", 0, "w")
    heldout = {name: (config.phase(name)["data"].get("heldout") or {}) for name in config.phases}
    assert not heldout["fill"] and not heldout["reorder"] and heldout["rl"]["arithmetic"]["count"] == 6
    (tmp_path / "one.yaml").write_text(
        "data: {heldout: {arithmetic: {count: 50}}}\n"
    )  # the override wins over a preset's own number
    assert (
        plan(tmp_path, "grpo")
        .config(str(tmp_path / "one.yaml"), 0, "w")
        .tree["data"]["heldout"]["arithmetic"]["count"]
        == 6
    )


@pytest.mark.parametrize("preset", ["dapo", "mr_rlvr", "1_shot_rlvr"])
def test_the_configs_that_are_written_run_again(tmp_path, monkeypatch, preset):
    small = plan(tmp_path, preset)
    config = small.config(preset, 0, "w")
    (tmp_path / "config.yaml").write_text(config.dump())  # as `train` writes it
    monkeypatch.chdir(tmp_path)
    again = load([tmp_path / "config.yaml"])
    assert again.tree == config.tree and [again.phase(name) for name in again.phases] == [
        config.phase(name) for name in config.phases
    ]
    assert load([small.cell(preset, 0) / "base.yaml"]).tree["policy"]["name"] == "text"


def test_a_folder_holds_one_comparison(tmp_path):
    plan(tmp_path, "grpo").claim()
    plan(tmp_path, "grpo", "dapo").claim()  # more presets, or more seeds, join what is there
    with pytest.raises(ConfigError, match=r"steps 2 there, 3 here.*--output"):
        replace(plan(tmp_path, "grpo"), steps=3).claim()


def test_presets_with_held_out_rows_of_their_own_are_told(tmp_path):
    same = "data.heldout.sat={name: gen_sat, split: heldout, count: 8, width: 3, variables: 5, clauses: 13}"
    sat = ComparisonPlan(
        ("grpo", "dapo", "saturn"), "tasks/gen_sat", 1, tmp_path, overrides=("data.heldout.sat.count=8",)
    )
    assert sat.with_other_rows() == ["saturn"] and replace(sat, overrides=(same,)).with_other_rows() == []


def test_a_cold_start_that_was_cut_off_starts_again(tmp_path):
    small = plan(tmp_path, "grpo")
    small.cold(0).mkdir(parents=True)
    (small.cold(0) / "metrics.jsonl").write_text('{"step": 1, "phase": "main"}\n')
    weights = work.cold_start(small, 0)
    assert work.cold_start(small, 0) == weights and (Path(weights) / "model.safetensors").is_file()
    assert [
        json.loads(line)["step"] for line in (small.cold(0) / "metrics.jsonl").read_text().splitlines()
    ] == [1, 2]


def test_without_a_cold_start_all_runs_begin_with_the_pretrained_model(tmp_path):
    from vlrl.compare.run import check

    task = tmp_path / "task.yaml"
    # moves the weights where no answer is right
    terms = "loss_terms: {entropy: {name: entropy_bonus, coef: 1.0}}"
    task.write_text(f"extends: [tasks/lab_arithmetic, methods/grpo]\noptimizer: {{lr: 3.0e-4}}\n{terms}\n")
    tiny = plan(tmp_path, "grpo").overrides
    first = ComparisonPlan(
        ("grpo",), "arithmetic", 1, tmp_path / "first", steps=1, cold_steps=1, samples=2, overrides=tiny
    )
    weights = work.cold_start(first, 0)
    (tmp_path / "model.yaml").write_text(f"policy: {{name: text, model: {weights}}}\n")
    rest = tuple(word for word in tiny if not word.startswith("policy"))
    small = ComparisonPlan(
        ("grpo", "nsr"), str(task), 1, tmp_path / "out", 1, 0, 2, str(tmp_path / "model.yaml"), rest
    )
    check(small)
    tree = small.config("nsr", 2, small.pretrained).tree
    assert (
        tree["policy"]["model"] == weights == work.cold_start(small, 0)
        and tree["optimizer"]["lr"] == 3e-4
        and "phases" not in tree
    )
    begun, ended = work.start(small, 0), work.cell(small, "grpo", 0)
    assert (
        begun["kl"] == pytest.approx(0, abs=1e-6)
        and 0 <= begun["final"] <= 1
        and ended["kl"] > 0
        and ended["start"] == begun["final"]
    )
    with pytest.raises(
        ConfigError, match=r"needs a pretrained model, and 'arithmetic' names none; give --model"
    ):
        check(replace(first, cold_steps=0, overrides=()))
    with pytest.raises(
        ConfigError, match="a task of one phase, and 'experiments/lab_arithmetic' has cold_start, rl"
    ):
        check(replace(small, task="experiments/lab_arithmetic"))


def test_unknown_presets_and_tasks_are_config_errors(tmp_path):
    with pytest.raises(ConfigError, match="nonsense"):
        plan(tmp_path, "nonsense").config("nonsense", 0, "")
    with pytest.raises(ConfigError, match="lab_chess"):
        ComparisonPlan(("grpo",), "chess", 1, tmp_path).cold_config(0)


def test_a_comparison_runs_once(tmp_path):
    small = plan(tmp_path, "grpo", "nsr")
    first = [work.cell(small, preset, 0) for preset in small.presets]
    cold = json.loads((small.cold(0) / "cold.json").read_text())["weights"]
    for result in first:
        assert {
            "final",
            "auc",
            "pass@1",
            "pass@2",
            "entropy",
            "sampled_entropy",
            "length",
            "kl",
            "tokens",
            "cpu_seconds",
            "curve",
        } <= set(result)
        assert len(result["curve"]) == 2 and result["kl"] >= 0 and 0 < result["sampled_entropy"] < 12
    begun = work.start(small, 0)
    assert (
        begun["kl"] == pytest.approx(0, abs=1e-6)
        and begun["wrong_length"] > 0
        and work.start(small, 0) == begun
    )
    assert small.config("grpo", 0, cold).tree["policy"]["model"] == cold
    stamp = (small.cell("grpo", 0) / "metrics.jsonl").stat().st_mtime_ns
    assert (
        work.cell(small, "grpo", 0) == first[0]
        and (small.cell("grpo", 0) / "metrics.jsonl").stat().st_mtime_ns == stamp
    )
    assert markdown({"grpo": [first[0]], "nsr": [first[1]]}, "t").count("\n| ") == 5
