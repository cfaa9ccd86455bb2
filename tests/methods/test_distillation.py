"""Loss term `distill`: teachers in the process, by task, with privileged prompts, of another tokenizer and
family; what is computed agrees with plain forward passes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from make import gradient, inputs
from run_kit import last_step
from tiny import steps, text_run, vision_run

from vlrl.functional import divergence
from vlrl.methods.common.teacher_config import NoHintError, TeacherConfig, as_student, check_teacher
from vlrl.methods.common.token_spans import Aligner, token_ends
from vlrl.methods.core.distillation import Distill, TeacherDivergence, TeacherLogp, span_sums
from vlrl.plugins.registry import ConfigError
from vlrl.policy.forward import TokenLogp
from vlrl.types import LossInputs, Row

OTHER = {"name": "text", "tiny": {"hidden": 48, "layers": 1, "heads": 2, "kv_heads": 1, "seed": 7}}
SMALL = "{name: text, tiny: {hidden: 48, layers: 1, heads: 2, kv_heads: 1, seed: 7"


def words(tokens="sampled", teacher=f"{{policy: {SMALL}}}}}}}", **fields):
    more = "".join(f", {name}: {value}" for name, value in fields.items())
    return [f"loss_terms.teacher={{name: distill, tokens: {tokens}, teacher: {teacher}{more}}}"]


def run_of(*args, method=(), more=(), **fields):
    return text_run(["methods/grpo", *method], [*words(*args, **fields), *more])


def term_of(run):
    return run.objective.loss_terms["teacher"]


def plain(run, batch):
    """(student's, teacher's) log-probs over the vocabulary at every completion token, by plain forwards."""
    (teacher,) = term_of(run).state.teachers.distinct
    found = []
    for policy, rollout in [(p, r) for r in batch.rollouts for p in (run.policy, teacher.other)]:
        ids = [*policy.encode(rollout.prompt).ids, *rollout.ids]
        with torch.no_grad():
            hidden = policy.model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states[-1]
            logits = policy.logits(hidden[0]).float()
        found.append(logits[len(ids) - len(rollout) - 1 : -1].log_softmax(-1))
    return list(zip(found[::2], found[1::2]))


@pytest.fixture(scope="module")
def stepped():
    """A run after a step, its batch, and both models' log-probs."""
    run = run_of("full", more=["optimizer.lr=1e-9"])
    steps(run, 1)
    batch = run.batch(last_step(run).groups[:2])
    return run, batch, plain(run, batch)


def value_of(run, batch, **fields):
    """The (B, T) loss of `distill` with other fields, with the run's teachers."""

    term = replace(term_of(run), **fields)
    view = SimpleNamespace(
        **{name: getattr(run, name) for name in ("policy", "micro_batches", "batch", "seed")}
    )
    view.objective = SimpleNamespace(loss_terms={"teacher": term})
    term.setup(view)

    aux = (TeacherLogp if term.tokens == "sampled" else TeacherDivergence)()
    aux.setup(view)
    with torch.enable_grad():
        out = run.policy.forward(batch, [aux] if aux.in_forward else [])
        tensors = {aux.name: out[aux.name] if aux.in_forward else aux(run.policy, batch)}
        x = LossInputs.from_tensors(
            out["logp"], torch.zeros(len(batch.rollouts)), batch.loss_mask_BT, aux_tensors=tensors
        )
        return term(x).loss, out["logp"], term


@pytest.mark.parametrize("kind", ["reverse", "forward", "jsd"])
def test_the_whole_vocabulary_is_the_divergence_of_two_plain_forwards(stepped, kind):
    run, batch, laws = stepped
    loss, _, _ = value_of(run, batch, tokens="full", divergence=kind, beta=0.3)
    for b, (own, other) in enumerate(laws):
        torch.testing.assert_close(
            loss[b, : len(own)].detach(), divergence(own, other, kind, 0.3), rtol=0, atol=1e-5
        )
        assert not loss[b, len(own) :].any()


@pytest.mark.parametrize("kind", ["reverse", "forward", "jsd"])
def test_likely_tokens_with_all_of_them_are_the_whole(stepped, kind):
    run, batch, laws = stepped
    size = laws[0][0].shape[1]
    grads, losses = [], []
    for fields in ({"tokens": "full"}, {"tokens": "top_k", "k": size}, {"tokens": "top_k", "k": 8}):
        loss, _, _ = value_of(run, batch, divergence=kind, **fields)
        run.policy.model.zero_grad()
        loss.sum().backward()
        grads.append(run.policy.model.get_output_embeddings().weight.grad.clone())
        losses.append(loss.detach())
    torch.testing.assert_close(losses[1], losses[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(grads[1], grads[0], rtol=0, atol=1e-4)
    assert (losses[2] <= losses[0] + 1e-5).all() and losses[2].sum() < losses[0].sum()


def test_drawn_tokens_are_those_of_a_plain_forward(stepped):
    run, batch, laws = stepped
    loss, logp, _ = value_of(run, batch, tokens="sampled", clamp_log=0.0)
    (slope,) = torch.autograd.grad(loss.sum(), logp)
    for b, (own, other) in enumerate(laws):
        ids = torch.tensor(batch.rollouts[b].ids)
        u = TokenLogp.apply(other, ids) - TokenLogp.apply(own, ids)
        torch.testing.assert_close(loss[b, : len(u)].detach(), u.exp() - u - 1, rtol=0, atol=1e-4)
        torch.testing.assert_close(slope[b, : len(u)], -u, rtol=0, atol=1e-4)


@pytest.mark.parametrize("tokens", ["full", "top_k", "sampled"])
def test_packed_is_padded(stepped, tokens):
    run, batch, _ = stepped
    found = []
    for packed in (True, False):
        run.policy.packed = packed
        found.append(value_of(run, batch, tokens=tokens, k=8)[0].detach())
    run.policy.packed = True
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-5)


def test_no_tensor_is_larger_than_a_chunk(stepped, monkeypatch):
    """With chunks of 5 tokens neither model's logits exist for more."""

    run, batch, _ = stepped
    whole = value_of(run, batch, tokens="full")[0].detach()
    sizes = []
    kind = type(run.policy.family)
    logits = kind.logits
    monkeypatch.setattr(kind, "logits", lambda self, model, h: sizes.append(len(h)) or logits(self, model, h))
    monkeypatch.setattr(run.policy.params.net, "family", replace(run.policy.family, chunk=5))
    small = value_of(run, batch, tokens="full")[0].detach()
    torch.testing.assert_close(small, whole, rtol=0, atol=1e-5)
    assert len(sizes) > 4
    # the teacher's own pass makes hidden states alone for the loss
    assert sorted(sizes)[len(sizes) // 2] <= 5


@pytest.mark.parametrize("tokens", ["sampled", "top_k", "full"])
def test_a_teacher_is_loaded_once_and_learns_nothing(tokens):
    run = run_of(tokens, more=["optimizer.lr=1e-2", "ppo_epochs=2", "num_minibatches=2"], k=8)
    (teacher,) = term_of(run).state.teachers.distinct
    before = [p.clone() for p in teacher.other.model.parameters()]
    metrics = steps(run, 2)
    assert all(m["teacher/divergence"] > 0 and m["teacher/failed"] == 0 for m in metrics)
    assert all(torch.equal(a, b) for a, b in zip(before, teacher.other.model.parameters()))
    assert not any(p.requires_grad for p in teacher.other.model.parameters())
    assert term_of(run).state.scores == {}


def test_the_policy_moves_towards_its_teacher():
    found = {}
    for lr in ("1e-12", "1e-2"):
        more = [f"optimizer.lr={lr}", "policy_loss={name: zero_loss}", "engine={name: hf}"]
        found[lr] = [m["teacher/divergence"] for m in steps(run_of("full", more=more), 12)]
    assert found["1e-2"][-1] < 0.5 * found["1e-2"][0]
    assert found["1e-12"][-1] > 0.7 * found["1e-12"][0]


def test_teachers_by_task():
    """Rows of a task without a teacher have no loss; two teachers are two models."""
    run = text_run(
        ["methods/grpo"],
        [
            f"loss_terms.teacher={{name: distill, teachers: {{arithmetic: {{policy: {SMALL}}}}}}}, "
            "other: {model: start}}}"
        ],
    )
    term = term_of(run)
    assert len(term.state.teachers.distinct) == 2 and term.state.teachers.of_row("poems") is None
    (metrics,) = steps(run, 1)
    assert metrics["teacher/divergence"] > 0
    rollouts = [r for group in last_step(run).groups for r in group]
    asked = term.state.teachers.asked
    row = Row("x", "q", task="poems")

    stranger = replace(rollouts[0], prompt=replace(rollouts[0].prompt, row=row))
    scores = term.scores([rollouts[0], stranger])
    assert scores[0].logp and scores[1] is None and term.state.teachers.asked == asked + 1


def test_the_policy_with_the_answer_is_its_own_teacher():
    hint = '"\\n\\nThe answer is {answer}."'
    run = run_of("top_k", f"{{model: self, hint: {hint}}}", k=16)
    (metrics,) = steps(run, 1)
    assert metrics["teacher/divergence"] > 0 and metrics["teacher/failed"] == 0
    rollout = last_step(run).groups[0].rollouts[0]
    config = TeacherConfig(model="self", hint="\n\nThe answer is {answer}.")
    shown = config.shown(rollout.prompt)
    assert shown.text.endswith(f"\n\nThe answer is {rollout.answer}.") and rollout.prompt.text != shown.text
    (score,) = term_of(run).scores([rollout])
    with torch.no_grad():
        ids = [*run.policy.encode(shown).ids, *rollout.ids]
        logits = run.policy.logits(
            run.policy.model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0]
        )
        law = logits[len(ids) - len(rollout) - 1 : -1].float().log_softmax(-1)
    picked = law.gather(1, torch.tensor(rollout.ids)[:, None])[:, 0].tolist()
    assert list(score.logp) == pytest.approx(picked, abs=1e-4)


def test_a_row_without_a_hint_is_counted_and_not_taught():
    run = run_of("sampled", '{model: self, hint: "{proof}"}')
    (metrics,) = steps(run, 1)
    assert metrics["teacher/failed"] == 1.0 and metrics["teacher/divergence"] == 0.0
    assert metrics["grad_norm"] > 0  # the reward still teaches
    with pytest.raises(NoHintError, match="'proof'"):
        TeacherConfig(model="self", hint="{proof}").shown(last_step(run).groups[0].prompt)


def test_a_picture_teacher_sees_a_part_and_other_sizes():
    """The teacher's pictures go through its own processor: another patch size, another number of tokens."""
    tiny = "{hidden: 32, layers: 1, heads: 2, kv_heads: 1, intermediate: 64, vision_hidden: 32, seed: 3}"
    teacher = f"{{policy: {{name: qwen2_5_vl, max_pixels: 3136, tiny: {tiny}}}, crop: answer}}"
    more = [*words("sampled", teacher), "policy.tiny.hidden=32", "policy.tiny.layers=1"]
    run = vision_run(["methods/grpo"], more, task="lab_grounding")
    (metrics,) = steps(run, 1)
    (teacher,) = term_of(run).state.teachers.distinct
    prompt = last_step(run).groups[0].prompt
    shown = teacher.config.shown(prompt)
    x0, y0, x1, y1 = prompt.row.answer
    assert len(shown.images) == len(prompt.images) + 1
    assert shown.images[-1].load().size == (x1 - x0, y1 - y0)
    assert len(teacher.other.encode(shown)) != len(run.policy.encode(prompt))
    assert metrics["teacher/divergence"] > 0 and metrics["teacher/failed"] == 0


# --- another tokenizer --------------------------------------------------------------------------------------

NARROW = f"{{policy: {SMALL}, vocabulary: 300}}}}}}"


def test_another_tokenizer_reads_spans_of_the_same_text():
    run = run_of("sampled", NARROW)
    (metrics,) = steps(run, 1)
    assert metrics["teacher/failed"] == 0 and metrics["teacher/divergence"] > 0
    (teacher,) = term_of(run).state.teachers.distinct
    text = "Think step by step, then answer: <answer>42</answer>"
    ids = [*run.policy.encode_text(text), run.policy.stop_ids[0]]
    rollout = replace(last_step(run).groups[0].rollouts[0], ids=ids, signals={})
    aligned = teacher.aligner(ids)
    assert len(aligned.ids) > len(rollout.ids)  # fewer merges: more tokens
    for own, other in aligned.spans:
        mine = run.policy.tokenizer.decode([rollout.ids[i] for i in own])
        its = teacher.other.tokenizer.decode([aligned.ids[i] for i in other])
        assert mine == its
    assert sum(len(own) for own, _ in aligned.spans) == len(rollout.ids)
    (score,) = term_of(run).scores([rollout])
    ids = [*teacher.other.encode(rollout.prompt).ids, *aligned.ids]
    with torch.no_grad():
        logits = teacher.other.logits(
            teacher.other.model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0]
        )
        law = logits[len(ids) - len(aligned.ids) - 1 : -1].float().log_softmax(-1)
    logp = law.gather(1, torch.tensor(aligned.ids)[:, None])[:, 0].tolist()
    for number, (own, other) in enumerate(aligned.spans):
        for place in own:
            assert score.logp[place] == pytest.approx(sum(logp[i] for i in other), abs=1e-4)
            assert score.span[place] == number


def test_likely_tokens_of_another_tokenizer():
    run = run_of("top_k", NARROW, k=8, more=["optimizer.lr=1e-2"])
    first, second = steps(run, 2)
    assert first["teacher/failed"] == 0 and first["teacher/divergence"] > 0 and second["grad_norm"] > 0
    with pytest.raises(ConfigError, match="another tokenizer"):
        run_of("full", NARROW)


def test_the_same_tokenizer_by_spans_is_the_token_itself():
    run = run_of("sampled")
    steps(run, 1)
    (teacher,) = term_of(run).state.teachers.distinct
    rollout = last_step(run).groups[0].rollouts[0]
    aligned = Aligner(run.policy, teacher.other)(rollout.ids)
    assert aligned.ids == rollout.ids and aligned.spans == [
        (range(i, i + 1), range(i, i + 1)) for i in range(len(rollout))
    ]


def test_characters_of_several_tokens():
    run = run_of("sampled")
    tokenizer = run.policy.tokenizer
    ids = tokenizer.encode("a \N{SNOWMAN} b", add_special_tokens=False)
    ends = token_ends(tokenizer, ids)
    assert (
        None in ends
        and ends[-1] == 5
        and [e for e in ends if e is not None] == sorted(e for e in ends if e is not None)
    )


def test_span_sums_carry_the_gradient_to_every_token():
    """Two tokens of one span: the student's log-prob is their sum, and both get the span's factor."""

    logp = torch.tensor([[-1.0, -2.0, -0.5]], requires_grad=True)
    spans = torch.tensor([[[-2.0, 0.0], [-2.0, 0.0], [1.0, 0.0]]])  # the last has no score
    x = LossInputs.from_tensors(logp, torch.zeros(1), aux_tensors={"teacher_logp": spans})
    loss, _ = Distill(teacher={"model": "start"})(x)
    loss.sum().backward()
    u = -2.0 - -3.0
    k3 = float(torch.tensor(u).exp()) - u - 1
    assert loss[0].tolist() == pytest.approx([k3 / 2, k3 / 2, 0.0])
    assert logp.grad[0].tolist() == pytest.approx([-u, -u, 0.0])
    sums, counts = span_sums(logp.detach(), spans[..., 0] <= 0, spans[..., 1])
    assert sums[0, :2].tolist() == [-3.0, -3.0] and counts[0, :2].tolist() == [2.0, 2.0]


def test_tokens_that_the_student_lacks_are_part_of_the_rest():
    ids, logp = as_student([4, 9, 5], [-1.0, -1.5, -2.0, -3.0], {4: 40, 5: 40})
    assert ids == [40, -1, -1]  # no id twice
    lost = sum(torch.tensor([-1.5, -2.0, -3.0]).exp()).log().item()
    assert logp[0] == -1.0 and logp[-1] == pytest.approx(lost)


# --- mistakes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({}, "no model is named"),
        ({"model": "self"}, "teaches nothing"),
        ({"model": "x", "hnit": "y"}, "unknown field"),
        ({"model": "t@1", "engine": {"name": "hf"}}, "gives no prompt_logprobs"),
    ],
)
def test_mistakes_in_a_teacher_are_one_line(spec, said):
    with pytest.raises(ConfigError, match=said):
        check_teacher(spec, "loss_terms: 'distill': teacher")


def test_mistakes_in_the_term():
    for fields in ({"beta": 0.0}, {"k": 0}, {"clamp_log": -1.0}):
        with pytest.raises(ConfigError, match=r"beta=|k="):
            Distill(teacher={"model": "start"}, **fields)
    with pytest.raises(ConfigError, match="2 terms distil"):
        text_run(
            ["methods/grpo"],
            [f"loss_terms.{name}={{name: distill, teacher: {{model: start}}}}" for name in ("a", "b")],
        )


def test_it_needs_what_it_reads():
    x = inputs([[-1.0]], teacher_logp=[[-0.5]])
    term = Distill(teacher={"model": "start"})
    assert term.needs == ("teacher_logp",) and Distill(tokens="full").needs == ("teacher_divergence",)
    assert gradient(term(x).loss, x).tolist() == [[pytest.approx(-0.5)]]
