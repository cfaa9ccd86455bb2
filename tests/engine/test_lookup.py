"""Speculative decoding by n-gram lookup: drafts, the law of the samples, and the work saved."""

from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import chi2_contingency

from vlrl.engine.hf import scheduler
from vlrl.engine.hf.engine import HF
from vlrl.engine.hf.kv_cache import KVCache
from vlrl.engine.hf.lookup import NgramLookup, worth_running


def test_drafts_are_what_followed_the_last_occurrence():
    lookup = NgramLookup([1, 2, 3, 4, 5, 1, 2, 3, 6, 7])
    assert lookup.draft(4) == [], "2 3 6 and so on are new"
    lookup.extend([1, 2, 3])
    assert lookup.draft(4) == [6, 7, 1, 2] and lookup.draft(1) == [6]
    lookup.extend([9, 9, 9, 9])
    assert lookup.draft(3) == [9, 9, 9], "periodic beyond the end"
    assert NgramLookup([1, 2, 3, 4, 5, 1, 2, 3], forbidden={5}).draft(4) == [4]
    assert NgramLookup([1, 2]).draft(3) == [] and NgramLookup([1, 2, 3, 1, 2, 3]).draft(0) == []


def test_drafts_are_run_where_they_pay():
    fresh, refused, accepted = Counter(), Counter(drafted=200, accepted=2), Counter(drafted=200, accepted=190)
    assert worth_running([[1, 2, 3, 4]], fresh) and not worth_running([[]], fresh)
    assert not worth_running([[1, 2, 3, 4]], refused), "drafts that are never drawn"
    assert not worth_running([[1], *[[]] * 40], fresh), "one draft among many sequences"
    assert worth_running([[1, 2]] * 16, accepted) and not worth_running([[1, 2]] * 16, fresh)


def test_several_new_tokens_attend_as_one_by_one():
    """A step of three tokens, of which some are taken back, equals steps of one."""
    layers, j, q, d = 2, 2, 3, 4
    g = torch.Generator().manual_seed(0)
    prompt = torch.randn(2, layers, 2, j, 5, d, generator=g)
    new = [torch.randn(3, heads, 6, d, generator=g) for heads in (j * q, j, j)]
    wrong = [torch.randn(3, heads, 6, d, generator=g) for heads in (j * q, j, j)]

    def cache():
        made = KVCache()
        entries = made.add_prompts(dict(enumerate(zip(*prompt))), [5, 3], torch.zeros(2, 7))
        made.add_sequences([entries[0], entries[1], entries[0]], 4)
        return made

    def step(made, tensors_RHSD, window):
        made.begin_step(tensors_RHSD[0].shape[2])
        query, key, value = tensors_RHSD
        return [
            made.attend(query, *made.update(key, value, layer), layer, 0.5, window) for layer in range(layers)
        ]

    for window in (None, 4):
        plain, spoken = cache(), cache()
        expected = [step(plain, [x[:, :, t : t + 1] for x in new], window) for t in range(6)]
        first = step(
            spoken, [torch.cat([x[:, :, :2], y[:, :, :2]], dim=2) for x, y in zip(new, wrong)], window
        )  # two tokens are wrong
        spoken.take_back([2, 2, 2])
        second = step(spoken, [x[:, :, 2:6] for x in new], window)
        for layer in range(layers):
            found = torch.cat([first[layer][:, :2], second[layer]], dim=1)
            torch.testing.assert_close(
                found, torch.cat([e[layer] for e in expected], dim=1), atol=1e-5, rtol=1e-5
            )
    spoken.take_back([1, 3, 0])
    assert spoken.length_R == [5, 3, 6]


def rhythm(ids, logits_V):
    """Makes every third token likely, so that completions repeat themselves with exceptions: drafts are
    accepted and refused."""
    out_V = logits_V.clone()
    out_V[40 + len(ids) % 3] += 9.0
    return out_V


@pytest.fixture(scope="module")
def looping(tools_module):
    return tools_module.policy("text", kind="qwen2")


@pytest.fixture(scope="module")
def tools_module():
    from types import SimpleNamespace

    import engine_kit

    return SimpleNamespace(
        prompt=engine_kit.make_prompt, request=engine_kit.make_request, policy=engine_kit.make_policy
    )


@pytest.fixture
def always(monkeypatch):
    """Drafts are run whether or not they are expected to pay."""
    monkeypatch.setattr(scheduler, "worth_running", lambda drafts_R, counters: any(drafts_R))


def samples(policy, requests, **options):
    engine = HF(**options).attach(policy)
    found = {(c.request.tag, c.index): c for c in engine.generate(requests)}
    return [found[key] for key in sorted(found)], engine.counters


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.0},
        {"temperature": 1.0, "top_logprobs": 2},
        {"temperature": 0.9, "stop": ("e",), "top_p": 0.9},
    ],
)
@pytest.mark.usefixtures("always")
def test_samples_and_log_probs_are_those_without_drafts(looping, tools_module, settings):
    prompts = [tools_module.prompt("one two three one two three " * (1 + i)) for i in range(3)]
    requests = [
        tools_module.request(
            p, n=2, seed=i, max_tokens=(40, 25, 1)[i], tag=i, processors=(rhythm,), **settings
        )
        for i, p in enumerate(prompts)
    ]
    plain, counted = samples(looping, requests)
    drafted, counters = samples(looping, requests, lookup_tokens=4)
    assert [c.ids for c in drafted] == [c.ids for c in plain] and [c.finish for c in drafted] == [
        c.finish for c in plain
    ]
    for a, b in zip(drafted, plain):
        torch.testing.assert_close(torch.tensor(a.logp), torch.tensor(b.logp), atol=1e-4, rtol=0)
        assert a.version == b.version and (
            a.top_logprobs is None or [list(t) for t in a.top_logprobs] == [list(t) for t in b.top_logprobs]
        )
    assert counters["tokens"] == counted["tokens"] == sum(len(c.ids) for c in plain)
    assert counters["drafted"] >= counters["accepted"] > 0, counters
    assert counters["decode_steps"] < counted["decode_steps"], (counters, counted)


@pytest.mark.usefixtures("always")
def test_the_law_is_that_of_plain_sampling(looping, tools_module):
    """Chi-square: pairs of a sample's last two tokens with drafts against their frequencies without, over
    many seeds."""
    prompt = tools_module.prompt("a b c a b c a b c")

    def pairs(seed, **options):
        found, counters = samples(
            looping,
            [tools_module.request(prompt, n=600, seed=seed, max_tokens=9, processors=(rhythm,))],
            **options,
        )
        return Counter(tuple(c.ids[-2:]) for c in found), counters

    plain, _ = pairs(1)
    drafted, counters = pairs(2, lookup_tokens=3)
    assert counters["drafted"] > counters["accepted"] > 50
    common = [pair for pair, n in plain.items() if n >= 10]
    assert common
    table = np.array(
        [
            [counts[pair] for pair in common] + [600 - sum(counts[pair] for pair in common)]
            for counts in (plain, drafted)
        ]
    )
    assert chi2_contingency(table[:, table.sum(0) > 0]).pvalue > 1e-3, table


def test_a_negative_number_is_refused():
    with pytest.raises(ValueError, match="lookup_tokens is -1"):
        HF(lookup_tokens=-1)
