"""A run goes on with its own config and its own rows: what else changed is told or refused, never taken
without a word."""

import dataclasses
import json
import logging

import pytest
from reliability_kit import config

from vlrl.config.config import Config
from vlrl.config.merging import at, leaves
from vlrl.config.settings import Optimizer, Settings, Watch
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.checkpoints import checkpoint
from vlrl.trainer.checkpoints.changes import config_changes
from vlrl.training import train

ROWS = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(40)]


def own_rows(path, rows=ROWS):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"data.train={{'*': null, mine: {{name: files, path: {path}}}}}"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """(folder of a run, its data file)."""
    folder = tmp_path_factory.mktemp("resume")
    train(config(folder / "run", own_rows(folder / "rows.jsonl"), "steps=2"), live=False)
    return folder / "run", folder / "rows.jsonl"


def changes(finished, *more):
    run, rows = finished
    words = [f"data.train={{'*': null, mine: {{name: files, path: {rows}}}}}", "steps=2", *more]
    return config_changes(checkpoint.folders(run)[-1], config(run, *words), "main")


REFUSED = [
    "optimizer.lr=1e-3", "seed=1", "rewards.any.weight=-1", "optimizer.kind=sgd", "optimizer.schedule=cosine",
    "sampling.temperature=0.5", "policy_loss.low=0.1", "advantage.scale=none", "group_size=4",
    "loss_terms.kl={name: kl}", "policy.tiny.hidden=32", "loop=one_step_off", "prompt_sampler=in_order",
    "trainable={name: lora, r: 2}", "ppo_epochs=2", "rewards.more={name: exact}", "data.train.mine.task=sum",
    "token_weights.tis={name: tis}", "prompt_template.style=answer", "max_prompt_tokens=100",
]  # fmt: skip
TOLD = [
    "steps=5", "watch.checkpoint_every=1", "threads=2", "micro_batch_tokens=100", "error_limit=0.5",
    "metrics.lengths={name: accuracy}", "data.heldout.sums.count=3", "watch.keep=1",
    "engine.prefill_tokens=99",
    "prompts_per_step=4",
    "data.train.mine.path=elsewhere.jsonl",
]  # fmt: skip
SAME = [
    "optimizer.eps=1e-8",
    "engine=hf",
    "num_minibatches=1",
    "sampling.top_p=1.0",
    "loop=synchronous",
    "seed=0",
]


@pytest.mark.parametrize("word", REFUSED)
def test_what_would_be_another_run_is_refused(finished, word):
    key = word.partition("=")[0]
    with pytest.raises(ConfigError, match=r"resume: a run cannot go on with another ") as failure:
        changes(finished, word)
    assert key.split(".")[0] in str(failure.value) and "policy.model=" in str(failure.value)


@pytest.mark.parametrize("word", TOLD)
def test_what_may_change_is_told(finished, word):
    key = word.partition("=")[0]
    told = changes(finished, word)
    assert len(told) >= 1 and all(line.startswith(f"resume: changed: {key}") for line in told)


@pytest.mark.parametrize("word", SAME)
def test_a_default_that_is_written_out_is_no_change(finished, word):
    assert changes(finished, word) == []


def test_no_setting_and_no_field_changes_without_a_word(finished):
    run, rows = finished
    own = config(run, f"data.train={{'*': null, mine: {{name: files, path: {rows}}}}}", "steps=2")
    folder = checkpoint.folders(run)[-1]
    paths = [path for path in leaves(own.tree) if not path.startswith(("output", "about"))]
    paths += [f.name for f in dataclasses.fields(Settings) if f.name not in ("optimizer", "watch")]
    paths += [f"optimizer.{f.name}" for f in dataclasses.fields(Optimizer)]
    paths += [f"watch.{f.name}" for f in dataclasses.fields(Watch)]
    silent = []
    for path in dict.fromkeys(paths):
        parents, _, last = path.rpartition(".")
        changed = json.loads(json.dumps(own.tree))
        place = changed
        for name in filter(None, parents.split(".")):
            place = place.setdefault(name, {})
        place[last] = "another" if at(own.tree, path) != "another" else "yet another"
        try:
            told = config_changes(folder, Config(changed), "main")
        except ConfigError as error:
            told = [str(error)]
        silent += [] if any(path in line for line in told) else [path]
    assert len(paths) > 50 and not silent


def test_other_rows_are_refused_before_the_model_is_loaded(finished, caplog):
    run, rows = finished
    words = [f"data.train={{'*': null, mine: {{name: files, path: {rows}}}}}", "steps=3"]
    before, metrics = rows.read_text(), (run / "metrics.jsonl").read_text()
    for other in (ROWS[:-1], ROWS[::-1], [{**ROWS[0], "answer": "2"}, *ROWS[1:]], [*ROWS, ROWS[0]]):
        own_rows(rows, other)
        with pytest.raises(ConfigError, match=r"resume: data\.train\.mine has other rows than when"):
            train(config(run, *words), resume=True, live=False)
    assert (run / "metrics.jsonl").read_text() == metrics
    rows.write_text(before)
    with caplog.at_level(logging.WARNING, "vlrl"):
        assert train(config(run, *words), resume=True, live=False)["steps"] == 3
    assert "resume: changed: steps: 2 -> 3" in caplog.text
