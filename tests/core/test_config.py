import pytest
import yaml

from vlrl.config import load
from vlrl.plugins.registry import ConfigError


@pytest.fixture
def write(tmp_path):
    def _write(name, text):
        path = tmp_path / f"{name}.yaml"
        path.write_text(text)
        return path

    return _write


def test_extends_merges_maps_and_replaces_scalars_and_lists(write):
    write("a", "steps: 5\noptimizer: {lr: 0.1, betas: [0.9, 0.95]}\nwatch: {trackers: [x, y]}\n")
    write("b", "optimizer: {lr: 0.2}\n")
    top = write("top", "extends: [a, b]\nwatch: {trackers: [z]}\n")
    assert load([top]).tree == {
        "steps": 5,
        "optimizer": {"lr": 0.2, "betas": [0.9, 0.95]},
        "watch": {"trackers": ["z"]},
    }


def test_files_and_overrides_merge_left_to_right(write):
    a, b = write("a", "steps: 1\nseed: 1\n"), write("b", "steps: 2\n")
    config = load([a, b], ["seed=7", "optimizer.lr=1e-3", "output=runs/x"])
    assert config.tree == {"steps": 2, "seed": 7, "optimizer": {"lr": 0.001}, "output": "runs/x"}
    assert config.origins["seed"] == "command line" and config.origins["steps"] == f"{b}:1"


def test_null_removes_and_a_new_name_replaces_the_whole_plugin(write):
    write("a", "replay: {name: x, size: 3}\nrewards: {acc: {name: iou, power: 2}, fmt: {name: tag_format}}\n")
    top = write("top", "extends: a\nreplay: null\nrewards: {acc: {name: counting}, fmt: null}\n")
    assert load([top]).tree == {"rewards": {"acc": {"name": "counting"}}}
    same = write("same", "extends: a\nrewards: {acc: {name: iou, binary: true}}\n")
    assert load([same]).tree["rewards"]["acc"] == {"name": "iou", "power": 2, "binary": True}


@pytest.mark.parametrize("how", ["extended", "beside"])
def test_what_a_file_removes_is_gone_from_what_comes_before_it(write, how):
    task = write(
        "task",
        (
            "rewards: {acc: {name: iou}, fmt: {name: tag_format, weight: 0.1}}\nloss_terms: {kl: {name: "
            "kl}}\nreplay: {name: x}\n"
        ),
    )
    write("base", "rewards: {fmt: null}\nloss_terms: {'*': null, nll: {name: nll}}\nreplay: null\n")
    method = write("method", "extends: base\nsteps: 3\nreplay: {name: x, size: 2}\n")
    names = [write("top", "extends: [task, method]\n")] if how == "extended" else [task, method]
    assert load(names).tree == {
        "rewards": {"acc": {"name": "iou"}},
        "loss_terms": {"nll": {"name": "nll"}},
        "replay": {"name": "x", "size": 2},
        "steps": 3,
    }


def test_phases_override_and_null_inside_a_phase_removes_there_only(write):
    top = write("top", "steps: 9\nreplay: {name: x}\nphases: {one: {steps: 2, replay: null}, two: {}}\n")
    config = load([top])
    assert config.phases == ["one", "two"]
    assert config.phase("one") == {"steps": 2}
    assert config.phase("two") == {"steps": 9, "replay": {"name": "x"}}


@pytest.mark.parametrize(
    "text, value",
    [("1e-3", 0.001), ("-2E+4", -20000.0), (".5e1", 5.0), ("1e", "1e"), ("yes", True), ("1", 1)],
)
def test_scientific_numbers_are_numbers(text, value):
    assert load([], [f"about.x={text}"]).tree["about"]["x"] == value


@pytest.mark.parametrize(
    "text, message",
    [
        ("step: 3\n", "step: unknown key .* Did you mean 'steps'"),
        ("steps: 1\nsteps: 2\n", "'steps' is given twice"),
        ("[1, 2]\n", "expected a mapping"),
        ("steps: [\n", "not valid YAML"),
        ("extends: nowhere\n", "no config 'nowhere'"),
        ("extends: top\n", "circle"),
        ("phases: {rl: {seed: 3}}\n", "phases.rl.seed: this key is the same in all phases"),
        ("phases: {rl: {stepps: 3}}\n", "phases.rl.stepps: unknown key \\(.*\\). Did you mean 'steps'"),
    ],
)
def test_mistakes_are_named(write, text, message):
    with pytest.raises(ConfigError, match=message):
        load([write("top", text)])


def test_override_without_a_key_is_refused():
    with pytest.raises(ConfigError, match="expected key=value"):
        load([], ["=3"])


def test_a_dump_loads_to_the_same_tree(write):
    config = load([write("a", "optimizer: {lr: 1e-5}\nphases: {x: {replay: null}}\nreplay: {name: y}\n")])
    assert load([write("b", config.dump())]).tree == config.tree == yaml.safe_load(config.dump())
