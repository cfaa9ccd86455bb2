"""What AMPO, ReLIFT and RoRecomp put into a step, by hand, and that it survives a restart."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from make import end_step, group, run
from tiny import steps, text_run

from vlrl.methods.common.demonstrations import UNTRAINED_DEMONSTRATIONS
from vlrl.methods.common.hard_prompts import demonstration_group
from vlrl.methods.papers.ampo import Ampo, AmpoRepetition, comprehension
from vlrl.methods.papers.luffy import Luffy
from vlrl.methods.papers.relift import Relift, supervised_loss
from vlrl.methods.papers.rorecomp import Rorecomp
from vlrl.plugins.registry import ConfigError
from vlrl.types import Prompt, Rollout, Row


class Letters:
    """A tokenizer with a token per letter."""

    eos_token_id = 0

    def encode(self, text, add_special_tokens=False):
        return [ord(letter) for letter in text]


def parts(**more):
    """A run whose engine finds letter tokens as likely as `sure` says, and whose scaffold asks the
    question."""
    return run(
        seed=3, phase_step=0, policy=SimpleNamespace(tokenizer=Letters(), encode_text=Letters().encode,
            spaces=lambda prompt: (), version=0),
        prompt_template=lambda row: Prompt(row, ({"role": "user", "content": row.question},)), **more,
    )  # fmt: skip


def taught(*own, teachers=(), answer="7"):
    """A group of own rewards with teachers (text, reward) set aside."""
    g = group(*own, name="q")
    g.prompt = replace(g.prompt, row=Row("q", "q", answer=answer))
    g.untrained = [
        Rollout(
            g.prompt,
            [*map(ord, text), 0],
            text,
            source="expert",
            trained=False,
            reward=reward,
            outcome=reward,
            correct=reward >= 1,
        )
        for text, reward in teachers
    ]
    return g


def on_demand(asked=None, **fields):
    """The replay, with an engine that gives a token p = 0.5, and the digit after reasoning "b" p = 0.9."""

    def score_all(pairs):
        (asked if asked is not None else []).extend(pairs)
        return [
            [math.log(0.9 if ids[:1] == [ord("b")] and t == len(ids) - 1 else 0.5) for t in range(len(ids))]
            for _, ids in pairs
        ]

    made = Ampo(**fields)
    made.setup(parts(engine=SimpleNamespace(score_all=score_all)))
    return made


def test_comprehension_is_the_mean_probability():
    assert comprehension([math.log(0.9), math.log(0.5)]) == pytest.approx(0.7)


def test_teachers_come_only_where_all_fail_and_the_best_understood_first():
    asked = []
    replay = on_demand(asked, k=1)
    solved, failed = (
        taught(0.0, 1.0, teachers=[("a<answer>7", 1.0)]),
        taught(0.0, 0.1, 0.0, teachers=[("a<answer>7", 1.0), ("b<answer>7", 1.0)]),
    )
    assert [r.source for r in replay([solved])[0]] == ["policy", "policy"] and not asked
    (mixed,) = replay([failed])
    assert sorted(r.source for r in mixed) == ["expert", "policy", "policy"] and [
        r.text for r in mixed if r.source == "expert"
    ] == ["b<answer>7"]
    assert [(bytes(ids).decode(), len(ids)) for _, ids in asked] == [
        ("a<answer>7", 10),
        ("b<answer>7", 10),
    ]  # the gold answer after the reasoning
    assert [r.source for r in failed] == ["policy"] * 3 and [r.text for r in mixed.untrained] == [
        "a<answer>7"
    ]
    end_step(replay, [])
    assert replay.metrics() == {"ampo/guided": (1.0, 2.0)} == replay.metrics()
    end_step(replay, [])
    assert replay.metrics() == {"ampo/guided": (0.0, 0.0)}


@pytest.mark.parametrize(
    ("teachers", "count"),
    [
        ([], 0),
        ([("a<answer>8", 0.1)], 0),
        ([("a<answer>7", 1.0)], 1),
        ([("a<answer>7", 1.0)] * 2, 2),
        ([("a<answer>7", 1.0)] * 4, 2),
    ],
)
def test_only_right_teachers_and_two_at_most(teachers, count):
    (found,) = on_demand()([taught(0.0, 0.0, 0.0, 0.0, teachers=teachers)])
    assert (
        sum(r.source == "expert" for r in found) == count
        and len(found) == 4
        and all(r.trained for r in found)
    )


def test_a_teacher_is_understood_behind_its_own_white_space_and_not_at_all_without_an_answer():
    asked = []
    teachers = [("none", 1.0), ("a<answer> 7 ", 1.0)]
    (mixed,) = on_demand(asked, k=1)([taught(0.0, 0.0, teachers=teachers)])
    assert [bytes(ids).decode() for _, ids in asked] == ["a<answer> 7"]
    assert [r.text for r in mixed if r.source == "expert"] == ["a<answer> 7 "]


def test_ten_words_in_a_row_that_occur_ten_times_cost_one():
    words = " ".join(map(str, range(10)))
    texts = [" ".join([words] * 10), "_".join([words] * 10), " ".join([words] * 9) + " 0", "a b", ""]

    def said(*rewards, texts):
        g = group(*rewards)
        for rollout, text in zip(g, texts, strict=True):
            rollout.text = text
        return g

    assert AmpoRepetition()(said(*[0.9] * 5, texts=texts)) == pytest.approx([-0.1, -0.1, 0.9, 0.9, 0.9])
    assert AmpoRepetition()(said(0.0, 0.1, texts=texts[:1] * 2)) == pytest.approx([0.0, -0.9])
    assert AmpoRepetition(window=1, limit=2, penalty=0.5)(said(1.0, texts=["no no"])) == [0.5]
    with pytest.raises(ValueError, match="limit=1"):
        AmpoRepetition(limit=1)


def test_places_are_a_function_of_seed_and_row():
    found = [
        [r.source for r in on_demand()([taught(*[0.0] * 6, teachers=[("a", 1.0)])])[0]] for _ in range(2)
    ]
    assert found[0] == found[1]
    assert (
        Ampo().requires == (UNTRAINED_DEMONSTRATIONS,) == Luffy(trained=False).provides
        and Luffy().provides == ()
    )


def hard(*rewards, name, target="t"):
    """A group of the row `name` with a demonstration."""
    g = group(*rewards, name=name)
    g.prompt = replace(g.prompt, row=Row(name, name, target=target))
    return g


def buffer(ranks=1, **fields):
    made = Relift(**fields)
    row = Row("row", "q", target="t")
    made.setup(
        parts(
            ranks=ranks,
            rows={"main": [row]},
            state_sharded=False,
        )
    )
    return made


def test_failed_prompts_wait_and_the_newest_come_first():
    replay = buffer(size=9)
    easy, a, b, c, bare = (
        hard(0, 1, name="easy"),
        *(hard(0, 0, name=n) for n in "abc"),
        hard(0, 0, name="bare", target=""),
    )
    assert step_on(replay, easy, a, bare) == {"failed": 2.0, "without": 1.0, "used": 0.0, "waiting": 1.0}
    assert step_on(replay, b, c)["waiting"] == 3.0
    assert list(replay.state.waiting) == ["b", "c", "a"] and buffer(ranks=2, size=3).rank_size == 2
    made = demonstration_group(a.prompt, replay.run)
    assert made.rollouts[0].ids == [ord("t"), 0] and made.rollouts[0].source == "expert" and len(made) == 1


def step_on(callback, *groups):
    """What the callback logs after a step on these groups."""
    callback.run.groups = list(groups)
    callback.run.gather = list
    return callback(callback.run, groups)


def test_hard_prompts_survive_a_restart():
    replay = buffer(size=9)
    a, b = hard(0, 0, name="a"), hard(0, 0, name="b")
    step_on(replay, a)
    restored = Relift(size=9)
    restored.setup(parts(rows={"main": [a.row, b.row]}, state_sharded=False))
    restored.load_state_dict(json.loads(json.dumps(replay.state_dict())))
    assert restored.state_dict() == {"waiting": ["a"], "adam": {}}
    step_on(restored, b)
    assert list(restored.state.waiting) == ["b", "a"] and restored.state.waiting["a"].row == a.row
    with pytest.raises(ConfigError, match="synchronous"):
        Relift().check(run(settings=SimpleNamespace(loop="asynchronous")))


def test_the_supervised_loss_is_a_sum_over_tokens():
    logp, entropy = torch.tensor([[-1.0, -2.0], [-0.5, 0.0]]), torch.tensor([[1.0, 2.0], [4.0, 0.0]])
    loss, nll = supervised_loss(logp, entropy, 0.1)
    assert float(loss) == pytest.approx(3.5 - 0.7) and float(nll) == 3.5


def weights_after(*words):
    made = text_run(
        ["methods/relift"],
        ["engine.options=['no', 'never']", "optimizer.lr=0", "callbacks.hard.lr=0.01", *words],
    )
    metrics = steps(made, 3)
    return metrics, torch.cat([p.detach().flatten() for p in made.policy.model.parameters()]), made


def test_a_full_buffer_takes_a_step_of_its_own():
    """Four prompts a step all fail: a step on eight demonstrations follows the second step, and no other
    weight moves (the run's rate is 0)."""
    metrics, taught_weights, _ = weights_after("callbacks.hard.size=8")
    _, untouched, _ = weights_after("callbacks.hard.size=99")
    assert [m["hard/used"] for m in metrics] == [0, 8, 0] and [m["hard/waiting"] for m in metrics] == [
        4,
        0,
        4,
    ]
    assert (
        not torch.equal(taught_weights, untouched)
        and metrics[1]["hard/nll"] > 0
        and metrics[1]["hard/grad_norm"] > 0
    )
    every, _, again = weights_after("callbacks.hard.size=4")
    assert [m["hard/used"] for m in every] == [4, 4, 4] and every[2]["hard/nll"] < every[0]["hard/nll"]
    saved = again.callbacks["hard"].state_dict()["adam"]
    restored = Relift()
    restored.load_state_dict({"waiting": [], "adam": saved})
    optimizer = restored.optimizer([p for p in again.policy.model.parameters() if p.requires_grad])
    assert float(optimizer.state_dict()["state"][0]["step"]) == 3.0


def trained(g):
    """Which rollouts the loss reads."""
    return [rollout.loss_mask is None or any(rollout.loss_mask) for rollout in g]


def recompose(phase_step=0, **fields):
    made = Rorecomp(**fields)
    made.setup(parts(rows={"main": [Row("q", "q")]}))
    made.run.phase_step = phase_step
    return made


def test_short_right_and_long_wrong_rollouts_come_first_and_the_rest_later():
    replay = recompose(every=2)
    g = group(1, 1, 1, 0, 0, 0.1, lengths=[5, 2, 3, 4, 6, 1])
    (now,) = replay([g])
    assert trained(now) == [
        False,
        True,
        True,
        True,
        True,
        False,
    ]  # 2 of 3 shortest right (2, 3), 2 of 3 longest wrong (6, 4)
    assert now.rewards == g.rewards and trained(g) == [True] * 6  # rewards and the group itself stay
    replay.run.phase_step = 1
    later = replay([])
    assert [trained(x) for x in later] == [
        [True, False, False, False, False, True]
    ] and replay.state.stored == []
    assert [r.signals for r in later[0]] == [{}] * 6


def test_shares_of_one_are_plain_training():
    replay = recompose(correct=1.0, wrong=1.0)
    assert trained(replay([group(1, 0, 0)])[0]) == [True] * 3 and replay.state.stored == []
    with pytest.raises(ValueError, match="every"):
        Rorecomp(every=0)


def test_the_rest_survives_a_restart():
    replay = recompose(every=2)
    replay([group(1, 1, 0, 0, lengths=[1, 2, 3, 4], name="q")])
    restored = recompose(phase_step=1, every=2)
    restored.load_state_dict(json.loads(json.dumps(replay.state_dict())))
    replay.run.phase_step = 1
    (mine,), (theirs,) = replay([]), restored([])
    assert [(r.ids, r.loss_mask, r.reward, r.correct) for r in mine] == [
        (r.ids, r.loss_mask, r.reward, r.correct) for r in theirs
    ] and mine.id == theirs.id


@pytest.mark.parametrize(
    ("method", "words"),
    [("ampo", []), ("relift", ["callbacks.hard.size=1"]), ("rorecomp", ["replay.every=2"])],
)
def test_presets_train(method, words):
    metrics = steps(text_run([f"methods/{method}"], words))
    assert all(m["grad_norm"] > 0 for m in metrics)
