"""Presets labelled `fidelity: code`: each setting of the objective, the sampling and the optimizer is their
trainer's (configs/base/trainers) or their script's, with its source; at most two are ours, and named.

about:
  trainer: own (repository)                 # where no file of base/trainers is the paper's trainer
  ours: {num_minibatches: 4 of the release's 16, which divides small batches}   # setting: reason; `trainer`
                                            # where the trainer's version or fork was not read
"""

import pytest

from vlrl.config import folders, load

ROOT = folders()[-1]
MAX_OURS = 2
PRESETS = sorted(f"methods/{path.stem}" for path in (ROOT / "methods").glob("*.yaml"))
SETTINGS = (
    "group_size", "num_minibatches", "ppo_epochs", "sampling", "reward_shaping", "group_filters", "advantage",
    "token_credit", "policy_loss", "token_weights", "loss_terms", "loss_aggregation", "callbacks.critic",
    "optimizer",
)  # fmt: skip
STATED = (
    "group_size", "num_minibatches", "advantage", "token_credit", "policy_loss", "loss_aggregation",
    "optimizer.lr",
)  # fmt: skip
STATED_BY_AN_OWN_TRAINER = (  # what the files of base/trainers state for all others
    "sampling.temperature", "sampling.top_p", "optimizer.weight_decay", "optimizer.betas",
    "optimizer.schedule", "optimizer.warmup", "optimizer.max_grad_norm",
)  # fmt: skip
NEEDS_NO_SOURCE = ("token_credit",)  # follows from the advantage


def about_of(preset: str) -> dict:
    return load([preset]).tree.get("about") or {}


CODE = [preset for preset in PRESETS if about_of(preset).get("fidelity") == "code"]


def comment_of(origin: str) -> str:
    """The comment of the line that sets a value, or of the line that opens its block."""
    place, _, number = origin.rpartition(":")
    lines = (ROOT.parent / place).read_text(encoding="utf-8").splitlines()
    index = int(number) - 1
    indent = len(lines[index]) - len(lines[index].lstrip())
    while " # " not in lines[index] and indent:
        index -= 1
        while len(lines[index]) - len(lines[index].lstrip()) >= indent:
            index -= 1
        indent = len(lines[index]) - len(lines[index].lstrip())
    return lines[index].partition(" # ")[2].strip()


def settings_of(preset: str) -> dict[str, str]:
    """The "file:line" of each setting of the objective, the sampling and the optimizer."""
    return {
        path: origin
        for path, origin in load([preset]).origins.items()
        if any(path == slot or path.startswith(f"{slot}.") for slot in SETTINGS)
    }


@pytest.mark.parametrize("preset", CODE)
def test_a_preset_of_released_code_rests_on_its_trainer(preset):
    config, about = load([preset]), about_of(preset)
    origins = settings_of(preset)
    if about.get("kind") == "probe" and not origins:
        return  # measures only
    own = str(about.get("trainer", "")).startswith("own")
    assert own or any("base/trainers/" in origin for origin in origins.values()), (
        f"{preset}: extend a file of base/trainers, or say about.trainer: own (...)"
    )
    trains = config.tree["optimizer"]["lr"] > 0 and "is not trained" not in str(about.get("trainer", ""))
    for path in (*STATED, *(STATED_BY_AN_OWN_TRAINER if own and trains else ())):
        slot, _, key = path.partition(".")
        value = (config.tree.get(slot) or {}).get(key) if key else config.tree.get(slot)
        assert value is not None, f"{preset}: {path} is neither the trainer's nor the preset's"


@pytest.mark.parametrize("preset", CODE)
def test_no_setting_is_that_of_another_paper(preset):
    """A preset that extends another paper's takes its mechanism, not the values of its script. Where nothing
    is trained, only the sampling acts."""
    trains = (load([preset]).tree.get("optimizer") or {}).get("lr", 0) > 0
    for path, origin in settings_of(preset).items():
        if path.startswith(NEEDS_NO_SOURCE) or not (trains or path.startswith("sampling")):
            continue
        own = origin.startswith(f"configs/{preset}.yaml:")
        assert own or "base/trainers/" in origin, (
            f"{preset}: {path} comes from {origin}: state it, with its source"
        )


@pytest.mark.parametrize("preset", CODE)
def test_a_critic_has_as_many_updates_as_its_policy(preset):
    config = load([preset])
    critic = (config.tree.get("callbacks") or {}).get("critic") or {}
    if "base/trainers/" in config.origins.get("callbacks.critic.updates", ""):
        assert critic["updates"] == config.tree["num_minibatches"], f"{preset}: callbacks.critic.updates"


@pytest.mark.parametrize("preset", CODE)
def test_every_setting_has_a_source(preset):
    ours = about_of(preset).get("ours") or {}
    for path, origin in settings_of(preset).items():
        if "base/trainers/" in origin or path.startswith(NEEDS_NO_SOURCE):
            continue
        comment = comment_of(origin)
        assert comment, f"{preset}: {path} ({origin}) has no source"
        if comment.startswith("ours"):
            assert any(path == key or path.startswith(f"{key}.") for key in ours), (
                f"{preset}: {path} is ours ({origin}); name it in about.ours with the reason"
            )


@pytest.mark.parametrize("preset", CODE)
def test_at_most_two_settings_are_ours(preset):
    ours = about_of(preset).get("ours") or {}
    assert len(ours) <= MAX_OURS, (
        f"{preset}: {', '.join(ours)} are ours: that is `fidelity: paper` or `approximate`"
    )
    assert all(isinstance(reason, str) and reason for reason in ours.values())
    paths = settings_of(preset)
    for key in ours:
        assert key == "trainer" or any(path == key or path.startswith(f"{key}.") for path in paths), (
            f"{preset}: about.ours names {key}, which it does not set"
        )


LAB = sorted(f"experiments/{path.stem}" for path in (ROOT / "experiments").glob("*_lab.yaml"))


@pytest.mark.parametrize("name", LAB)
def test_the_lab_keeps_its_own_learning_rate(name):
    """A random tiny model learns nothing at a paper's 1e-6: base/lab's phases win over what a preset
    states."""
    config = load([name])
    for phase in config.phases:
        assert config.phase(phase)["optimizer"]["lr"] >= 1e-4, f"{name}: phase {phase}"
