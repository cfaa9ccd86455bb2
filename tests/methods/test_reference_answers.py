"""Rewards from the policy's own log-probs: the reference answer's, the answer's without its question, one
more token's. Numbers by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from make import group, inputs, run
from tiny import steps, text_run

from vlrl.methods.papers.co_reward import PARAPHRASED, CoRewardPerView
from vlrl.methods.papers.laser import SELF_REWARD_AT, Laser, LaserLastToken, LaserSelfRewarded
from vlrl.methods.papers.rlpr import SPLICED_REFERENCE, Rlpr, RlprStdFilter, reasoning, reflection
from vlrl.methods.papers.sar import Sar, SarUnconditionalLogp, without_question
from vlrl.methods.papers.verifree import VeriFree
from vlrl.plugins.registry import ConfigError
from vlrl.plugins.stages import TOKEN_ADVANTAGES
from vlrl.trainer.step.loop import sample
from vlrl.trainer.step.loss_inputs import loss_inputs, make_batch
from vlrl.trainer.views import StepView


class Letters:
    """A tokenizer of characters, in which "<a" is one token, and so is "a>7"."""

    pieces = ["<a", "a>7", *map(chr, range(32, 127))]
    all_special_tokens = ["!"]
    eos_token_id, pad_token_id = pieces.index("$"), pieces.index("#")

    def decode(self, ids):
        return "".join(self.pieces[i] for i in ids)

    def encode(self, text, add_special_tokens=False):
        return [self.pieces.index(c) for c in text]


LETTERS = Letters()
POLICY = SimpleNamespace(tokenizer=LETTERS, encode_text=LETTERS.encode)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["x", "<", "a", ">", "7"], "x<a>"),
        (["<", "a", ">", "7", "<", "a", ">", "8"], "<a>7<a>"),
        (["x", "<", "a>7", "8"], "x<a>"),  # the token that goes beyond it is written anew
        (["<a", ">", "7"], "<a>"),
        (["x", "7"], None),
        ([], None),
    ],
)
def test_where_the_reasoning_ends(pieces, expected):
    found = reasoning([Letters.pieces.index(piece) for piece in pieces], POLICY, "<a>")
    assert (None if found is None else LETTERS.decode(found)) == expected


def test_tokens_that_depend_on_the_reasoning_count():
    """Two tokens of the reference; the second is the same after both, the first differs by 2: it has all the
    weight."""
    assert reflection([[-1.0, -0.5], [-3.0, -0.5]], [-2.0, -9.0]) == [1.0, -1.0]
    # spreads 1 and 0.5: weights 2/3 and 1/3
    assert reflection([[-1.0, -1.0], [-3.0, -2.0]], [0.0, 0.0]) == pytest.approx([-1.0, -8 / 3])
    assert reflection([[-1.0], [-1.0]], [-2.0]) == [0.0, 0.0]


class Scorer:
    """Finds each of the last tokens as likely as its table says, by the token before the answer's opening."""

    def __init__(self, table):
        self.table = table

    def score_all(self, pairs):
        return [[math.log(self.table[LETTERS.decode(ids)[0]])] * len(ids) for _, ids in pairs]


def scored(shape, *texts, answer="42", table=None):
    """The shape's rewards of these completions, and the group; "x<a>" has probability 0.5 per token, "y<a>"
    0.2, no reasoning 0.3."""
    g = group(*[9.0] * len(texts), texts=list(texts), lengths=[1] * len(texts))
    object.__setattr__(g.row, "answer", answer)
    for rollout, text in zip(g, texts):
        rollout.ids = LETTERS.encode(text)
    engine = Scorer(table or {"x": 0.5, "y": 0.2, "<": 0.3})
    shape.setup(SimpleNamespace(policy=POLICY, engine=engine))
    return shape(g), g


A = {"opening": "<a>", "closing": "</a>"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [0.5, 0.2, 0.0]),
        ({"debias": True}, [0.2, 0.0, 0.0]),
        ({"form": "product"}, [0.25, 0.04, 0.0]),
        ({"form": "product", "debias": True}, [0.16, 0.0, 0.0]),
        # two tokens that spread alike; a rollout without an answer gets the least of the group
        ({"form": "reflection"}, [math.log(0.5 / 0.3), math.log(0.2 / 0.3), math.log(0.2 / 0.3)]),
        (
            {"form": "reflection", "verbosity": 0.1},
            [math.log(0.5 / 0.3) - 0.05, math.log(0.2 / 0.3) - 0.1, math.log(0.2 / 0.3) - 0.1],
        ),
    ],
)
def test_probability_of_the_reference(fields, expected):
    """ "42" has two tokens; the own answers have one and four."""
    assert scored(Rlpr(**A, **fields), "x<a>7</a>", "y<a>1234</a>", "x7")[0] == pytest.approx(expected)


def test_what_the_release_of_verifree_pays():
    """The first opening ends the reasoning; an answer that was cut earns nothing."""
    assert LETTERS.decode(reasoning(LETTERS.encode("<a>7<a>8"), POLICY, "<a>", first=True)) == "<a>"
    fields = {**A, "form": "product", "first": True}
    assert scored(Rlpr(**fields), "x<a>7", "y<a>7")[0] == pytest.approx([0.25, 0.04])
    shape, (_, g) = Rlpr(**fields, finished=True), scored(Rlpr(**fields), "x<a>7", "y<a>7")
    g.rollouts[0].finish = "length"
    shape.setup(SimpleNamespace(policy=POLICY, engine=Scorer({"x": 0.5, "y": 0.2, "<": 0.3})))
    assert shape(g) == pytest.approx([0.0, 0.04])


def test_nobody_answers_and_nobody_could():
    assert scored(Rlpr(**A), "x7", "")[0] == [0.0, 0.0]
    with pytest.raises(ValueError, match="no reference answer"):
        scored(Rlpr(**A), "x<a>7", answer=None)
    assert scored(Rlpr(**A), "x<a>7", answer=["42", "43"])[0] == [0.5]


def test_the_reference_takes_the_answers_place():
    shape = Rlpr(**A, form="product", splice=True)
    rewards, g = scored(shape, "x<a>7</a>", "x7")
    assert rewards == pytest.approx([0.5**6, 0.0])  # the closing tag is scored too
    spliced, left = g
    assert (
        LETTERS.decode(spliced.ids) == "x<a>42</a>"
        and SPLICED_REFERENCE[spliced] == (4, 10)
        and not spliced.logp
    )
    assert spliced.text == "x<a>7</a>" and LETTERS.decode(left.ids) == "x7"
    spliced.reward = 0.25
    assert VeriFree()(g, [0.5, -0.5]) == [[0.5] * 4 + [0.25] * 6, [-0.5, -0.5]]
    with pytest.raises(ConfigError, match="requires 'rlpr.spliced_reference'.*splice: true"):
        text_run(["methods/verifree"], ["reward_shaping.reference.splice=false"])


def test_spreads_below_the_usual_are_dropped():
    gate, at = RlprStdFilter(scale=0.5, decay=0.5), run(step=1)
    gate.setup(at)
    wide, narrow, flat = (
        group(0.0, math.sqrt(2)),
        group(0.0, 0.4 * math.sqrt(2)),
        group(1, 1),
    )  # std 1, 0.4, 0
    assert [gate(g).keep for g in (wide, narrow, flat)] == [True] * 3
    at.step = 2
    assert [gate(g).keep for g in (wide, narrow, flat)] == [True, True, False]  # half of 1.4 / 3
    at.step = 3
    gate(wide)
    assert gate.metrics()["rlpr/min_std"] == pytest.approx(0.5 * 1.4 / 3)
    again = RlprStdFilter(scale=0.5, decay=0.5)
    again.load_state_dict(gate.state_dict())
    again.setup(run(step=4))
    again(wide)
    assert again.state.mean == pytest.approx(0.5 * 1.4 / 3 + 0.5)


def test_self_aligned():
    g = group(1.0, 0.0, 0.0, lengths=[2, 2, 2])
    for rollout, alone, asked in zip(
        g, (math.log(4), math.log(2), math.log(2)), (math.log(2), math.log(2), math.log(9))
    ):
        rollout.signals = {"sar.unconditional_logp": [-alone, -alone], "old_logp": [-asked, -asked]}
    # perplexities 4 and 2: half; 2 and 2: nothing; 2 and 9: cut at -1
    assert Sar()(g) == pytest.approx([1.1, 0.0, -0.2])


def test_the_system_message_stays_without_the_question():
    system, question = {"role": "system", "content": "Think."}, {"role": "user", "content": "What is 2 + 2?"}
    asked = replace(group(1.0).prompt, messages=(system, question), prefix="<think>")
    left = without_question(asked)
    assert left.messages == (system, {"role": "user", "content": [{"type": "text", "text": ""}]})
    assert left.prefix == "<think>" and without_question(replace(asked, messages=(question,))).text == ""


@pytest.fixture(scope="module")
def real():
    made = text_run(["methods/sar"], ["group_size=3"], engine="hf")
    groups = sample(StepView.between_steps(made), made.prompt_sampler(2))
    yield made, groups, make_batch(groups, made.policy.pad_id)
    made.close()


def test_log_probs_without_the_question(real):
    made, _, batch = real
    field = SarUnconditionalLogp()
    with torch.no_grad():
        asked, alone = made.policy.forward(batch)["logp"], field(made.policy, batch)
        own = made.policy.forward(
            make_batch(
                [
                    type(g)(p, [type(r)(p, r.ids) for r in g])
                    for g in batch.groups
                    for p in (without_question(g.prompt),)
                ],
                made.policy.pad_id,
            )
        )
    assert alone.shape == asked.shape and (alone - asked)[batch.mask_BT].abs().max() > 1e-6
    assert torch.allclose(
        torch.where(batch.mask_BT, alone, 0.0), torch.where(batch.mask_BT, own["logp"], 0.0), atol=1e-5
    )


def test_the_policys_own_probability(real):
    """Against the engine's log-probs of the same tokens, one by one."""
    made, groups, _ = real
    g, tokenizer = groups[0], made.policy.tokenizer
    g.rollouts[0].ids = tokenizer.encode("<answer>", add_special_tokens=False) + g.rollouts[0].ids
    shape = Rlpr()
    shape.setup(made)
    gold = tokenizer.encode(str(g.row.answer), add_special_tokens=False)
    start = tokenizer.encode("<answer>", add_special_tokens=False)
    logs = made.engine.score(g.prompt, [*start, *gold])[-len(gold) :]
    assert shape(g)[0] == pytest.approx(sum(map(math.exp, logs)) / len(gold), rel=1e-4)


def test_one_more_token_behind_the_answer():
    g = group(1.0, 0.0, 0.0, lengths=[2, 3, 2], finish=["stop", "stop", "length"])
    g.rollouts[1].temperature, g.rollouts[1].logp = 0.5, [-1.0] * 3
    shape = LaserLastToken(token="!")
    shape.setup(SimpleNamespace(policy=POLICY))
    assert shape(g) == [1.0, 0.0, 0.0] == shape(g)  # once
    z = Letters.pieces.index("!")
    assert [r.ids[-1] == z for r in g] == [True, True, False] and [len(r) for r in g] == [3, 4, 2]
    assert (
        g.rollouts[0].loss_mask == [True, True, True]
        and g.rollouts[1].temperature == [0.5] * 3 + [1.0]
        and len(g.rollouts[1].logp) == 4
    )
    assert [SELF_REWARD_AT.get(r) for r in g] == [2, 3, None]


@pytest.mark.parametrize("token", ["$", "#", "ab"])
def test_tokens_that_answers_use_are_refused(token):
    shape = LaserLastToken(token=token)
    shape.setup(SimpleNamespace(policy=POLICY))
    with pytest.raises(ConfigError, match="unused token"):
        shape.token_id()


def test_self_reward_loss():
    """beta 0.1, c -23: log-probs of -13, -18, -23 say 1, 0.5, 0. One right of the three with a token: it
    weighs 3/2, each wrong one 3/4; the last, right and cut, counts nowhere (ray_trainer.py:1351-1387)."""
    g = group(1.0, 0.0, 0.0, 1.0, lengths=[2, 2, 2, 2])
    for rollout, place in zip(g, (1, 1, 1, None)):
        if place is not None:
            SELF_REWARD_AT.set(rollout, place)
    logp = [[-1.0, -18.0], [-1.0, -13.0], [-1.0, -23.0], [-1.0, -1.0]]
    x = inputs(logp, reward=[1.0, 0.0, 0.0, 1.0], groups=[g], group_of=[0] * 4, lengths=[1, 1, 1, 2])
    out = Laser(c=-23.0)(x)
    assert out.loss.tolist() == pytest.approx([0.25 * 1.5, 0.75, 0.0, 0.0])
    assert out.metrics["laser/agrees"].item() == pytest.approx(1 / 3)  # 0.5 is not above a half
    (grad,) = torch.autograd.grad(out.loss.sum(), x.logp_BT)
    assert grad.tolist() == [[0.0, pytest.approx(-0.15)], [0.0, pytest.approx(0.15)], [0.0, 0.0], [0.0, 0.0]]
    three = inputs(
        logp[:3],
        reward=[1.0, 0.0, 0.0],
        groups=[type(g)(g.prompt, g.rollouts[:3])],
        group_of=[0] * 3,
        lengths=[1, 1, 1],
    )
    assert Laser(c=-23.0)(three).loss.tolist() == pytest.approx([0.25 * 1.5, 0.75, 0.0])
    step = Laser(c=-23.0)
    step.setup(run(gather=lambda values: [*values, (1, 2)]))  # another rank: one wrong, two right
    step.prepare([g])
    assert step(three).loss.tolist() == pytest.approx([0.25, 1.0, 0.0]), "three of six are right"
    step.setup(run(gather=lambda values: values))
    step.prepare([type(g)(g.prompt, g.rollouts[:1])])
    one = inputs(logp[:1], reward=[1.0], groups=[type(g)(g.prompt, g.rollouts[:1])], lengths=[1])
    assert step(one).loss.tolist() == pytest.approx([0.125]), "all alike: one half"
    assert Laser(c=-23.0, balanced=False)(three).loss.tolist() == pytest.approx([0.25, 1.0, 0.0])
    late = Laser(c=-23.0, start=5)
    late.setup(run(phase_step=4))
    assert late(three).loss.tolist() == [0.0] * 3


def test_the_policys_opinion_joins_the_advantage():
    g = group(1.0, 0.0, lengths=[2, 2])
    for rollout, logp in zip(g, (-18.0, -13.0)):
        SELF_REWARD_AT.set(rollout, 1)
        rollout.logp = [-1.0, 0.0]
        rollout.signals["old_logp"] = [-1.0, logp]
    LaserSelfRewarded(c=-23.0).prepare([g])
    assert [rollout.logp for rollout in g] == [[-1.0, -18.0], [-1.0, -13.0]]
    plain = LaserSelfRewarded(c=-23.0, scale="none", start=5)
    plain.setup(run(phase_step=4))
    assert plain([g]) == [[0.5, -0.5]] and [TOKEN_ADVANTAGES[rollout] for rollout in g] == [
        [0.5, 0.0],
        [-0.5, 0.0],
    ]
    # r_s 0.5 and 1: A_self -+ 0.25
    assert LaserSelfRewarded(c=-23.0, scale="none")([g])[0] == pytest.approx(
        [0.9 * 0.5 - 0.025, -0.9 * 0.5 + 0.025]
    )
    assert LaserSelfRewarded(c=-23.0, scale="none", min_std=0.5)([g]) == [[0.5, -0.5]]
    g.rollouts[1].info.clear()
    LaserSelfRewarded(c=-23.0).prepare([g])
    assert LaserSelfRewarded(c=-23.0, scale="none", tau=1.0)([g])[0] == pytest.approx([0.25, -0.25])


def test_views_are_compared_within_themselves():
    g = group(1.0, 1.0, 0.0, 0.0, 1.0)
    for rollout, side in zip(g, (False, True, False, True, True)):
        PARAPHRASED.set(rollout, side)
    assert CoRewardPerView(scale="none")([g, group(1.0, 0.0)]) == [
        [0.5, pytest.approx(1 / 3), -0.5, pytest.approx(-2 / 3), pytest.approx(1 / 3)],
        [0.5, -0.5],
    ]


@pytest.mark.parametrize("method", ["rlpr", "verifree", "dro", "sar", "co_reward"])
def test_two_steps(method):
    first, second = steps(text_run([f"methods/{method}"]), 2)
    assert first["groups"] > 0 and second["rollouts"] > 0 and first["reward/errors"] == 0


def test_the_token_behind_the_answer_is_learned():
    """A random policy gives each of 512 tokens about 1/512: 0.1 (log(1 / 512) + 23) is far from 0 and 1, and
    comes nearer."""
    first, *_, last = steps(
        text_run(
            ["methods/laser"],
            ["loss_terms.self_reward.start=0", "advantage.start=0", "loss_terms.self_reward.coef=1.0"],
        ),
        6,
    )
    assert 0.3 < first["loss/self_reward"] < 4.0 and last["loss/self_reward"] < first["loss/self_reward"]


def test_the_token_behind_the_answer_has_a_gradient():
    made = text_run(["methods/laser"], ["loss_terms.self_reward.start=0"])
    (g,) = sample(StepView.between_steps(made), made.prompt_sampler(1))
    for rollout in g:
        rollout.finish = "stop"
    made.reward_shaping["token"](g)
    x = loss_inputs(made.policy, made.current, [g])
    places = [SELF_REWARD_AT[rollout] for rollout in g]
    (grad,) = torch.autograd.grad(made.objective.loss_terms["self_reward"](x).loss.sum(), x.logp_BT)
    for b, at in enumerate(places):
        assert x.logp_BT[b, at] < -1 and grad[b, at] != 0 and grad[b, :at].eq(0).all()
    made.close()


def test_paraphrases_are_asked_for():
    made = text_run(["methods/co_reward"])
    (g,) = sample(StepView.between_steps(made), made.prompt_sampler(1))
    turned = [bool(PARAPHRASED.get(rollout)) for rollout in g]
    assert sum(turned) == len(turned) / 2 and set(g.raw("vote")) <= {0.0, 1.0}
    made.close()
