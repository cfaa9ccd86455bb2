"""Judges that are trained, and policies that are paid by margins or for being concise: numbers by hand, wrong
answers as well as right ones."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from vlrl_rewards.combine.trained_judges import strength

from vlrl.beside.attacks import WRONG, Item
from vlrl.beside.judge import MARGINS
from vlrl.beside.templates import load_template
from vlrl.methods.core.advantage import GRPO
from vlrl.methods.core.judge_rows import JudgeRows, verdict_of
from vlrl.methods.core.reward_model import RATING
from vlrl.methods.papers.master_rm import MasterRm
from vlrl.methods.papers.regret_preference_model import (
    RegretPreferenceModel,
    RegretPreferenceModelPartialReturn,
)
from vlrl.methods.papers.rubrichub import RubrichubBest
from vlrl.methods.papers.think_rm import ThinkRm
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.scoring import GoldError, NoScore
from vlrl.plugins.stages import Reward, Source
from vlrl.types import Group, LossInputs, Prompt, Rollout, Row


def group_of(*texts, answer="Birk", rewards=None, task="", question="Where?", **meta):
    prompt = Prompt(Row("r", question, answer=answer, task=task, meta=meta), ())
    rollouts = [Rollout(prompt, [1, 2], text) for text in texts]
    for rollout, reward in zip(rollouts, rewards or (), strict=False):
        rollout.reward = reward
    return Group(prompt, rollouts)


def opened(spec, folder, reply, **run):
    """A reward whose judge replies by a function of the prompt."""
    judge = {"model": "judge@1", "engine": {"name": "fake"}}
    reward = build(Reward, {**spec, "judge": judge})
    context = SimpleNamespace(output=folder, rank=0, policy=None, **run)
    for one in (reward, *reward.inner_rewards):
        one.setup(context)
    engine = build_fake(reply)
    reward.state.judge.service.engine = engine
    return reward, engine.asked


def build_fake(reply):
    from vlrl.engine.fake import Fake

    asked = []

    def respond(request, index):
        asked.append(request.prompt.messages[-1]["content"])
        return reply(asked[-1])

    return SimpleNamespace(remote=False, asked=asked, generate=Fake(function=respond).generate)


# --- rows for judges ----------------------------------------------------------------------------------------

ROW = Row(
    "r", "Where does Ada live?", answer="Birk", meta={"response": "Let me see. It is Birk.", "label": 1}
)


def test_rows_become_questions_to_a_judge():
    (row,) = JudgeRows()([ROW])
    values = {"question": ROW.question, "reference": "Birk", "answer": "Let me see. It is Birk."}
    assert row.question == load_template("correctness").fill(values)
    assert (row.answer, row.target, row.task) == ("yes", "Verdict: yes", "judge")
    reasoned = Row("r", "q", answer="a", meta={"text": "b", "said": "no", "reason": "It is not a."})
    (row,) = JudgeRows(fields={"answer": "text"}, label="said")([reasoned])
    assert (row.answer, row.target) == ("no", "It is not a.\nVerdict: no")
    rated = Row("r", "q", meta={"response": "a", "label": 0.4})
    assert JudgeRows(template="conciseness")([rated])[0].target == "Conciseness: 0.4"
    principled = Row("r", "q", meta={"response": "a", "label": False, "principle": "politeness"})
    assert JudgeRows(template="principle")([principled])[0].target == "Fulfilled: No"


def test_labels_are_verdicts():
    choice, pair, score = (load_template(name) for name in ("correctness", "pair", "quality"))
    assert [verdict_of(choice, label, "x") for label in (True, 0, 0.9, "YES ")] == ["yes", "no", "yes", "yes"]
    assert verdict_of(pair, "b", "x") == "B" and verdict_of(score, 7, "x") == "7"
    for template, label in ((choice, None), (choice, "perhaps"), (choice, 2), (pair, 1), (score, 11)):
        with pytest.raises(ValueError, match="x: "):
            verdict_of(template, label, "x")
    with pytest.raises(ValueError, match="reads answer from response"):
        JudgeRows()([Row("r", "q", answer="a", meta={"label": 1})])[0]
    with pytest.raises(ConfigError, match="fields names refernce"):
        JudgeRows(fields={"refernce": "gold"})


# --- Master-RM ----------------------------------------------------------------------------------------------


def test_openings_are_negatives():
    rows = [ROW, Row("s", "q", answer="a", meta={"response": "One sentence", "label": 1})]
    made = MasterRm(share=1.0)(rows)
    assert [row.id for row in made] == ["r", "s", "r/opening"]
    assert made[2].meta["response"] == "Let me see." and made[2].meta["label"] == 0.0
    assert made[2].answer == "Birk" and made[0].meta["label"] == 1
    judged = JudgeRows()(made)
    assert [row.answer for row in judged] == ["yes", "yes", "no"]
    reasoned = Row(
        "t", "q", answer="a", meta={"response": "a", "reasoning": "Thought process:\nFirst.", "label": 1}
    )
    assert MasterRm().opening(reasoned) == "Thought process:"
    told = Row("u", "q", answer="Birk", meta={"response": "It is Birk. I am sure.", "label": 1})
    assert MasterRm().opening(told) == ""  # it is no opening that names the answer
    assert MasterRm().opening(Row("v", "q", answer="", meta={"response": "解：好。 那么"})) == "解：好。"


def test_the_share_of_openings_is_the_papers():
    rows = [
        Row(str(i), "q", answer="a", meta={"response": f"So {i}. It is b.", "label": 0}) for i in range(80)
    ]
    made = MasterRm()(rows)
    assert len(made) == 90 and len({row.id for row in made}) == 90
    assert [row.id for row in made] == [row.id for row in MasterRm()(rows)]
    assert [row.id for row in made] != [row.id for row in MasterRm(seed=1)(rows)]
    with pytest.raises(ConfigError, match="found no opening"):
        MasterRm()([Row("r", "q", answer="a", meta={"response": "one"})])
    with pytest.raises(ConfigError, match="share=0"):
        MasterRm(share=0.0)


def test_the_master_keys_are_openings_too():
    """What the trained verifier is attacked with is what its negatives look like."""
    item = Item("q", "Birk", "Arlen")
    keys = [form(item) for name, form in WRONG.items() if name.startswith("master key")]
    opening = MasterRm().opening(Row("r", "q", answer="Birk", meta={"response": f"{keys[5]} It is Birk."}))
    assert opening == "Let's solve this problem step by step." and opening in keys


# --- rewards of trained judges ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("The fact is stated.\nVerdict: yes", 1.0),
        ("<think>Verdict: no</think>Verdict: yes", 1.0),
        ("yes", 1.0),
        ("Verdict: no", 0.0),
        ("Verdict: yes\nVerdict: no", 0.0),
        ("<think>Verdict: yes", 0.0),
        ("No doubt: the answer is yes.", 0.0),
        ("", 0.0),
    ],
)
def test_a_judge_is_paid_for_the_labelled_verdict(text, score):
    reward = build(Reward, {"name": "judge_verdict"})
    assert reward(group_of(text, answer="yes").rollouts[0]) == score
    with pytest.raises(GoldError, match="is no verdict of template 'correctness'"):
        reward(group_of(text, answer="right").rollouts[0])


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("<think>so</think><answer>2</answer>", 1.0),
        ("<answer>\\boxed{2}</answer>", 1.0),
        ("<answer>1</answer>", 0.5),
        ("<answer>3</answer>", 0.5),
        ("<answer>-2</answer>", 0.0),
        ("<answer>0</answer>", 0.0),
        ("<answer>12</answer>", 0.0),  # the release reads a 2
        ("<answer>2 or 3</answer>", 0.0),
        ("<answer>2</answer><answer>-1</answer>", 0.0),
        ("<think><answer>2</answer></think>", 0.0),
        ("2", 0.0),
        ("", 0.0),
    ],
)
def test_think_rms_reward(text, score):
    assert build(Reward, {"name": "preference_strength"}).score(text, 2) == score
    assert strength("+3") == 3 and strength("4") == 0
    with pytest.raises(GoldError, match="is no strength"):
        build(Reward, {"name": "preference_strength"}).score(text, 0)


def said_in(prompt):
    """The two numbers that the fenced answers hold."""
    parts = [prompt.split(f"BEGIN ANSWER {name} ")[1].split("\n")[1] for name in "AB"]
    return [int(part) for part in parts]


def test_margins_and_their_advantage(tmp_path):
    """Scores 0, 1, 3 give margins of their differences: sums -4, -1, 5 over G = 3; sum d^2 = 2 (1 + 9 + 4) =
    28, so the spread is sqrt(28 / 12); that is GRPO's (s - mean) / std with std over n - 1."""

    def reply(prompt):
        first, second = said_in(prompt)
        return f"Strength: {second - first}"

    group = group_of("0", "1", "3")
    reward, asked = opened({"name": "judged_margins"}, tmp_path, reply)
    scores = reward.score_group(group)
    assert scores == pytest.approx([-4 / 3, -1 / 3, 5 / 3]) and len(asked) == 3
    assert [MARGINS[rollout] for rollout in group] == [[-1, -3], [1, -2], [3, 2]]
    for rollout, score in zip(group, scores, strict=True):
        rollout.reward = score
    (advantages,) = ThinkRm(eps=0.0)([group])
    assert advantages == pytest.approx([score / math.sqrt(28 / 12) for score in scores])
    (wanted,) = GRPO(eps=0.0, unbiased=True)([group_of("0", "1", "3", rewards=[0.0, 1.0, 3.0])])
    assert advantages == pytest.approx(wanted, abs=1e-5)
    assert ThinkRm()([group_of("a", rewards=[1.0]), group_of("a", "b", rewards=[1.0, 2.0])]) == [
        [0.0],
        [0.0, 0.0],
    ]
    assert reward.score_group(group_of("a")) == [0.0]


def test_a_pair_without_a_verdict_is_left_out(tmp_path):
    """Of three only 0 against 3 can be read: their margins count for both siblings; 1 has no score."""

    def reply(prompt):
        return "Strength: 3" if said_in(prompt) == [0, 3] else "they are alike"

    reward, _ = opened({"name": "judged_margins"}, tmp_path, reply)
    scores = reward.score_group(group_of("0", "1", "3"))
    assert scores[0] == pytest.approx(-3 * 2 / 3) and scores[2] == pytest.approx(3 * 2 / 3)
    assert isinstance(scores[1], NoScore)
    loud, _ = opened({"name": "judged_margins"}, tmp_path / "loud", lambda prompt: "Strength: 30")
    assert all(isinstance(score, NoScore) for score in loud.score_group(group_of("0", "1")))


# --- CRM ----------------------------------------------------------------------------------------------------


def test_only_right_answers_are_paid_for_being_concise(tmp_path):
    """Two of four are right: d = 1/2; s = 1 at the start and 0 at the end; r = 1 + 1/2 c (s + 1/2)."""
    texts = ["<think>so</think><answer>Birk</answer>", "<think>so so</think><answer>Birk</answer>"]
    texts += ["<think>so</think><answer>Arlen</answer>", ""]
    group = group_of(*texts, task="qa")

    def reply(prompt):
        return f"Conciseness: {0.4 if 'so so' in prompt else 0.8}"

    spec = {"name": "concise_answer", "of": {"name": "text"}, "alpha": 0.5}
    run = {"settings": SimpleNamespace(steps=11), "phase_step": 0}
    reward, asked = opened(spec, tmp_path, reply, **run)
    assert reward.score_group(group) == pytest.approx([1 + 0.5 * 0.8 * 1.5, 1 + 0.5 * 0.4 * 1.5, 0.0, 0.0])
    assert len(asked) == 2 and "<think>so so</think>" in asked[1]  # the thoughts are what is rated
    assert [reward.correct(rollout, 0.0) for rollout in group] == [True, True, False, False]
    late, _ = opened(spec, tmp_path / "late", reply, **{**run, "phase_step": 10})
    assert late.annealed() == 0.0
    assert late.score_group(group)[0] == pytest.approx(1 + 0.5 * 0.8 * 0.5)
    silent, _ = opened(spec, tmp_path / "silent", lambda prompt: "very concise", **run)
    first, second, *wrong = silent.score_group(group)
    assert isinstance(first, NoScore) and isinstance(second, NoScore) and wrong == [0.0, 0.0]
    with pytest.raises(ConfigError, match="must not be negative"):
        build(Reward, {**spec, "alpha": -1.0})


# --- RubricHub and regret -----------------------------------------------------------------------------------


def test_the_best_of_a_group_is_imitated():
    group = group_of("a", "b", "c", rewards=[0.5, 0.9, 0.9])
    assert RubrichubBest()(group) == [0.5, 0.9, 0.9]
    assert [any(rollout.trained_mask) for rollout in group] == [False, True, False]
    assert RubrichubBest()(group_of("a", rewards=[0.1])) == [0.1]


def preference_inputs(logp, ref, ratings, groups, lengths, **aux):
    rollouts = [Rollout(Prompt(Row("r", "q"), ()), list(range(n))) for n in lengths]
    for rollout, rating in zip(rollouts, ratings, strict=True):
        RATING.set(rollout, rating)
    made = [
        Group(rollouts[0].prompt, [r for r, own in zip(rollouts, groups) if own == g])
        for g in sorted(set(groups))
    ]
    logp_BT = torch.tensor(logp, requires_grad=True)
    tensors = {"ref_logp": torch.tensor(ref), **{key: torch.tensor(value) for key, value in aux.items()}}
    x = LossInputs.from_tensors(
        logp_BT,
        logp_BT.detach(),
        group_B=torch.tensor(groups),
        mask_BT=torch.tensor([[i < n for i in range(logp_BT.shape[1])] for n in lengths]).float(),
        aux_tensors=tensors,
        groups=made,
    )
    return x, logp_BT


def test_preferences_by_regret():
    """Log-ratios .4 + .2 and -.2 + .0: regrets -.06 and .02 with alpha .1, so L = -log sigma(.08); the second
    group has equal ratings."""
    logp = [[-0.6, -0.8], [-1.2, -1.0], [-1.0, -1.0], [-1.0, -1.0]]
    x, logp_BT = preference_inputs(logp, [[-1.0] * 2] * 4, [1.0, 0.0, 2.0, 2.0], [0, 0, 1, 1], [2, 2, 2, 2])
    out = RegretPreferenceModel(alpha=0.1)(x)
    wanted = math.log1p(math.exp(-0.08))
    assert out.loss.tolist() == pytest.approx([wanted, wanted, 0.0, 0.0])
    assert out.metrics["regret/margin"].tolist() == pytest.approx([0.08])
    out.loss.sum().backward()
    assert (logp_BT.grad[0] < 0).all() and (logp_BT.grad[1] > 0).all() and not logp_BT.grad[2:].any()
    alike, _ = preference_inputs(logp[2:], [[-1.0] * 2] * 2, [2.0, 2.0], [0, 0], [2, 2])
    assert RegretPreferenceModel()(alike).loss.tolist() == [0.0, 0.0]  # without a pair
    late = RegretPreferenceModel(alpha=0.1, gamma=0.5)(x)
    assert late.metrics["regret/margin"].tolist() == pytest.approx([0.1 * (0.4 + 0.1 + 0.2)])
    for broken in ({"alpha": 0.0}, {"gamma": 0.0}, {"gamma": 1.5}):
        with pytest.raises(ConfigError, match="alpha="):
            RegretPreferenceModel(**broken)


def test_a_constant_reward_of_tokens_moves_partial_returns_and_not_regret():
    """What the paper's sec. 3 is about: a reward that is the same at each token prefers the longer response
    under partial return; under regret, a policy that departs nowhere has regret 0 whatever the length."""
    same = [[-1.0, -1.0, -1.0], [-1.0, -1.0, -1.0]]
    x, _ = preference_inputs(same, same, [1.0, 0.0], [0, 0], [3, 1], reward_score=[[0.5] * 3, [0.5] * 3])
    regret, partial = RegretPreferenceModel()(x), RegretPreferenceModelPartialReturn()(x)
    assert regret.metrics["regret/margin"].tolist() == [0.0]
    assert partial.metrics["partial_return/margin"].tolist() == pytest.approx([1.0])
    assert partial.loss.tolist() == pytest.approx([math.log1p(math.exp(-1.0))] * 2)


# --- generated rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ask", ["verified", "solved", "principled", "compared"])
def test_assessed_rows(ask):
    rows = build(Source, {"name": "gen_assessed", "ask": [ask], "count": 200})()
    assert len({row.id for row in rows}) == 200 and list(rows)[:3] == list(rows)[:3]
    heldout = build(Source, {"name": "gen_assessed", "ask": [ask], "split": "heldout", "count": 50})()
    assert not {row.question for row in rows} & {row.question for row in heldout}
    if ask == "compared":
        assert {row.answer for row in rows} == {-3, -2, -1, 1, 2, 3}
        assert build(Reward, {"name": "preference_strength"}).score(rows[0].target, rows[0].answer) == 1.0
        return
    labels = [row.meta["label"] for row in rows]
    assert 0.35 < sum(labels) / 200 < 0.65
    for row in rows[:50] if ask != "principled" else ():
        assert (row.answer in row.meta["response"]) == bool(row.meta["label"])
        assert MasterRm().opening(row) and row.answer not in MasterRm().opening(row)


def test_an_unknown_kind_of_assessed_rows_is_refused():
    with pytest.raises(ConfigError, match="Known: verified"):
        build(Source, {"name": "gen_assessed", "ask": ["verfied"]})
