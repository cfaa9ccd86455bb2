"""LATR's lookahead trees: where they fork, what is pruned, when they are finished. A language with two tokens
to choose from, by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from make import run
from tiny import text_run

from vlrl.methods.core.sampling import Plain
from vlrl.methods.papers.latr import FROM_TREE, Latr, Lookahead
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.views import StepView
from vlrl.types import Completion, Prompt, Request, Row, Sampling

PROMPT = Prompt(Row("r", "q"), ({"role": "user", "content": "q"},))
END = 0


def next_tokens(ids):
    """[(token, p), (other, p)]: 1 or 2 first (0.5, 0.4); after a 1 always 1, after a 2 always 2, but at place
    3 the first branch may also say 9."""
    if not ids:
        return [(1, 0.5), (2, 0.4)]
    if ids == [1, 1, 1]:
        return [(1, 0.5), (9, 0.45)]  # 9 goes on with 1: soon the same again
    if len(ids) >= 6:
        return [(END, 0.9), (7, 0.1)]
    return [(ids[0], 0.9), (8, 0.1)]


def speak(request):
    """Greedily, up to the request's limit."""
    ids, logp, known = list(request.prefix_ids), [], []
    while len(ids) < request.sampling.max_tokens and END not in ids:
        known.append({token: math.log(p) for token, p in next_tokens(ids)})
        ids.append(next_tokens(ids)[0][0])
        logp.append(known[-1][ids[-1]])
    given = len(request.prefix_ids)
    return Completion(
        request,
        0,
        ids,
        [0.0] * given + logp,
        "",
        "stop" if END in ids else "length",
        top_logprobs=[{}] * given + known,
    )


def grown(ahead=3, **rules):
    rules = {
        "width": 4,
        "absolute": 0.25,
        "relative": 0.15,
        "distance": 0.6,
        "checks": (2,),
        "depth": 9,
        **rules,
    }
    tree, asked, answer = Lookahead(end_ids=frozenset({END}), **rules), [], None
    work = tree.grow(
        lambda ids: Request(PROMPT, Sampling(max_tokens=len(ids) + ahead), prefix_ids=tuple(ids))
    )
    while True:
        try:
            requests = work.send(answer)
        except StopIteration as end:
            return *end.value, asked
        asked += [list(request.prefix_ids) for request in requests]
        answer = [speak(request) for request in requests]


def test_branches_that_go_their_own_way_stay():
    branches, step, asked = grown()
    assert [branch.ids for branch in branches] == [[1] * 6 + [END], [2] * 6 + [END]] and step == 7
    assert (
        branches[1].logp[0] == pytest.approx(math.log(0.4))
        and branches[1].logp[1] == pytest.approx(math.log(0.9))
        and branches[1].start == 0
    )
    assert [
        1,
        1,
        1,
        9,
    ] in asked  # it was tried: its two tokens (9, 1) differ from (1, 1) in one of two, 0.5 < 0.6
    kept, _, _ = grown(distance=0.5)
    assert [1, 1, 1, 9, 1, 1, END] in [branch.ids for branch in kept]


@pytest.mark.parametrize(
    ("rules", "count"),
    [
        ({"absolute": 0.42}, 1),
        ({"relative": 0.09}, 1),
        ({"width": 1}, 1),
        ({"distance": 1.1}, 1),
        ({"distance": 0.0}, 3),
        ({"width": 2}, 2),
    ],
)
def test_what_opens_a_branch(rules, count):
    assert len(grown(**rules)[0]) == count  # at the first place p2 = 0.4 and the gap is 0.1


def test_a_full_tree_is_done_after_the_last_check():
    branches, step, _ = grown(width=2)
    # both opened at 0; the release compares 0 + 2 < step after the token at `step`, so at step 3: four tokens
    assert step == 4 and len(branches) == 2 and all(branch.continues(4) for branch in branches)
    assert grown(width=1)[1] == 4  # its root is born at 0 too
    assert grown(depth=2)[1] == 2
    _, _, few = grown(ahead=9)
    assert len(few) < len(grown(ahead=1)[2])  # longer requests are fewer


def test_the_same_tree_whatever_the_length_of_a_request():
    assert [b.ids[:7] for b in grown(ahead=1)[0]] == [b.ids[:7] for b in grown(ahead=9)[0]]


def test_a_branch_beside_a_symbol_is_not_pruned():
    """sample_filter.py:298-304: what is compared has no symbol as the parent's token at the fork."""
    assert [1, 1, 1, 9, 1, 1, END] not in [branch.ids for branch in grown()[0]]
    kept, _, _ = grown(spared=lambda token: token == 1)  # the parent says 1 where the branch says 9
    assert [1, 1, 1, 9, 1, 1, END] in [branch.ids for branch in kept]
    lost, _, _ = grown(spared=lambda token: token == 9)
    assert [1, 1, 1, 9, 1, 1, END] not in [branch.ids for branch in lost]


@pytest.mark.parametrize(
    ("symbols", "spared"),
    [
        (
            Latr().symbols,
            {"7": True, " = ": True, "89": True, "98": False, "\n": True, "so": False, "+1": False},
        ),
        ("", {"7": False, " ": False}),
    ],
)
def test_symbols(symbols, spared):
    """A part of the text counts, a blank one too, as in the release."""
    words = list(spared)
    here = SimpleNamespace(policy=SimpleNamespace(decode=lambda ids: words[ids[0]]))
    assert {word: Latr(symbols=symbols).is_symbol(here, n) for n, word in enumerate(words)} == spared


def test_the_schedule_counts_steps_from_one():
    """trainer/ppo/ray_trainer.py begins with global_steps 1: the tenth step is the first with the second
    share."""
    made = text_run(
        ["methods/latr"], ["rollout.share=[[0, 1.0], [2, 0.0]]", "sampling.max_tokens=8"], engine="hf"
    )
    prompt = made.prompt_template(made.rows["arithmetic"][0])
    for done, trees in ((0, True), (1, False)):
        made.phase_step = done
        (found,) = made.rollout([prompt], [2], StepView.between_steps(made))
        assert any(FROM_TREE.get(r) for r in found) == trees
    made.close()


def test_shares():
    trees = Latr(share=((0, 1.0), (10, 0.5), (20, 0.0)))
    assert [trees.eta(step) for step in (0, 9, 10, 25)] == [1.0, 1.0, 0.5, 0.0]
    for broken in ({"share": ()}, {"share": ((1, 0.5),)}, {"checks": ()}, {"ahead": 0}):
        with pytest.raises(ValueError, match="must|least"):
            Latr(**broken)
    with pytest.raises(ConfigError, match="whole vocabulary"):
        Latr().check(run(sampling=Plain(max_tokens=9, top_k=5)))


def test_part_of_a_group_is_a_tree():
    words = [
        f"rollout.{word}"
        for word in (
            "absolute=0.0",
            "relative=1.0",
            "checks=[1]",
            "distance=0.0",
            "ahead=3",
            "share=[[0, 0.5]]",
        )
    ]
    made = text_run(["methods/latr"], [*words, "sampling.max_tokens=8"], engine="hf")
    prompt = made.prompt_template(made.rows["arithmetic"][0])
    found, none = made.rollout([prompt, prompt], [6, 0], StepView.between_steps(made))
    trees = [r for r in found if FROM_TREE.get(r)]
    assert (
        len(found) == 6
        and len(none) == 0
        and len(trees) == 3
        and all(r.source == "policy" and r.trained for r in found)
    )
    assert len({tuple(r.ids[:2]) for r in trees}) == 3  # forked at once, everywhere
    for rollout in found:
        assert (
            rollout.logp == pytest.approx(made.engine.score(prompt, rollout.ids), abs=1e-4)
            and rollout.loss_mask is None
            and len(rollout) <= 8
        )
    made.close()
