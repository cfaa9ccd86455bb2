"""Signed observables of credit, by hand on small records."""

import math

import pytest
from proof_kit import credit_observables as C
from proof_kit.observables import OBSERVABLES, Record, StepRecord

from vlrl.types import Group, Prompt, Rollout, Row


def group(*members, meta=None, question="q"):
    """A group of (correct, advantage, pushes[, further tensors])."""
    prompt = Prompt(Row("r", question, "1", meta=meta or {}), ({"role": "user", "content": question},))
    rollouts, tensors = [], {}
    for correct, advantage, pushes, *more in members:
        n = len(pushes)
        rollout = Rollout(
            prompt, list(range(n)), "text", logp=[0.0] * n, correct=correct, advantage=advantage,
            advantages=[advantage] * n, reward=float(correct),
        )  # fmt: skip
        kept = {"push": pushes, "log_ratio": [0.0] * n, "advantage": [advantage] * n, "logp": [-1.0] * n}
        tensors[id(rollout)] = kept | (more[0] if more else {})
        rollouts.append(rollout)
    return Group(prompt, rollouts), tensors


def record(*groups):
    tensors = {key: kept for _, own in groups for key, kept in own.items()}
    members = [one for one, _ in groups]
    return Record([StepRecord(members, members, {}, tensors=tensors)])


def value(name, *groups):
    return OBSERVABLES[name](record(*groups))


def test_push_of_right_and_wrong():
    one = group((True, 1.0, [0.5, 0.7]), (False, -1.0, [-0.2]))
    assert value("push_of_correct", one) == pytest.approx(0.6)
    assert value("push_of_wrong", one) == pytest.approx(-0.2)
    assert value("credit_of_correct", one) == pytest.approx(0.8)
    one[0].rollouts[1].source = "expert"
    assert value("push_of_demonstrations", one) == pytest.approx(-0.2)


def test_push_by_a_quantity_of_the_token():
    rising = group((True, 1.0, [0.1, -0.2, 0.3], {"entropy": [1.0, 2.0, 3.0]}))
    assert value("push_by_entropy", rising) == pytest.approx(1.0)
    assert value("push_by_place", rising) == pytest.approx(1.0)
    falling = group((True, 1.0, [0.3, 0.2, 0.1], {"entropy": [1.0, 2.0, 3.0]}))
    assert value("push_by_entropy", falling) == pytest.approx(-1.0)
    masked = group((True, 1.0, [0.3, 0.2, 0.1], {"entropy": [1.0, 2.0, 3.0]}))
    masked[0].rollouts[0].loss_mask = [False, True, True]
    assert value("push_of_correct", masked) == pytest.approx(0.15)


def test_tokens_beyond_the_clip_range():
    far, near = math.log(1.3), math.log(1.1)
    up = (True, 1.0, [0.0, 0.5], {"log_ratio": [far, near]})
    down = (False, -1.0, [-0.5, 0.0], {"log_ratio": [far, -2.0]})
    assert value("push_beyond_clip", group(up, down)) == 0.0  # the last token of each is PPO's to clip
    kept = (True, 1.0, [0.25, 0.5], {"log_ratio": [far, near]})
    assert (
        value("push_beyond_clip", group(kept)) == value("push_above_clip", group(kept)) == pytest.approx(0.5)
    )
    assert value(
        "push_of_wrong_that_rose", group((False, -1.0, [-0.9, -0.3], {"log_ratio": [far, 0.0]}))
    ) == (pytest.approx(-3.0 * -1.0))


def test_pull_back():
    back = group((True, 1.0, [-0.2, 0.2], {"log_ratio": [0.1, -0.1]}))
    assert value("push_by_log_ratio", back) == pytest.approx(-10.0)
    still = group((True, 0.0, [0.2, -0.2], {"ref_logp": [-0.5, -1.5]}))
    assert C.push_to(record(still), "ref_logp") == pytest.approx(2.0)
    assert C.push_to(record(still), "other") == 0.0
    credited = group((True, 1.0, [0.2, -0.2], {"ref_logp": [-0.5, -1.5]}))
    assert C.push_to(record(credited), "ref_logp") == 0.0


def test_weight_of_groups():
    hard, easy = (
        group((True, 1.0, [0.9]), (False, -1.0, [-0.9])),
        group((True, 1.0, [0.1]), (True, 1.0, [0.1])),
    )
    assert value("push_by_accuracy", hard, easy) == pytest.approx(-1.0)
    assert value("push_by_accuracy", hard) == 0.0
    low, high = group((True, 1.0, [0.1]), meta={"rate": 1}), group((True, 1.0, [0.2]), meta={"rate": 3})
    assert C.push_by_meta(record(low, high), "rate") == pytest.approx(1.0)
    assert value("push_in_uniform_groups", easy, group((False, -1.0, [-0.3]))) == pytest.approx(0.4)
    assert value("group_advantage_by_accuracy", easy, hard) > 0 == value("group_advantage_by_accuracy", hard)


def test_size_of_advantages_by_spread():
    wide, narrow = (
        group((True, 2.0, [0.1]), (False, -2.0, [0.1])),
        group((True, 1.0, [0.1]), (False, -1.0, [0.1])),
    )
    for rollout, reward in zip(narrow[0].rollouts, (0.6, 0.4)):
        rollout.reward = reward
    assert value("advantage_size_by_spread", wide, narrow) == pytest.approx(1.0)
    assert value("reward_spread", wide, narrow) == pytest.approx((0.5 + 0.1) / 2)
    for rollout in wide[0].rollouts:
        rollout.advantage /= 2
    assert value("advantage_size_by_spread", wide, narrow) == 0.0  # every group has the same size


def test_advantages_along_a_rollout():
    one = group((True, 1.0, [0.1, 0.1]))
    one[0].rollouts[0].advantages = [0.5, 1.5]
    assert value("late_advantage", one) == pytest.approx(1.0)
    wrong = group((False, -1.0, [0.1, 0.1]))
    wrong[0].rollouts[0].advantages = [-3.0, 3.0]
    assert value("late_advantage_of_correct", one, wrong) == pytest.approx(1.0)
    assert value("late_advantage", one, wrong) == pytest.approx(3.5)
    assert value("advantage_spread_in_rollouts", one) == pytest.approx(0.5)
    assert value("mean_advantage", one) == pytest.approx(1.0)


def test_what_right_answers_share():
    one = group((True, 1.0, [0.2, 0.6]), (False, -1.0, [-0.4]))  # token 1 is in the right answer alone
    assert value("push_by_association", one) > 0
    turned = group((True, 1.0, [0.6, 0.2]), (False, -1.0, [0.4]))
    assert value("push_by_association", turned) < 0


def test_credit_of_an_option_and_of_a_prompt():
    one = group(
        (True, 1.0, [0.1]), (False, -1.0, [0.1]), meta={"chosen": "red"}, question="which?\nA. blue\nB. red"
    )
    one[0].rollouts[0].text, one[0].rollouts[1].text = "<answer>B</answer>", "<answer>A</answer>"
    assert C.credit_of_option(record(one), "chosen") == pytest.approx(2.0)
    assert C.credit_of_option(record(one), "rejected") == 0.0
    assert (
        C.credit_where(record(one), "which") == pytest.approx(2.0) and C.credit_where(record(one), "x") == 0.0
    )


def test_where_branches_begin():
    branch = (True, 1.0, [0.0, 0.1, 0.1], {"entropy": [0.0, 3.0, 2.0]})
    one = group(branch, (True, 1.0, [0.1], {"entropy": [9.0]}))
    one[0].rollouts[0].loss_mask = [False, True, True]
    assert value("entropy_where_branched", one) == pytest.approx(0.5)


def test_trend():
    early, late = group((True, 1.0, [0.1])), group((False, 1.0, [0.1]))
    seen = Record([*record(early).steps, *record(late).steps])
    assert C.trend(seen, "sampled_accuracy") == pytest.approx(-1.0)
