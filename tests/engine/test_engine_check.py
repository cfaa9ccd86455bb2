"""The engine is compared with the trainer: one with a model of its own that is wrong in one way ends the run,
a right one does not."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from engine_kit import Noise

from vlrl.config import load
from vlrl.engine.hf.engine import HF, HFState
from vlrl.engine.vllm.inprocess import check_bound
from vlrl.plugins.registry import register
from vlrl.plugins.separate_engine import SeparateEngine
from vlrl.plugins.stages import Reward, transient
from vlrl.policy import Policy
from vlrl.services.failures import EngineMismatchError
from vlrl.trainer.plan import Plan
from vlrl.trainer.step.engine_check import EngineCheck
from vlrl.training import train
from vlrl.types import Group, Prompt, Rollout, Row

SCALE = 0.2  # of the random weights: log-probs that depend on them


@register("test_even_number")
@dataclass(frozen=True)
class EvenNumber(Reward):
    """The share of even ids."""

    def __call__(self, rollout):
        return sum(i % 2 == 0 for i in rollout.ids) / max(len(rollout.ids), 1)


@dataclass
class ApartState(HFState):
    own: object = transient()


@register("test_apart")
@dataclass(frozen=True)
class Apart(HF, SeparateEngine):
    """Engine `hf` on a copy of the policy, with one fault: `stale` gets no weights after the first, `one`
    all but one tensor, `template` has another system prompt, `places` its picture one token later, `pictures`
    other pixels."""

    fault: str = ""
    dtype: str = ""
    gap_limit: float | None = None
    correction: bool = True

    def init_state(self):
        return ApartState()

    def setup(self, run):
        run.policy.model.requires_grad_(True)
        self.state.own = Policy(run.policy.family)
        self.attach(self.state.own)

    def sync(self, policy):
        own = self.state.own
        first = not self.counters["syncs"]
        self.counters["syncs"] += 1
        own.version = policy.version
        with torch.no_grad():
            for (name, mine), theirs in zip(own.model.named_parameters(), policy.model.parameters()):
                kept = self.fault == "stale" or (
                    self.fault == "one" and name.endswith("0.mlp.down_proj.weight")
                )
                if first or not kept:
                    mine.copy_(theirs)

    def _shown(self, prompt):
        if self.fault == "template":
            return replace(prompt, messages=({"role": "system", "content": "Be terse."}, *prompt.messages))
        if self.fault == "pictures" and prompt.images:
            return replace(
                prompt, images=tuple(Noise(i, medium.load().size) for i, medium in enumerate(prompt.images))
            )
        return prompt

    def generate(self, requests):
        shown = [replace(request, prompt=self._shown(request.prompt), tag=request) for request in requests]
        for completion in super().generate(shown):
            yield replace(completion, request=completion.request.tag)

    def seen(self, prompt, ids):
        shown = self._shown(prompt)
        own = list(self.lm.encode(shown).ids)
        if self.fault == "places" and prompt.images:
            pad = Counter(own).most_common(1)[0][0]
            end = max(i for i, token in enumerate(own) if token == pad)
            begin = own.index(pad)
            own[begin : end + 2] = [own[end + 1], *own[begin : end + 1]]
        return own, self.score(shown, ids)


def run(tmp_path, *words, steps=4):
    return train(
        load(
            ["quickstart"],
            [
                f"output={tmp_path / 'run'}",
                "data.heldout=null",
                f"policy.tiny.std={SCALE}",
                "phases.cold_start.steps=1",
                "phases.cold_start.prompts_per_step=2",
                "phases.rl.prompts_per_step=2",
                "phases.rl.group_size=4",
                f"phases.rl.steps={steps}",
                "rewards={even: {name: test_even_number}}",
                "outcome=null",
                "optimizer.lr=0.003",
                "watch.activity_steps=0",
                *words,
            ],
        ),
        live=False,
    )


def events(tmp_path, kind):
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


def test_a_right_engine_goes_through_and_its_probes_are_not_counted(tmp_path):
    run(tmp_path, "engine={name: test_apart}")
    begun = events(tmp_path, "engine_check")
    assert [event["phase"] for event in begun] == ["cold_start", "rl"] and "one picture" in begun[0]["gaps"]
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["engine/completions"] for row in rows if row["phase"] == "rl"] == [8.0] * 4


def test_without_syncs_of_the_weights_the_run_ends(tmp_path):
    with pytest.raises(
        EngineMismatchError, match=r"the sync of step \d: .*test_apart.*weights do not arrive"
    ):
        run(tmp_path, "engine={name: test_apart, fault: stale}")


def test_one_stale_tensor_ends_the_run(tmp_path):
    with pytest.raises(EngineMismatchError, match="moved by .* nats in the trainer"):
        run(tmp_path, "engine={name: test_apart, fault: one}", "optimizer.lr=0.01", steps=8)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("template", r"has \d+ ids in the trainer and \d+ in the engine, and differs from place \d+ on"),
        ("places", "media in other places"),
        ("pictures", "tokens differ by .* nats each .*pictures seen in another way"),
    ],
)
def test_faults_of_a_prompt_end_the_run_before_its_first_step(tmp_path, fault, told):
    with pytest.raises(EngineMismatchError, match=told):
        run(tmp_path, f"engine={{name: test_apart, fault: {fault}}}")
    assert (
        not (tmp_path / "run" / "metrics.jsonl").exists()
        or not (tmp_path / "run" / "metrics.jsonl").read_text()
    )


def test_a_limit_of_ones_own_replaces_those_that_are_measured(tmp_path):
    run(tmp_path, "engine={name: test_apart, fault: stale, gap_limit: 0}")
    assert not (tmp_path / "run" / "events.jsonl").exists()


def ending(check, gaps, versions=None):
    """`ended` of one step after the other, each with a gap of the log-probs."""
    prompt = Prompt(row=Row(id="a", question="q"), messages=())
    for number, gap in enumerate(gaps, 1):
        check.session.policy.version = number
        version = number - 1 if versions is None else versions[number - 1]
        group = Group(prompt, [Rollout(prompt, [1], logp=[0.0], version=version)], id="g")
        check.ended(SimpleNamespace(number=number, metrics={"engine/logp_diff": gap}, trained_groups=[group]))


def checked(dtype="float32", limit=None):
    session = SimpleNamespace(
        family=SimpleNamespace(dtype=dtype),
        policy=SimpleNamespace(version=0),
    )
    return EngineCheck(session, Apart(gap_limit=limit))


def test_three_steps_above_the_limit_of_the_first_ones_end_a_run():
    """float32: ten times .001, or ten times what the first three steps had; 16 bits: ten times .05."""
    ending(checked(), [1e-5] * 3 + [0.02, 0.02, 0.001, 0.02])
    with pytest.raises(EngineMismatchError, match=r"step 6: .*0.02 nats.*in 3 steps above 0.01"):
        ending(checked(), [1e-5] * 3 + [0.02] * 3)
    ending(checked(), [0.003] * 3 + [0.02] * 3)
    ending(checked("bfloat16"), [0.02] * 3 + [0.4] * 3)
    with pytest.raises(EngineMismatchError, match="above 0.5"):
        ending(checked("bfloat16"), [0.02] * 3 + [0.6] * 3)
    with pytest.raises(EngineMismatchError, match=r"above 0\.1"):
        ending(checked("bfloat16", limit=0.1), [0.2] * 3)


def test_steps_that_trained_on_older_weights_say_nothing():
    check = checked()
    ending(check, [0.5] * 6, versions=[-1, 0, 1, 2, 3, 4])
    assert not check.first_gaps and not check.above


def test_an_adapter_that_binds_to_nothing_is_refused():
    check_bound(4, [])
    with pytest.raises(EngineMismatchError, match="binds it to no module"):
        check_bound(0, [])
    with pytest.raises(EngineMismatchError, match=r"leaves out 5 of its modules \(a, b, c, \.\.\.\)"):
        check_bound(3, ["a", "b", "c", "d", "e"])


@pytest.mark.parametrize(
    ("words", "weights"),
    [
        (("test_apart",), []),
        (("test_apart", "policy.dtype=bfloat16"), ["engine"]),
        (("test_apart", "engine.dtype=bfloat16"), ["engine"]),
        (("test_apart", "loop=asynchronous"), ["engine"]),
        (("test_apart", "engine.dtype=bfloat16", "engine.correction=false"), []),
        (("test_apart", "engine.dtype=bfloat16", "token_weights.own={name: icepop}"), ["own"]),
        (("hf", "policy.dtype=bfloat16"), []),
    ],
)
def test_a_correction_is_there_where_engine_and_trainer_part(words, weights):
    policy = "policy={name: text, tiny: {hidden: 128, heads: 4}}"
    names = ["base/rl", "tasks/lab_arithmetic", "methods/grpo"]
    (*_, phase) = Plan.of(load(names, [f"engine={{name: {words[0]}}}", policy, *words[1:]])).phases
    assert list(phase.token_weights) == weights
    tis = [weight for weight in phase.token_weights.values() if weight.name == "tis"]
    assert all((weight.cap, weight.level, weight.mode) == (2.0, "token", "truncate") for weight in tis)
