"""The probes that ask a model, on the tiny one: what they read of it, and what the commands print."""

import json
from dataclasses import replace

import pytest
import torch
from scipy.spatial.distance import jensenshannon
from typer.testing import CliRunner

from vlrl.plugins.registry import ConfigError
from vlrl.probes import hierarchy, inference, self_prm, shortcuts, sparkle
from vlrl.probes.cli import app
from vlrl.probes.probed_model import ProbedModel, accuracy

TINY = ["models/tiny_text", "seed=3", "threads=1"]


def scripted(task, *options):
    """The tiny model on a task with a policy that writes by a script."""
    return [*TINY, f"tasks/{task}", "engine={name: scripted}", "engine.form=1.0", "engine.long=0.0", *options]


def test_a_subject_asks_its_held_out_rows():
    with ProbedModel(scripted("gen_planned", "engine.skill=1.0", "engine.spread=0.0"), rows=6) as subject:
        assert len(subject.rows) == 6 and all("heldout" in row.id for row in subject.rows)
        groups = subject.ask([subject.prompt(row) for row in subject.rows], 3, 1.0)
        assert [len(group) for group in groups] == [3] * 6 and accuracy(groups) > 0.9
        (unscored,) = subject.write([subject.prompt(subject.rows[0], "Another question?")])
        assert "Another question?" in unscored.prompt.text and not unscored.rollouts[0].rewards


def test_inference_methods_share_one_budget():
    found = inference.measure(scripted("gen_planned", "engine.skill=0.6"), "", 4, 4, [1.0], 48)
    assert [row[0] for row in found.rows] == list(inference.METHODS)
    assert all(0 <= row[3] <= row[2] <= row[4] <= 1 for row in found.rows)
    assert "each method with 4 samples" in found.statement and "looks better than it is" in found.statement


def test_self_prm_says_how_good_its_verdicts_are():
    found = self_prm.measure(scripted("gen_planned", "engine.skill=0.5"), [""], 4, 4, 1.0)
    (row,) = found.rows
    assert 0 <= row[1] <= 1 and 0 <= row[2] <= 1 and "against majority voting" in found.statement


def test_sparkle_sees_that_a_plan_helps():
    """The policy is right where the prompt shows a plan, and wrong elsewhere."""
    right, wrong = "<think>.</think><answer>{answer}</answer>", "<answer>{wrong}</answer>"
    lines = f"engine.lines={json.dumps({'Follow this plan': [right], '': [wrong]})}"
    found = sparkle.measure(scripted("gen_planned", lines), [""], 8)
    for row in found.rows:
        assert row[2:] == [0.0, 1.0, 0.0, 0.0]
    assert (
        "plan helps (+100.0%, 95% interval +100.0% to +100.0%: not told from chance by 4" in found.statement
    )
    with pytest.raises(ConfigError, match="no row has meta.plan"):
        sparkle.measure(scripted("lab_arithmetic"), [""], 2)


def test_hierarchy_of_one_model_with_itself(monkeypatch):
    lines = 'engine.lines={"Walk the hierarchy": ["{target}"], "": ["<answer>{wrong}</answer>"]}'
    found = hierarchy.measure(scripted("gen_hierarchy", lines), "", "", 4)
    plain, structured = found.rows[:2]
    assert structured[2] == 1.0 and structured[3] > 0.9 and plain[2] < 1.0
    assert found.numbers["cosine"]["query"] == pytest.approx([1.0] * 3)
    assert "no gap to explain" in found.statement
    with pytest.raises(ConfigError, match="no meta.path"):
        hierarchy.nodes(replace(subject_row(), meta={}))


def subject_row():
    return ProbedModel([*TINY, "tasks/gen_hierarchy"], rows=1).rows[0]


@pytest.fixture(scope="module")
def opened():
    with ProbedModel([*TINY, "tasks/gen_planned"], rows=2) as subject:
        yield subject


def test_readings_of_a_model(opened):
    policy, row = opened.session.policy, opened.rows[0]
    prompt, answer = opened.text_ids(row), policy.encode_text(row.answer)
    found, outputs = shortcuts.read(policy.model, prompt, answer)
    assert len(found.lens_L) == len(found.attention_L) == len(found.mlp_L) == 3
    # the divergence that the last layer's MLP makes, by scipy's distance
    head = policy.model.get_output_embeddings()
    with torch.no_grad():
        attention, mlp = (torch.softmax(head(part), -1).numpy() for part in outputs[-1])
    apart = [jensenshannon(p, q) for p, q in zip(attention, mlp, strict=True)]
    assert found.mlp_L[-1] == pytest.approx(sum(apart) / len(apart), rel=1e-3)
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([[*prompt, *answer]])).logits[0]
    # the lens of the last layer is the model's own distribution
    wanted = torch.softmax(logits[len(prompt) - 1].float(), -1)[answer[0]]
    assert found.lens_L[-1] == pytest.approx(float(wanted), rel=1e-4)


def test_patches_show_the_part_that_brings_the_answer(opened):
    """What another model wrote into the MLP of the second layer points at the answer."""
    policy, row = opened.session.policy, opened.rows[0]
    prompt, answer = opened.text_ids(row), policy.encode_text(row.answer)
    _, own = shortcuts.read(policy.model, prompt, answer)
    assert shortcuts.patched(policy.model, prompt, answer, own) == (
        pytest.approx([0.0] * 3, abs=1e-4), pytest.approx([0.0] * 3, abs=1e-4),
    )  # fmt: skip
    attention, mlp = own[1]
    taught = mlp.clone()
    taught[len(prompt) - 1] += 20 * policy.model.get_output_embeddings().weight[answer[0]].detach()
    attentions, mlps = shortcuts.patched(policy.model, prompt, answer, [own[0], (attention, taught), own[2]])
    assert mlps[1] > 0.1 and [*attentions, mlps[0], mlps[2]] == pytest.approx([0.0] * 5, abs=1e-4)
    turned = mlp - (taught - mlp)
    _, mlps = shortcuts.patched(policy.model, prompt, answer, [own[0], (attention, turned), own[2]])
    assert mlps[1] < -0.1


def test_shortcuts_of_two_models(tmp_path):
    with ProbedModel([*TINY, "tasks/gen_planned"], rows=1) as subject:
        subject.session.policy.save(tmp_path / "first")
        with torch.no_grad():
            for layer in shortcuts.layers(subject.session.policy.model):
                layer.mlp.down_proj.weight *= 3
        subject.session.policy.save(tmp_path / "second")
    models = [str(tmp_path / name) for name in ("first", "second")]
    result = CliRunner().invoke(
        app,
        [
            "shortcuts",
            *TINY,
            "tasks/gen_planned",
            "-m",
            models[0],
            "-m",
            models[1],
            "--rows",
            "2",
            "--json",
            "-o",
            str(tmp_path / "p.html"),
        ],
    )
    told = json.loads(result.stdout)
    assert [row["model"] for row in told["table"]] == models and max(map(abs, told["patch"]["MLP"])) > 0
    assert "<svg" in (tmp_path / "p.html").read_text()


def test_rewards_are_audited_by_command(tmp_path):
    rows = tmp_path / "rows.jsonl"
    lines = [
        {"gold": "4", "response": "<answer>4</answer>", "correct": True},
        {"gold": "4", "response": "<answer>5</answer>", "correct": False},
    ]
    rows.write_text("\n".join(map(json.dumps, lines)))
    out = ["-o", str(tmp_path / "p.html"), "--json"]
    told = json.loads(CliRunner().invoke(app, ["verifiers", str(rows), "-r", "numeric", *out]).stdout)
    assert told["table"] == [
        {"verifier": "numeric", "precision": 1.0, "recall": 1.0, "false negatives": 0.0, "hacked": 0.0}
    ]
    rows.write_text(
        json.dumps({"gold": "4", "chosen": "<answer>4</answer>", "rejected": ["<answer>5</answer>"]})
    )
    told = json.loads(
        CliRunner().invoke(app, ["rewardmath", str(rows), "-r", "{name: numeric}", *out]).stdout
    )
    assert told["table"] == [{"reward": "{name: numeric}", "accuracy": 1.0, "MRR": 1.0}]


def test_mistakes_are_one_line(tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"gold": "1"}\n')
    cases = [
        (["rewardmath", str(tmp_path / "none"), "-r", "numeric"], "is no file"),
        (["rewardmath", str(empty), "-r", "numeric"], "holds no rows"),
        (["rewardmath", str(broken), "-r", "numeric"], "line 1: no chosen, rejected"),
        (["rewardmath", str(broken), "-r", "numerik"], "numeric"),
        (["profiles", str(tmp_path / "none")], "is no file"),
        (["shortcuts", *TINY, "tasks/gen_planned", "-m", "x"], "compares 2 or more"),
    ]
    for words, told in cases:
        error = CliRunner().invoke(app, words).exception
        assert isinstance(error, ConfigError) and told in str(error), (words, error)
