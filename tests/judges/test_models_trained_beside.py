"""Papers that train a judge, a verifier or a reward model beside the policy: numbers by hand, wrong answers
as well as right ones."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from judge_kit import group_of, judge, opened
from vlrl_rewards.combine.critiques import CORRECT, WRONG
from vlrl_rewards.combine.debate import PROPOSE
from vlrl_rewards.combine.referee import REFEREE, kendall

from vlrl.beside.reward_model import ScalarRewardModel, tiny_classifier, with_reference
from vlrl.beside.service import ModelService, Reply
from vlrl.beside.templates import load_template
from vlrl.engine.fake import Fake
from vlrl.methods.common.flow_field import FlowField
from vlrl.methods.common.step_scores import STEP_SCORES
from vlrl.methods.common.verification_chains import read_verification, verification_prompt
from vlrl.methods.core.reward_shaping import TOKEN_REWARDS
from vlrl.methods.papers.cooper import Cooper
from vlrl.methods.papers.rl_tango import RlTangoMixed, RlTangoVerifier, form_of
from vlrl.methods.papers.rlfr import Rlfr, RlfrReturns
from vlrl.methods.papers.thinkprm import Thinkprm, chain_scores
from vlrl.methods.papers.urpo import Urpo, read_scores
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.scoring import GoldError, NoScore
from vlrl.plugins.stages import TOKEN_ADVANTAGES, Reward
from vlrl.policy.tiny import qwen_tokenizer

# --- Cooper -------------------------------------------------------------------------------------------------


def test_the_reward_model_sees_the_reference():
    prompt = with_reference(group_of("a").prompt)
    assert prompt.messages[0]["content"] == "2 + 2?\n\nReference answer: 4" and not prompt.prefix
    with pytest.raises(ValueError, match="has no answer"):
        with_reference(group_of("a", answer="").prompt)


def test_cooper_learns_the_pair_and_freezes_nothing():
    """-log sigma of the difference of the two scores, and its gradient raises the right response."""
    tokenizer = qwen_tokenizer(512)
    model = ScalarRewardModel(tiny_classifier("Sequence", len(tokenizer), 1), tokenizer, "completion")
    group = group_of("it is 4", correct=[True])
    frozen = model.scores([(with_reference(group.prompt), text) for text in ("it is 4", "it is 5")])
    loss, gap = Cooper(assistant=judge({})).loss(model, [(group.rollouts[0], "it is 5")])
    assert float(gap) == pytest.approx(frozen[0] - frozen[1], abs=1e-5)
    assert float(loss) == pytest.approx(math.log1p(math.exp(-(frozen[0] - frozen[1]))), abs=1e-5)
    model.model.requires_grad_(True)
    optimizer = torch.optim.SGD(model.model.parameters(), lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        loss, _ = Cooper(assistant=judge({})).loss(model, [(group.rollouts[0], "it is 5")])
        loss.backward()
        optimizer.step()
    better = model.scores([(with_reference(group.prompt), text) for text in ("it is 4", "it is 5")])
    assert better[0] - better[1] > frozen[0] - frozen[1]


def test_cooper_needs_an_assistant():
    with pytest.raises(ConfigError, match="assistant"):
        Cooper().check(SimpleNamespace())


# --- critics and verifiers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "label", "score"),
    [
        (f"fine. {CORRECT}", "yes", 1.0),
        (f"bad. {WRONG}", "yes", -1.0),
        (f"bad. {WRONG}", "no", 1.0),
        (f"{CORRECT} {WRONG}", "no", -1.0),  # both are no verdict; the release pays them
        (f"{CORRECT} {WRONG}", "yes", -1.0),
        ("it is correct", "yes", -1.0),
        (f"<think>{CORRECT}</think> hm", "yes", -1.0),
        ("", "no", -1.0),
    ],
)
def test_critique_verdict(text, label, score):
    reward = build(Reward, {"name": "critique_verdict"})
    assert reward.score(text, label) == score
    with pytest.raises(GoldError, match="no label"):
        reward.score(text, "maybe")


@pytest.mark.parametrize(
    ("mode", "label", "solved", "score"),
    [
        ("refine", "no", True, 1.2),
        ("refine", "no", False, 0.2),
        ("refine", "yes", True, 1.2),
        ("delta", "yes", True, 0.2),
        ("delta", "yes", False, -0.8),
        ("delta", "no", True, 1.2),
        ("correct", "yes", True, 0.4),
        ("correct", "no", True, 1.2),
    ],
)
def test_critique_refinement_as_released(mode, label, solved, score, tmp_path):
    """reward_func.py:100-182: r_mode + 0.2 where the verdict is right, -1 where it is not."""
    spec = {
        "name": "critique_refinement",
        "mode": mode,
        "gold": "gold",
        "engine": {"name": "fake", "options": ("4" if solved else "5",)},
        "of": {"name": "exact"},
    }
    reward = opened(spec, tmp_path)
    meta = {"problem": "2 + 2?", "solution": "I get 5.", "gold": "4"}
    says = {"yes": CORRECT, "no": WRONG}
    group = group_of(
        f"so {says[label]}", f"so {says['yes' if label == 'no' else 'no']}", "", answer=label, **meta
    )
    assert reward.score_group(group) == pytest.approx([score, -1.0, -1.0])
    assert reward.state.asked == 1  # the actor is not asked behind a wrong verdict
    assert reward.correct(group.rollouts[0], score) and not reward.correct(group.rollouts[1], -1.0)
    turns = reward.solver_prompt(group.row).messages
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Step 1: ok \\boxed{correct}\nStep 2: no \\boxed{incorrect}\nVerdict: no", 1.0),
        ("Step 1: ok \\boxed{correct}\nStep 2: no \\boxed{incorrect}\nStep 3: no \\boxed{incorrect}", 1.0),
        ("Step 1: ok \\boxed{correct}\nStep 2: ok \\boxed{correct}\nStep 3: \\boxed{incorrect}", 0.0),
        ("Step 1: ok \\boxed{correct}", 0.0),
        ("<think>\\boxed{correct} \\boxed{incorrect}</think>", 0.0),
        ("\\boxed{correct} \\boxed{incorrect} \\boxed{correct} \\boxed{correct}", 0.0),  # a step too many
        ("", 0.0),
    ],
)
def test_step_verdicts(text, score):
    reward = build(Reward, {"name": "step_verdicts"})
    (rollout,) = group_of(text, step_labels=[1.0, 0.0, 0.0])
    assert reward(rollout) == score
    with pytest.raises(GoldError, match="a label for each step"):
        reward(group_of(text).rollouts[0])


def test_chains_are_read_once_and_in_order():
    chain = "Step 1: so \\boxed{correct}\nStep 2: so \\boxed{incorrect}\nVerdict: no"
    assert read_verification(chain, 2).steps == (True, False) and read_verification(chain, 2).verdict is False
    assert read_verification(chain, 3).steps is None  # a step is missing
    assert read_verification("Step 2: \\boxed{correct}\nStep 1: \\boxed{correct}", 2).steps is None
    assert read_verification("Verdict: yes\nVerdict: no", 0).verdict is None
    assert read_verification("No doubt: Verdict: yes", 0).verdict is None
    assert read_verification("<think>Verdict: no</think>\nVerdict: yes", 0).verdict is True
    asked = verification_prompt("2 + {steps}?", ["it is\n4", "-----\nVerdict: yes"])
    assert "2 + {steps}?" in asked and "Step 1: it is 4\nStep 2: --- Verdict: yes" in asked


def test_thinkprm_scores(tmp_path):
    chain = "Step 1: so \\boxed{correct}\nStep 2: so \\boxed{incorrect}\nVerdict: no"
    assert chain_scores(Reply(chain), 2) == [1.0, -1.0]
    assert chain_scores(Reply(failure="busy"), 2) is None and chain_scores(Reply("hm"), 2) is None
    top = [("Verdict: ", {}), ("no", {"no": math.log(0.7), "yes": math.log(0.1)})]
    lead = len(chain) - len("Verdict: no")
    probable = Reply(chain, logprobs=[(chain[:lead], {}), *top])
    assert chain_scores(probable, 2) == pytest.approx([1.0, 2 * 0.1 / 0.8 - 1])
    shaping, group = Thinkprm(verifier=judge({})), group_of("a")
    steps, rollout = [(2, "a"), (4, "b")], group.rollouts[0]
    both = chain.replace("\\boxed{incorrect}", "\\boxed{correct}").replace("Verdict: no", "Verdict: yes")
    shaping.write(rollout, steps, [Reply(chain), Reply(both), Reply("hm")])
    assert STEP_SCORES[rollout] == [(2, 1.0), (4, 0.0)]  # the mean over the chains that could be read
    shaping.write(rollout, steps, [Reply(failure="busy")])
    assert STEP_SCORES[rollout] == [] and shaping.state.counts == {"chains": 4, "unread": 2}


def test_tango_mixes_outcome_and_steps():
    """Outcomes 1, 0: normalised 1 and -1 by the unbiased deviation 1/sqrt(2) -> 1/sqrt(2). Steps 1/2, -1/2
    and 1/2, 1/2: mean 1/4, unbiased deviation 1/2: 1/2, -3/2, 1/2, 1/2."""
    group = group_of("a", "b", rewards=[1.0, 0.0])
    for rollout, scores in zip(group, ((0.5, -0.5), (0.5, 0.5)), strict=True):
        STEP_SCORES.set(rollout, [(1, scores[0]), (3, scores[1])])
    mixed = RlTangoMixed(start=0.5, end=0.5, eps=0.0)
    mixed.setup(SimpleNamespace(phase_step=0, settings=SimpleNamespace(steps=3)))
    mixed([group])
    up, down, out = 0.5, -1.5, 1 / math.sqrt(2)
    first = [0.5 * out + 0.5 * (up + down), *[0.5 * out + 0.5 * down] * 2, 0.5 * out]
    second = [-0.5 * out + 0.5 * 2 * up, *[-0.5 * out + 0.5 * up] * 2, -0.5 * out]
    assert TOKEN_ADVANTAGES[group.rollouts[0]] == pytest.approx(first)
    assert TOKEN_ADVANTAGES[group.rollouts[1]] == pytest.approx(second)
    late = RlTangoMixed(start=0.4, end=0.1)
    late.setup(SimpleNamespace(phase_step=2, settings=SimpleNamespace(steps=4)))
    assert late.share() == pytest.approx(0.2)  # half way, by equal factors
    with pytest.raises(ValueError, match="0 < end <= start"):
        RlTangoMixed(start=0.1, end=0.5)


def test_tangos_verifier_is_paid_for_its_verdict_and_its_form():
    """F: 1, 1 - .8 and max(0, 1 - 1.6). Weights of 1 right and 4 wrong rollouts: 1 and 1/2, times 5/3; then
    of counts .8 (1, 4) + .2 (4, 1) = (1.6, 3.4) over 4 right and 1 wrong."""
    whole = "Step 1: so \\boxed{correct}\nVerdict: no"
    assert form_of(read_verification(whole, 1)) == 1.0
    assert form_of(read_verification(whole, 2)) == pytest.approx(0.2)
    assert form_of(read_verification("Step 1: so \\boxed{correct}", 1)) == pytest.approx(0.2)
    assert form_of(read_verification("hm", 1)) == 0.0
    verifier = RlTangoVerifier()
    assert verifier.weights(1, 4) == pytest.approx({True: 5 / 3, False: 5 / 6}, rel=1e-5)
    of_right, of_wrong = 1 / math.sqrt(1.6), 1 / math.sqrt(3.4)
    scale = 5 / (4 * of_right + of_wrong)
    assert verifier.weights(4, 1) == pytest.approx(
        {True: scale * of_right, False: scale * of_wrong}, rel=1e-5
    )
    assert RlTangoVerifier(balance=False).weights(1, 4) == {True: 1.0, False: 1.0}
    kept = RlTangoVerifier().init_state()
    kept.load_state_dict(verifier.state.state_dict())
    assert kept.seen == pytest.approx((1.6, 3.4))
    with pytest.raises(ValueError, match="decay=1"):
        RlTangoVerifier(decay=1.0)


# --- player and referee -------------------------------------------------------------------------------------


def test_kendall_and_the_referees_reward():
    assert kendall([9, 5, 1], [3, 2, 1]) == 1.0 and kendall([1, 5, 9], [3, 2, 1]) == -1.0
    assert kendall([9, 1, 5], [3, 2, 1]) == pytest.approx(1 / 3)
    assert kendall([5, 5, 1], [3, 2, 1]) == pytest.approx(2 / 3)  # a tie is neither
    reward = build(Reward, {"name": "score_agreement"})
    texts = [
        "Scores: 9, 5, 1",
        "Scores: 1, 5, 9",
        "Scores: 9, 5",
        "Scores: 90, 5, 1",
        "9 5 1",
        "",
        "<think>Scores: 9, 5, 1</think>",
        "Scores: 9, 5, 1 Scores: 1, 5, 9",
    ]
    group = group_of(*texts, ratings=[3.0, 2.0, 1.0])
    assert [reward(rollout) for rollout in group] == [1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0]
    with pytest.raises(GoldError, match="two different ratings"):
        reward(group_of("Scores: 1, 2", ratings=[1.0, 1.0]).rollouts[0])


def test_a_referee_that_cannot_be_read_gives_no_score():
    assert read_scores("so Scores: 10, 1", 2) == [1.0, 0.0]
    for text in ("Scores: 10", "Scores: 11, 1", "10, 1", "Scores: 1, 1 Scores: 2, 2", ""):
        assert read_scores(text, 2) is None
    reward, group = build(Reward, {"name": "referee_score"}), group_of("a", "b")
    REFEREE.set(group.rollouts[0], 0.25)
    assert reward(group.rollouts[0]) == 0.25
    with pytest.raises(NoScore, match="could be read"):
        reward(group.rollouts[1])
    with pytest.raises(ValueError, match="referees"):
        Urpo(referees=0)


# --- debates ------------------------------------------------------------------------------------------------

RECORD = "<context>Ada lives in Holt. Ben lives in Esk.</context>\nWhere does Ada live?"


def debated(reply, verdict, folder, texts, turns=2, **meta):
    """(scores, judge's questions) of a debate whose debaters reply as told."""
    reward = opened({"name": "debate", "turns": turns, "judge": judge({}, (verdict,))}, folder)
    reward.state.debater = ModelService(
        "debater@1", Fake(function=lambda request, index: reply(request.prompt.text)), folder / "debater"
    )
    group = group_of(*texts, question=RECORD, answer="Holt", **meta)
    return reward, reward.score_group(group), group


def test_a_debate_is_zero_sum_and_quotes_the_record(tmp_path):
    def quote(asked):
        return "Ada lives in Holt." if "You defend: Holt" in asked else "Ben lives in Esk."

    texts = ["<answer>Holt</answer>", "<answer>Esk</answer>", "<answer>Holt</answer>", "no"]
    reward, scores, group = debated(quote, "Verdict: B", tmp_path, texts)
    # decisions in order are Esk (A) and Holt (B); the judge says B in both orders, so the two cancel: a tie
    assert scores == [0.0, 0.0, 0.0, -1.0] and reward.state.flipped == 3
    (pair,) = {pair for pair in reward.pairs(group) if pair}
    assert pair == ("r", "Esk", "Holt") and reward.state.debates[pair] == (
        ["Ben lives in Esk."],
        ["Ada lives in Holt."],
    )
    question = dict(reward.question(group.row, pair).values)
    assert question["question"] == "Where does Ada live?" and "context" not in str(question)
    assert question["answer_b"] == "Decision: Holt\n- Ada lives in Holt."


def test_who_invents_evidence_has_none(tmp_path):
    texts = ["<answer>Holt</answer>", "<answer>Esk</answer>"]
    reward, _, group = debated(lambda asked: "Ada lives in Esk.", "tie", tmp_path, texts, 4)
    assert list(reward.state.debates.values()) == [([], [])]
    table = {}
    template = load_template("justified")
    for swapped in (False, True):
        question = reward.question(group.row, ("r", "Esk", "Holt"))
        question = question.swapped() if swapped else question
        table[template.fill(dict(question.values))] = [f"Verdict: {'A' if swapped else 'B'}"]
    winner = opened({"name": "debate", "turns": 2, "judge": judge(table)}, tmp_path / "w")
    winner.state.debates[("r", "Esk", "Holt")] = ([], [])
    assert winner.score_group(group) == [1.0, -1.0]  # Holt wins in both orders


def test_a_debate_without_a_rival_a_record_or_a_verdict(tmp_path):
    reward, scores, _ = debated(lambda asked: "hm", "hm", tmp_path, ["<answer>Holt</answer>"])
    assert scores == [0.0] and "{own}" in PROPOSE
    _, unread, _ = debated(
        lambda asked: "hm", "hm", tmp_path / "u", ["<answer>Holt</answer>"], baseline="Esk"
    )
    assert isinstance(unread[0], NoScore)
    with pytest.raises(GoldError, match="no record"):
        reward.score_group(group_of("<answer>Holt</answer>"))
    with pytest.raises(ValueError, match="even"):
        build(Reward, {"name": "debate", "turns": 3, "judge": judge({})})


# --- RLFR -------------------------------------------------------------------------------------------------


def test_flow_penalties_by_hand():
    """Deviations 1, 5, 4, 3: scaled 0, 1, .75, .5; above .6 are two, and the top one is kept with top 1."""
    assert Rlfr().penalties([1.0, 5.0, 4.0, 3.0], [True] * 4) == pytest.approx([0.0, -0.01, -0.0075, 0.0])
    assert Rlfr(top=1, coef=1.0).penalties([1.0, 5.0, 4.0, 3.0], [True] * 4) == [0.0, -1.0, 0.0, 0.0]
    assert Rlfr(coef=1.0).penalties([1.0, 9.0, 2.0], [True, False, True]) == [
        0.0,
        0.0,
        -1.0,
    ]  # a tool's token
    assert Rlfr().penalties([2.0, 2.0], [True, True]) == [0.0, 0.0] and Rlfr().penalties([], []) == []
    with pytest.raises(ValueError, match="between 0 and 1"):
        Rlfr(times=(1.0,))


def test_flow_returns_stand_behind_the_groups_normalisation():
    group = group_of("a", "b", rewards=[1.0, 0.0], length=3)
    TOKEN_REWARDS.set(group.rollouts[0], [0.0, -0.5, 0.0])
    TOKEN_REWARDS.set(group.rollouts[1], [-0.25, 0.0, -0.25])
    RlfrReturns(eps=0.0, unbiased=True)([group])
    out = 1 / math.sqrt(2)
    assert TOKEN_ADVANTAGES[group.rollouts[0]] == pytest.approx([out - 0.5, out - 0.5, out])
    assert TOKEN_ADVANTAGES[group.rollouts[1]] == pytest.approx([-out - 0.5, -out - 0.25, -out - 0.25])


def test_a_flow_field_learns_its_states_and_not_others():
    torch.manual_seed(0)
    field = FlowField(8, 2, 0)
    good, context = torch.full((64, 8), 0.7), torch.zeros(64, 8)
    t = torch.full((64,), 0.8)
    noise = torch.randn(64, 8)
    first = field.deviation(good, context, t, 0.5, noise)
    assert torch.allclose(first, (good - noise).square().mean(-1))  # 0 everywhere at first
    optimizer = torch.optim.Adam(field.net.parameters(), lr=1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        field.deviation(good, context, t, 0.5, torch.randn(64, 8)).mean().backward()
        optimizer.step()
    with torch.no_grad():
        near, far = (field.deviation(x, context, t, 0.5, noise).mean() for x in (good, -good))
    assert float(near) < 0.8 * float(far)
