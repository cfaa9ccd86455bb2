"""Values of the metrics, worked out by hand."""

import itertools
import math
from types import SimpleNamespace

import pytest
from make import end_step, run

from vlrl.methods.core.calibration import ace, average_precision, ece
from vlrl.plugins.episodes import CALLS, CONVERSATION
from vlrl.plugins.registry import ConfigError, build, names
from vlrl.plugins.stages import Metric
from vlrl.types import Group, Prompt, Rollout, Row


def metric(name, **fields):
    return build(Metric, {"name": name, **fields})


def group(*scores, row="a", texts=(), ids=(), **fields):
    """One rollout per score of the slot "accuracy", which is the outcome; 1 is correct."""
    prompt = Prompt(Row(row, "?"), ())
    rollouts = [
        Rollout(
            prompt,
            [1, 2],
            rewards={"accuracy": float(s)},
            reward=float(s),
            outcome=float(s),
            correct=s >= 1,
            **fields,
        )
        for s in scores
    ]
    for rollout, text in zip(rollouts, texts):
        rollout.text = text
    for rollout, tokens in zip(rollouts, ids):
        rollout.ids = list(tokens)
    return Group(prompt, rollouts)


def near(expected):
    return pytest.approx(expected, abs=1e-12)


def test_pass_at_k_equals_the_share_of_all_draws():
    n, c = 6, 2
    for k in range(1, n + 1):
        draws = list(itertools.combinations(range(n), k))
        by_counting = sum(any(i < c for i in draw) for draw in draws) / len(draws)
        assert metric("pass_at_k", ks=[k])([group(*[1] * c, *[0] * (n - c))])[str(k)] == near(by_counting)


def correct_from(score_needed):
    return SimpleNamespace(correct=lambda rollout, score: score >= score_needed)


def test_pass_at_k_over_ragged_groups():
    groups = [group(1, 0, 0, 0), group(0, 0), group(1, 1)]
    assert metric("pass_at_k")(groups) == near(
        {"1": (0.25 + 0 + 1) / 3, "2": (0.5 + 0 + 1) / 3, "4": 1.0, "unsolved": 1 / 3}
    )
    assert metric("pass_at_k", ks=[8])([group(1, 0)]) == {"unsolved": 0.0}
    assert metric("pass_at_k")([group(1, 0, 0)]).keys() == {"1", "2", "3", "unsolved"}


def test_cot_pass_at_k_needs_both_slots():
    both = group(1, 1, 0, 0)
    for rollout, chain in zip(both, (1.0, 0.0, 1.0, 0.0)):
        rollout.rewards["chain"] = chain
    cot = metric("pass_at_k", both="chain", ks=[1, 2])
    cot.setup(run(rewards={"chain": correct_from(0.5)}))
    assert cot([both, group(1)]) == near({"1": 0.25, "2": 0.5, "unsolved": 0.0, "given_answer": 0.5})


def test_groups():
    groups = [group(1, 1), group(0, 0), group(1, 0, 0, 0)]
    found = metric("groups")(groups)
    assert found == near({
        "zero_variance": 2 / 3, "std": math.sqrt(3) / 4 / 3, "anticoncentration": 0.25 / 3,
        "all_correct": 1 / 3, "all_wrong": 1 / 3, "mixed": 1 / 3,
    })  # fmt: skip
    assert metric("groups", margin=5)(groups)["anticoncentration"] == 0
    assert metric("groups")([group(0.1, 0.1, 0.1)])["zero_variance"] == 1


def test_lengths():
    found = group(1, 1, 0, 0, ids=[[1] * 2, [1] * 4, [1] * 6, [1] * 8])
    found.rollouts[3].finish = "length"
    assert metric("lengths")([found]) == near(
        {
            "correct": 3,
            "truncated/correct": 0,
            "wrong": 7,
            "truncated/wrong": 0.5,
            "correlation": -4 / math.sqrt(20),
        }
    )
    assert metric("lengths")([group(1, 1)]) == {"correct": 2, "truncated/correct": 0}


def test_answer_diversity():
    texts = ["<answer>7</answer>", "<answer> 7 </answer>", "so\n8", ""]
    found = metric("answer_diversity")([group(1, 1, 0, 0, texts=texts)])
    assert found == near({"unique": 3, "entropy": 1.5 * math.log(2), "majority": 0.5, "vote": 1})
    assert metric("answer_diversity")([group(0, 0, texts=["x", "x"])]) == {
        "unique": 1,
        "entropy": 0,
        "majority": 1,
        "vote": 0,
    }


@pytest.mark.parametrize(
    ("ids", "share"), [([1, 2, 3, 4], 0), ([1, 1, 1, 1], 2 / 3), ([1, 2, 1, 2, 1], 0.5), ([5, 5], 0)]
)
def test_repetition(ids, share):
    assert metric("repetition", n=2)([group(1, ids=[ids])])["share"] == near(share)


def test_repetition_leaves_short_rollouts_out():
    groups = [group(1, 1, 1, ids=[[1] * 5, [1], []])]
    assert metric("repetition", n=2, limit=0.7)(groups) == near({"share": 0.75, "max": 0.75, "looping": 1})
    assert metric("repetition")([group(1, ids=[[1]])]) == {}


def test_surprisal():
    found = group(1, 0, ids=[[1, 2], [3, 4]])
    found.rollouts[0].logp, found.rollouts[1].logp = [-0.2, -0.4], [-2.0, -1.0]
    expected = {
        "correct": 0.3,
        "wrong": 1.5,
        "part/1": 1.1,
        "part/2": 0.7,
        "accuracy/likely": 1,
        "accuracy/unlikely": 0,
    }
    assert metric("surprisal", parts=2)([found]) == near(expected)
    assert metric("surprisal")([group(1)]) == {}


def test_habits():
    text = "First, add. Wait, let me check: work backwards from the target. Wait"
    found = metric("answer_styles.habits")([group(1, 0, texts=[text, "7"])])
    assert found == near({
        "verification": 0.5, "share/verification": 0.5, "backtracking": 1.0, "share/backtracking": 0.5,
        "subgoals": 0.5, "share/subgoals": 0.5,
        "backward_chaining": 0.5, "share/backward_chaining": 0.5, "accuracy": 0.5,
    })  # fmt: skip


def test_styles():
    texts = ["```x```", "def f(x", r"\boxed{1}", "- a\n- b", "<answer>1</answer>", "plain"]
    found = metric("answer_styles")([group(*[1] * 6, texts=texts)])
    assert {name: value for name, value in found.items() if not name.startswith("accuracy/")} == near(
        {
            "code": 2 / 6,
            "latex": 1 / 6,
            "list": 1 / 6,
            "tags": 1 / 6,
            "other": 1 / 6,
            "entropy": math.log(3) / 3 + 4 * math.log(6) / 6,
        }
    )
    assert metric("answer_styles")([group(1, texts=["plain"])])["entropy"] == 0


def test_accuracy_by_style():
    """rosieyzh/openrlhf-pretrain 34d239da, run_inference_all.py: the share and the accuracy of each response
    type."""
    texts = ["<llm-code> def", "def f", "def g", "four"]
    found = metric("answer_styles", patterns={"llm-code": "<llm-code>", "tinygsm-code": "def"})(
        [group(1, 1, 0, 0, texts=texts)]
    )
    assert {name: found[f"accuracy/{name}"] for name in ("llm-code", "tinygsm-code", "other")} == {
        "llm-code": 1,
        "tinygsm-code": 0.5,
        "other": 0,
    }
    assert "accuracy/llm-code" not in metric("answer_styles", patterns={"llm-code": "<llm-code>"})(
        [group(1, texts=["plain"])]
    )


def migrated(tracker, *groups):
    """The numbers after a step with these groups."""
    end_step(tracker, groups)
    return tracker(groups)


def test_migration_compares_with_the_first_visit_and_survives_a_restart():
    tracker = metric("pass_rate_migration")
    assert (
        migrated(tracker, group(0, 0, row="hard"), group(1, 0, row="middle"), group(1, 1, row="easy")) == {}
    )
    restarted = metric("pass_rate_migration")
    restarted.load_state_dict(tracker.state_dict())
    second = [group(1, 0, row="hard"), group(0, 0, row="middle"), group(1, 0, row="easy")]
    found = migrated(restarted, *second)
    expected = {
        "change/hard": 0.5,
        "change/middle": -0.5,
        "change/easy": -0.5,
        "kept": 0.5,
        "lost": 0.5,
        "found": 0.5,
        "rows": 3,
    }
    assert found == near(expected) and restarted(second) == found  # the call itself changes nothing


def test_migration_records_at_most_so_many_rows():
    tracker = metric("pass_rate_migration", rows=1)
    migrated(tracker, group(1, row="a"), group(1, row="b"))
    assert migrated(tracker, group(0, row="a"), group(0, row="b"))["rows"] == 1


def scored(**slots):
    """One group; a slot per keyword, a score per rollout."""
    prompt = Prompt(Row("a", "?"), ())
    count = len(next(iter(slots.values())))
    return Group(
        prompt,
        [
            Rollout(prompt, [1], rewards={slot: float(values[i]) for slot, values in slots.items()})
            for i in range(count)
        ],
    )


@pytest.mark.parametrize(
    ("b", "distance"), [([0, 1], 0), ([5, 9], 0), ([1, 0], 1), ([3, 3], None)]
)  # the same, the same up to shift and scale, opposed, without direction
def test_reward_distance(b, distance):
    found = metric("starc")([scored(a=[0, 1], b=b)])
    assert found == ({} if distance is None else near({"a|b": distance}))


def test_unrelated_rewards_are_a_right_angle_apart_and_groups_are_centred_each():
    assert metric("starc")([scored(a=[0, 0, 1, 1], b=[0, 1, 0, 1])]) == near({"a|b": 1 / math.sqrt(2)})
    assert metric("starc")([scored(a=[0, 1], b=[0, 1]), scored(a=[0, 1], b=[7, 8])]) == near({"a|b": 0})


def test_policy_cliff():
    # totals 1.05 : 1; raising b by 10 % makes 1.05 : 1.1, another winner with other signs; raising a changes
    # nothing
    assert metric("the_policy_cliff")([scored(a=[1.05, 0], b=[0, 1])]) == near({"best": 0.5, "sign": 0.5})
    assert metric("the_policy_cliff")([scored(a=[2, 0], b=[0, 1])]) == near({"best": 0, "sign": 0})
    assert metric("the_policy_cliff")([scored(a=[1, 0])]) == {}


def test_calibration():
    texts = [
        "<confidence>0.9</confidence>",
        "<confidence>90%</confidence>",
        "<confidence> 30 </confidence>",
        "I don't know",
        "<confidence>900</confidence>",
    ]
    found = metric("calibration")([group(1, 0, 0, 0, 0, texts=texts, ids=[[1], [1], [1, 1], [1], [1]])])
    assert found == near({
        "stated": 0.6, "abstained": 0.2, "ece": (0.8 + 0.3) / 3, "brier": (0.01 + 0.81 + 0.09) / 3,
        "confidence": 0.7,
        "auroc": 0.75, "length": -1.0, "ace": (0.3 + 0.9 + 0.1) / 3, "auprc_correct": 0.5,
        "auprc_wrong": (1 + 2 / 3) / 2,
    })  # fmt: skip


def test_adaptive_bins_have_equal_counts():
    """Four answers in two bins: (0.2, 0.4) with one right, (0.6, 0.9) with one right."""
    assert ace([0.9, 0.2, 0.6, 0.4], [1, 1, 0, 0], 2) == pytest.approx((abs(0.5 - 0.3) + abs(0.5 - 0.75)) / 2)
    assert ece([0.9, 0.2, 0.6, 0.4], [1, 1, 0, 0], 2) == pytest.approx(
        (2 * abs(0.5 - 0.3) + 2 * abs(0.5 - 0.75)) / 4
    )
    assert ace([0.3], [1], 10) == pytest.approx(0.7)


def test_average_precision_by_hand():
    """Right at ranks 1 and 3: (1/1 + 2/3) / 2; equal scores count at once."""
    assert average_precision([0.9, 0.8, 0.7], [1, 0, 1]) == pytest.approx((1 + 2 / 3) / 2)
    assert average_precision([0.9, 0.9, 0.1], [1, 0, 0]) == pytest.approx(0.5)
    assert average_precision([0.1, 0.1], [1, 1]) is None and average_precision([0.1], [0]) is None


@pytest.mark.parametrize("name", names(Metric))
@pytest.mark.parametrize("groups", [[], [group()], [group(), group(1)]], ids=["none", "empty", "one rollout"])
def test_little_data_is_no_error_and_no_invented_number(name, groups):
    found = metric(name)(groups)
    assert all(math.isfinite(value) for value in found.values())
    if not any(len(each) for each in groups):
        assert found == {}


@pytest.mark.parametrize(
    "name", ["pass_at_k", "lengths", "answer_diversity", "surprisal", "calibration", "pass_rate_migration"]
)
def test_experts_do_not_count(name):
    assert metric(name)([group(1, 0, source="expert")]) == {}


def test_correct_is_the_outcome_or_another_slot():
    mixed = scored(a=[1, 0.5], b=[1, 0])
    for rollout in mixed:
        rollout.outcome, rollout.correct = rollout.rewards["b"], rollout.rewards["b"] >= 1
    parts = run(rewards={"a": correct_from(0.5), "b": correct_from(1.0)})

    def mean_correct(**fields):
        judge = metric("pass_at_k", **fields)
        judge.setup(parts)
        judge.check(parts)
        return judge([mixed])["1"]

    assert mean_correct() == 0.5
    assert (
        mean_correct(slot="a") == 1
        and mean_correct(slot="a", correct_at=0.75) == 0.5
        and mean_correct(slot="a", correct_at=2) == 0
    )
    assert mean_correct(correct_at=0.0) == 1
    mixed.rollouts[1].outcome, mixed.rollouts[1].correct = None, False  # no reward scored it
    assert mean_correct() == 1


@pytest.mark.parametrize("fields", [{"slot": "accurracy"}, {"both": "chain"}])
def test_a_slot_that_does_not_exist_is_refused(fields):
    with pytest.raises(
        ConfigError,
        match=f"{next(iter(fields))}: no reward slot '{next(iter(fields.values()))}'; the slots are accuracy",
    ):
        metric("pass_at_k", **fields).check(run(rewards={"accuracy": correct_from(1.0)}))


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("pass_at_k", {"ks": [0]}),
        ("answer_styles.habits", {"patterns": {"x": "("}}),
        ("repetition", {"n": 0}),
        ("the_policy_cliff", {"change": 0}),
        ("calibration", {"bins": 0}),
    ],
)
def test_impossible_settings_are_refused(name, fields):
    with pytest.raises(ConfigError, match=next(iter(fields))):
        metric(name, **fields)


def episodes(task, *calls, source="policy"):
    """A group of one rollout per (conversation, calls so far)."""
    prompt = Prompt(Row("a", "?", task=task), ())
    rollouts = [Rollout(prompt, [1], source=source) for _ in calls]
    for made, (conversation, so_far) in zip(rollouts, calls):
        CONVERSATION.set(made, conversation)
        CALLS.set(made, so_far)
    return Group(prompt, rollouts)


def test_tool_calls_by_task():
    """Task a: episodes of 2, 0 and 1 calls (the first has two rollouts) and another group's 0; task b: 1;
    demonstrations do not count."""
    groups = [
        episodes("a", (0, 1), (0, 2), (1, 0), (2, 1)),
        episodes("a", (0, 0)),
        episodes("b", (0, 1)),
        episodes("c", (0, 1), source="expert"),
    ]
    assert metric("tool_calls")(groups) == near(
        {"mean/a": 3 / 4, "share/a": 1 / 2, "mean/b": 1.0, "share/b": 1.0}
    )
