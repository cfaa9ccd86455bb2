"""Rubrics, experts, own explanations and a reference that follows: what is shown, scored, taught and given.
Numbers by hand."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
import torch
from make import end_step, group, run
from rounds_kit import letters, prepared, prompt, said
from run_kit import last_step
from tiny import steps, text_run

from vlrl.methods.core.callback import ReferenceEMA
from vlrl.methods.papers.evocot import EvocotAnswerKnown, EvocotOwnSteps
from vlrl.methods.papers.meml_grpo import EXPERT, MemlGrpo, MemlGrpoMutual
from vlrl.methods.papers.re_distillation import KEY
from vlrl.methods.papers.ruscarl import SHOWN_CRITERIA, Ruscarl
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Reward
from vlrl.types import Prompt, Rollout, Row

NUMBER = {"name": "numeric"}
RUBRICS = [
    {"criterion": "gives the sum", "points": 5, "reward": NUMBER},
    {"criterion": "puts it into tags", "points": 3, "reward": {"name": "tag_format", "tags": ["answer"]}},
    {"criterion": "says seven", "points": -4, "reward": NUMBER, "answer": 7},
    {"criterion": "says nine", "points": -1, "reward": NUMBER, "answer": 9},
]


@pytest.mark.parametrize(
    ("text", "value"),
    [("<answer>12</answer>", 8 / 8), ("<answer>7</answer>", (3 - 4) / 8), ("<answer>9</answer>", (3 - 1) / 8),
        ("", 0.0), ("{]\x00", 0.0),
     ("gives the sum, puts it into tags", 0.0), ("<answer>12</answer>" * 2 + "gives the sum", 5 / 8)],
)  # fmt: skip
def test_rubrics_by_hand(text, value):
    reward = build(Reward, {"name": "rubric"})
    row = Row("r", "q", 12, meta={"rubrics": RUBRICS})
    rollout = Rollout(Prompt(row, ()), [1], text)
    assert reward(rollout) == pytest.approx(value) and rollout.answer == 12
    assert set(rollout.info["parts"]) == {item["criterion"] for item in RUBRICS}


@pytest.mark.parametrize(
    ("items", "match"),
    [([], "above 0"), ([{"points": -1}], "above 0"), ([{"criterion": "x", "points": 1}], "judge")],
)
def test_what_no_rule_can_check_is_refused(items, match):
    reward = build(Reward, {"name": "rubric"})
    with pytest.raises(ValueError, match=match):
        reward(Rollout(Prompt(Row("r", "q", meta={"rubrics": items}), ()), [1], "x"))


def scaffold(step, **fields):
    parts = letters(
        lambda request, index: "!", phase_step=step, settings=SimpleNamespace(max_prompt_tokens=400, steps=11)
    )
    return prepared(Ruscarl(**fields), parts), parts


@pytest.mark.parametrize(
    ("step", "steepness", "n", "shown"),
    [
        (0, 125.0, 5, [4, 3, 2, 1, 0]),  # x = 0: the decay is 1 / (1 + e^-25)
        (2, 125.0, 5, [2, 2, 1, 0, 0]),  # x = 0.2: one half; 1.5 rounds to 2, 0.5 to 0
        (3, 125.0, 5, [0] * 5),
        (4, 5.0, 3, [1, 1, 0]),  # 1 / (1 + e) = 0.269
        (0, 125.0, 1, [4]),
    ],
)
def test_how_much_of_a_checklist_is_seen(step, steepness, n, shown):
    strategy, parts = scaffold(step, steepness=steepness)
    asked = prompt("r", meta={"rubrics": RUBRICS})
    (made,) = strategy([asked], [n], parts)
    assert [SHOWN_CRITERIA[r] for r in made] == shown and [
        said(r.prompt).count("\n- ") for r in made
    ] == shown
    assert all(said(r.prompt.for_training) == "q" for r in made)  # the plain prompt is trained
    assert strategy.metrics()["rubric/decay"] == pytest.approx(
        1 / (1 + math.exp(steepness * (step / 10 - 0.2)))
    )
    assert [said(r.prompt) for r in strategy([asked], [n], parts)[0]] == [
        said(r.prompt) for r in made
    ]  # a draw by seed, step and row


def test_shown_criteria_may_be_trained_and_rows_without_any_are_plain():
    strategy, parts = scaffold(0, train_shown=True)
    a, b = strategy([prompt("a", meta={"rubrics": RUBRICS}), prompt("b")], [2, 2], parts)
    assert "- do (5): gives the sum\n" in said(a.rollouts[0].prompt) and "- avoid (4): says seven\n" in said(
        a.rollouts[0].prompt.for_training
    )
    assert [SHOWN_CRITERIA[r] for r in b] == [0, 0] and said(b.rollouts[0].prompt) == "q"
    with pytest.raises(ValueError, match="steepness"):
        Ruscarl(steepness=0)


def test_experts_share_a_group():
    parts = letters(lambda request, index: "!")
    a, none = MemlGrpo(systems=("one", "two", "three"))([prompt("a"), prompt("b")], [8, 0], parts)
    assert (
        [EXPERT[r] for r in a] == [0, 0, 0, 1, 1, 1, 2, 2]
        and said(a.rollouts[3].prompt) == "two|q"
        and len(none) == 0
        and said(a.prompt) == "q"
    )
    with pytest.raises(ValueError, match="different"):
        MemlGrpo(systems=("one", "one"))


def heard(*rewards, name="q", experts=(0, 0, 1, 1)):
    made = group(*rewards, name=name, texts=[f"{name}{i}" for i in range(len(rewards))])
    for rollout, expert in zip(made, experts):
        EXPERT.set(rollout, expert)
        rollout.prompt = prompt(f"{name}/{expert}", question=f"P{expert}")
    return made


def test_the_worst_expert_is_taught():
    replay = prepared(MemlGrpoMutual(size=8), run())
    groups = [
        heard(0, 0, 0, 1, name="a"),
        heard(1, 0, 0, 1, name="b"),
        heard(0, 0, 0, 0.3, name="c"),
        heard(1, 1, 0, 1, name="d"),
        group(1, 0),
    ]
    out = replay(groups)
    assert [[r.text for r in g] for g in out[5:]] == [["a3"], ["d0"]] and [
        said(g.prompt) for g in out[5:]
    ] == ["P0", "P1"]
    assert {r.source for g in out[5:] for r in g} == {"taught"} and out[5].rollouts[0].logp == []
    assert [(g.rollouts[0].outcome, g.rollouts[0].correct) for g in out[5:]] == [(1.0, True)] * 2
    end_step(replay, [])
    assert replay.metrics()["hard/taught"] == (2.0, 0.0) == replay.metrics()["hard/taught"]
    end_step(replay, [])
    assert replay.metrics()["hard/taught"] == (0.0, 0.0)


def test_mutual_learning_requires_experts():
    with pytest.raises(ConfigError, match=r"requires 'meml_grpo.expert'.*; set rollout: .name: meml_grpo"):
        text_run(["methods/meml_grpo"], ["rollout={name: independent}"])


def question(made):
    return "".join(item["text"] for item in made.messages[-1]["content"])


def test_the_answer_is_told():
    row = Row("r", "Why {answer}?", 42)
    assert (
        question(EvocotAnswerKnown(ask="{question} It is {answer}.")(row)) == "Why {answer}? It is 42."
        and EvocotAnswerKnown()(row).row is row
    )
    assert question(EvocotAnswerKnown()(Row("r", "Why?"))) == "Why?"
    with pytest.raises(ValueError, match="ask"):
        EvocotAnswerKnown(ask="{question}")


@pytest.mark.parametrize(
    ("step", "prefix"),
    [(0, "<think>\na\n\nb\n\nc"), (3, "<think>\na\n\nb"), (6, "<think>\na"), (9, "<think>\n")],
)
def test_less_and_less_of_it_is_given(step, prefix):
    """Four steps, s = 1, 2, 3, 4 in quarters of the phase; with s = 4 nothing is left."""
    parts = run(
        phase_step=step,
        settings=SimpleNamespace(steps=12),
        history={"r": {KEY: {"ids": [1], "text": "<think>\na\n\nb\n\nc\n\nd"}}},
    )
    made = prepared(EvocotOwnSteps(style="think_open", max_removed=4), parts)
    assert made(Row("r", "q")).prefix == prefix and made(Row("new", "q")).prefix == "<think>\n"
    assert made.metrics() == {"evocot/removed_steps": 1.0 + step // 3}
    with pytest.raises(ValueError, match="max_removed"):
        EvocotOwnSteps(max_removed=0)


def test_the_reference_follows():
    """From 1 towards 2 with decay 0.75: 1.25, then 1.4375."""
    reference = {"w": torch.tensor([1.0], dtype=torch.bfloat16), "n": torch.tensor(3)}
    model = SimpleNamespace(state_dict=lambda: {"w": torch.tensor([2.0]), "n": torch.tensor(9)})
    parts = run(
        policy=SimpleNamespace(model=model, reference_state=lambda: {"weights": reference}),
        aux_tensors={},
    )
    made = ReferenceEMA(decay=0.75)
    assert made(parts, [])["distance"] == pytest.approx(0.75) and reference["w"].item() == 1.25
    assert (
        made(parts, [])["distance"] == pytest.approx(0.5625)
        and made.state.average["w"].item() == 1.4375
        and reference["n"] == 3
    )
    again = ReferenceEMA(decay=0.75)
    again.load_state_dict(made.state_dict())
    assert again.state.average["w"].item() == 1.4375
    with pytest.raises(ConfigError, match="nothing reads it"):
        made.check(parts)
    with pytest.raises(ConfigError, match="adapters"):
        made.setup(run(state_sharded=True, params_sharded=True))


@pytest.mark.parametrize("method", ["t1", "brorl", "meml_grpo"])
def test_presets_of_exploration_take_steps(method):
    words = (
        ["group_size=6", "num_minibatches=1", "callbacks.reference=null"]
        if method == "brorl"
        else ["group_size=6"]
    )
    made = text_run(
        [f"methods/{method}"], [*words, "loss_terms.kl.coef=0.01"] if method != "meml_grpo" else words
    )
    metrics = steps(made, 2)
    assert metrics[-1]["reward/errors"] == 0 and max(m.get("grad_norm", 0.0) for m in metrics) > 0
    if method == "meml_grpo":
        assert sum(m["hard/taught"] for m in metrics) > 0 and max(m["loss/taught"] for m in metrics) > 0
    if method == "t1":
        assert metrics[-1]["anchor/distance"] > 0


def test_rubrics_train(tmp_path):
    rows = [
        {"id": f"r{i}", "question": "q?", "answer": 12, "task": "rubric", "meta": {"rubrics": RUBRICS}}
        for i in range(4)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source = f"{{arithmetic: null, rows: {{name: files, path: {tmp_path / 'rows.jsonl'}}}}}"
    made = text_run(
        ["methods/ruscarl"],
        [
            f"data={{train: {source}}}",
            "num_minibatches=1",
            "sampling={name: plain, temperature: 1.0, max_tokens: 20}",
        ],
    )
    (first, *_) = steps(made, 2)
    assert first["reward/errors"] == 0 and first["rubric/decay"] > 0.9 and first["grad_norm"] > 0
    assert [SHOWN_CRITERIA[r] for r in last_step(made).groups[0]] == [
        4,
        3,
        2,
        2,
        1,
        0,
    ]  # 4 (5 - i) / 5, rounded


def test_first_explained_then_gone_on_from():
    says = 'engine.options=["one\\n\\ntwo\\n\\n<answer>{answer}</answer>", "nothing"]'
    made = text_run(
        ["methods/evocot"],
        ["phases.rl.steps=2", "phases.curriculum.steps=2", "data.train.arithmetic.count=4", says],
    )
    before = {name: p.detach().clone() for name, p in made.policy.model.named_parameters()}
    metrics = steps(made, 2)
    assert metrics[-1]["keep/kept"] > 0 and all(
        torch.equal(p, before[name]) for name, p in made.policy.model.named_parameters()
    )
    assert all("The answer is" in question(g.prompt) for g in last_step(made).groups)
    made.use(1)
    made.phase_step = 0
    made.enter(1)
    (learned,) = steps(made, 1)
    assert (
        {g.prompt.prefix for g in last_step(made).groups} <= {"", "one\n\ntwo"}
        and any(g.prompt.prefix for g in last_step(made).groups)
        and learned["grad_norm"] > 0
    )
    assert all("The answer is" not in question(g.prompt) for g in last_step(made).groups)


def test_thinking_free_first():
    made = text_run(
        ["methods/tfpi"],
        ["phases.rl.sampling.max_tokens=20", "phases.thinking.sampling.max_tokens=30", "phases.rl.steps=3"],
    )
    metrics = steps(made, 3)
    assert all(g.prompt.prefix == "<think>\n\n</think>\n\n" for g in last_step(made).groups) and [
        m["acereason/max_tokens"] for m in metrics
    ] == [5, 10, 20]
    made.use(1)
    made.enter(1)
    steps(made, 1)
    assert all(g.prompt.prefix == "" for g in last_step(made).groups)
