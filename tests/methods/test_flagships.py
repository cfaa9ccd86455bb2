"""The flagship recipes: their lab presets train on pictures and videos, their real-size twins build."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import opened, steps

from vlrl.config import load
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.plan import Plan
from vlrl.trainer.session import Session

LAB = [
    "visual_rft",
    "vlm_r1",
    "vlm_r1_detection",
    "video_r1",
    "jigsaw_r1",
    "cls_rl",
    "no_thinking_cls_rl",
    "papo",
    "papo_shortcut",
    "mm_eureka",
    "time_r1",
    "gui_r1",
    "lmm_r1",
    "luffy",
]
# recipes at real size that have a twin for the lab, of another name where one says that it serves
TWINS = {
    **{name: name for name in (
        "vlm_r1", "vlm_r1_detection", "video_r1", "visual_rft", "visual_rft_grounding", "jigsaw_r1", "cls_rl",
        "mm_eureka", "papo", "vision_r1", "lmm_r1", "r1_v", "perception_r1_2", "gui_r1", "ui_r1", "gui_g1",
        "time_r1", "dapo", "simplerl_zoo", "prorl", "luffy", "deepscaler",
    )},
    "visual_rft_classification": "visual_rft",
}  # fmt: skip
REAL = [
    "visual_rft",
    "visual_rft_grounding",
    "visual_rft_classification",
    "vlm_r1_detection",
    "video_r1",
    "jigsaw_r1",
    "cls_rl",
    "papo",
    "mm_eureka",
]
TINY = [
    "policy.tiny={hidden: 32, layers: 2, heads: 2, kv_heads: 1, intermediate: 64, vision_hidden: 32, "
    "vision_layers: 1}",
    "phases.rl.prompts_per_step=4", "phases.rl.num_minibatches=2",
    "group_size=4", "sampling.max_tokens=8", "max_refill_rounds=1",
    "phases.rl.steps=2", "phases.cold_start.steps=1",
]  # fmt: skip


@pytest.mark.parametrize("name", LAB)
def test_lab_presets_train(name):
    run = Session(Plan.of(load([f"experiments/{name}_lab"], [*TINY, "output=unused"])))
    run.phases = run.phases[1:]
    metrics = steps(opened(run))[-1]
    assert metrics["length/mean"] >= 1 and "reward/total" in metrics


@pytest.mark.parametrize(("name", "lab"), TWINS.items())
def test_every_flagship_has_a_twin_for_the_lab(name, lab):
    real, twin = load([f"experiments/{name}"]), load([f"experiments/{lab}_lab"])
    phases = Plan.of(twin).phases
    assert len(phases) > 1 and twin.phase("cold_start")["policy_loss"]["name"] == "zero_loss"
    own = {origin for origin in real.origins.values() if "configs/methods/" in origin}
    assert not own or own & set(twin.origins.values()), "they share no line of a preset"
    for slot in ("advantage", "policy_loss", "token_credit"):
        assert twin.tree[slot]["name"] == real.tree[slot]["name"], slot


@pytest.mark.parametrize("name", REAL)
def test_real_sizes_build(name):
    config = load([f"experiments/{name}"], ["engine={name: hf}"])
    run = Session(Plan.of(config))
    assert run.family.model.startswith("Qwen/") and run.settings.optimizer.lr == 1e-6
    assert config.tree["about"]["fidelity"] in ("code", "approximate")


def test_shuffled_rollouts_leave_no_gradient():
    """T-GRPO without a bonus learns exactly what GRPO does from the same seeds: the shuffled rollouts count
    for nothing."""
    words = [*TINY, "output=unused", "phases.rl.reward_shaping.temporal.alpha=0"]
    ours = Session(Plan.of(load(["experiments/video_r1_lab"], words)))
    plain = Session(
        Plan.of(
            load(
                ["experiments/video_r1_lab"],
                [
                    *TINY,
                    "output=unused",
                    "phases.rl.rollout={name: independent}",
                    "phases.rl.reward_shaping=null",
                    "metrics=null",
                ],
            )
        )
    )
    results = []
    for run in (ours, plain):
        run.phases = run.phases[1:]
        results.append(steps(opened(run), 1)[0])
    same = ("grad_norm", "loss", "tokens", "rollouts", "reward/total", "length/mean")
    assert {k: results[0].get(k) for k in same} == {k: results[1].get(k) for k in same}
    assert results[0]["engine/completions"] == 1.5 * results[1]["engine/completions"]


UNRELEASED = {"gui_g1", "vlm_r1_detection", "visual_rft_grounding"}  # their comments say what has to be made
RECIPES = sorted(path.stem for path in (Path(__file__).parents[2] / "configs" / "experiments").glob("*.yaml"))


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in UNRELEASED])
def test_a_file_that_is_not_there_comes_with_its_download(name, tmp_path, monkeypatch):
    """The command puts the file where the recipe reads it."""
    monkeypatch.chdir(tmp_path)
    for phase in Plan.of(load([f"experiments/{name}"], ["engine={name: hf}"])).phases:
        for slot, source in [*phase.train.items(), *phase.heldout.items()]:
            if source.name != "files":
                continue
            with pytest.raises(
                ConfigError, match=r"nothing at '.*'; get it with `(hf download|curl) "
            ) as error:
                source.look()
            folder = source.download.split("--local-dir ")[-1].split(" ")[0]
            path = Path(source.path)
            into = path.is_relative_to(folder) or str(path) in source.download.split(" ")
            assert into, f"{slot}: {error.value}"
