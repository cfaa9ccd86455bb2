"""The sampler against hand-computed distributions (chi-square), with every option; stop strings, banned ids
and guided decoding of the engine."""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from vlrl.engine.guided import compiled, pattern
from vlrl.engine.hf.sampler import Sampler, inverse_cdf, uniforms
from vlrl.plugins.registry import ConfigError
from vlrl.policy.forward import forbid
from vlrl.types import Sampling

LOGITS_V = torch.tensor([2.0, 1.5, 1.0, 0.0, -0.5, -1.0, 0.5, 1.9])
CPU = torch.device("cpu")


@dataclass
class FakeSequence:
    sampling: Sampling
    ids: list[int] = field(default_factory=list)
    stop_ids: frozenset[int] = frozenset({3})
    processors: tuple = ()


def softmax(z):
    e = np.exp(z - z.max())
    return e / e.sum()


def by_hand(sampling, forbidden=()):
    """The distribution in NumPy: bans, temperature, top-k, top-p, min-p, each on the renormalised rest."""
    z = LOGITS_V.double().numpy().copy()
    z[list(forbidden) + list(sampling.bad_ids)] = -np.inf
    p = softmax(z / sampling.temperature_at(0))
    order = np.argsort(-p, kind="stable")
    if sampling.top_k:
        p[order[sampling.top_k :]] = 0
        p /= p.sum()
    if sampling.top_p < 1:
        before = np.concatenate([[0], np.cumsum(p[order])[:-1]])
        p[order[before >= sampling.top_p]] = 0
        p /= p.sum()
    if sampling.min_p:
        p[p < sampling.min_p * p.max()] = 0
    return p / p.sum()


@pytest.mark.parametrize(
    ("settings", "forbidden"),
    [
        ({}, ()),
        ({"temperature": 0.6}, ()),
        ({"temperature": 1.7}, (0,)),
        ({"top_k": 3}, ()),
        ({"top_p": 0.7}, ()),
        ({"min_p": 0.3}, ()),
        ({"top_k": 6, "top_p": 0.9, "min_p": 0.2, "temperature": 1.4, "bad_ids": (1,)}, (7,)),
        ({"temperature": ((0, 0.8), (1, 5.0))}, ()),
    ],
)
def test_draws_follow_the_distribution(settings, forbidden):
    sampling, n = Sampling(**settings), 20_000
    expected = by_hand(sampling, forbidden)
    sampler = Sampler([FakeSequence(sampling)] * n, CPU)
    draw = sampler(forbid(LOGITS_V.expand(n, -1).clone(), forbidden), torch.from_numpy(uniforms(5, 1, n)))
    counts = np.bincount(draw.ids_R.numpy(), minlength=8)
    assert (counts[expected == 0] == 0).all()
    live = expected > 0
    assert chisquare(counts[live], expected[live] * n).pvalue > 1e-3
    torch.testing.assert_close(
        draw.logp_R,
        torch.tensor(np.log(expected[draw.ids_R.numpy()]), dtype=torch.float32),
        atol=1e-5,
        rtol=0,
    )


def test_sequences_keep_their_own_settings():
    rows = [
        FakeSequence(Sampling(temperature=0.0)),
        FakeSequence(Sampling(top_k=1)),
        FakeSequence(Sampling(top_logprobs=2, bad_ids=(0,))),
        FakeSequence(Sampling(min_tokens=1)),
    ]
    logits_RV = LOGITS_V.repeat(4, 1)
    logits_RV[3, 3] = 50.0  # sequence 3 would end, but `min_tokens` forbids it
    draw = Sampler(rows, CPU)(logits_RV, torch.tensor([0.99, 0.99, 0.0, 0.0], dtype=torch.float64))
    assert draw.ids_R.tolist() == [0, 0, 1, 0]
    assert draw.logp_R[0] == pytest.approx(math.log(softmax(LOGITS_V.double().numpy())[0]), abs=1e-5), (
        "greedy returns the log-prob at temperature 1"
    )
    assert draw.logp_R[1] == 0.0
    assert draw.top_logprobs[0] == {} and list(draw.top_logprobs[2]) == [7, 1]


def test_temperature_schedule():
    row = FakeSequence(Sampling(temperature=((0, 1.0), (2, 0.0))))
    sampler = Sampler([row], CPU)
    u_R = torch.tensor([0.999], dtype=torch.float64)
    assert sampler(LOGITS_V[None].clone(), u_R).ids_R.item() == 7
    row.ids += [7, 7]
    assert sampler(LOGITS_V[None].clone(), u_R).ids_R.item() == 0


def test_the_ends_of_the_unit_interval():
    logits_RV = torch.tensor([[-math.inf, 0.0, 0.0, -math.inf]]).repeat(2, 1)
    draw = Sampler([FakeSequence(Sampling())] * 2, CPU)(
        logits_RV, torch.tensor([0.0, math.nextafter(1.0, 0.0)], dtype=torch.float64)
    )
    assert draw.ids_R.tolist() == [1, 2], "tokens of probability zero are never drawn"


def test_stops(engine, tools):
    prompt = tools.prompt("Say", tools.Noise(5))
    (free,) = engine.generate([tools.request(prompt, temperature=0.0, max_tokens=20)])
    text = free.text
    assert len(text) > 6
    stop = text[3:6]
    (stopped,) = engine.generate([tools.request(prompt, temperature=0.0, max_tokens=20, stop=(stop,))])
    assert (
        stopped.finish == "stop"
        and stop in stopped.text
        and stopped.ids == free.ids[: len(stopped.ids)]
        and stop not in engine.lm.decode(stopped.ids[:-1])
    )
    given = engine.lm.tokenizer.encode("so " + stop, add_special_tokens=False)
    (after,) = engine.generate(
        [tools.request(prompt, temperature=0.0, max_tokens=len(given) + 3, prefix_ids=given, stop=(stop,))]
    )
    assert after.finish == "length" and len(after.ids) == len(given) + 3, (
        "a stop string in the given prefix is not a stop"
    )
    (by_id,) = engine.generate(
        [tools.request(prompt, temperature=0.0, max_tokens=20, stop_ids=(free.ids[2],))]
    )
    assert by_id.ids == free.ids[: free.ids.index(free.ids[2]) + 1] and by_id.finish == "stop"
    (held,) = engine.generate(
        [tools.request(prompt, temperature=0.0, max_tokens=9, stop_ids=(free.ids[2],), min_tokens=9)]
    )
    assert len(held.ids) == 9 and free.ids[2] not in held.ids


def test_forbidden_ids_are_never_sampled(policy, tools):
    from vlrl.engine.hf.engine import HF

    head = policy.model.get_output_embeddings()
    hot = list(policy.forbidden_ids)[:2]
    before = head.weight.data.clone()
    engine = HF().attach(policy)
    prompt = tools.prompt("Draw")
    try:
        head.weight.data[hot] *= 30
        ids = {
            i
            for c in engine.generate(
                [tools.request(prompt, n=40, max_tokens=10, top_logprobs=3, bad_ids=(300,))]
            )
            for i in [*c.ids, *(k for t in c.top_logprobs for k in t)]
        }
    finally:
        head.weight.data.copy_(before)
    assert ids and not ids & {*policy.forbidden_ids, 300}


def test_processors_see_the_ids_so_far(engine, tools):
    def next_number(ids, logits_V):
        out_V = torch.full_like(logits_V, -math.inf)
        out_V[40 + len(ids)] = 0.0
        return out_V

    (c,) = engine.generate([tools.request(tools.prompt("Count"), max_tokens=5, processors=(next_number,))])
    assert c.ids == [40, 41, 42, 43, 44] and c.logp == [0.0] * 5


@pytest.mark.parametrize(
    ("guided", "fits"),
    [
        ({"choice": ["red", "deep blue"]}, lambda text: text in ("red", "deep blue")),
        (
            {"regex": r"[0-9]{2}-[a-c]"},
            lambda text: len(text) == 4 and text[:2].isdigit() and text[2] == "-" and text[3] in "abc",
        ),
        (
            {"json": {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}},
            lambda text: '"n"' in text,
        ),
    ],
)
def test_guided(engine, tools, guided, fits):
    prompt = tools.prompt("Which?", tools.Noise(1))
    for c in engine.generate([tools.request(prompt, n=4, max_tokens=60, guided=guided)]):
        assert c.finish == "length" or (fits(c.text) and c.ids[-1] in engine.lm.eos_ids), c.text
    assert any(
        c.finish == "stop"
        for c in engine.generate([tools.request(prompt, n=8, max_tokens=60, guided={"choice": ["a", "b"]})])
    )


def test_guided_refuses(engine):
    with pytest.raises(ConfigError, match="guided"):
        pattern({"xml": "x"})
    with pytest.raises(ConfigError, match="refused by xgrammar"):
        compiled("regex", "(", engine.lm.tokenizer, engine.lm.vocab_size)


@pytest.mark.parametrize("vocabulary", [200, 256, 700, 1024])
def test_blocks_of_the_vocabulary_keep_the_law(vocabulary):
    """The draw by blocks against the float64 law: chi-square, ends of blocks, masses of zero."""
    n = 20_000
    mass_V = torch.rand(vocabulary, generator=torch.Generator().manual_seed(vocabulary)) ** 6
    mass_V[[0, 100, vocabulary - 1]] = 0
    mass_V[190] = mass_V.sum()  # a token near the end of the first block
    u_R = torch.from_numpy(uniforms(3, 2, n))
    u_R[:2] = torch.tensor([0.0, math.nextafter(1.0, 0.0)], dtype=torch.float64)
    ids_R = inverse_cdf(mass_V.repeat(n, 1), u_R)[:, 0]
    law_V = mass_V.double() / mass_V.double().sum()
    exact_R = torch.searchsorted(law_V.cumsum(0), u_R, right=True).clamp(max=vocabulary - 2)
    assert (ids_R != exact_R).float().mean() < 1e-3, "equal but for rounding at the borders of tokens"
    counts, expected = np.bincount(ids_R.numpy(), minlength=vocabulary), law_V.numpy() * n
    assert counts[[0, 100, vocabulary - 1]].sum() == 0
    common = expected >= 5
    pooled = (
        np.append(counts[common], counts[~common].sum()),
        np.append(expected[common], expected[~common].sum()),
    )
    assert chisquare(*pooled).pvalue > 1e-3


def test_stop_strings_decode_only_where_a_token_can_end_one(text_policy, tools, monkeypatch):
    """Every sampled text stops where a decode of all of it at every token would; few tokens are decoded for
    that."""
    from vlrl.engine.base import PolicyLM
    from vlrl.engine.hf.engine import HF

    engine, prompt, stops = (
        HF().attach(text_policy),
        tools.prompt("Say"),
        ("é", "e t", "</answer>", "q", "\n\n"),
    )
    calls = []
    decode = PolicyLM.decode_all
    monkeypatch.setattr(PolicyLM, "decode_all", lambda self, ids: calls.append(len(ids)) or decode(self, ids))
    free = {
        c.index: c.ids for c in engine.generate([tools.request(prompt, n=12, max_tokens=60, temperature=1.0)])
    }
    stopped = {
        c.index: c
        for c in engine.generate([tools.request(prompt, n=12, max_tokens=60, temperature=1.0, stop=stops)])
    }
    drawn, decoded = sum(len(c.ids) for c in stopped.values()), sum(n > 2 for n in calls)
    ends = 0
    for index, ids in free.items():
        end = next(
            (n for n in range(1, len(ids) + 1) if any(stop in decode(engine.lm, ids[:n]) for stop in stops)),
            len(ids),
        )
        assert stopped[index].ids == ids[:end]
        ends += end < len(ids)
    assert ends >= 3 and decoded < drawn / 2, (ends, decoded, drawn)
    closing = text_policy.tokenizer.convert_tokens_to_ids("</answer>")
    assert [engine.lm.may_end(closing, (stop,)) for stop in ("x>", "x<y", "zz")] == [True, False, False]
