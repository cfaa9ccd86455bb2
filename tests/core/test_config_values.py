"""What a user states holds in every phase: tables of words, and of the value that each phase then has."""

import pytest
import yaml

from vlrl.config import Config, at, load
from vlrl.plugins.registry import ConfigError

QUICKSTART = ["quickstart"]
LAB = ["base/rl", "base/lab", "models/tiny_qwen2_5_vl", "tasks/lab_counting", "methods/dapo"]
SINGLE = ["base/rl", "models/tiny_qwen2_5_vl", "tasks/lab_counting", "methods/dapo"]
PHASES = ("one", "two", "three", "four")
OWN = """
steps: 10
optimizer: {lr: 1.0e-3}
policy_loss: {name: ppo_clip, low: 0.1}
loss_terms: {kl: {name: kl, coef: 0.1}}
group_filters: {mixed: {name: dynamic_sampling}}
replay: {name: dph_rl}
phases:
  one: {steps: 3, optimizer: {lr: 1.0e-4, warmup: 2}, policy_loss: {high: 0.4},
        loss_terms: {"*": null, nll: {name: nll}}, group_filters: null}
  two: {steps: 4, optimizer: {lr: 2.0e-4}, policy_loss: {name: gspo, high: 0.5},
        sampling: {temperature: 0.3}, replay: null}
  three: {keeps: [steps, policy_loss], steps: 5, optimizer: {lr: 3.0e-4}, policy_loss: {name: zero_loss}}
  four: {}
"""  # noqa: E501


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own.yaml").write_text(OWN)
    return tmp_path / "own.yaml"


def values(config, path):
    """{phase: the value that holds in it, None where there is none}."""
    found = {phase: at(config.phase(phase), path) for phase in config.phases}
    return {phase: None if type(value) is object else value for phase, value in found.items()}


@pytest.mark.parametrize(
    "names, words, path, expected",
    [
        (LAB, ["steps=50"], "steps", {"cold_start": 25, "rl": 50}),
        (LAB, ["phases.rl.steps=50"], "steps", {"cold_start": 25, "rl": 50}),
        (LAB, ["phases.rl.steps=50", "steps=20"], "steps", {"cold_start": 25, "rl": 50}),
        (LAB, ["phases.cold_start.steps=5", "steps=20"], "steps", {"cold_start": 5, "rl": 20}),
        (LAB, ["steps=20", "steps=30"], "steps", {"cold_start": 25, "rl": 30}),
        (LAB, ["steps=20", "phases.cold_start.keeps=[]"], "steps", {"cold_start": 20, "rl": 20}),
        (LAB, ["group_size=4"], "group_size", {"cold_start": 1, "rl": 4}),
        (LAB, ["sampling.temperature=0.9"], "sampling.temperature", {"cold_start": 0.9, "rl": 0.9}),
        (
            LAB,
            ["policy_loss.high=0.3"],
            "policy_loss",
            {"cold_start": {"name": "zero_loss"}, "rl": {"name": "ppo_clip", "low": 0.2, "high": 0.3}},
        ),
        (LAB, ["loss_terms.kl={name: kl, coef: 0.1}"], "loss_terms.kl.coef", {"cold_start": None, "rl": 0.1}),
        (LAB, ["group_filters=null"], "group_filters", {"cold_start": None, "rl": None}),
        (LAB, ["data.train.counting.count=64"], "data.train.counting.count", {"cold_start": 64, "rl": 64}),
        (LAB, ["rewards.format.weight=0.5"], "rewards.format.weight", {"cold_start": 0.5, "rl": 0.5}),
        (QUICKSTART, ["optimizer.lr=1e-4"], "optimizer.lr", {"cold_start": 0.002, "rl": 0.0001}),
        (QUICKSTART, ["optimizer.lr=1e-4"], "optimizer.schedule", {"cold_start": "constant", "rl": "cosine"}),
        (
            QUICKSTART,
            ["optimizer.weight_decay=0.1"],
            "optimizer.weight_decay",
            {"cold_start": 0.1, "rl": 0.1},
        ),
        (QUICKSTART, ["sampling.temperature=0.9"], "sampling.temperature", {"cold_start": 0.9, "rl": 0.9}),
        (
            QUICKSTART,
            ["sampling={name: plain, max_tokens: 8}"],
            "sampling.max_tokens",
            {"cold_start": 8, "rl": 8},
        ),
        (QUICKSTART, ["prompts_per_step=4"], "prompts_per_step", {"cold_start": 32, "rl": 4}),
        (SINGLE, ["steps=7"], "steps", {"main": 7}),
        (SINGLE, ["optimizer.lr=1e-4"], "optimizer.lr", {"main": 0.0001}),
        (SINGLE, ["policy_loss={name: gspo}"], "policy_loss", {"main": {"name": "gspo"}}),
    ],
)
def test_a_value_of_the_command_line_holds_in_every_phase(names, words, path, expected):
    config = load(names, words)
    assert values(config, path) == expected
    reloaded = Config(yaml.safe_load(config.dump()))
    assert all(reloaded.phase(name) == config.phase(name) for name in config.phases)


@pytest.mark.parametrize(
    "words, path, expected",
    [
        (["steps=50"], "steps", {"one": 50, "two": 50, "three": 5, "four": 50}),
        (["phases.two.steps=7", "steps=50"], "steps", {"one": 50, "two": 7, "three": 5, "four": 50}),
        (["optimizer.lr=0.5"], "optimizer",
            {"one": {"lr": 0.5, "warmup": 2}, "two": {"lr": 0.5}, "three": {"lr": 0.5}, "four": {"lr": 0.5}}),
        (["optimizer={lr: 0.5, warmup: 9}"], "optimizer.warmup", {"one": 9, "two": 9, "three": 9, "four": 9}),
        (["policy_loss.low=0.9"], "policy_loss.low", {"one": 0.9, "two": 0.9, "three": None, "four": 0.9}),
        (["policy_loss.low=0.9"], "policy_loss.high", {"one": 0.4, "two": 0.5, "three": None, "four": None}),
        (["policy_loss={name: cispo, high: 1}"], "policy_loss.name",
            {"one": "cispo", "two": "cispo", "three": "zero_loss", "four": "cispo"}),
        (["policy_loss={name: cispo}"], "policy_loss", {"one": {"name": "cispo"}, "two": {"name": "cispo"},
            "three": {"name": "zero_loss"},
                                                        "four": {"name": "cispo"}}),
        (["loss_terms={'*': null, kl: {name: kl}}"], "loss_terms",
            {name: {"kl": {"name": "kl"}} for name in PHASES}),
        (["loss_terms.kl={name: kl, coef: 0.7}"], "loss_terms.kl.coef", dict.fromkeys(PHASES, 0.7)),
        (["loss_terms.kl={name: kl, coef: 0.7}"], "loss_terms.nll.name",
            {"one": "nll", "two": None, "three": None, "four": None}),
        (["replay=null"], "replay", dict.fromkeys(PHASES)),
        (["replay={name: dph_rl}"], "replay.name", dict.fromkeys(PHASES, "dph_rl")),
        (["group_filters.solved={name: accuracy_range}"], "group_filters.solved.name",
            dict.fromkeys(PHASES, "accuracy_range")),
        (["group_filters.solved={name: accuracy_range}"], "group_filters.mixed.name",
         {"one": None, "two": "dynamic_sampling", "three": "dynamic_sampling", "four": "dynamic_sampling"}),
        (["sampling={name: plain}"], "sampling", {name: {"name": "plain"} for name in PHASES}),
    ],
)  # fmt: skip
def test_nested_values_replacements_and_removals(own, words, path, expected):
    base = "sampling: {name: mixed_temperatures}\n" if path == "sampling" else ""
    own.write_text(base + own.read_text())
    assert values(load([own], words), path) == expected


@pytest.mark.parametrize(
    "text, path, expected",
    [
        ("extends: quickstart\nsteps: 9\n", "steps", {"cold_start": 25, "rl": 9}),
        ("extends: quickstart\nsteps: 9\nphases: {rl: {steps: 3}}\n", "steps", {"cold_start": 25, "rl": 3}),
        ("extends: quickstart\noptimizer: {lr: 0.5}\n", "optimizer.lr", {"cold_start": 0.002, "rl": 0.5}),
        (
            "extends: [base/rl, base/lab]\nprompts_per_step: 2\n",
            "prompts_per_step",
            {"cold_start": 32, "rl": 2},
        ),
        ("extends: parent\n", "steps", {"cold_start": 25, "rl": 6}),
        ("extends: parent\nphases: {cold_start: {steps: 1}}\n", "steps", {"cold_start": 1, "rl": 6}),
    ],
)
def test_a_value_of_a_file_of_ones_own_holds_over_what_it_extends(tmp_path, text, path, expected):
    (tmp_path / "parent.yaml").write_text("extends: quickstart\nsteps: 6\n")
    (tmp_path / "mine.yaml").write_text(text)
    assert values(load([tmp_path / "mine.yaml"]), path) == expected
    assert values(load(["base/rl", "base/lab", tmp_path / "mine.yaml"]), path) == expected


def test_shipped_configs_keep_their_order():
    tree = load(LAB).tree
    assert tree["group_size"] == 16 and tree["phases"]["rl"] == {
        "steps": 200, "prompts_per_step": 32, "sampling": {"temperature": 1.3}, "optimizer": {"lr": 1e-3,
            "warmup": 5, "schedule": "cosine"},
    }  # fmt: skip


def test_what_a_phase_keeps_is_said():
    config = load(LAB, ["steps=50", "policy_loss.high=0.3", "seed=3"])
    said = [str(kept) for kept in config.kept]
    assert len(said) == 2 and all(
        text.startswith("phase cold_start keeps its own ") and "base/lab.yaml:" in text for text in said
    )
    assert (
        "keeps its own steps (25)" in said[0] and "keeps its own policy_loss ({name: zero_loss})" in said[1]
    )
    assert load(LAB, ["steps=50", "phases.cold_start.steps=5"]).kept == []


def test_origins_are_those_of_the_values_that_hold(own):
    config = load([own], ["policy_loss.low=0.9", "optimizer={lr: 0.5}", "loss_terms.kl={name: kl}"])
    assert (
        config.origins["optimizer.lr"] == "command line" and "phases.one.optimizer.lr" not in config.origins
    )
    assert config.origins["phases.two.policy_loss.low"] == "command line" and config.origins[
        "phases.two.policy_loss.high"
    ].startswith(str(own))
    assert config.origins["phases.one.loss_terms.kl.name"] == "command line"


@pytest.mark.parametrize(
    "names, words, message",
    [
        (QUICKSTART, ["steps=abc"], r"steps: 'abc' is not valid.*int.*command line"),
        (QUICKSTART, ["steps=0"], "steps is 0; allowed: 1 to .*command line"),
        (QUICKSTART, ["optimizer.lr=high"], r"optimizer\.lr: 'high' is not valid.*command line"),
        (QUICKSTART, ["optimizer.lrr=1"], r"optimizer\.lrr: unknown field .*'lr'"),
        (QUICKSTART, ["watch=3"], "watch"),
        (QUICKSTART, ["lr=1e-5"], r"lr: unknown key .*Did you mean 'optimizer\.lr'"),
        (
            QUICKSTART,
            ["phases.rl.lr=1e-5"],
            r"phases\.rl\.lr: unknown key .*Did you mean 'phases\.rl\.optimizer\.lr'",
        ),
        (QUICKSTART, ["temperature=1"], r"TRL's 'temperature' is 'sampling\.temperature' here"),
        (QUICKSTART, ["learning_rat=1"], "learning_rat: unknown key"),
        (
            QUICKSTART,
            ["sampling.temprature=1"],
            r"sampling\.temprature: unknown field of 'plain'. Did you mean 'temperature'\? \(command line\)",
        ),
        (QUICKSTART, ["rewards.digts.weight=2"], r"no plug-in at rewards\.digts.*Did you mean 'digits'"),
        (QUICKSTART, ["data.train.digits.cuont=2"], r"data\.train\.digits\.cuont: unknown field .*'count'"),
        (QUICKSTART, ["phases.rll.steps=4"], r"no phase named 'rll'. Did you mean 'rl'"),
        (SINGLE, ["phases.rl.steps=4"], "has no phases; write steps=4"),
        (QUICKSTART, ["phases.rl.keeps=7", "steps=3"], r"phases\.rl\.keeps: expected a list of keys"),
        (
            QUICKSTART,
            ["phases.rl.keeps={steps: 1}", "steps=3"],
            r"phases\.rl\.keeps: expected a list of keys",
        ),
        (QUICKSTART, ["phases.rl.keeps=[[steps]]"], r"keeps: unknown key \['steps'\]"),
        (QUICKSTART, ["phases.rl.keeps=[stepps]"], "keeps: unknown key 'stepps'. Did you mean 'steps'"),
        (
            QUICKSTART,
            ["phases.rl.keeps=steps"],
            r"expected a list of keys, like \[steps, optimizer\], or all",
        ),
        (
            QUICKSTART,
            ["phases.rl.keeps=all", "prompts_per_step=3"],
            r"every phase keeps its own .*phases\.rl\.prompts_per_step=",
        ),
        (QUICKSTART, ["phases=3"], "expected a map from names to settings"),
        (QUICKSTART, ["phases="], "phases: expected a map from names to settings.*got ''"),
        (
            QUICKSTART,
            ["phases=1e+300", "phases.rl.steps=4"],
            "phases: expected a map from names to settings.*got '1e",
        ),
        (QUICKSTART, ["phases.rl=x", "steps=4"], "phases.rl: expected a map from names to settings.*got 'x'"),
        (
            LAB,
            ["phases.cold_start.keeps=[]", "policy_loss.high=0.3"],
            r"unknown field of 'zero_loss'.*phase 'cold_start'.*phases\.rl\.policy_loss\.high=0\.3",
        ),
    ],
)
def test_a_value_that_cannot_hold_is_refused_with_the_fix(names, words, message):
    with pytest.raises(ConfigError, match=message):
        load(names, words)


def test_plugins_of_several_files_append_relative_to_their_file(tmp_path, monkeypatch):
    for place in ("a/one.py", "b/two.py", "three.py"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text("")
    (tmp_path / "a" / "a.yaml").write_text("plugins: [one.py]\n")
    (tmp_path / "b" / "b.yaml").write_text("extends: ../a/a.yaml\nplugins: two.py\n")
    monkeypatch.chdir(tmp_path)
    config = load(["a/a.yaml", "b/b.yaml"], ["plugins=[three.py]"])
    assert config.tree["plugins"] == [str(tmp_path / place) for place in ("a/one.py", "b/two.py", "three.py")]
    (tmp_path / "again.yaml").write_text(config.dump())
    monkeypatch.chdir("/")
    assert load([tmp_path / "again.yaml"]).tree == config.tree
    with pytest.raises(
        ConfigError, match=r"plugins: no file .*a/tow\.py.*a\.yaml:1.*Did you mean|plugins: no file"
    ):
        (tmp_path / "a" / "a.yaml").write_text("plugins: [tow.py]\n")
        load([tmp_path / "a" / "a.yaml"])


def test_a_misspelt_file_suggests_one_of_its_folder(tmp_path, monkeypatch):
    (tmp_path / "clock.yaml").write_text("steps: 3\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"no config 'clokc\.yaml'. Did you mean 'clock\.yaml'"):
        load(["clokc.yaml"])
    with pytest.raises(ConfigError, match="Did you mean '.*clock.yaml'"):
        load([tmp_path / "clokc.yaml"])
    with pytest.raises(ConfigError, match="Did you mean 'methods/dapo'"):
        load(["methods/dappo"])


@pytest.mark.parametrize(
    "text",
    [
        "a: 1e-3\nb: 2024-01-01\nc: [0x1f, 1_000, ~, yes, 'no', .inf]\n",
        "base: &x {k: [1, 2]}\nagain: *x\nlong: |\n  two\n  lines\nfold: >-\n  one\n  line\n",
        "a: 'ü €'\n'q:r': {x: , y: \"\\n\"}\n? key\n: value\n",
    ],
)
def test_both_parsers_give_the_same_values_and_lines(text, monkeypatch):
    from vlrl.config import yaml as reading

    fast = reading._read.__wrapped__(text, "f", True)
    monkeypatch.setattr(reading, "_Fast", reading.Loader)
    assert fast == reading._read.__wrapped__(text, "f", True) and fast[0]
