"""One meaning of correct: dynamic sampling looks at the outcome, and combined rewards say what is correct by
their answer part."""

from __future__ import annotations

import pytest
from make import group, run
from tiny import text_run

from vlrl.methods.core.group_filter import AccuracyRange
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import GroupFilter, Reward
from vlrl.trainer.step.loop import collect
from vlrl.trainer.views import StepView
from vlrl.types import Group, Prompt, Rollout, Row

PARTS = {"format": {"name": "tag_format"}, "accuracy": {"name": "math"}}


class Weighted(dict):
    """Reward slots with weights, as a run has them."""

    def __init__(self, **weights):
        super().__init__({slot: type("Slot", (), {"weight": weight}) for slot, weight in weights.items()})


def filtered(made, weights=None, **fields):
    keep = build(GroupFilter, {"name": "dynamic_sampling", **fields})
    keep.setup(run(rewards=Weighted(**(weights or {"accuracy": 1.0, "format": 0.5}))))
    return tuple(keep(made))


def scored(accuracy, form):
    return group(*(a + 0.5 * f for a, f in zip(accuracy, form)), raw={"accuracy": accuracy, "format": form})


def test_format_lets_no_group_through():
    """DAPO, eq. 11: 0 < correct < G. Rewards that differ by format, length or shaping alone are no learning
    signal about the task."""
    wrong, right, mixed = (
        scored([0.0, 0.0], [1.0, 0.0]),
        scored([1.0, 1.0], [1.0, 0.0]),
        scored([1.0, 0.0], [0.0, 1.0]),
    )
    assert (
        filtered(wrong) == (False, "all outcomes 0")
        and filtered(right) == (False, "all outcomes 1")
        and filtered(mixed) == (True, "")
    )
    for made in (wrong, right, mixed):
        assert filtered(made, metric="total") == (True, "") == filtered(made, slot="format")
    assert filtered(scored([1.0, 1.0], [1.0, 1.0]), metric="total") == (False, "all rewards 1.5")
    assert filtered(Group(wrong.prompt, [])) == (False, "empty group")


def test_shaping_lets_no_group_through_and_holds_none_back():
    wrong = scored([0.0, 0.0], [0.0, 0.0])
    wrong.rollouts[0].reward = -1.0  # an overlong penalty
    assert filtered(wrong) == (False, "all outcomes 0") and filtered(wrong, metric="total") == (True, "")
    even = scored([1.0, 0.0], [0.0, 1.0])
    for rollout in even:
        rollout.reward = 0.7
    assert filtered(even) == (True, "") and filtered(even, metric="total") == (False, "all rewards 0.7")


def test_graded_outcomes_differ_or_cross_their_threshold():
    """IoU 0.1 and 0.3 are both wrong, yet one is better: verl's rule keeps them, eq. 11 does not."""
    near = scored([0.1, 0.3], [0.0, 0.0])
    assert filtered(near) == (True, "") and filtered(near, metric="correct") == (False, "all correct 0")
    across = scored([0.4, 0.6], [0.0, 0.0])
    across.rollouts[1].correct = True
    assert filtered(across, metric="correct") == (True, "") and filtered(scored([0.3, 0.3], [0.0, 0.0])) == (
        False,
        "all outcomes 0.3",
    )


def test_an_outcome_that_is_only_logged_decides_nothing():
    """Pseudo-rewards (votes, proxies) train; the gold answer's slot has weight 0 and must not leak into what
    is trained on."""
    made = group(1.0, 0.0, raw={"accuracy": [0.0, 0.0], "vote": [1.0, 0.0]})
    assert filtered(made, {"accuracy": 0.0, "vote": 1.0}) == (True, "")
    unscored = group(1.0, 0.0)
    unscored.rollouts[0].outcome = None
    assert filtered(unscored) == (True, "")


def test_the_accuracy_range_of_graded_outcomes():
    made = scored([0.4, 0.4, 0.4, 0.6], [0.0] * 4)
    made.rollouts[3].correct = True
    assert (
        AccuracyRange(low=0.3, high=0.5)(made).keep
        and not AccuracyRange(low=0.3, high=0.5, metric="correct")(made).keep
    )


def test_in_a_run_only_groups_with_right_and_wrong_answers_are_trained_on():
    """The whole pipeline: a format reward that varies lets more groups through the filter of the total than
    through that of the outcome."""
    form = "rewards.form={name: random, p: 0.5, weight: 0.5}"
    kept = {}
    for metric in ("outcome", "total"):
        small = ["max_refill_rounds=2", "group_size=2", "prompts_per_step=16"]
        made = text_run(["methods/dapo"], [form, *small, f"group_filters.mixed.metric={metric}"])
        view = StepView.between_steps(made)
        collect(view)
        kept[metric] = [{rollout.correct for rollout in g} for g in view.groups]
        made.close()
    assert all(len(kinds) == 2 for kinds in kept["outcome"]) and any(
        len(kinds) == 1 for kinds in kept["total"]
    )


FORMED, RIGHT, WRONG = (
    "<think>a</think><answer>4</answer>",
    "<answer>4</answer>",
    "<think>a</think><answer>5</answer>",
)


def answers(*texts, ids=3, **fields):
    prompt = Prompt(Row(id="q", question="2 + 2?", answer="4"), messages=())
    return Group(prompt, [Rollout(prompt, [7] * ids, text, **fields) for text in texts])


def correct(spec, made):
    """What the scorer writes: `Rollout.correct` for every rollout of a group."""
    reward = build(Reward, spec)
    scores = reward.score_group(made)
    return [reward.correct(rollout, value) for rollout, value in zip(made, scores)]


@pytest.mark.parametrize("name", ["weighted_sum", "product", "lexicographic", "normalised_sum"])
def test_a_combined_reward_is_correct_where_its_answer_is(name):
    """Format alone is worth as much as the answer in a sum, a rank depends on the siblings, a z-score on
    their spread: none is correctness."""
    spec = {"name": name, "parts": PARTS}
    assert correct(spec, answers(FORMED, RIGHT, WRONG)) == [True, True, False]
    assert correct(spec, answers(RIGHT, RIGHT)) == [True, True] and correct(spec, answers(WRONG, WRONG)) == [
        False,
        False,
    ]


def test_gates_calibration_and_lengths_do_not_change_what_is_correct():
    gate = {"name": "gated", "otherwise": -1.0, "parts": PARTS}
    assert correct(gate, answers(FORMED, RIGHT, WRONG)) == [
        True,
        False,
        False,
    ]  # behind a closed gate there is no answer
    sure, unsure = f"{RIGHT}<confidence>0.9</confidence>", f"{RIGHT}<confidence>0</confidence>"
    assert correct(
        {"name": "calibrated", "parts": {"a": {"name": "math"}}}, answers(sure, unsure, RIGHT, WRONG)
    ) == [True, True, True, False]
    long = answers(RIGHT, WRONG, ids=5000)
    budget = {"name": "length_budget", "tokens": 10, "alpha": 0.01}
    for spec in (budget, {**budget, "mode": "max"}, {"name": "cosine_length", "max_tokens": 100}):
        assert correct(spec, long) == [True, False] == correct(spec, answers(RIGHT, WRONG, ids=1))
    assert correct(
        {"name": "cosine_length", "right": [1.0, 0.5], "wrong": [0.0, -0.5], "exceed": -0.5},
        answers(RIGHT, WRONG),
    ) == [True, False]


def test_verdicts_do_not_change_what_is_correct():
    made = answers(
        "<answer>4</answer>[VERIFY] wrong.",
        "<answer>5</answer>[VERIFY] wrong.<answer>4</answer>",
        "<answer>5</answer>[VERIFY] correct.",
        "",
    )
    for mode in ("final", "verdicts", "both"):
        assert correct({"name": "self_verdict", "mode": mode}, made) == [True, True, False, False]


def test_two_combined_rewards_do_not_mix_up_their_parts():
    """Both call a part "accuracy"; the first asks for 4, the second never sees its answer."""
    made = answers(RIGHT)
    first, second = (
        build(Reward, {"name": "weighted_sum", "parts": {"accuracy": part}})
        for part in ({"name": "math"}, {"name": "exact"})
    )
    values = [reward.score_group(made)[0] for reward in (first, second)]
    assert [reward.correct(made.rollouts[0], value) for reward, value in zip((first, second), values)] == [
        True,
        second.built["accuracy"](made.rollouts[0]) >= 1,
    ]
    assert (
        first.correct(answers(RIGHT).rollouts[0], 0.0) is True
    )  # a rollout that it has not scored is scored


def test_parts_keep_their_own_thresholds():
    made = answers("")
    made.rollouts[0].text = "<answer>one red old bus</answer>"
    made = Group(Prompt(Row(id="q", question="?", answer="one red big car"), messages=()), made.rollouts)
    made.rollouts[0].prompt = made.prompt
    for correct_at, expected in ((0.5, True), (0.6, False)):
        assert correct(
            {"name": "weighted_sum", "parts": {"bleu": {"name": "text_metric", "correct_at": correct_at}}},
            made,
        ) == [expected]


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "weighted_sum", "parts": PARTS},
        {"name": "length_budget"},
        {"name": "cosine_length"},
        {"name": "self_verdict"},
    ],
)
def test_a_threshold_of_its_own_would_do_nothing_and_is_refused(spec):
    with pytest.raises(
        ConfigError, match=r"correct_at=0\.5 would have no effect.*set correct_at of the inner reward"
    ):
        build(Reward, {**spec, "correct_at": 0.5})


def test_the_scorer_and_pass_at_k_agree_on_a_rank():
    """HERON's reward is a rank in the group; which rollouts are correct does not depend on it."""
    made = text_run(
        ["methods/grpo"],
        [
            (
                "rewards.mine={name: lexicographic, parts: {answer: {name: exact}, form: {name: random, p: "
                "0.5}}}"
            ),
            "outcome=mine",
        ],
    )
    (g,) = [
        g
        for g in made.rollout(
            [made.prompt_template(made.prompt_sampler(1)[0])], [4], StepView.between_steps(made)
        )
    ]
    answer = str(g.row.answer)
    for rollout, text in zip(
        g, (f"<answer>{answer}</answer>", "<answer>nothing</answer>", f"<answer>{answer}</answer> a a", "no")
    ):
        rollout.text = text
    StepView.between_steps(made).score([g])
    assert [rollout.correct for rollout in g] == [
        bool(made.rewards["mine"].built["answer"](r) >= 1) for r in g
    ]
    assert [rollout.correct for rollout in g][1::2] == [False, False] and g.rollouts[0].correct
    made.close()
