"""Papers whose reward is a model: numbers by hand, wrong answers as well as right ones."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from vlrl_rewards.combine.paper_judges import FAITHFUL, SUFFICIENT, final_answer

from vlrl.beside.templates import load_template
from vlrl.methods.common.step_scores import STEP_SCORES, mean_step_score
from vlrl.methods.core.reward_shaping import TOKEN_REWARDS
from vlrl.methods.papers.clip_delta_prm_rewards import ClipDeltaPRMRewards
from vlrl.methods.papers.pav import PAV
from vlrl.methods.papers.prime import Prime, PrimeModel, log_ratios, returns_of, target_of
from vlrl.methods.papers.prof import Prof
from vlrl.methods.papers.writing_zero import WritingZero, WritingZeroBalanced
from vlrl.plugins.registry import build
from vlrl.plugins.scoring import GoldError, NoScore
from vlrl.plugins.stages import TOKEN_ADVANTAGES, Reward
from vlrl.types import Group, Prompt, Rollout, Row


def group_of(*texts, answer="4", rewards=None, correct=None, lengths=None, question="2 + 2?"):
    prompt = Prompt(Row("r", question, answer=answer), ())
    rollouts = []
    for place, text in enumerate(texts):
        rollout = Rollout(prompt, list(range(lengths[place] if lengths else 3)), text)
        rollout.reward = rewards[place] if rewards else 0.0
        rollout.correct = bool(correct[place]) if correct else False
        rollouts.append(rollout)
    return Group(prompt, rollouts)


def opened(spec, folder):
    reward = build(Reward, spec)
    reward.setup(SimpleNamespace(output=folder, rank=0, policy=None))
    return reward


def judge(table, options=("hm",)):
    return {"model": "judge@1", "engine": {"name": "fake", "options": options, "table": table}}


# --- PRIME --------------------------------------------------------------------------------------------------


def with_ratios(group, *rows):
    for rollout, row in zip(group, rows, strict=True):
        rollout.signals = {"prime.logp": [-1.0 + q for q in row], "ref_logp": [-1.0] * len(row)}
    return group


def release(ratios, outcomes, c_o=5.0, c_p=5.0):
    """core_algos.compute_rloo_returns of the release in plain tensors, before whitening; equal lengths."""
    q = torch.tensor(ratios, dtype=torch.float64)
    n = len(outcomes)
    largest = q.flip(1).cumsum(1).flip(1).abs().max() + 1e-6
    r = q / largest
    r = r * n / (n - 1) - r.mean(1).sum() / (n - 1)
    o = torch.zeros_like(q)
    o[:, -1] = torch.tensor(outcomes, dtype=torch.float64)
    o[:, -1] = o[:, -1] * n / (n - 1) - o[:, -1].sum() / (n - 1)
    return c_p * r.flip(1).cumsum(1).flip(1) + c_o * o.flip(1).cumsum(1).flip(1)


def test_prime_equals_the_release():
    ratios = [[0.2, -0.1, 0.4], [0.0, 0.3, -0.6], [0.1, 0.1, 0.1]]
    outcomes = [1.0, 0.0, 1.0]
    group = with_ratios(group_of("a", "b", "c", rewards=outcomes), *ratios)
    rows = Prime()([group])
    wanted = release(ratios, outcomes)
    wanted = (wanted - wanted.mean()) / wanted.var(unbiased=False).add(1e-8).sqrt()
    found = torch.tensor([TOKEN_ADVANTAGES[rollout] for rollout in group], dtype=torch.float64)
    assert torch.allclose(found, wanted, atol=1e-5)
    assert rows[0] == pytest.approx(wanted.mean(1).tolist(), abs=1e-5)


def test_prime_by_hand():
    """Two rollouts: q = (1, 1) and (0, 0); the largest return is 2, so r = (1/2, 1/2) and (0, 0). Baselines:
    2 r - (1/2 + 0), so (1/2, 1/2) and (-1/2, -1/2), whose returns are (1, 1/2) and (-1, -1/2)."""
    group = with_ratios(group_of("a", "b", rewards=[0.0, 0.0], lengths=[2, 2]), [1.0, 1.0], [0.0, 0.0])
    rows = Prime(process=1.0).returns(group, [[0.5, 0.5], [0.0, 0.0]])
    assert rows == [pytest.approx([1.0, 0.5]), pytest.approx([-1.0, -0.5])]
    paid = Prime(process=0.0, outcome=2.0).returns(
        group_of("a", "b", rewards=[1.0, 0.0], lengths=[2, 2]), [[0.0] * 2] * 2
    )
    assert paid == [[2.0, 2.0], [-2.0, -2.0]]
    assert Prime().returns(group_of("a", lengths=[2]), [[1.0, 1.0]]) == [[0.0, 0.0]]
    assert returns_of([1.0, 2.0, 3.0]) == [6.0, 5.0, 3.0]
    masked = with_ratios(group_of("a", lengths=[2]), [3.0, 4.0]).rollouts[0]
    masked.loss_mask = [True, False]
    assert log_ratios(masked) == pytest.approx([3.0, 0.0])


def test_the_implicit_model_learns_the_outcome():
    """L = CE(sigma(beta sum q), correct), summed over rollouts."""
    callback = PrimeModel(beta=0.5)
    group = with_ratios(group_of("a", "b", correct=[True, False], lengths=[2, 2]), [0.0, 0.0], [0.0, 0.0])
    logp = torch.tensor([[-0.5, -0.5], [-0.5, -1.5]], requires_grad=True)
    view = SimpleNamespace(with_model=lambda model: SimpleNamespace(forward=lambda batch: {"logp": logp}))
    batch = SimpleNamespace(
        rollouts=group.rollouts, loss_mask_BT=torch.ones(2, 2).bool(), mask_BT=torch.ones(2, 2).bool()
    )
    loss, right = callback.loss(None, view, batch)
    wanted = math.log1p(math.exp(-0.5)) + math.log1p(math.exp(0.0))
    assert float(loss.detach()) == pytest.approx(wanted) and right == 2.0
    loss.backward()
    assert (logp.grad[0] < 0).all() and (logp.grad[1] > 0).all()


@pytest.mark.parametrize(("outcome", "wanted"), [(1.0, 1.0), (0.3, 0.3), (-1.0, 0.0), (None, 1.0)])
def test_the_implicit_models_target_is_the_graded_outcome(outcome, wanted):
    """PRIME 18ad596f, verl/utils/reward_score/prime.py:57-83: the share of a program's tests that pass, which
    core_algos.py:265-268 takes as the target of the cross-entropy."""
    (rollout,) = group_of("a", correct=[True])
    rollout.outcome = outcome
    assert target_of(rollout) == wanted


# --- rewards of steps ---------------------------------------------------------------------------------------


def test_clip_and_delta():
    """P(right) = .9, .3, .6, .8; minus 1/2 and cut: 0, -.2, 0, 0; differences of the first three: .2, -.2, 0;
    the last is 0."""
    plain = ClipDeltaPRMRewards(clip=False, delta=False)
    assert plain.values([0.9, 0.3]) == [0.9, 0.3]
    assert ClipDeltaPRMRewards(delta=False).values([0.9, 0.3]) == pytest.approx([0.0, -0.2])
    both = ClipDeltaPRMRewards().values([0.9, 0.3, 0.6, 0.8])
    assert both == pytest.approx([0.2, -0.2, 0.0, 0.0])
    assert returns_of(both) == pytest.approx([0.0, -0.2, 0.0, 0.0])  # the clipped score of each step
    assert ClipDeltaPRMRewards().values([0.1]) == [0.0] and ClipDeltaPRMRewards().values([]) == []
    repeated = ClipDeltaPRMRewards().values([0.9] * 20)
    assert sum(repeated) == 0.0  # more right steps are not paid


def test_rewards_stand_at_the_ends_of_steps():
    group = group_of("a", "b", lengths=[4, 2], rewards=[1.0, 0.0])
    STEP_SCORES.set(group.rollouts[0], [(1, 0.8), (3, -0.4), (4, 1.0)])  # P = .9, .3, 1
    TOKEN_REWARDS.set(group.rollouts[0], [-0.5, -0.5, -0.5, -0.5])
    assert ClipDeltaPRMRewards(alpha=2.0)(group) == [1.0, 0.0]
    assert TOKEN_REWARDS[group.rollouts[0]] == pytest.approx([-0.5 + 0.4, -0.5, -0.5 - 0.4, -0.5])
    assert TOKEN_REWARDS[group.rollouts[1]] == [0.0, 0.0]


def test_progress_under_a_prover():
    """A quarter of the group is right: Q of best-of-2 is 1 - .75^2 = .4375; then 1 - .5^2 = .75, and 0."""
    pav = PAV(best_of=2)
    assert pav.progress(0.25, [0.5, 0.0]) == pytest.approx([0.75 - 0.4375, -0.75])
    assert PAV(best_of=1).progress(0.25, [0.5, 0.0]) == pytest.approx([0.25, -0.5])
    strong = PAV(best_of=1000).progress(0.5, [0.4, 0.6])
    assert strong == pytest.approx([0.0, 0.0], abs=1e-9)  # a strong prover makes any step as good as another
    group = group_of("a", "b", "c", "d", correct=[1, 0, 0, 0], lengths=[3] * 4)
    STEP_SCORES.set(group.rollouts[1], [(2, 0.5), (3, 0.0)])
    PAV(best_of=2, alpha=2.0)(group)
    assert TOKEN_REWARDS[group.rollouts[1]] == pytest.approx([0.0, 2 * 0.3125, -1.5])


def scored(group, *scores):
    for rollout, score in zip(group, scores, strict=True):
        STEP_SCORES.set(rollout, [(1, score - 0.1), (2, score + 0.1)])
    return group


def test_prof_keeps_what_agrees():
    correct = [1, 1, 1, 0, 0, 0]
    group = scored(
        group_of(*"abcdef", correct=correct, rewards=[float(c) for c in correct]),
        0.1,
        0.9,
        0.5,
        0.8,
        0.2,
        0.4,
    )
    assert mean_step_score(group.rollouts[1]) == pytest.approx(0.9)
    assert Prof(keep=4).kept(group) == [1, 2, 4, 5]  # the best right ones, the worst wrong ones
    assert Prof(keep=4, filter_wrong=False).kept(group) == [1, 2, 3, 4]
    (advantages,) = Prof(keep=4)([group])
    assert advantages[0] == advantages[3] == 0.0 and advantages[1] == advantages[2] > 0 > advantages[4]
    assert [any(rollout.trained_mask) for rollout in group] == [False, True, True, False, True, True]
    assert Prof(keep=4).kept(scored(group_of("a", "b"), 0.1, 0.2)) == [0, 1]
    one = scored(group_of(*"abcdef", correct=[1, 0, 0, 0, 0, 0]), 0.1, 0.9, 0.5, 0.8, 0.2, 0.4)
    assert Prof(keep=4).kept(one) == [0, 2, 4, 5]  # one side fills what the other lacks


@pytest.mark.parametrize(
    ("right", "keep", "kept"),
    [(7, 4, 3), (5, 4, 2), (2, 4, 2), (1, 4, 1), (0, 4, 0), (8, 4, 4), (4, 5, 2), (5, 5, 3)],
)
def test_prof_drops_as_many_of_each_side_as_the_release(right, keep, kept):
    """d+ = round((n+ - n- + d) / 2) of eight: 7 right, d 4: round(5) is 4 at most, 3 stay; 4 right, d 3:
    round(1.5) = 2 go; 5 right, d 3: round(2.5) = 2 go."""
    group = scored(group_of(*"abcdefgh", correct=[1] * right + [0] * (8 - right)), *[0.5] * 8)
    places = Prof(keep=keep).kept(group)
    assert len(places) == keep and sum(place < right for place in places) == kept


def test_prof_drops_a_rollout_of_one_step_or_of_too_many_first():
    group = group_of(*"abcdef", correct=[1, 1, 1, 0, 0, 0])
    counts, scores = [1, 3, 2, 3, 4, 2], [0.9, 0.2, 0.5, 0.1, -0.9, 0.3]
    for rollout, count, score in zip(group, counts, scores, strict=True):
        STEP_SCORES.set(rollout, [(end, score) for end in range(1, count + 1)])
    assert Prof(keep=4, steps=(2, 3)).kept(group) == [1, 2, 3, 5]  # 0 has one step, 4 has four
    assert Prof(keep=4, steps=(0, 9)).kept(group) == [0, 2, 3, 4]
    with pytest.raises(ValueError, match=r"steps=\[3, 2\]: expected the fewest and the most"):
        Prof(steps=(3, 2))


# --- judged rewards -----------------------------------------------------------------------------------------


def test_general_reasoner(tmp_path):
    texts = [
        "so \\boxed{4}",
        "so \\boxed{it is 4 of them}",
        "so \\boxed{5}",
        "no idea",
        "The answer is: 4\nok",
    ]
    group, template = group_of(*texts), load_template("general_verifier")
    table = {
        template.fill({"question": "2 + 2?", "reference": "4", "answer": answer}): [
            f"Final Decision: {verdict}"
        ]
        for answer, verdict in (("4", "Yes"), ("it is 4 of them", "Yes"), ("5", "No"))
    }
    reward = opened({"name": "general_verifier", "judge": judge(table)}, tmp_path)
    assert reward.score_group(group) == pytest.approx([1.0, 1 - 0.05 * 4, 0.0, -0.5, 1.0])
    assert reward.correct(group.rollouts[1], 0.8) and not reward.correct(group.rollouts[2], 0.0)
    long = "\\boxed{" + "x " * 40 + "}"
    silent = opened({"name": "general_verifier", "judge": judge({})}, tmp_path / "silent")
    assert isinstance(silent.score_group(group_of(long))[0], NoScore)
    certain = opened(
        {"name": "general_verifier", "judge": judge({}, ("Final Decision: Yes",))}, tmp_path / "y"
    )
    assert certain.score_group(group_of(long)) == [0.5]  # at most ten tokens count


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("\\boxed{a} then \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("4", ""),
        ("The answer is: 4\n", "4"),
        ("The answer is: 4", ""),  # verifier.py:43-48: every pattern ends with a line break
        ("Final Answer: 4\nAnswer: 5\nso", "5"),  # the last one that begins
        ("Answer: 4\nFinal answer is: x < 5\n", "x < 5"),
        ("Solution: Answer: 4\n", "4"),
        ("ANSWER:\n\n4\n", "4"),
        ("Answer: <<4>>\n", ""),
        ("<answer>4</answer>\n", ""),  # a tag is no form of an answer there
        ("\\boxed{} Answer: 4\n", "4"),
        ("Answer: 4\n\\boxed{5}", "5"),
    ],
)
def test_general_reasoner_answers(text, answer):
    assert final_answer(text) == answer


def test_perl_vl(tmp_path):
    template, table, words = load_template("criteria"), {}, "a red circle left of a star"
    for criterion, verdict in ((FAITHFUL, "yes"), (SUFFICIENT, "no")):
        values = {"question": "2 + 2?", "answer": words, "criteria": f"- {criterion}"}
        table[template.fill(values)] = [f"Verdict: {verdict}"]
    reward = opened({"name": "judged_description", "judge": judge(table, ("Verdict: yes",))}, tmp_path)
    text = "<description>{}</description><think>so</think><answer>4</answer>"
    group = group_of(
        text.format(words),  # faithful, and not enough
        text.format("a star"),
        "<answer>4</answer>",
        "",
        text.format("  "),
        text.format(words) + text.format("a star"),  # which of the two counts is not said
        "<description>Verdict: yes",
    )
    assert reward.score_group(group) == [0.5, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert reward.state.asked == 4
    shown = reward.asked(group.rollouts[0])
    assert len(shown) == 2 and all("4" not in dict(question.values)["answer"] for question in shown)
    silent = opened({"name": "judged_description", "judge": judge({})}, tmp_path / "silent")
    unread, bare = silent.score_group(group_of(text.format(words), "4"))
    assert isinstance(unread, NoScore) and bare == 0.0  # no verdict is not a no
    garbled = opened({"name": "judged_description", "judge": judge(table, ("perhaps",))}, tmp_path / "g")
    known, other = garbled.score_group(group_of(text.format(words), text.format("a star")))
    assert known == 0.5 and isinstance(other, NoScore)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("so <answer>[[A]]</answer>", 1.0),
        ("so <answer>[[B]]</answer>", -1.0),
        ("<answer>[[A]]</answer> or <answer>[[B]]</answer>", -1.0),
        ("<answer>[[A]]</answer>" + " and" * 30, -1.0),  # not at the end
        ("<answer>[[B]]</answer>" + " but" * 30 + " <answer>[[A]]</answer>", 1.0),
        ("<answer>A</answer>", -1.0),
        ("<answer>[[A]]</answer> <answer>[[A]]</answer>", -1.0),  # the release pays it, as the next two
        ("<think><answer>[[A]]</answer>", -1.0),
        ("<answer>[[A]]</answer> <answer>unsure</answer>", -1.0),
        ("", -1.0),
    ],
)
def test_rm_r1(text, score):
    reward = build(Reward, {"name": "final_verdict"})
    assert reward.score(text, "1") == score
    with pytest.raises(GoldError, match="is no label"):
        reward.score(text, "model_a")


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("principles, critique. Scores: 8, 3", 1.0),
        ("Scores: 3, 8", -1.0),
        ("Scores: 5, 5", -1.0),  # the best must be strictly best
        ("Scores: 3, 8\nScores: 8.5, 3", -1.0),
        ("<think>Scores: 8, 3</think>", -1.0),
        ("Scores: 80, 3", -1.0),
        ("Scores: 8", -1.0),
        ("8 and 3", -1.0),
    ],
)
def test_spct(text, score):
    assert build(Reward, {"name": "pointwise_scores"}).score(text, "1") == score


def test_spct_of_a_single_response():
    reward = build(Reward, {"name": "pointwise_scores", "count": 1})
    assert [reward.score(f"Scores: {n}", 7) for n in (7, 6)] == [1.0, -1.0]
    with pytest.raises(GoldError, match="is none of 2"):
        build(Reward, {"name": "pointwise_scores"}).score("Scores: 8, 3", 3)


def test_brpo(tmp_path):
    texts, template, table = ("1", "2", "3"), load_template("pair"), {}
    for a in texts:
        for b in texts:
            prompt = template.fill({"question": "2 + 2?", "answer_a": a, "answer_b": b})
            table[prompt] = [f"Verdict: {'tie' if a == b else 'A' if a > b else 'B'}"]
    reward = opened({"name": "judged_reference", "judge": judge(table)}, tmp_path)
    group = group_of(*texts)
    reference = reward.reference(group)
    scores = reward.score_group(group)
    assert scores == [0.0 if i == reference else (1.0 if i > reference else -1.0) for i in range(3)]
    assert reward.reference(group) == reference and reward.score_group(group_of("1")) == [0.0]
    first = opened({"name": "judged_reference", "judge": judge({}, ("Verdict: A",))}, tmp_path / "first")
    lost = first.score_group(group)
    assert sorted(lost) == [-1.0, -1.0, 0.0]  # who wins in one order alone has not won
    silent = opened({"name": "judged_reference", "judge": judge({})}, tmp_path / "silent")
    assert sum(isinstance(score, NoScore) for score in silent.score_group(group)) == 2

    assert WritingZero()([group_of("a", "b", rewards=[1.0, -1.0])]) == [[1.0, -1.0]]
    keep = WritingZeroBalanced()
    assert keep(group_of(*"abcde", rewards=[1.0, 1.0, 1.0, 0.0, 0.0])).keep
    dropped = keep(group_of(*"abcde", rewards=[1.0, 1.0, 1.0, 1.0, 0.0]))
    assert not dropped.keep and "0.80" in dropped.reason
