"""Papers whose agents get feedback per turn or per step: numbers by hand, wrong turns as well as right."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
import torch
from task_kit import Letters

from vlrl.beside.process import STEP_VERDICTS
from vlrl.beside.templates import load_template
from vlrl.methods.common.text_scorer import features_of, scores_of, text_scorer
from vlrl.methods.common.turn_pay import add_pay, counted, decisions_of, states_after
from vlrl.methods.papers.behavior_alignment_reward import BehaviorAlignmentReward
from vlrl.methods.papers.lipschitz_off_policy_gail import LipschitzOffPolicyGAIL, expert_turns
from vlrl.methods.papers.oni import ONI
from vlrl.methods.papers.orcust import Orcust
from vlrl.methods.papers.rlvmr import RLVMR, TaggedTurn, unchanged
from vlrl.plugins.episodes import ACTIONS, CONVERSATION, END_STATE, TURN_REWARDS, TURN_SPANS, TURN_STATES
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.scoring import NoScore
from vlrl.plugins.stages import TOKEN_ADVANTAGES, Environment, Reward
from vlrl.types import Group, Prompt, Rollout, Row

PROMPT = Prompt(Row("r", "Reach the goal."), ())


def state(x, action="", front="empty"):
    return json.dumps({"action": action, "agent": [x, 1], "front": front, "objects": [], "width": 5})


def episode(texts, states, reward=0.0, paid=None):
    """An episode of one rollout with a token for each turn; `states` before the first turn and after each."""
    rollout = Rollout(PROMPT, list(range(len(texts))), "\n".join(texts))
    rollout.reward = reward
    ACTIONS.set(rollout, list(texts))
    TURN_REWARDS.set(rollout, list(paid or [0.0] * len(texts)))
    TURN_SPANS.set(rollout, [[k, k, k + 1] for k in range(len(texts))])
    TURN_STATES.set(rollout, list(states[:-1]))
    END_STATE.set(rollout, states[-1])
    return rollout


def group_of(*episodes):
    for number, rollout in enumerate(episodes):
        CONVERSATION.set(rollout, number)
    return Group(PROMPT, list(episodes))


# --- RLVMR --------------------------------------------------------------------------------------------------


def said(tag, action, thought="so"):
    return f"<{tag}>{thought}</{tag}><action>{action}</action>"


@pytest.mark.parametrize(
    ("text", "tag", "action"),
    [
        (said("explore", "go"), "explore", "go"),
        ("<PLANNING>one, two</PLANNING>\n<ACTION> go </ACTION>", "planning", "go"),
        ("<explore> </explore><action>go</action>", "", "go"),  # an empty thought
        ("<action>go</action><explore>so</explore>", "", "go"),  # behind the action
        (said("explore", "go") + "<action>stop</action>", "", ""),  # two actions
        ("<explore>a</explore>" + said("monitor", "go"), "", "go"),  # two tags
        ("<explore>a <action>go</action></explore>", "", "go"),
        ("go", "", ""), ("", "", ""), ("<explore>so</explore>", "", ""),
    ],
)  # fmt: skip
def test_one_tag_then_one_action(text, tag, action):
    assert TaggedTurn.of(text) == TaggedTurn(tag, action)


def test_rules_of_the_tags():
    states = [state(1), state(1, "go", "wall"), state(1, "go", "wall"), state(2, "left")]
    turns = [said("planning", "go"), said("explore", "go"), said("reflection", "left")]
    estimator = RLVMR()
    read = [TaggedTurn.of(text) for text in turns]
    won, lost = episode(turns, states, reward=1.0), episode(turns, states)
    assert estimator.paid(won, read) == [1.0, 0.0, 1.0]  # "go" was taken; the wall was hit, then turned from
    assert estimator.paid(lost, read) == [0.0, 0.0, 1.0]
    again = [*turns[:2], said("reflection", "go")]
    assert estimator.paid(won, [TaggedTurn.of(text) for text in again])[2] == 0.0  # the same action again
    moved = episode(turns, [state(1), state(2), state(3), state(4)])
    assert estimator.paid(moved, read)[2] == 0.0  # nothing had failed
    broken = [TaggedTurn.of("go"), TaggedTurn.of(said("reflection", "left"))]
    assert estimator.paid(moved, broken) == [0.0, 1.0]  # a malformed turn, then another action
    assert estimator.paid(moved, [TaggedTurn.of(said("reflection", "left"))]) == [0.0]
    assert estimator.paid(moved, [TaggedTurn.of(said("monitor", "left"))]) == [0.0]
    assert unchanged([state(1, "a"), state(1, "b")]) and not unchanged([state(1), state(2)])
    assert not unchanged(["", ""]) and unchanged(["same", "same"])


def test_advantages_by_hand():
    """R = 1, 0: four turns score 1, 1, 0, 0 - .1 (malformed). Tags: explore pays 1, 0, 1; the malformed one
    is alone with 0."""
    first = episode([said("explore", "go"), said("explore", "go")], [state(1), state(2), state(3)], 1.0)
    second = episode([said("explore", "left"), "left"], [state(1), state(1), state(1)], 0.0)
    (rows,) = [RLVMR(weight=2.0).of_group(group_of(first, second))]
    scores = torch.tensor([1.0, 1.0, 0.0, -0.1])
    whole = (scores - scores.mean()) / (scores.std() + 1e-6)
    pays = torch.tensor([1.0, 0.0, 1.0])
    tags = (pays - pays.mean()) / (pays.std() + 1e-6)
    wanted = [whole[0] + 2 * tags[0], whole[1] + 2 * tags[1], whole[2] + 2 * tags[2], whole[3]]
    assert [*rows[0], *rows[1]] == pytest.approx([float(value) for value in wanted], abs=1e-5)
    with pytest.raises(ValueError, match="no tag"):
        RLVMR(pays={"musing": 1.0})


# --- pay per turn -------------------------------------------------------------------------------------------


def test_pay_is_added_to_the_turns_and_the_total():
    one = episode(["go", "go"], [state(1), state(2, "go"), state(3, "go")], reward=1.5, paid=[0.0, 1.0])
    assert states_after(one) == ["action go, agent 2 1, front empty", "action go, agent 3 1, front empty"]
    assert decisions_of(one) == ["agent 1 1, front empty: go", "agent 2 1, front empty: go"]
    assert add_pay(group_of(one), [[0.5, 0.25]], 0.1) == pytest.approx([0.5 + 0.85])  # .5 of another reward
    assert TURN_REWARDS[one] == pytest.approx([0.5, 0.35])
    assert counted(["a", "b", "a", "a"]) == [1, 1, 2, 3]
    unknown = episode(["go"], ["digest", ""])
    assert states_after(unknown) == [""] and decisions_of(unknown) == ["digest: go"]


def test_hashed_words_tell_texts_apart():
    rows = features_of(["agent 1 1", "agent 1 2", "", "AGENT 1 1"], 64)
    assert rows[0].norm() == pytest.approx(1.0) and not rows[2].any() and (rows[0] == rows[3]).all()
    assert (rows[0] != rows[1]).any() and features_of([], 8).shape == (0, 8)
    scorer = text_scorer(64, 8, seed=1)
    assert scores_of(scorer, ["a", "b"], 64) == [0.0, 0.0] and scores_of(scorer, [], 64) == []


# --- ONI ----------------------------------------------------------------------------------------------------


def judge(table, options=("hm",)):
    return {"model": "judge@1", "engine": {"name": "fake", "options": options, "table": table}}


def run_of(folder, **values):
    return SimpleNamespace(
        **{"output": folder, "rank": 0, "ranks": 1, "policy": None, "seed": 1, "step": 0, **values}
    )


def helpful(event, verdict):
    prompt = load_template("helpful").fill({"question": "Reach the goal.", "answer": event})
    return {prompt: [f"Verdict: {verdict}"]}


def oni(folder, table, options=("hm",), **fields):
    made = ONI(judge=judge(table, options), **fields)
    made.setup(run_of(folder))
    return made


def walk(*actions):
    places = [1]
    for action in actions:
        places.append(places[-1] + (action == "go"))
    states = [state(x, action) for x, action in zip(places, ("", *actions))]
    return episode(list(actions), states, reward=1.0, paid=[0.0] * (len(actions) - 1) + [1.0])


GO, LEFT = "action go, agent 2 1, front empty", "action left, agent 1 1, front empty"


def test_labels_act_from_the_next_step_on(tmp_path):
    """.4 (1 + 1/2^3) for a helpful event that occurs twice, and a tenth of the environment's pay."""
    shaping = oni(tmp_path, {**helpful(GO, "yes"), **helpful(LEFT, "no")})
    stays = episode(["go", "go"], [state(1), state(2, "go"), state(2, "go")], 1.0, [0.0, 1.0])
    group = group_of(stays, walk("left"))
    assert shaping(group) == pytest.approx([0.1, 0.1])
    shaping.end_step(run_of(tmp_path))
    assert shaping.state.labels == {GO: 1.0, LEFT: 0.0}
    stays = episode(["go", "go"], [state(1), state(2, "go"), state(2, "go")], 1.0, [0.0, 1.0])
    assert shaping(group_of(stays, walk("left"))) == pytest.approx([0.1 + 0.4 * (1 + 1 / 8), 0.1])
    assert TURN_REWARDS[stays] == pytest.approx([0.4, 0.1 + 0.05])
    shaping.end_step(run_of(tmp_path))
    assert shaping.metrics()["oni/pay"] == pytest.approx((0.45, 3.0))
    assert shaping.state.judge.service.usage.calls == 2  # nothing was asked again


def test_an_unreadable_label_is_asked_again_and_the_newest_come_first(tmp_path):
    shaping = oni(tmp_path, helpful(LEFT, "yes"), batch=1)
    shaping(group_of(walk("go"), walk("left")))
    shaping.end_step(run_of(tmp_path))
    assert shaping.state.labels == {LEFT: 1.0}  # the newest event alone
    shaping(group_of(walk("go")))
    shaping.end_step(run_of(tmp_path))
    assert shaping.state.labels == {LEFT: 1.0} and shaping.metrics()["oni/no_verdict"] == (1.0, 2.0)


def test_a_classifier_learns_the_labels(tmp_path):
    shaping = oni(tmp_path, {}, model="classify", updates=60)
    shaping.state.labels = {
        f"agent {x} {y} {'gold' if x > y else 'wall'}": float(x > y) for x in range(4) for y in range(4)
    }
    shaping.learn()
    assert shaping.scores(["agent 9 9 gold", "agent 9 9 wall", ""]) == [1.0, 0.0, 0.0]
    later = oni(tmp_path / "later", {}, model="classify")
    later.load_state_dict(shaping.state_dict())
    assert later.scores(["agent 9 9 gold", "agent 9 9 wall"]) == [1.0, 0.0]


def test_a_ranker_orders_events_by_preferences(tmp_path):
    """Scores minus their mean over their std, and 0 below the threshold."""
    shaping = oni(tmp_path, {}, model="rank", updates=80, threshold=0.0)
    shaping.state.pairs = [["gold", "wall", 1.0], ["wall", "gold", 0.0], ["gold", "door", 1.0]]
    shaping.learn()
    gold, wall = shaping.scores(["gold", "wall"])
    assert gold == pytest.approx(1.0, abs=1e-4) and wall == 0.0
    asked = oni(tmp_path / "asked", {}, ("Verdict: A",), model="rank", batch=3)
    asked(group_of(walk("go"), walk("left")))
    asked.end_step(run_of(tmp_path))
    assert [pair[2] for pair in asked.state.pairs] == [0.5] * 3  # who always says A ties all pairs


def test_oni_refuses_several_processes_and_a_wrong_judge(tmp_path):
    with pytest.raises(ConfigError, match="one process"):
        ONI(judge=judge({})).setup(run_of(tmp_path, ranks=2))
    with pytest.raises(ConfigError, match="got nothing"):
        ONI().check(SimpleNamespace())
    with pytest.raises(ValueError, match="batch=0"):
        ONI(batch=0)


# --- adversarial imitation ----------------------------------------------------------------------------------

ROOM = {
    "name": "minigrid",
    "id": "minigrid:MiniGrid-Empty-5x5-v0",
    "options": {"size": 4, "max_steps": 10},
    "actions": ["left", "right", "forward"],
    "expert_depth": 3,
}
ROWS = {"room": [Row("a", "Reach the goal.", meta={"seed": 1})]}


def gail(folder, **fields):
    made = LipschitzOffPolicyGAIL(**fields)
    made.setup(run_of(folder, environment=build(Environment, ROOM), rows=ROWS))
    return made


def test_the_expert_of_a_room(tmp_path):
    turns = expert_turns(build(Environment, ROOM), ROWS["room"][0], 1)
    assert [turn.rpartition(": ")[2] for turn in turns] == ["forward", "right", "forward"]
    assert gail(tmp_path).state.expert == turns
    without = {**ROOM, "expert_depth": 0}
    with pytest.raises(ConfigError, match="expert_depth"):
        LipschitzOffPolicyGAIL().setup(run_of(tmp_path, environment=build(Environment, without), rows=ROWS))
    (tmp_path / "broken.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="is no trajectory"):
        gail(tmp_path, expert=str(tmp_path / "broken.jsonl"))


def test_reward_and_penalty_by_hand(tmp_path):
    """D(x) = c . x with |c| = 3: the penalty is (3 - 1)^2 everywhere, r = log(1 + e^D)."""
    shaping = gail(tmp_path, features=16, pessimistic=True)
    x = features_of(["agent 1 1: go"], 16)
    direction = torch.nn.functional.normalize(torch.arange(16.0), dim=0) * 3
    shaping.state.scorer = lambda features: features @ direction
    assert shaping.excess(x).tolist() == pytest.approx([4.0], abs=1e-4)
    plain = math.log1p(math.exp(float(x[0] @ direction)))
    assert shaping.pay(["agent 1 1: go"]) == pytest.approx([plain * math.exp(-4.0)], rel=1e-3)
    shaping.state.scorer = lambda features: features @ (direction / 6)  # |c| = 1/2: not steep
    assert shaping.excess(x).tolist() == [0.0] and shaping.pay([]) == []


def train(shaping, turns, steps=15):
    shaping.state.memory = list(turns)
    for _ in range(steps):
        shaping.end_step(run_of(None))
    return shaping


def test_the_discriminator_tells_the_expert_and_stays_flat(tmp_path):
    wrong = [turn.rpartition(": ")[0] + ": left" for turn in gail(tmp_path).state.expert]
    steep = train(gail(tmp_path, scale=0.0, lr=0.05), wrong)
    flat = train(gail(tmp_path, scale=10.0, lr=0.05), wrong)
    for shaping in (steep, flat):
        right, other = (sum(shaping.pay(turns)) for turns in (shaping.state.expert, wrong))
        assert right > other + 0.1
    slope = [float(s.excess(features_of(wrong, 512)).detach().mean()) for s in (steep, flat)]
    assert slope[1] < slope[0] / 4  # the penalty acts
    later = gail(tmp_path)
    later.load_state_dict(flat.state_dict())
    assert later.pay(wrong) == pytest.approx(flat.pay(wrong)) and later.state.drawn == flat.state.drawn


def test_turns_are_paid_and_remembered(tmp_path):
    shaping = gail(tmp_path, memory=3)
    group = group_of(walk("go", "left"), walk("go", "go"))
    assert shaping(group) == pytest.approx([2 * math.log(2)] * 2)  # D = 0 at first: log 2 a turn
    assert len(shaping.state.memory) == 3 and shaping.state.memory[-1].endswith(": go")


# --- BARFI --------------------------------------------------------------------------------------------------


class Two:
    """A policy of two logits: log pi of rollout i is that of its action."""

    def __init__(self):
        self.model = torch.nn.Linear(1, 2, bias=False)
        torch.nn.init.zeros_(self.model.weight)

    def forward(self, batch):
        logp = torch.log_softmax(self.model(torch.ones(1, 1))[0], 0)
        return {"logp": torch.stack([logp[rollout.ids[0]] for rollout in batch.rollouts])[:, None]}


def blended(lr=0.1, most=1.0, weight=0.5):
    shaping = BehaviorAlignmentReward(slots=("heuristic",), lr=lr, most=most)
    shaping.setup(
        SimpleNamespace(params_sharded=False, rewards={"heuristic": SimpleNamespace(weight=weight)})
    )
    return shaping


def rated(*rollouts):
    made = []
    for action, primary, heuristic in rollouts:
        rollout = Rollout(PROMPT, [action], "x")
        rollout.rewards, rollout.reward = {"heuristic": heuristic}, primary + 0.5 * heuristic
        made.append(rollout)
    return Group(PROMPT, made)


def stepped(shaping, group):
    for rollout, reward in zip(group, shaping(group), strict=True):
        rollout.reward = reward
    ones = torch.ones(len(group), 1).bool()
    batch = SimpleNamespace(rollouts=list(group), loss_mask_BT=ones, mask_BT=ones)
    shaping.end_step(
        SimpleNamespace(
            groups=[group],
            policy=Two(),
            micro_batches=lambda groups: [groups],
            batch=lambda part: batch,
            sum_tensor=lambda tensor: tensor,
        )
    )
    return shaping.state.weights["heuristic"]


def test_a_heuristic_against_the_task_loses_its_weight():
    """Two actions: the gradients of both objectives lie on one line, so that the cosine is 1 or -1."""
    against = rated((0, 1.0, 0.0), (1, 0.0, 1.0))
    assert blended()(against) == [1.0, 0.5]
    assert stepped(blended(), against) == pytest.approx(0.4)
    helps = rated((0, 1.0, 1.0), (1, 0.0, 0.0))
    assert stepped(blended(), helps) == pytest.approx(0.6)
    assert stepped(blended(lr=2.0), against) == 0.0 and stepped(blended(lr=2.0), helps) == 1.0
    assert stepped(blended(), rated((0, 1.0, 1.0), (1, 0.0, 1.0))) == 0.5  # a heuristic without a gradient
    later = blended(lr=2.0)
    stepped(later, against)
    assert later(against) == [1.0, 0.0] and later.metrics()["behavior/heuristic_aligned"] == pytest.approx(
        -1.0
    )


def test_what_barfi_blends_must_be_there():
    with pytest.raises(ValueError, match="must name the heuristics"):
        BehaviorAlignmentReward()
    with pytest.raises(ConfigError, match="not there"):
        BehaviorAlignmentReward(slots=("x",)).check(SimpleNamespace(rewards={"y": None}))


def test_the_share_of_actions():
    reward = build(Reward, {"name": "action_share", "actions": ["forward"]})
    texts = ["<action>forward</action>", "left", "go forward, forward!", ""]
    assert reward(episode(texts, [""] * 5)) == 0.5 and reward(Rollout(PROMPT, [1], "forward")) == 0.0
    with pytest.raises(ValueError, match="empty"):
        build(Reward, {"name": "action_share"})


# --- Orcust -------------------------------------------------------------------------------------------------


def test_steps_are_held_to_principles(tmp_path):
    text = "<think>I see Save.\n\nI close the advert.</think><answer>{}</answer>"
    listed, table = "- It is true", {}
    for step, verdict in (("I see Save.", "yes"), ("I close the advert.", "no")):
        values = {"question": "Reach the goal.", "answer": step, "criteria": listed}
        table[load_template("criteria").fill(values)] = [f"Verdict: {verdict}"]
    spec = {"name": "principles", "judge": judge(table), "principles": ["It is true"]}
    reward = build(Reward, spec)
    reward.setup(run_of(tmp_path))
    texts = [text, "<answer>{}</answer>", "", "<think>Else.</think>", "<think>open"]
    group = Group(PROMPT, [Rollout(PROMPT, list(range(len(one))), one) for one in texts])
    first, bare, empty, unread, unclosed = reward.score_group(group)
    assert (first, bare, empty, unclosed) == (0.5, 0.0, 0.0, 0.0) and isinstance(unread, NoScore)
    ends = [text.index("Save.") + 5, text.index("advert.") + 7]
    assert STEP_VERDICTS[group.rollouts[0]] == [(ends[0], 1.0), (ends[1], 0.0)]
    with pytest.raises(ValueError, match="empty"):
        build(Reward, {**spec, "principles": []})


def test_steps_get_what_they_and_later_ones_earned():
    """Verdicts 1, 0 and 1: mean 2/3, std .577; a token before the first step's end earns both steps."""
    texts, rewards = ("ab cd!", "xy"), (1.0, 0.0)
    group = Group(PROMPT, [Rollout(PROMPT, [ord(c) for c in text], text) for text in texts])
    for rollout, reward in zip(group, rewards, strict=True):
        rollout.reward = reward
    STEP_VERDICTS.set(group.rollouts[0], [(2, 1.0), (5, 0.0)])
    STEP_VERDICTS.set(group.rollouts[1], [(2, 1.0)])
    tokenizer = SimpleNamespace(decode=Letters().decode)
    estimator = Orcust(weight=0.5)
    estimator.setup(SimpleNamespace(policy=SimpleNamespace(tokenizer=tokenizer)))
    estimator([group])
    std, outcome = math.sqrt(1 / 3), 0.5 / math.sqrt(0.5)
    kept, broken = 0.5 * (1 / 3) / std, 0.5 * (-2 / 3) / std
    wanted = [outcome + kept + broken] * 2 + [outcome + broken] * 3 + [outcome]
    assert TOKEN_ADVANTAGES[group.rollouts[0]] == pytest.approx(wanted, abs=1e-4)
    assert TOKEN_ADVANTAGES[group.rollouts[1]] == pytest.approx([-outcome + kept] * 2, abs=1e-4)
    equal = Group(PROMPT, [Rollout(PROMPT, [1], "a"), Rollout(PROMPT, [1], "b")])
    bare = Orcust()
    bare.setup(SimpleNamespace(policy=SimpleNamespace(tokenizer=tokenizer)))
    assert bare([equal]) == [[0.0, 0.0]]  # no steps, equal rewards
