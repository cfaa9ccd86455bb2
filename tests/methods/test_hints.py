"""Hints: who gets one and how much, what is trained on, how much is given next. Numbers by hand."""

from __future__ import annotations

import json
import math

import pytest
from make import end_step, gradient, group, inputs
from rounds_kit import letters, prepared, prompt, said
from run_kit import last_step
from tiny import steps, text_run, vision_run

from vlrl.methods.common.demonstrations import GIVEN_TOKENS
from vlrl.methods.common.prompts import with_system, with_text
from vlrl.methods.core.loss_term import NLL
from vlrl.methods.core.token_weight import MaskGivenPrefix
from vlrl.methods.papers.g2rpo_a import G2rpoA, adapted_length
from vlrl.methods.papers.ghpo import HINT_SHARE, Ghpo
from vlrl.methods.papers.luffy import LuffyPolicyShaping
from vlrl.methods.papers.seele import HINT_RATE, Seele, clamped, curve, fit, rate_for
from vlrl.plugins.registry import ConfigError
from vlrl.types import Prompt, Row

LOG = math.log
SOLVED = prompt("a", target="abcdefgh")
TEXT = "\nA solution begins: "


def test_what_is_added_leaves_the_rest():
    shown = Prompt(
        Row("p", "q"),
        (
            {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "q"}]},
            {"role": "assistant", "content": "x"},
        ),
    )
    assert with_text(shown, "h").messages[0]["content"] == [
        {"type": "image"},
        {"type": "text", "text": "q"},
        {"type": "text", "text": "h"},
    ]
    assert with_text(Prompt(Row("p", "q"), ()), "h").messages == ()
    assert (
        said(with_system(SOLVED, "s")) == "s|q"
        and said(with_system(with_system(SOLVED, "s"), "t")) == "s\nt|q"
    )


@pytest.mark.parametrize(
    ("needed", "asked", "share", "wins"),
    [("", ["q"], None, 4), ("ab", ["q", f"q{TEXT}ab"], 0.25, 4), ("abcdef",
        ["q", *(f"q{TEXT}{s}" for s in ("ab", "abcd", "abcdef"))], 0.75, 4),
     ("never", ["q", *(f"q{TEXT}{s}" for s in ("ab", "abcd", "abcdef"))], 0.75, 0)],
)  # fmt: skip
def test_hints_grow_until_one_is_right(needed, asked, share, wins):
    parts = letters(
        lambda request, index: "!" if said(request.prompt).endswith(needed) else "?", [SOLVED.row]
    )
    strategy = prepared(Ghpo(), parts)
    (made,) = strategy([SOLVED], [4], parts)
    assert (
        [text for _, text, _, n, _ in parts.asked if n] == asked
        and sum(made.rewards) == wins
        and len(made) == 4
    )
    assert {HINT_SHARE.get(r) for r in made} == {share} and {r.source for r in made} == {"policy"}
    assert (
        said(made.rollouts[0].prompt) == asked[-1] == said(made.rollouts[0].prompt.for_training)
    )  # trained as it was sampled
    end_step(strategy, [made])
    expected = {
        "hint/failed": (float(bool(needed)), 1.0),
        "hint/helped": (float(bool(wins and needed)), float(bool(needed))),
    }
    assert strategy.metrics() == expected == strategy.metrics()
    end_step(strategy, [])
    assert strategy.metrics() == {"hint/failed": (0.0, 0.0), "hint/helped": (0.0, 0.0)}


def test_a_hint_that_training_leaves_out():
    parts = letters(
        lambda request, index: "!" if "clue" in said(request.prompt) and index else "?", [SOLVED.row]
    )
    hinted = prompt("b", meta={"clue": "use the clue"})
    strategy = prepared(Ghpo(shares=(0.5,), train_on="plain", key="clue"), parts)
    a, b = strategy([SOLVED, hinted], [2, 2], parts)
    assert [r.source for g in (a, b) for r in g] == ["guided"] * 4 and b.rewards == [0, 1]
    assert (
        said(b.rollouts[0].prompt) == f"q{TEXT}use the clue"
        and said(b.rollouts[0].prompt.for_training) == "q"
        and b.rollouts[0].logp == [-0.5, -0.5]
    )
    assert b.rollouts[0].prompt.for_training.key == hinted.key and b.prompt is hinted


def test_without_a_solution_or_room_the_group_stays():
    parts = letters(lambda request, index: "?", [SOLVED.row], room=10)
    bare = prompt("b")
    a, b, none = prepared(Ghpo(), parts)([SOLVED, bare, bare], [2, 2, 0], parts)
    assert all(said(r.prompt) == "q" for r in [*a, *b]) and len(a) == len(b) == 2 and len(none) == 0
    for strategy in (Ghpo(), G2rpoA(), Seele()):
        with pytest.raises(ConfigError, match="needs demonstrations, and none of the first"):
            strategy.setup(letters(lambda request, index: "?", [bare.row]))
    for broken in ({"shares": ()}, {"shares": (1.5,)}, {"text": "no place"}):
        with pytest.raises(ValueError, match="shares"):
            Ghpo(**broken)


@pytest.mark.parametrize(
    ("advantage", "loss", "slope"),
    [
        (1.0, -0.5, -0.5),
        (-1.0, 0.8, 0.0),
        (-9.0, 0.8 * 9, 0.0),
    ],  # u = 0.4 / 0.8 = 0.5, clipped to 0.8 where A < 0
)
def test_the_ratio_of_a_guided_token(advantage, loss, slope):
    g = group(1.0, lengths=[1], source=["guided"])
    x = inputs(
        [[LOG(0.4)]], old=[[LOG(0.2)]], sampled=[[LOG(0.8)]], advantage=[advantage], groups=[g], reward=[1.0]
    )
    out = LuffyPolicyShaping(
        sources=("guided",), behaviour="recorded", beta=0.0, clip=True, clip_others=True
    )(x)
    assert (out.loss.item(), gradient(out.loss, x).item()) == pytest.approx((loss, slope))
    x = inputs(
        [[LOG(0.4)]], old=[[LOG(0.2)]], sampled=[[LOG(0.05)]], advantage=[-1.0], groups=[g], reward=[1.0]
    )  # u = 8
    bounded = LuffyPolicyShaping(
        sources=("guided",), behaviour="recorded", beta=0.0, clip_others=True, dual_clip=3.0
    )(x)
    assert bounded.loss.item() == pytest.approx(3.0) and gradient(bounded.loss, x).item() == 0.0
    with pytest.raises(ValueError, match="clip_others"):
        LuffyPolicyShaping(clip_others=True)


@pytest.mark.parametrize(
    ("now", "before", "length"),
    [
        (0.5, 0.25, 50),
        (0.25, 0.5, 200),
        (0.1, 0.9, 300),
        (0.3, 0.3, 100),
        (0.0, 0.5, 100),
        (0.5, 0.0, 100),
        (1.0, 0.001, 1),
        (0.6, 0.5, 83),
    ],
)
def test_guidance_by_hand(now, before, length):
    assert adapted_length(100, now, before, 300) == length


@pytest.mark.parametrize("train_given", [True, False])
def test_some_rollouts_begin_with_a_demonstration(train_given):
    parts = letters(lambda request, index: "!", [SOLVED.row])
    strategy = prepared(G2rpoA(guided=2, length=3, max_length=9, train_given=train_given), parts)
    begun = prompt("c", prefix="ab", target="abcdefgh")
    a, b, c, lone = strategy([SOLVED, prompt("b"), begun, SOLVED], [4, 4, 3, 1], parts)
    assert [r.text for r in a] == ["abc!", "abc!", "!", "!"] and [r.source for r in a] == [
        "guided",
        "guided",
        "policy",
        "policy",
    ]
    assert [GIVEN_TOKENS.get(r) for r in a] == [3, 3, None, None] and a.rollouts[0].ids == [97, 98, 99, 33, 0]
    assert [r.loss_mask for r in a] == [None if train_given else [False] * 3 + [True] * 2] * 2 + [None] * 2
    assert all(r.source == "policy" for r in [*b, *lone]) and len(b) == 4 and len(lone) == 1
    assert [r.text for r in c] == ["cde!", "cde!", "!"]  # the prompt's prefix is not said twice
    assert [(given, room) for _, _, given, n, room in parts.asked if n] == [("abc", 11), ("cde", 11)] + [
        ("", 8)
    ] * 4


def test_guidance_follows_accuracy():
    strategy = prepared(G2rpoA(length=10, max_length=30), letters(lambda request, index: "!", [SOLVED.row]))
    lengths = []
    for rewards in ((1, 1, 0, 0), (1, 0, 0, 0), (1, 1, 1, 0), (0, 0, 0, 1), (0, 0, 1, 1), (0, 0, 0, 1)):
        end_step(strategy, [group(*rewards[:2]), group(*rewards[2:])])
        lengths.append(strategy.metrics()["guided/length"])
    # (0.5 + 0.25) / 2 over 0.75 halves it; (0.25 + 0.5) / 2 over 0.25 makes it 1.5 times as long
    assert lengths == [10, 10, 5, 5, 5, 7]
    again = G2rpoA(length=10, max_length=30)
    again.load_state_dict(json.loads(json.dumps(strategy.state_dict())))
    assert again.state_dict() == strategy.state_dict() and again == strategy
    with pytest.raises(ValueError, match="guided"):
        G2rpoA(guided=0)


def test_the_curve_and_its_inverse_by_hand():
    assert curve(0.5, 10, -0.5, 0.2) == pytest.approx(0.6) and curve(0.6, 10, -0.5, 0.0) == pytest.approx(
        1 / (1 + math.exp(-1))
    )
    assert rate_for(0.5, 10, -0.5, 0.0) == pytest.approx(0.5)
    assert rate_for(0.5, 10, -0.5, 0.2) == pytest.approx(0.5 - LOG(0.8 / 0.3 - 1) / 10)  # 0.4489
    assert rate_for(0.5, 10, -0.5, 0.6) == -math.inf
    pairs = [(p, 0.1 + 0.9 / (1 + math.exp(-12 * (p - 0.4)))) for p in (0.1, 0.3, 0.4, 0.5, 0.9)]
    assert fit(pairs) == pytest.approx((12, -0.4, 0.1), rel=1e-3)
    doubled = [(0.1, 0.0), *pairs[1:], (0.1, 2 * pairs[0][1])]  # of one rate the mean counts
    assert fit(doubled) == pytest.approx(fit(pairs), rel=1e-6)


def test_rounds_settle_where_half_are_right():
    """With 5 of 8 letters given the policy is always right, with 4 never: from 7 to nothing, and then from
    both sides to the edge."""
    parts = letters(lambda request, index: "!" if len(request.prefix_ids) >= 5 else "?", [SOLVED.row])
    strategy = prepared(Seele(rounds=6, delimiter=""), parts)
    a, b = strategy([SOLVED, prompt("b")], [12, 7], parts)
    given = [GIVEN_TOKENS[r] for r in a]
    assert given[:4] == [7, 7, 0, 0] and set(given[4:]) == {4, 5}
    assert a.rewards == [float(n >= 5) for n in given] and all(
        r.text == "abcdefgh"[:n] + "?!"[n >= 5] for r, n in zip(a, given)
    )
    assert [GIVEN_TOKENS[r] for r in b] == [0] * 7 and not HINT_RATE.on(b) and b.rollouts[0].loss_mask is None
    assert 4 / 8 < HINT_RATE[a] < 5 / 8
    end_step(strategy, [a, b])
    numbers = strategy.metrics()
    assert (
        numbers["hint/correct"] == (pytest.approx(sum(a.rewards) + sum(b.rewards)), 19.0)
        and numbers == strategy.metrics()
    )
    assert (
        parts.history == {"a": {"seele": HINT_RATE[a]}}
        and json.loads(json.dumps(parts.history)) == parts.history
    )
    parts.asked.clear()
    strategy([SOLVED], [6], parts)
    assert parts.asked[0][2] in ("abcd", "abcde")  # the next visit begins where this one ended


def test_parts_end_at_the_delimiter():
    parts = letters(lambda request, index: "!", [SOLVED.row])
    strategy = Seele(delimiter="\n\n")
    texts = [
        "".join(map(chr, ids)) for ids in strategy.parts(prompt("s", target="one\n\ntwo\n\nthree"), parts)
    ]
    assert texts == ["one\n\n", "two\n\n", "three"] and strategy.parts(prompt("s"), parts) == []
    assert strategy.parts(prompt("s", target="one"), parts) == [
        (ord(char),) for char in "one"
    ]  # no delimiter: single tokens
    assert (clamped(math.inf, 3), clamped(-math.inf, 3)) == (pytest.approx(2 / 3), 0.0)
    with pytest.raises(ValueError, match="target"):
        Seele(target=1.0)


def test_given_tokens_are_imitated_and_nothing_else():
    g = group(1.0, 0.0, lengths=[3, 2], info=[{"given": 2}, {}])
    x = inputs(
        [[-1.0, -2.0, -4.0], [-0.5, -0.25, 0.0]],
        advantage=[1.0, -1.0],
        lengths=[3, 2],
        groups=[g],
        reward=[1.0, 0.0],
    )
    assert MaskGivenPrefix()(x).tolist() == [[0, 0, 1], [1, 1, 1]]
    assert NLL(given=True)(x).loss.tolist() == [[1, 2, 0], [0, 0, 0]] and NLL()(x).loss.tolist() == [
        [1, 2, 4],
        [0.5, 0.25, 0],
    ]


@pytest.mark.parametrize("method", ["ghpo", "guide_grpo", "g2rpo_a", "seele"])
def test_hinted_presets_take_steps(method):
    words = [
        "group_size=4",
        "engine.options=['{target}', 'no', 'nope', 'nay']",
        "num_minibatches=1",
        "sampling.max_tokens=20",
    ]
    run = text_run([f"methods/{method}"], [*words, *(["rollout.delimiter=''"] if method == "seele" else [])])
    metrics = steps(run, 2)
    assert max(m["grad_norm"] for m in metrics) > 0 and metrics[-1]["reward/errors"] == 0
    seen = {
        "ghpo": "hint/failed",
        "guide_grpo": "hint/failed",
        "g2rpo_a": "guided/length",
        "seele": "hint/rate",
    }[method]
    assert metrics[0][seen] > 0


def test_hints_with_pictures():
    """The hinted prompt keeps its picture, and what was begun goes on behind it; log-probs of sampler and
    trainer agree."""
    words = [
        "group_size=3",
        "prompts_per_step=2",
        "max_prompt_tokens=512",
        "loss_terms={kl: {name: kl, coef: 0.01}}",
        "sampling.top_k=0",  # what is cut off is a difference between the two
    ]
    run = vision_run(["methods/ghpo"], words)
    (metrics,) = steps(run, 1)
    assert metrics["rollouts"] == 6 and metrics["engine/kl"] < 1e-3
    assert {HINT_SHARE[r] for g in last_step(run).groups for r in g} == {0.75} and all(
        r.prompt.images for g in last_step(run).groups for r in g
    )
