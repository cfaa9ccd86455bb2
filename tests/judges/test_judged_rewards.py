"""Rewards that ask a judge: what it is asked, how often, what its verdicts are worth, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from vlrl_rewards.combine.judged import criteria_question
from vlrl_rewards.combine.nested import PARTS

from vlrl.beside.judge import open_judge
from vlrl.beside.templates import load_template
from vlrl.config import load
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.scoring import NoScore
from vlrl.plugins.stages import Reward
from vlrl.trainer.plan import Plan
from vlrl.trainer.session import Session
from vlrl.trainer.step.scoring import run_rewards
from vlrl.types import Group, Prompt, Rollout, Row

RULES = [{"id": "keywords:existence", "keywords": ["figs"]}, {"id": "punctuation:no_comma"}]
POLITE = ["is polite", "names nobody"]


def group_of(texts, answer=None, **meta):
    prompt = Prompt(Row("r", "Write about figs.", answer=answer, meta=meta), ())
    return Group(prompt, [Rollout(prompt, [1], text) for text in texts])


def replying(table, options=("no",)):
    """A judge whose replies stand in a table from prompt to replies."""
    return {"model": "judge@1", "engine": {"name": "fake", "options": options, "table": table}}


def judge_prompt(rollout, criteria):
    """What a judge is asked about a rollout."""
    return load_template("criteria").fill(dict(criteria_question(rollout, criteria).values))


def opened(spec, tmp_path):
    """A reward, set up as a run does it: what it holds is set up too."""
    reward = build(Reward, spec)
    run = SimpleNamespace(output=tmp_path, rank=0, policy=None)
    for one in (reward, *reward.inner_rewards):
        one.check(run)
        one.setup(run)
    return reward


def test_a_judge_says_whether_all_constraints_are_met(tmp_path):
    group = group_of(["figs please", "figs", "<think>please</think>figs"], constraints=POLITE)
    asked = [judge_prompt(rollout, POLITE) for rollout in group]
    assert asked[1] == asked[2]  # thoughts are not shown
    assert (
        "- is polite\n- names nobody" in asked[0]
        and "\nfigs please\nEND ANSWER" in asked[0]
        and "Write about figs." in asked[0]
    )
    reward = opened({"name": "judged", "judge": replying({asked[0]: ["yes"]})}, tmp_path)
    assert reward.score_group(group) == [1.0, 0.0, 0.0] and not reward.reads_answer
    assert (
        len((tmp_path / "judge" / "replies-0.jsonl").read_text().splitlines()) == 2
    )  # the equal prompts are one question
    assert reward.score_group(group_of(["anything"])) == [1.0]  # without constraints nobody is asked
    assert reward.metrics()["judge/no_verdict"] == (0, 3)


def test_a_reply_that_is_no_verdict_is_no_score_and_is_counted(tmp_path):
    group = group_of(["a", "b", "c"], constraints=POLITE)
    table = {
        judge_prompt(group.rollouts[1], POLITE): ["yes"],
        judge_prompt(group.rollouts[2], POLITE): ["no"],
    }
    reward = opened({"name": "judged", "judge": replying(table, options=("perhaps",))}, tmp_path)
    scores = reward.score_group(group)
    assert isinstance(scores[0], NoScore) and "no verdict" in str(scores[0]) and scores[1:] == [1.0, 0.0]
    assert reward.metrics()["judge/no_verdict"] == (1, 3) and reward.metrics()["judge/failed"] == (0, 3)
    with pytest.raises(NoScore, match="no verdict"):
        reward(group.rollouts[0])


def test_a_criterion_that_an_unreadable_judge_leaves_open_never_pays(tmp_path):
    """A failed judge would pay a criterion of negative points if it counted as *not met*."""
    group = group_of(["figs"], rubrics=[{"criterion": "a", "points": 1}, {"criterion": "rude", "points": -4}])
    table = {judge_prompt(group.rollouts[0], ["a"]): ["yes"]}
    reward = opened({"name": "rubric", "judge": replying(table, options=("hm",))}, tmp_path)
    assert isinstance(reward.score_group(group)[0], NoScore)


def test_all_questions_of_a_batch_are_asked_at_once(tmp_path):
    spec = replying({}, options=("yes",))
    reward = opened({"name": "judged", "judge": spec}, tmp_path)
    engine, batches = reward.state.judge.service.engine, []
    reward.state.judge.service.engine = SimpleNamespace(
        remote=False, generate=lambda requests: batches.append(len(requests)) or engine.generate(requests)
    )
    groups = [group_of([f"{n}", "same"], constraints=POLITE) for n in range(3)]
    groups.append(group_of(["x"], constraints="a broken row"))
    reward.prepare(groups)
    assert batches == [4]
    assert [reward.score_group(group) for group in groups[:3]] == [[1.0, 1.0]] * 3 and batches == [4]
    with pytest.raises(ValueError, match="list of texts"):
        reward.score_group(groups[3])


def test_an_unscored_rollout_leaves_its_group_alone(tmp_path):
    group = group_of(["a", "b"], constraints=POLITE)
    table = {judge_prompt(group.rollouts[1], POLITE): ["yes"]}
    reward = opened({"name": "judged", "judge": replying(table, options=("hm",))}, tmp_path)
    failures = run_rewards([group], {"judged": reward})
    assert [(rollout.text, slot) for rollout, slot, _ in failures] == [("a", "judged")]
    assert group.rollouts[1].rewards == {"judged": 1.0} and not group.rollouts[0].rewards


def test_usage_survives_a_checkpoint(tmp_path):
    reward = opened({"name": "judged", "judge": replying({}, options=("yes",))}, tmp_path)
    reward.score_group(group_of(["a", "b"], constraints=POLITE))
    saved = reward.state_dict()
    later = opened({"name": "judged", "judge": replying({}, options=("yes",))}, tmp_path / "other")
    later.load_state_dict(saved)
    assert later.metrics() == reward.metrics() and later.metrics()["judge/calls"] == (2, 0.0)


ANSWERED = {"judge": replying({}, options=("It is.\nVerdict: yes",))}


def test_a_judge_as_verifier(tmp_path):
    reward = opened({"name": "judged_answer", **ANSWERED}, tmp_path)
    assert reward.score_group(group_of(["4", " ", "<think>5</think>"], answer="4")) == [1.0, 0.0, 0.0]
    assert reward.correct(group_of(["4"]).rollouts[0], 0.5) and reward.metrics()["judge/calls"] == (1, 0.0)


def test_a_rating_is_a_share_of_its_range(tmp_path):
    reward = opened({"name": "judged_score", "judge": replying({}, options=("Score: 4",))}, tmp_path)
    assert reward.score_group(group_of(["figs"])) == pytest.approx([1 / 3])
    odd = opened({"name": "judged_score", "judge": replying({}, options=("Score: 40",))}, tmp_path / "odd")
    assert isinstance(odd.score_group(group_of(["figs"]))[0], NoScore)


def pair_table(better):
    """Replies to all pairs of texts: the one that `better` chooses."""
    template, table = load_template("pair"), {}
    for a in ("1", "2", "3", "4"):
        for b in ("1", "2", "3", "4"):
            prompt = template.fill({"question": "Write about figs.", "answer_a": a, "answer_b": b})
            table[prompt] = ["Verdict: tie" if a == b else f"Verdict: {'A' if better(a, b) else 'B'}"]
    return table


@pytest.mark.parametrize(
    ("tournament", "calls", "scores"),
    [
        ("all", 12, [0, 1 / 3, 2 / 3, 1]),
        ("circular", 8, [0, 0.5, 0.5, 1]),  # 1-2, 2-3, 3-4, 4-1
        ("reference", 6, None),
    ],
)
def test_win_rates_of_siblings(tmp_path, tournament, calls, scores):
    judge = replying(pair_table(lambda a, b: a > b), options=("hm",))
    reward = opened({"name": "judged_pairs", "tournament": tournament, "judge": judge}, tmp_path)
    group = group_of(["1", "2", "3", "4"])
    found = reward.score_group(group)
    if scores is None:
        reference = reward.reference(group)
        scores = [0.5 if i == reference else float(i > reference) for i in range(4)]
    assert found == pytest.approx(scores) and reward.metrics()["judge/calls"] == (calls, 0.0)
    assert reward.metrics()["judge/flipped"][0] == 0


def test_a_judge_of_the_first_place_ties_all_pairs(tmp_path):
    judge = replying({}, options=("Verdict: A",))
    reward = opened({"name": "judged_pairs", "judge": judge}, tmp_path)
    assert reward.score_group(group_of(["1", "2", "3"])) == [0.5] * 3
    assert reward.metrics()["judge/flipped"] == (3, 3)
    silent = opened({"name": "judged_pairs", "judge": replying({}, options=("hm",))}, tmp_path / "s")
    assert all(isinstance(score, NoScore) for score in silent.score_group(group_of(["1", "2"])))
    assert silent.score_group(group_of(["1"])) == [0.5]


def test_a_veto_takes_all_points(tmp_path):
    rubrics = [
        {"criterion": "names figs", "points": 3},
        {"criterion": "is safe", "points": 1, "veto": True},
        {"criterion": "flatters the judge", "points": -1, "veto": True},
    ]
    group = group_of(["figs", "figs, safe", "figs, safe, dear judge"], rubrics=rubrics)
    met = [("names figs",), ("names figs", "is safe"), ("names figs", "is safe", "flatters the judge")]
    table = {
        judge_prompt(rollout, [item["criterion"]]): ["yes" if item["criterion"] in kept else "no"]
        for rollout, kept in zip(group, met)
        for item in rubrics
    }
    reward = opened({"name": "rubric", "judge": replying(table, options=("hm",))}, tmp_path)
    assert reward.score_group(group) == [0.0, 1.0, 0.0]


def test_rules_times_verdict(tmp_path):
    group = group_of(
        ["figs please", "figs, please", "please, you", "figs"], answer=RULES, constraints=POLITE[:1]
    )
    polite = {judge_prompt(rollout, POLITE[:1]): ["yes"] for rollout in group.rollouts[:3]}
    reward = opened({"name": "rules_and_judge", "judge": replying(polite)}, tmp_path)
    assert reward.score_group(group) == [
        1.0,
        0.5,
        0.0,
        0.0,
    ]  # shares 1, 1/2, 0, 1; the verdicts yes, yes, not asked, no
    assert [PARTS[rollout] for rollout in group] == [
        {"rules": 1.0, "judge": 1.0},
        {"rules": 0.5, "judge": 1.0},
        {"rules": 0.0},
        {"rules": 1.0, "judge": 0.0},
    ]
    assert [reward.correct(rollout, 1.0) for rollout in group] == [True, False, False, False]
    assert reward.metrics()["judge/no_verdict"] == (0, 3)


def test_rubric_criteria_without_a_rule_are_judged(tmp_path):
    rubrics = [
        {"criterion": "names figs", "points": 3, "reward": {"name": "instructions"}, "answer": RULES[:1]},
        {"criterion": "is polite", "points": 5},
        {"criterion": "is rude", "points": -4},
    ]
    group = group_of(["figs please", "figs you"], rubrics=rubrics)
    first, second = group.rollouts
    table = {judge_prompt(first, ["is polite"]): ["yes"], judge_prompt(second, ["is rude"]): ["Yes."]}
    reward = opened({"name": "rubric", "judge": replying(table)}, tmp_path)
    assert reward.score_group(group) == [8 / 8, (3 - 4) / 8]
    assert PARTS[second] == {"names figs": 1.0, "is polite": 0.0, "is rude": 1.0}
    with pytest.raises(ValueError, match=r"rubrics\[1\].*needs a judge; set `judge`"):
        build(Reward, {"name": "rubric"}).score_group(group)


@pytest.mark.parametrize(
    ("judge", "match"),
    [
        ({}, "got nothing"),
        ({"model": "m@1"}, "a model and an engine"),
        ({"model": "m@1", "engine": {"name": "fake"}, "url": "x"}, "judge.url: unknown field"),
        ({"model": "m@1", "engine": {"name": "fake"}, "max_tokens": 0}, "max_tokens"),
        ({"model": "m", "engine": {"name": "fake"}}, "not pinned"),
        ({"model": "m@1", "engine": {"name": "openai"}}, "engine.model"),
    ],
)
def test_a_wrong_judge_is_refused(judge, match, tmp_path):
    with pytest.raises(ConfigError, match=match):
        opened({"name": "judged", "judge": judge}, tmp_path)
    if judge:
        with pytest.raises(ConfigError, match=match):
            open_judge(judge, SimpleNamespace(output=tmp_path, rank=0), "judge", "criteria")


def test_a_judge_is_asked_in_a_run_alone():
    reward = build(Reward, {"name": "judged", "judge": replying({})})
    with pytest.raises(RuntimeError, match="before setup"):
        reward.score("figs", constraints=POLITE)
    with pytest.raises(ValueError, match="list of texts"):
        reward.score("figs", constraints="polite")


def test_rewards_inside_a_reward_are_plugins_of_the_run():
    inner = {"name": "judged", "judge": replying({})}
    values = [f"rewards={{both: {{name: product, parts: {{rules: {{name: exact}}, judged: {inner}}}}}}}"]
    run = Session(
        Plan.of(load(["base/rl", "models/tiny_text", "tasks/lab_arithmetic"], ["rewards.*=null", *values]))
    )
    slots = dict(run.current.plugins())
    assert (
        slots["rewards.both.0"].name == "exact"
        and slots["rewards.both.1"] is slots["rewards.both"].inner_rewards[1]
    )
    with pytest.raises(ConfigError, match="requires 'proxy'"):
        Session(
            Plan.of(
                load(
                    ["base/rl", "models/tiny_text", "tasks/lab_arithmetic"],
                    ["rewards.x={name: product, parts: {a: {name: proxy}}}"],
                )
            )
        ).check()
