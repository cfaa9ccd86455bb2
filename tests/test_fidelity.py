"""Presets labelled `fidelity: code`: each setting of the objective, the sampling and the optimizer is their
trainer's (configs/base/trainers) or their script's, with its source; at most two are ours, and named.

about:
  trainer: own (repository)                 # where no file of base/trainers is the paper's trainer
  ours: {num_minibatches: 4 of the release's 16, which divides small batches}   # setting: reason; `trainer`
                                            # where the trainer's version or fork was not read
"""

import re

import pytest

from vlrl.config import at, folders, load

ROOT = folders()[-1]
MAX_OURS = 2
PRESETS = sorted(f"methods/{path.stem}" for path in (ROOT / "methods").glob("*.yaml"))
SETTINGS = (
    "group_size", "num_minibatches", "ppo_epochs", "sampling", "logp_temperature", "reward_shaping",
    "group_filters", "advantage", "token_credit", "policy_loss", "token_weights", "loss_terms",
    "loss_aggregation", "callbacks.critic", "optimizer",
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
PLACE = re.compile(  # what a source names: a file, a script, a part of the paper, or the trainer
    r"\.(py|sh|yaml|yml|md|json|ipynb|toml)\b|\b(sec|eq|app|table|fig|theorem|algorithm|abstract)\b|\w+_fn\b"
    r"|\b(scripts?|release|released|trainer|command|config|recipe|run|defaults?|notebook"
    r"|paper|README|appendix)\b|:\d",
    re.IGNORECASE,
)
NO_EFFECT = (
    "not read",
    "not used",
    "not active",
    "no update",
    "nothing is trained",
    "nothing is learned",
    "decoding only",
)
IMITATION = {"lr", "weight_decay", "betas", "schedule", "warmup", "max_grad_norm"}
OURS = re.compile(r"\bours\b")
IN_A_PHASE = (
    "num_minibatches",
    "ppo_epochs",
    "sampling",
    "optimizer",
    "loss_aggregation",
    "advantage",
    "policy_loss",
)


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


@pytest.mark.sweep
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


@pytest.mark.sweep
@pytest.mark.parametrize("preset", CODE)
def test_where_samples_are_hot_or_cold_the_temperature_of_log_probs_is_stated(preset):
    """TRL before 0.16, OpenRLHF before 0.6.2 and VLM-R1 sample at a temperature and train at 1."""
    tree = load([preset]).tree
    hot = (tree.get("sampling") or {}).get("temperature", 1.0) != 1.0
    if hot and (tree.get("optimizer") or {}).get("lr", 0) > 0:
        assert "logp_temperature" in tree, f"{preset}: say logp_temperature, with its source"


@pytest.mark.sweep
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


@pytest.mark.sweep
@pytest.mark.parametrize("preset", CODE)
def test_a_critic_has_as_many_updates_as_its_policy(preset):
    config = load([preset])
    critic = (config.tree.get("callbacks") or {}).get("critic") or {}
    if "base/trainers/" in config.origins.get("callbacks.critic.updates", ""):
        assert critic["updates"] == config.tree["num_minibatches"], f"{preset}: callbacks.critic.updates"


def own_values_of(preset: str) -> dict[str, str]:
    """The "file:line" of each setting that is not its trainer's; of a phase that imitates demonstrations, the
    values of its optimizer, batches and aggregation."""
    config = load([preset])
    found = {
        path: origin for path, origin in settings_of(preset).items() if not path.startswith(NEEDS_NO_SOURCE)
    }
    for path, origin in config.origins.items():
        phase, _, slot = path.removeprefix("phases.").partition(".")
        if not path.startswith("phases.") or slot.partition(".")[0] not in IN_A_PHASE:
            continue
        imitates = at(config.tree, f"phases.{phase}").get("policy_loss") == {"name": "zero_loss"}
        if not (imitates and slot.partition(".")[0] in ("advantage", "policy_loss")):
            found[path] = origin
    return {path: origin for path, origin in found.items() if "base/trainers/" not in origin}


@pytest.mark.sweep
@pytest.mark.parametrize("preset", CODE)
def test_a_phase_that_imitates_states_its_own_optimizer(preset):
    """It is another script, of another trainer: what it leaves out would be the rate, the momentum, the
    schedule, the clip and the mean over tokens of reinforcement learning."""
    config = load([preset])
    for name, phase in (config.tree.get("phases") or {}).items():
        if (phase or {}).get("policy_loss") == {"name": "zero_loss"}:
            missing = IMITATION - set(phase.get("optimizer") or {})
            assert not missing, f"{preset}: phases.{name}.optimizer leaves out {', '.join(sorted(missing))}"
            if any((term or {}).get("name") == "nll" for term in phase["loss_terms"].values()):
                assert phase.get("loss_aggregation"), f"{preset}: phases.{name}.loss_aggregation"


def is_ours(path: str, ours: dict[str, str]) -> bool:
    """Whether `about.ours` names a setting, or the plug-in that it belongs to."""
    return any(path == key or path.startswith(f"{key}.") for key in ours)


@pytest.mark.sweep
@pytest.mark.parametrize("preset", CODE)
def test_every_setting_has_a_source(preset):
    """A source names its place: a file, a section, the script; or says that the value has no effect."""
    ours = about_of(preset).get("ours") or {}
    for path, origin in own_values_of(preset).items():
        comment = comment_of(origin)
        assert comment, f"{preset}: {path} ({origin}) has no source"
        if OURS.search(comment):
            inner = any(
                key.startswith(f"{path}.") for key in ours
            )  # the comment of a block with one such value
            assert (
                is_ours(path, ours)
                or inner
                or any(key.rpartition(".")[0] == path.rpartition(".")[0] for key in ours)
            ), f"{preset}: {path} is ours ({origin}); name it in about.ours with the reason"
        else:
            assert comment.startswith(NO_EFFECT) or PLACE.search(comment), (
                f"{preset}: {path} ({origin}): {comment!r} names no file, section or script"
            )


@pytest.mark.sweep
@pytest.mark.parametrize("preset", CODE)
def test_every_weight_of_a_reward_has_a_source(preset):
    """The weights are part of the objective, but for 1, which is what a reward has by itself."""
    config = load([preset])
    for name, reward in (config.tree.get("rewards") or {}).items():
        if isinstance(reward, dict) and reward.get("weight", 1.0) not in (0.0, 1.0):
            comment = comment_of(config.origins[f"rewards.{name}.weight"])
            assert comment, f"{preset}: rewards.{name}.weight has no source"


BESIDE = {"soft_overlong": "factor", "laser_2": "bonus"}  # what shapes by length: the field of its size


@pytest.mark.sweep
@pytest.mark.parametrize("preset", CODE)
def test_a_length_penalty_states_its_factor(preset):
    """What it is beside: 1 and 0, or 1 and -1, where it weighs half as much."""
    shaping = load([preset]).tree.get("reward_shaping") or {}
    for name, spec in shaping.items():
        field = BESIDE.get(spec["name"]) if spec else None
        assert not field or field in spec, f"{preset}: reward_shaping.{name} needs {field}, and its source"


VERL = ("base/trainers/verl_", "base/trainers/easyr1")
EXPERIMENTS = sorted(f"experiments/{path.stem}" for path in (ROOT / "experiments").glob("*.yaml"))
REAL_SIZE = [name for name in EXPERIMENTS if not name.endswith("_lab")]  # the lab has its own optimizer


@pytest.mark.sweep
@pytest.mark.parametrize("name", [*PRESETS, *REAL_SIZE])
def test_a_warm_up_of_verl_counts_whole_steps(name):
    """verl moves its schedule once a step (verl/workers/fsdp_workers.py, update_actor), and `warmup` counts
    updates: ten steps of four updates are 40."""
    config = load([name])
    if not any(place in origin for origin in config.origins.values() for place in VERL):
        return
    for phase in config.phases or {"": {}}:
        settings = config.phase(phase) if phase else config.tree
        warmup = (settings.get("optimizer") or {}).get("warmup", 0)
        updates = settings["num_minibatches"] * settings.get("ppo_epochs", 1)
        assert warmup < 1 or warmup % updates == 0, f"{name}: warmup {warmup} is no whole steps of {updates}"


@pytest.mark.sweep
@pytest.mark.parametrize("preset", CODE)
def test_at_most_two_settings_are_ours(preset):
    ours = about_of(preset).get("ours") or {}
    assert len(ours) <= MAX_OURS, (
        f"{preset}: {', '.join(ours)} are ours: that is `fidelity: paper` or `approximate`"
    )
    assert all(isinstance(reason, str) and reason for reason in ours.values())
    paths = own_values_of(preset)
    named = [
        path
        for path, origin in paths.items()
        if OURS.match(comment_of(origin)) and isinstance(at(load([preset]).tree, path), int | float)
    ]
    assert len(named) <= MAX_OURS, f"{preset}: the values of {', '.join(named)} are ours"
    for key in ours:
        assert key == "trainer" or any(path == key or path.startswith(f"{key}.") for path in paths), (
            f"{preset}: about.ours names {key}, which it does not set"
        )


LAB = [name for name in EXPERIMENTS if name.endswith("_lab")]


@pytest.mark.parametrize("name", LAB)
def test_the_lab_keeps_its_own_learning_rate(name):
    """A random tiny model learns nothing at a paper's 1e-6: base/lab's phases win over what a preset
    states."""
    config = load([name])
    for phase in config.phases:
        assert config.phase(phase)["optimizer"]["lr"] >= 1e-4, f"{name}: phase {phase}"
