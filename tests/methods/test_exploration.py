"""EEPO, VOGUE, LENS: what is forgotten and restored, what noise earns, what is cut out of a question. Numbers
by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from make import gradient, group, inputs, run
from tiny import text_run, vision_run

from vlrl.methods.core.policy_loss import PPOClip
from vlrl.methods.papers.eepo import SECOND_HALF, Eepo, complementary
from vlrl.methods.papers.lens import (
    WEIGHT,
    Lens,
    LensCalibratedClip,
    LensSuccessRate,
    find_question,
    prompt_logp,
    remove_spans,
    replace_text,
    token_spans,
)
from vlrl.methods.papers.vogue import NOISY, Vogue, VogueVisualUncertainty, clean, divergence
from vlrl.plugins.registry import ConfigError
from vlrl.plugins.stages import TOKEN_ADVANTAGES
from vlrl.trainer.views import StepView
from vlrl.types import Prompt, Row

LOG = math.log


def test_complementary_loss():
    """-log(1 - p): log 2 for a half, log 4 for three quarters; masked tokens do not count; what is nearly
    sure is cut off without gradient."""
    logp = torch.tensor(
        [[LOG(0.5), LOG(0.75)], [LOG(0.5), LOG(0.9)], [-1e-9, LOG(0.5)]],
        dtype=torch.float64,
        requires_grad=True,
    )
    mask = torch.tensor([[True, True], [True, False], [True, False]])
    loss = complementary(logp, mask, 0.01)
    assert loss.tolist() == pytest.approx([1.5 * LOG(2), LOG(2), LOG(100)])
    (slope,) = torch.autograd.grad(loss.sum(), logp)
    assert slope.tolist() == [
        pytest.approx([0.5, 1.5]),
        pytest.approx([1.0, 0.0]),
        [0.0, 0.0],
    ]  # p / (1 - p) / T


def test_eepo_temporarily_unlearns():
    made = text_run(
        ["methods/eepo"],
        ["rollout.entropy_threshold=99", "rollout.rate=0.5", "sampling.max_tokens=6"],
        engine="hf",
    )
    strategy, prompt = made.rollout, made.prompt_template(made.rows["arithmetic"][0])
    before = [p.detach().clone() for p in made.policy.model.parameters()]
    (found,) = strategy([prompt], [5], StepView.between_steps(made))
    assert [SECOND_HALF.get(r) for r in found] == [None, None, None, True, True] and strategy.metrics() == {
        "eepo/active": 1.0
    }
    after = list(made.policy.model.parameters())
    assert all(torch.equal(p, q) for p, q in zip(after, before)) and all(p.grad is None for p in after)
    own = [made.engine.score(prompt, r.ids) for r in found]
    assert found.rollouts[0].logp == pytest.approx(own[0], abs=1e-4) and found.rollouts[
        4
    ].logp != pytest.approx(own[4], abs=1e-3)
    with strategy.unlearned([replace(found, rollouts=found.rollouts[:3])], made):
        unlearned = [made.engine.score(prompt, r.ids) for r in found.rollouts[:3]]
    assert sum(map(sum, unlearned)) < sum(map(sum, own[:3]))  # the unlearned rollouts are less likely
    assert made.engine.score(prompt, found.rollouts[0].ids) == pytest.approx(own[0], abs=1e-6)
    made.close()


def test_eepo_waits_for_a_low_entropy():
    half = {1: LOG(0.5), 2: LOG(0.5)}  # log 2 = 0.69 nats
    sure = group(0.0, lengths=[1], top_logprobs=[[{1: 0.0}]])
    strategy, at = Eepo(entropy_threshold=0.4, window=2), run(engine=SimpleNamespace(name="hf"))
    seen = []
    for at.step, tokens in enumerate([half, {1: 0.0}, {1: 0.0}]):
        seen.append(strategy.entropy_is_low([group(0.0, lengths=[1], top_logprobs=[[tokens]])], at))
    assert seen == [False, True, True] and strategy.state_dict() == {
        "entropies": [0.0, 0.0],
        "step": 2,
    }  # 0.69, 0.35, 0
    other = Eepo(entropy_threshold=0.4, window=2)
    other.load_state_dict({"entropies": [0.69, 0.69], "step": 2})
    assert not other.entropy_is_low([sure], at)  # a further round of the same step is not counted again


def test_noise():
    made = vision_run(
        ["methods/vogue"], ["rollout.first=0.5", "rollout.sigma=0.2", "group_size=6", "sampling.max_tokens=4"]
    )
    prompts = [made.prompt_template(made.rows["digits"][i]) for i in range(2)]
    groups = made.rollout(prompts, [6, 6], StepView.between_steps(made))
    noisy = [r for g in groups for r in g if NOISY.get(r)]
    assert [len(g) for g in groups] == [6, 6] and 0 < len(noisy) < 12
    for rollout in noisy:
        assert (
            clean(rollout.prompt).key
            == next(p.key for p in prompts if p.row is rollout.row)
            != rollout.prompt.key
        )
        assert rollout.prompt.images[0].key != rollout.row.images[0].key
    picture, disturbed = (
        np.asarray(m.load().convert("RGB"), float) / 255
        for m in (noisy[0].row.images[0], noisy[0].prompt.images[0])
    )
    inner = (picture > 0.45) & (picture < 0.55)
    apart = (disturbed - picture)[inner] if inner.sum() > 99 else (disturbed - picture)
    assert 0.05 < apart.std() < 0.25
    batch = made.batch(groups)
    values = made.aux_tensors["vogue.clean_logp"](made.policy, batch)
    for b, rollout in enumerate(batch.rollouts):
        expected = made.engine.score(clean(rollout.prompt), rollout.ids)
        assert values[b, : len(rollout)].tolist() == pytest.approx(expected, abs=1e-4)
    assert [made.rollout.share(step) for step in (0, 100, 999)] == [0.5, 0.25, 0.0]
    made.close()


def test_what_noise_and_doubt_earn():
    assert divergence(LOG(0.5), LOG(0.25)) == pytest.approx(0.25 * LOG(2)) and divergence(-1.0, -1.0) == 0.0
    p, q = (0.5, 0.5), (0.8, 0.2)  # half of KL(p, q) + KL(q, p), as an expectation over p
    both = sum(a * LOG(a / b) + b * LOG(b / a) for a, b in zip(p, q)) / 2
    assert sum(a * divergence(LOG(a), LOG(b)) for a, b in zip(p, q)) == pytest.approx(both)
    signals = [
        {"old_logp": [LOG(0.5)] * 2, "vogue.clean_logp": [LOG(0.25), LOG(0.5)], "entropy": [9.0, 0.5]}
        for _ in range(2)
    ]
    made = group(1.0, 0.0, lengths=[2, 2], signals=signals, info=[{NOISY.name: True}, {}])
    VogueVisualUncertainty(scale="none", a_v=2.0, a_e=0.4)([made])
    # A = 0.5 and -0.5: at most 0.25 each; 2 * 0.1733 = 0.35 is cut, 0.4 * 9 is cut, 0.4 * 0.5 = 0.2 is not
    assert TOKEN_ADVANTAGES[made.rollouts[0]] == pytest.approx([1.0, 0.7])
    assert TOKEN_ADVANTAGES[made.rollouts[1]] == pytest.approx([-0.25, -0.3])


def test_what_is_cut_out_of_a_question():
    assert remove_spans("one two three", [(3, 7), (12, 13)]) == "one thre"
    parts = [{"type": "image"}, {"type": "text", "text": "short"}, {"type": "text", "text": "the question"}]
    prompt = Prompt(Row("r", "q"), ({"role": "system", "content": "s"}, {"role": "user", "content": parts}))
    assert find_question(prompt) == (1, 2, "the question")
    made = replace_text(prompt, 1, 2, "question")
    assert (
        made.messages[1]["content"][2] == {"type": "text", "text": "question"}
        and made.train is prompt
        and prompt.messages[1]["content"] is parts
    )
    plain = Prompt(Row("r", "q"), ({"role": "user", "content": "q"},))
    assert replace_text(plain, *find_question(plain)[:2], "x").messages == ({"role": "user", "content": "x"},)


@pytest.mark.parametrize("kind", ["text", "vision"])
def test_tokens_of_a_question(kind):
    made = text_run(["methods/lens"]) if kind == "text" else vision_run(["methods/lens"])
    prompt = made.prompt_template(next(iter(made.rows.values()))[0])
    _, _, text = find_question(prompt)
    spans, ids = token_spans(made.policy, prompt, text), made.policy.encode(prompt).ids
    assert spans and "".join(text[a:b] for a, b in spans.values()) == text
    assert all(made.policy.tokenizer.decode([ids[t]]) == text[a:b] for t, (a, b) in spans.items())
    assert token_spans(made.policy, prompt, "not there") == {}
    logp = prompt_logp(made.policy, prompt)
    assert len(logp) == len(ids) and logp[0] == 0.0 and max(logp) <= 0.0
    assert made.rollout.purified(prompt, made) is prompt  # the policy is its reference: nothing interferes
    # the one token that policy and reference disagree about most goes
    with torch.no_grad():
        made.policy.model.get_output_embeddings().weight[ids[list(spans)[1]]] += 3.0
    purified = made.rollout.purified(prompt, made)
    assert (
        purified.train is prompt
        and len(find_question(purified)[2]) < len(text)
        and purified.images == prompt.images
    )
    made.close()


def lens_run(right_after):
    """A fake policy that is right once in four, and in `right_after` of four of a question with fewer
    letters."""
    made = text_run(["methods/lens"], ["group_size=4", "rollout.below=0.5"])

    def say(request, index):
        row, pure = request.prompt.row, request.prompt.train is not None
        return f"<answer>{row.answer if index < (right_after if pure else 1) else 'x'}</answer>"

    made.engine = replace(made.engine, function=say)
    made.engine.setup(made)
    with torch.no_grad():  # a policy that has left its reference
        made.policy.model.get_output_embeddings().weight[::2] += 1.0
    (found,) = made.rollout(
        [made.prompt_template(made.rows["arithmetic"][0])], [4], StepView.between_steps(made)
    )
    return made, found


def test_right_answers_to_a_purified_question_replace_wrong_ones():
    made, found = lens_run(2)
    assert [r.source for r in found] == ["policy", "purified", "purified", "policy"] and [
        r.rewards["arithmetic"] for r in found
    ] == [1, 1, 1, 0]
    assert [WEIGHT[r] for r in found] == [0.25, 0.75, 0.75, 0.75]
    assert (
        len({r.prompt.for_training.key for r in found}) == 1
        and found.rollouts[1].prompt.key != found.prompt.key
    )
    made.rollout.end_step(made)
    told = {name: value for name, (value, _) in made.rollout.metrics().items()}
    expected = {
        "failing": 1.0,
        "purified": 1.0,
        "exchanged": 2.0,
        "success_before": 0.25,
        "success_after": 0.5,
    }
    assert {name: told[f"lens/{name}"] for name in expected} == expected and told["lens/removed_tokens"] >= 1
    made.close()
    made, found = lens_run(1)  # no better than before
    assert all(r.source == "policy" and not WEIGHT.on(r) for r in found)
    made.close()


def test_the_ratio_is_to_what_sampled():
    g = group(1.0, 1.0, lengths=[1, 1], source=["purified", "policy"])
    now, old, sampled = [[LOG(0.3)], [LOG(0.3)]], [[LOG(0.3)], [LOG(0.27)]], [[LOG(0.6)], [LOG(0.1)]]
    x = inputs(now, old=old, sampled=sampled, advantage=[1.0, 1.0], groups=[g], reward=[1.0, 1.0])
    loss = LensCalibratedClip()(x).loss
    assert loss.flatten().tolist() == pytest.approx([-0.5, -0.3 / 0.27])
    assert gradient(loss, x).flatten().tolist() == pytest.approx([-0.5, -0.3 / 0.27])
    own = inputs([[-1.0, -2.0]], old=[[-1.5, -1.0]], advantage=[1.0])
    assert torch.equal(LensCalibratedClip()(own).loss, PPOClip()(own).loss)
    WEIGHT.set(g.rollouts[0], 0.75)
    assert LensSuccessRate()(x).flatten().tolist() == [0.75, 1.0]


def parts(**more):
    rollout = SimpleNamespace(name="independent", samples=True)
    defaults = {
        "settings": SimpleNamespace(loop="synchronous"),
        "aux_tensors": {"ref_logp": 1},
        "rollout": rollout,
    }
    return run(**{**defaults, **more})


@pytest.mark.parametrize(
    ("part", "more", "reason"),
    [
        (Eepo(), {"settings": SimpleNamespace(loop="asynchronous")}, "may be training"),
        (Eepo(), {"group_size": 1}, "no second half"),
        (Lens(), {"settings": SimpleNamespace(loop="asynchronous")}, "may be training"),
        (Lens(), {"aux_tensors": {}}, "nothing keeps one"),
        (Vogue(), {"family": SimpleNamespace(is_multimodal=False, name="text")}, "is text-only"),
    ],
)
def test_what_cannot_work_is_refused(part, more, reason):
    with pytest.raises(ConfigError, match=reason):
        part.check(parts(**more))


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ("policy_loss={name: ppo_clip}", "lens.corrects_purified"),
        ("rollout={name: independent}", "lens.weight"),
    ],
)
def test_the_pieces_of_lens_require_each_other(words, missing):
    with pytest.raises(ConfigError, match=f"requires '{missing}'.*; set .*: .name: lens"):
        text_run(["methods/lens"], [words])


def test_the_advantage_of_vogue_requires_noisy_rollouts():
    with pytest.raises(ConfigError, match="requires 'vogue.noisy'.*set rollout: .name: vogue"):
        vision_run(["methods/vogue"], ["rollout={name: independent}"])


@pytest.mark.parametrize(
    "broken",
    [
        lambda: Eepo(rate=0),
        lambda: Vogue(sigma=0),
        lambda: VogueVisualUncertainty(b_v=1.0),
        lambda: Lens(gamma=0),
    ],
)
def test_senseless_values(broken):
    with pytest.raises(ValueError, match="must"):
        broken()
