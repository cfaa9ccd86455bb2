"""GRPOTrainer: rows, rewards, models and settings in all their forms; trained, evaluated and saved with a
tiny model."""

import html
import json

import pytest
import yaml
from PIL import Image
from vlrl_data.sources.memory import RowsInMemory

from vlrl import GRPOTrainer
from vlrl.api import BatchFunctionReward, FunctionReward, columns_of, source_of
from vlrl.config import Config, load
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Engine, Reward, Source
from vlrl.types import Row

TEXT = {"name": "text", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 32}}
PICTURES = {
    "name": "qwen2_5_vl",
    "tiny": {
        "hidden": 32,
        "layers": 2,
        "heads": 2,
        "kv_heads": 1,
        "intermediate": 64,
        "vision_hidden": 32,
        "vision_layers": 1,
    },
}
ROWS = [{"question": f"What is {i} + 1?", "answer": str(i + 1), "level": i} for i in range(6)]
FEW = {
    "steps": 2,
    "group_size": 2,
    "prompts_per_step": 2,
    "sampling.max_tokens": 4,
    "optimizer": {"lr": 1e-3},
    "watch.live": False,
}


def digits(text, answer, **row):
    return sum(char.isdigit() for char in text) / max(len(text), 1)


def length(completions, level, **columns):
    return [float(len(text)) + value for text, value in zip(completions, level, strict=True)]


def trainer(tmp_path, **changes):
    given = {
        "model": TEXT,
        "reward_funcs": [digits],
        "train_dataset": ROWS,
        "args": {**FEW, "output": str(tmp_path / "run")},
    }
    return GRPOTrainer(**{**given, **changes})


def test_train_evaluate_save(tmp_path):
    made = trainer(tmp_path, reward_funcs=[digits, length], reward_weights=[1.0, 0.1], eval_dataset=ROWS[:2])
    before = made.evaluate()
    summary = made.train()
    assert (
        set(before) == {"default"} and summary["steps"] == 2 and set(summary["heldout"]) == {"start", "final"}
    )
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 2 and all("reward/digits" in line and "reward/length" in line for line in lines)
    assert made.evaluate(ROWS) == {"default": pytest.approx(made.evaluate(ROWS)["default"])}
    folder = made.save(tmp_path / "out")
    assert (folder / "model.safetensors").is_file() and (folder / "config.json").is_file()
    written = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert written["rewards"]["digits"]["name"] == "function" and written["steps"] == 2
    with pytest.raises(ConfigError, match="already holds a run"):
        trainer(tmp_path).train()
    assert trainer(tmp_path, model=str(folder)).train(overwrite=True)["steps"] == 2, (
        "what was saved is a model"
    )


def test_a_source_brings_its_reward(tmp_path):
    """`reward_funcs` may be left out where the rows' source has a reward of its own, and only there."""

    class Sums(Source):
        name = "sums_with_reward"
        own_rewards = {"sum": {"name": "exact"}}

        def __call__(self):
            return [Row(id=str(i), question=f"{i} + 1", answer=str(i + 1), task="sum") for i in range(4)]

    made = trainer(tmp_path, reward_funcs=None, train_dataset=Sums())
    assert list(made.plan.phases[0].rewards) == ["sum"] and made.train()["steps"] == 2
    with pytest.raises(ConfigError, match="reward_funcs: none is given"):
        trainer(tmp_path, reward_funcs=None)
    with pytest.raises(ConfigError, match="train_dataset: NoneType without rows"):
        GRPOTrainer(TEXT)


def test_a_notebook_shows_the_report(tmp_path):
    made = trainer(tmp_path)
    assert "not trained yet" in made._repr_html_() and "<iframe" not in made._repr_html_()
    made.train()
    shown = made._repr_html_()
    assert shown.startswith("<iframe srcdoc=") and 'sandbox="allow-scripts"' in shown
    page = html.unescape(shown.partition('srcdoc="')[2].partition('"')[0])
    assert page == (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_pictures_with_a_shipped_reward(tmp_path):
    rows = [
        {"question": "Which colour?", "answer": "red", "image": Image.new("RGB", (28, 28), "red")}
        for _ in range(3)
    ]
    made = trainer(
        tmp_path, model=PICTURES, train_dataset=rows, reward_funcs={"right": "exact", "digits": digits}
    )
    assert made.train()["steps"] == 2 and list(made.plan.phases[0].rewards) == ["right", "digits"]


def test_a_datasets_dataset_a_file_a_source_and_rows(tmp_path):
    import datasets

    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in ROWS))
    dataset = datasets.Dataset.from_list(ROWS)
    dataset.save_to_disk(str(tmp_path / "saved"))
    for data in (
        ROWS,
        dataset,
        str(tmp_path / "rows.jsonl"),
        tmp_path / "rows.jsonl",
        tmp_path / "saved",
        iter(ROWS),
    ):
        rows = list(source_of(data, "train_dataset")())
        assert [row.answer for row in rows] == [row["answer"] for row in ROWS] and rows[3].meta["level"] == 3
    rows = [Row("a", "Pick", answer="1")]
    assert source_of(rows, "x")() == rows and source_of(RowsInMemory(rows=rows), "x").rows is rows
    assert source_of({"name": "lab_arithmetic", "count": 3}, "x").count == 3


def test_functions_read_columns_by_name():
    from vlrl.types import Group, Prompt, Rollout

    row = Row("a", "Q", answer="7", task="t", meta={"level": 2})
    prompt = Prompt(row=row, messages=())
    rollouts = [Rollout(prompt=prompt, ids=[1] * n, text="7" * n, logp=[0.0] * n) for n in (1, 2)]
    reward = FunctionReward(function=lambda text, answer, level: float(text == answer) + level)
    assert reward(rollouts[0]) == 3.0 and reward(rollouts[1]) == 2.0 and reward.reads_answer
    seen = {}
    batch = BatchFunctionReward(
        function=lambda completions, **columns: seen.update(columns) or [len(text) for text in completions]
    )
    assert batch.score_group(Group(prompt, rollouts)) == [1, 2] and not batch.reads_answer
    assert (
        seen["level"] == [2, 2]
        and seen["prompts"] == ["Q", "Q"]
        and seen["completion_ids"] == [[1], [1, 1]]
        and seen["answer"] == ["7", "7"]
    )
    assert columns_of(row)["task"] == "t"


def test_settings_in_all_forms(tmp_path):
    a = trainer(tmp_path, args={**FEW, "output": str(tmp_path / "a"), "seed": 3}).config.tree
    b = trainer(
        tmp_path, args=[f"output={tmp_path / 'b'}", "seed=3", "optimizer.lr=1e-3", "steps=2"], method=["dapo"]
    ).config.tree
    assert (
        a["optimizer"]["lr"] == b["optimizer"]["lr"] == 1e-3
        and a["steps"] == b["steps"] == 2
        and a["seed"] == b["seed"] == 3
    )
    assert a["sampling"]["max_tokens"] == 4 and b["policy_loss"]["high"] == 0.28
    whole = load(["base/rl", "methods/rloo"], ["steps=2", f"output={tmp_path / 'c'}"])
    made = trainer(tmp_path, args=whole)
    assert made.config.tree["advantage"]["name"] == "rloo" and "rewards" not in whole.tree
    assert trainer(tmp_path, model="tiny_text").plan.family.name == "text"
    engine = build(Engine, "hf")
    assert (
        trainer(tmp_path, args={**FEW, "output": str(tmp_path / "d"), "engine": engine}).plan.engine is engine
    )
    family = trainer(tmp_path).plan.family
    assert trainer(tmp_path, model=family).plan.family is family


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model": "tiny_qwen"}, "model: no config, folder or hub id 'tiny_qwen'. Did you mean 'tiny_qwen"),
        ({"model": 3}, "model: 3 is no model"),
        ({"reward_funcs": []}, "reward_funcs: none is given"),
        ({"reward_funcs": ["iuo"]}, r"reward_funcs\[0\]: no reward named 'iuo'. Did you mean 'iou'"),
        ({"reward_funcs": [3]}, r"reward_funcs\[0\]: 3 is no reward"),
        ({"reward_funcs": [lambda completion: 1.0]}, r"takes \(completion\); it needs `text`"),
        (
            {"reward_funcs": [lambda text, levl: 1.0]},
            "takes 'levl', which rows of data.train.train do not have. Did you mean 'level'",
        ),
        ({"reward_funcs": [digits, digits]}, "two rewards are called 'digits'"),
        ({"reward_weights": [1.0, 2.0]}, "2 weights for 1 rewards"),
        ({"train_dataset": []}, "train_dataset: list without rows"),
        ({"train_dataset": ["a"]}, "a row is str, expected a dict"),
        ({"train_dataset": "nowhere.jsonl"}, "no file or folder 'nowhere.jsonl'"),
        ({"train_dataset": {"train": ROWS, "test": ROWS}}, r"a mapping of train, test; pass one split"),
        ({"train_dataset": [{"question": "x"}]}, "has no answer, which digits"),
        ({"args": {"learning_rate": 1e-5}}, r"TRL's 'learning_rate' is 'optimizer\.lr' here"),
        ({"args": {"stepps": 5}}, "stepps: unknown key .*Did you mean 'steps'"),
        ({"args": {"steps": "many"}}, "steps: 'many' is not valid"),
        ({"args": {"data": {}}}, "args.data: is given by train_dataset"),
        ({"args": 5}, "args: 5 are no settings"),
        ({"method": "dappo"}, "no config 'methods/dappo'. Did you mean 'methods/dapo'"),
    ],
)
def test_wrong_arguments(tmp_path, monkeypatch, changes, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        trainer(tmp_path, **changes)


def test_plugins_that_exist_are_taken_as_they_are():
    reward = FunctionReward(function=digits)
    assert build(Reward, reward) is reward and isinstance(build(Source, RowsInMemory(rows=[])), Source)
    dumped = yaml.safe_load(Config({"rewards": {"x": reward}, "trackers": ("a",)}).dump())
    assert dumped == {
        "rewards": {"x": {"name": "function", "weight": 1.0, "correct_at": 1.0}},
        "trackers": ["a"],
    }
