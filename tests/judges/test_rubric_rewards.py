"""Rewards by criteria and principles: Rubicon, RLBFF, rubrics that hold for every row; numbers by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from vlrl_rewards.combine.anchored import curve

from vlrl.beside.rubrics import load_rubric, rubric_names
from vlrl.beside.templates import load_template
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.scoring import NoScore
from vlrl.plugins.stages import Reward
from vlrl.types import Group, Prompt, Rollout, Row

SAID = {"polite": {"good": 2, "fair": 1, "bad": 0}, "short": {"good": 1, "fair": 1, "bad": 1}}
TIERS = {"polite": ["rude", "neutral", "kind"], "short": ["no", "yes"]}


def group_of(*texts, task="", **meta):
    prompt = Prompt(Row("r", "Write.", task=task, meta=meta), ())
    return Group(prompt, [Rollout(prompt, [1], text) for text in texts])


def opened(spec, folder, table, options=("hm",)):
    judge = {"model": "judge@1", "engine": {"name": "fake", "options": options, "table": table}}
    reward = build(Reward, {**spec, "judge": judge})
    reward.setup(SimpleNamespace(output=folder, rank=0, policy=None))
    return reward


def table_of(reward, group, replies):
    """From prompt to reply, for each question of a group in order."""
    template = load_template(type(reward).template)
    asked = [template.fill(dict(question.values)) for question in reward.questions(group)]
    return {prompt: [reply] for prompt, reply in zip(asked, replies, strict=True)}


def anchors(folder, group, replies, **fields):
    bare = build(Reward, {"name": "rubric_anchors", "judge": {"model": "x@1", "engine": {}}, **fields})
    return opened({"name": "rubric_anchors", **fields}, folder, table_of(bare, group, replies))


def test_tiers_saturate_and_good_responses_spread(tmp_path):
    """s = 1/2 of three tiers and 1: f(1/2) = (1 - e^-1) / (1 - e^-2) = .7311; R = (3 .7311 + 1) / 4 = .7983;
    r = (e^(2 R) - 1) / (e^2 - 1)."""
    items = [
        {"criterion": "polite", "points": 3, "tiers": TIERS["polite"]},
        {"criterion": "short", "points": 1},
    ]
    group = group_of("fair", "good", "bad", rubrics=items)
    replies = [f"Tier: {SAID[c][text]}" for text in ("fair", "good", "bad") for c in ("polite", "short")]
    scores = anchors(tmp_path, group, replies).score_group(group)
    half = (1 - math.exp(-1)) / (1 - math.exp(-2))
    total = (3 * half + 1) / 4
    assert scores[0] == pytest.approx(math.expm1(2 * total) / math.expm1(2))
    assert scores[1] == pytest.approx(1.0)
    assert scores[2] == pytest.approx(math.expm1(0.5) / math.expm1(2))
    plain = anchors(tmp_path / "plain", group, replies, saturation=0.0, spread=0.0)
    assert plain.score_group(group) == pytest.approx([(3 * 0.5 + 1) / 4, 1.0, 0.25])
    assert curve(0.5, 2.0) < 0.5 < curve(0.5, -2.0) and curve(0.0, 5.0) == 0.0 and curve(1.0, -5.0) == 1.0


def test_a_veto_makes_everything_nothing_and_pairs_count(tmp_path):
    items = [
        {"criterion": "a", "points": 2, "pairs": {"b": 2}},
        {"criterion": "b", "points": 1, "pairs": {"flattery": -4}},
        {"criterion": "flattery", "points": -1, "veto": True},
    ]
    group = group_of("x", rubrics=items)

    def scored(folder, *tiers):
        reward = anchors(tmp_path / folder, group, [f"Tier: {t}" for t in tiers], saturation=0.0, spread=0.0)
        return reward.score_group(group)[0]

    assert scored("veto", 1, 1, 1) == 0.0
    assert scored("both", 1, 1, 0) == pytest.approx((2 + 1 + 2) / 5)
    assert scored("one", 1, 0, 0) == pytest.approx(2 / 5)
    items[2].pop("veto")
    assert scored("taken off", 1, 1, 1) == pytest.approx((2 + 1 - 1 + 2 - 4) / 5)  # 0, and never below
    items[0]["pairs"] = {"c": 1}
    with pytest.raises(ValueError, match="names 'c', which is none"):
        scored("unknown", 1, 1, 0)


@pytest.mark.parametrize("reply", ["Tier: 3", "Tier: 11", "Tier: 0.5 or 1", "no tier", ""])
def test_a_tier_that_the_criterion_does_not_have_is_no_score(tmp_path, reply):
    group = group_of("x", rubrics=[{"criterion": "polite", "points": 3, "tiers": TIERS["polite"]}])
    (score,) = anchors(tmp_path, group, [reply]).score_group(group)
    assert isinstance(score, NoScore)
    with pytest.raises(ConfigError, match="must not be negative"):
        build(Reward, {"name": "rubric_anchors", "spread": -1.0})
    broken = group_of("x", rubrics=[{"criterion": "polite", "points": 3, "tiers": ["one"]}])
    with pytest.raises(ValueError, match="has 1 tiers"):
        anchors(tmp_path / "one", broken, ["Tier: 0"])


def test_a_bank_holds_for_every_row(tmp_path):
    bank = tmp_path / "bank.yaml"
    bank.write_text("- {criterion: is short, points: 1}\n- {criterion: is rude, points: -1, veto: true}\n")
    group = group_of("x", "y", rubrics=[{"criterion": "is kind", "points": 3}])
    fields = {"name": "rubric", "bank": str(bank)}
    bare = build(Reward, {**fields, "judge": {"model": "x@1", "engine": {}}})
    replies = ["no", "yes", "no", "yes", "yes", "yes"]
    table = table_of(bare, group, [f"Verdict: {reply}" for reply in replies])
    assert opened(fields, tmp_path / "run", table).score_group(group) == [0.25, 0.0]
    assert "judge_flattery" in rubric_names() and all(item["veto"] for item in load_rubric("judge_flattery"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("criterion: a", "holds no list"),
        ("- {criterion: a}", "entry 0 needs criterion and points"),
        ("- {criterion: a, points: 0}", "no number but 0"),
        ("- {criterion: a, points: 1, point: 2}", "entry 0 has point; known:"),
    ],
)
def test_a_broken_bank_is_refused(tmp_path, text, message):
    (tmp_path / "bank.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_rubric(str(tmp_path / "bank.yaml"))
    with pytest.raises(ConfigError, match="Did you mean 'judge_flattery'"):
        load_rubric("judge_flatery")


# --- principles (RLBFF) -------------------------------------------------------------------------------------


def principled(folder, group, replies, **fields):
    bare = build(Reward, {"name": "yes_no_principles", "judge": {"model": "x@1", "engine": {}}, **fields})
    return opened({"name": "yes_no_principles", **fields}, folder, table_of(bare, group, replies))


def test_principles_are_log_odds(tmp_path):
    """P(yes) = .8 is log 4; a verdict without log-probs is certain, and cut at the limit."""
    group = group_of("a", "b", task="note")
    principles = {"note": ["polite", "short"], "*": ["correct"]}
    replies = ["Fulfilled: Yes", "Fulfilled: No", "Fulfilled: Yes", "Fulfilled: Yes"]
    reward = principled(tmp_path, group, replies, principles=principles, limit=4.0)
    assert reward.score_group(group) == [0.0, 4.0]
    assert reward.value(0.8) == pytest.approx(math.log(4)) and reward.value(1 - 1e-9) == 4.0
    assert reward.value(0.2) == pytest.approx(-math.log(4)) and reward.value(0.0) == -4.0
    share = principled(tmp_path / "share", group, replies, principles=principles, scale="share")
    assert share.score_group(group) == [0.5, 1.0] and share.value(0.8) == 0.8
    other = group_of("a", task="other")
    asked = principled(tmp_path / "o", other, ["Fulfilled: No"], principles=principles)
    assert asked.score_group(other) == [-50.0]
    own = group_of("a", principles=["own"])
    assert principled(tmp_path / "own", own, ["Fulfilled: Yes"]).score_group(own) == [50.0]


def test_principles_without_a_verdict_leave_no_score(tmp_path):
    group = group_of("a", "Fulfilled: Yes", "")
    replies = ["Fulfilled: Yes", "perhaps", "not Fulfilled: Yes or No"]
    reward = principled(tmp_path, group, replies, principles={"*": ["polite"]})
    first, *others = reward.score_group(group)
    assert first == 50.0 and all(isinstance(score, NoScore) for score in others)
    shown = dict(reward.questions(group)[1].values)
    assert shown["answer"] == "Fulfilled: Yes" and set(load_template("principle").fence) == set(shown)
    with pytest.raises(ValueError, match="no principles for task"):
        principled(tmp_path / "none", group, [], principles={"note": ["polite"]}).score_group(group)
    for broken in ({"scale": "odds"}, {"limit": 0.0}, {"principles": {"*": []}}):
        with pytest.raises(ConfigError, match="scale|limit|principles must map"):
            build(Reward, {"name": "yes_no_principles", **broken})
