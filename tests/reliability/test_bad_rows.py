"""A row that fails at run time is left out, quarantined with file and line, counted, and replaced by another;
too many of them end the run."""

import json
import random
from dataclasses import dataclass

import pytest
from kit import open_run, warnings_of
from reliability_kit import config

from vlrl.methods.core.prompt_template import Chat
from vlrl.plugins.registry import register
from vlrl.plugins.stages import Source
from vlrl.services.failures import BadRowsError, OutOfMemoryError
from vlrl.services.files import read_jsonl
from vlrl.trainer.checkpoints import checkpoint
from vlrl.trainer.heldout import evaluate_run
from vlrl.trainer.step.loop import train_step
from vlrl.trainer.views import StepView
from vlrl.training import train
from vlrl.types import Media, MediaError, Row


@dataclass(frozen=True)
class Broken(Media):
    """A picture whose decoder raises."""

    error: Exception
    kind = "image"

    @property
    def key(self):
        return "broken"

    def check(self):
        pass

    def load(self):
        raise self.error


ERRORS = [
    KeyError("name"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
    RecursionError("deep"),
    ZeroDivisionError(),
    MediaError("cut"),
    OSError("odd"),
]


@register("test_template_that_raises")
@dataclass(frozen=True)
class TemplateThatRaises(Chat):
    """Raises on rows whose id begins with "bad"."""

    def __call__(self, row):
        if row.id.startswith("bad"):
            raise ERRORS[int(row.id[3:]) % len(ERRORS)]
        if row.id.startswith("memory"):
            raise MemoryError
        return super().__call__(row)


@register("test_rows_some_bad")
@dataclass(frozen=True, kw_only=True)
class SomeBad(Source):
    """Questions, of which `bad` make the template raise and one has a picture in a text policy."""

    good: int = 20
    bad: int = 2
    picture: bool = False
    memory: bool = False

    def __call__(self):
        rows = [Row(f"r{i}", f"What is {i}?", answer="7") for i in range(self.good)]
        rows += [Row(f"bad{i}", "What?", answer="7", origin=f"rows.jsonl:{i + 1}") for i in range(self.bad)]
        rows += [Row("picture", "What?", answer="7", images=(Broken(ValueError("bits")),))] * self.picture
        rows += [Row("memory", "What?", answer="7")] * self.memory
        return random.Random(0).sample(rows, len(rows))


def words(**fields):
    told = ", ".join(f"{name}: {value}" for name, value in fields.items())
    return [
        f"data.train.mine={{name: test_rows_some_bad, {told}}}",
        "prompt_template={name: test_template_that_raises}",
    ]


def test_the_step_goes_on_with_another_row(tmp_path):
    run = open_run(tmp_path, *words(good=20, bad=6, picture="true"), "row_error_limit=0.5")
    dropped = 0.0
    for _ in range(14):  # more than two epochs
        metrics = train_step(run).metrics
        assert metrics["groups"] == 4
        dropped += metrics.get("data/dropped", 0.0)
    assert run.bad_rows.bad == dropped >= 14 and run.bad_rows.drawn == dropped + sum(4 for _ in range(14))
    run.bad_rows.write(run.accelerator, run.output)
    lines = read_jsonl(tmp_path / "quarantine.jsonl")
    assert sorted(line["id"] for line in lines) == [*(f"bad{i}" for i in range(6)), "picture"]  # each once
    for line in lines:
        if line["id"] != "picture":
            place = int(line["id"][3:])
            assert (
                line["location"] == f"rows.jsonl:{place + 1}"
                and type(ERRORS[place]).__name__ in line["reason"]
            ) or line["reason"] == "cut"
    said = warnings_of(run)
    assert (
        any("row 'bad1' (rows.jsonl:2) was left out: UnicodeDecodeError" in line for line in said)
        and len(said) == 7
    )
    folder = checkpoint.save(run)
    assert checkpoint.read_state(folder)["bad_rows"] == {"drawn": run.bad_rows.drawn, "bad": run.bad_rows.bad}


def test_too_many_bad_rows_end_the_run_with_one_line(tmp_path):
    output = tmp_path / "run"
    mine = config(
        output,
        "data.train=null",
        "data.heldout=null",
        *words(good=10, bad=30),
        "max_refill_rounds=50",
        "steps=30",
    )
    with pytest.raises(BadRowsError) as caught:
        train(mine, live=False)
    said = str(caught.value)
    assert (
        "over the share that row_error_limit allows (0.1)" in said
        and "rows.jsonl:" in said
        and caught.value.exit_code == 65
    )
    assert len(read_jsonl(output / "quarantine.jsonl")) >= 5  # also those of the step that was not finished


def test_running_out_of_memory_is_no_fault_of_the_row(tmp_path):
    output = tmp_path / "run"
    mine = config(
        output, "data.train=null", "data.heldout=null", *words(good=2, bad=0, memory="true"), "steps=30"
    )
    with pytest.raises(OutOfMemoryError, match=r"step \d+, vlrl/.*out of memory.*--resume"):
        train(mine, live=False)


def test_bad_heldout_rows_are_errors_of_the_evaluation(tmp_path):
    run = open_run(tmp_path, *words(), "data.heldout.mine={name: test_rows_some_bad, good: 5, bad: 3}")
    result = evaluate_run(StepView.between_steps(run))
    assert result.errors == {"default": 3} and set(result.accuracy) == {"default"}
    assert any("3 of 8 rows could not be scored" in line for line in warnings_of(run))


def test_a_resume_lists_each_bad_row_once_and_keeps_counting(tmp_path):
    output = tmp_path / "run"
    mine = [output, "data.train=null", "data.heldout=null", *words(good=6, bad=2), "row_error_limit=0.9"]
    train(config(*mine, "steps=8"), live=False)
    before = checkpoint.read_state(checkpoint.folders(output)[-1])["bad_rows"]
    lines = (output / "quarantine.jsonl").read_text()
    for folder in checkpoint.folders(output)[2:]:
        (folder / "config.json").unlink()
    train(config(*mine, "steps=8"), resume=True, live=False)
    assert checkpoint.read_state(checkpoint.folders(output)[-1])["bad_rows"] == before and before["bad"] >= 3
    assert sorted(json.loads(line)["id"] for line in lines.splitlines()) == ["bad0", "bad1"]
    said = [
        row["message"].split(" (")[0].split(" was")[0]
        for row in read_jsonl(output / "events.jsonl")
        if "was left out" in row.get("message", "")
    ]
    assert sorted(said) == [
        "row 'bad0'",
        "row 'bad1'",
    ]  # both were drawn before the checkpoint, and again after it
    assert (output / "quarantine.jsonl").read_text() == lines
