"""The real vLLM (CPU build) with a tiny Qwen2.5-VL, started once: log-probs, sync, sampling options."""

import types

import pytest
import torch
from run_kit import View

from vlrl.engine.hf.engine import HF
from vlrl.engine.vllm.common import COMPATIBLE, as_flags, check_heads, check_installed, check_versions
from vlrl.engine.vllm.prompts import FORBIDDEN, ranges
from vlrl.methods.core.prompt_template import Chat
from vlrl.methods.core.rollout import MultiTurn
from vlrl.methods.core.sampling import Plain
from vlrl.plugins.registry import ConfigError

needs_vllm = pytest.mark.vllm


@pytest.fixture(scope="module")
def both(request):
    """(engine hf, engine vllm, policy) of one model."""
    pytest.importorskip("vllm")
    from engine_kit import make_policy

    from vlrl.engine.vllm.inprocess import VLLM

    torch.set_num_threads(1)
    policy = make_policy(
        "qwen2_5_vl", hidden=128, layers=2
    )  # heads of 32: the smallest that vLLM's CPU attention takes
    engine = VLLM(max_model_len=2048, options={"max_num_seqs": 32}).attach(policy)
    yield HF().attach(policy), engine, policy
    engine.close()


def prompts(tools):
    a, b, c = (tools.Noise(i, (56 + 28 * i, 56)) for i in range(3))
    short, long = (
        tools.Noise(7, (112, 112), frames=frames) for frames in (4, 16)
    )  # 2 and 8 moments, 2 positions each, of 4 x 4 patches
    questions = [tools.prompt("What is it?"), tools.prompt("Look", a), tools.prompt("Compare", b, c)]
    return [*questions, tools.prompt("Watch", short), tools.prompt("Watch on", long)]


def assert_greedy_agrees(both, tools):
    requests = [tools.request(p, temperature=0.0, max_tokens=8, tag=i) for i, p in enumerate(prompts(tools))]
    ours, theirs = ({c.request.tag: c for c in engine.generate(requests)} for engine in both[:2])
    for i, c in ours.items():
        assert c.ids == theirs[i].ids
        torch.testing.assert_close(torch.tensor(c.logp), torch.tensor(theirs[i].logp), atol=1e-3, rtol=0)
    return {i: c.ids for i, c in theirs.items()}


@needs_vllm
def test_agrees_before_and_after_a_sync(both, tools):
    _, engine, policy = both
    before = assert_greedy_agrees(both, tools)
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=g))
    policy.version += 1
    stale = {
        c.request.tag: c
        for c in engine.generate([tools.request(prompts(tools)[1], temperature=0.0, max_tokens=8, tag=1)])
    }
    assert stale[1].ids == before[1] and stale[1].version == policy.version - 1
    engine.sync(policy)
    after = assert_greedy_agrees(both, tools)
    assert after != before and engine.version == policy.version


@needs_vllm
def test_log_probs_are_of_the_distribution_sampled_from(both, tools):
    hf, engine, _ = both
    prompt = prompts(tools)[1]
    for settings in (
        {"temperature": 0.7},
        {"temperature": ((0, 1.3), (3, 0.5))},
        {"bad_ids": tuple(range(100))},
    ):
        for c in engine.generate([tools.request(prompt, n=3, seed=5, max_tokens=6, **settings)]):
            sampling = c.request.sampling
            banned = set(sampling.bad_ids) | set(hf.lm.forbidden_ids)
            assert not banned & set(c.ids)
            for position, logp in enumerate(c.logp):
                (again,) = hf.generate(
                    [
                        tools.request(
                            prompt,
                            max_tokens=position + 1,
                            prefix_ids=c.ids[:position],
                            top_logprobs=600,
                            **settings,
                        )
                    ]
                )
                assert again.top_logprobs[-1][c.ids[position]] == pytest.approx(logp, abs=1e-3)


@needs_vllm
def test_options(both, tools):
    hf, engine, _ = both
    prompt = prompts(tools)[1]
    (free,) = engine.generate([tools.request(prompt, temperature=0.0, max_tokens=16)])
    (prefixed,) = engine.generate(
        [tools.request(prompt, temperature=0.0, max_tokens=16, prefix_ids=free.ids[:4])]
    )
    assert prefixed.ids == free.ids and len(prefixed.logp) == len(free.ids)
    assert engine.score(prompt, free.ids) == pytest.approx(hf.score(prompt, free.ids), abs=1e-3)
    stop = free.text[3:6]
    (stopped,) = engine.generate([tools.request(prompt, temperature=0.0, max_tokens=16, stop=(stop,))])
    assert stopped.finish == "stop" and stopped.ids == free.ids[: len(stopped.ids)] and stop in stopped.text
    (full,) = engine.generate([tools.request(prompt, max_tokens=4, prefix_ids=free.ids[:4])])
    assert (full.ids, full.finish) == (free.ids[:4], "length")
    chosen = list(
        engine.generate([tools.request(prompt, n=4, max_tokens=20, guided={"choice": ["red", "deep blue"]})])
    )
    assert {c.text for c in chosen} <= {"red", "deep blue"} and all(c.finish == "stop" for c in chosen)

    def only(ids, logits_V):
        out_V = torch.full_like(logits_V, float("-inf"))
        out_V[40 + len(ids)] = 0.0
        return out_V

    (counted,) = engine.generate([tools.request(prompt, max_tokens=3, processors=(only,))])
    assert counted.ids == [40, 41, 42]


@needs_vllm
@pytest.mark.parametrize("pictures", [False, True])
def test_episodes_have_the_tokens_and_log_probs_of_the_training_forward(both, pictures):
    """Several turns with a tool, pictures in mid-conversation among them; later turns take the earlier ones
    from the prefix cache."""
    from benchmarks import check_tokens as check

    _, engine, policy = both
    run = View(
        step=0,
        policy=policy,
        engine=engine,
        warn=pytest.fail,
        settings=types.SimpleNamespace(error_limit=0.0),
        sampling=Plain(max_tokens=12),
        environment=check.CheckTools(pictures=pictures),
        rollout=MultiTurn(max_turns=4),
        prompt_template=Chat(),
        rows={"rows": list(check.CheckRows(count=6, pictures=pictures)())},
    )
    before = engine.counters["cached_tokens"]
    found = check.measure(run, 12, lambda: run)
    assert (
        found.wrong == [] and found.episodes >= 12 and found.turns > 24 and bool(found.pictures) is pictures
    )
    assert engine.counters["cached_tokens"] > before


@needs_vllm
def test_seeds_decide_samples_and_early_exit_leaves_nothing_behind(both, tools):
    _, engine, _ = both
    requests = [
        tools.request(prompts(tools)[0], n=4, seed=9, max_tokens=8),
        tools.request(prompts(tools)[1], n=2, seed=1, max_tokens=8),
    ]
    first = {(c.request.seed, c.index): c.ids for c in engine.generate(requests)}
    second = {(c.request.seed, c.index): c.ids for c in engine.generate(requests[::-1])}
    assert first == second and len(first) == 6 and len({tuple(i) for i in first.values()}) > 3
    many = [
        tools.request(
            tools.prompt(f"Many {i} " + "and more " * 20, tools.Noise(i)), n=6, seed=i, max_tokens=3
        )
        for i in range(24)
    ]
    assert len(list(engine.generate(many))) == 24 * 6, "more than one prefill holds, every request seeded"
    stream = engine.generate([*requests, tools.request(prompts(tools)[2], max_tokens=60)])
    next(stream)
    stream.close()
    assert not engine.core.has_unfinished_requests()
    engine.end_step(None)
    assert engine.metrics()["engine/completions"][0] > 0
    engine.end_step(None)
    assert engine.metrics()["engine/completions"] == (0, 0)


@pytest.mark.parametrize(
    ("vllm", "transformers", "fine"),
    [
        ("0.32.0", "5.19.0", True),
        ("0.31.0", "5.19.0", True),
        ("0.30.0", "5.19.0", False),
        ("0.33.0", "5.19.0", False),
        ("0.32.1", "4.57.0", False),
        (None, "5.19.0", False),
    ],
)
def test_version_matrix(vllm, transformers, fine):
    if fine:
        assert check_versions(vllm, transformers) in COMPATIBLE
    else:
        with pytest.raises(ConfigError, match=r"pip install 'vllm==0\.32\.\*'"):
            check_versions(vllm, transformers)


def test_a_vllm_that_does_not_tell_versions_is_refused_where_weights_change_meanwhile():
    assert not check_versions("0.31.0", "5.19.0").tells_versions
    assert check_versions("0.32.0", "5.19.0", "vllm_server").tells_versions
    with pytest.raises(ConfigError, match=r"0.31.0 does not say which weights .*==0.32.*use engine 'vllm'"):
        check_versions("0.31.0", "5.19.0", "vllm_server")


def test_heads_that_the_cpu_build_cannot_run_are_refused(text_policy):
    config = text_policy.model.config
    check_heads(config, on_gpu=True)
    with pytest.raises(ConfigError, match="heads of 16"):
        check_heads(config, on_gpu=False)


@needs_vllm
def test_this_environment_is_in_the_matrix():
    pytest.importorskip("vllm")
    assert check_installed() in COMPATIBLE


def test_a_padded_vocabulary_is_a_few_ranges_on_the_command_line():
    ids = [5, 6, *range(151652, 151657), *range(151665, 151936)]
    assert ranges(ids) == [[5, 7], [151652, 151657], [151665, 151936]] and ranges([]) == []
    assert [i for first, end in ranges(ids) for i in range(first, end)] == ids
    assert (
        as_flags({"additional_config": {FORBIDDEN: ranges(ids)}})[1]
        == '{"vlrl_forbidden": [[5, 7], [151652, 151657], [151665, 151936]]}'
    )


@needs_vllm
def test_the_worker_takes_the_ranges_out():
    pytest.importorskip("vllm")
    from vlrl.engine.vllm.logits import ForbiddenIds

    config = types.SimpleNamespace(additional_config={FORBIDDEN: ranges([1, 2, 5])})
    logits = ForbiddenIds(config, torch.device("cpu"), False).apply(torch.zeros(2, 7))
    assert (logits == float("-inf")).tolist() == [[False, True, True, False, False, True, False]] * 2
