"""Attention of packed rows without a dense mask, against a dense mask: values and gradients, windows, images, padding; memory that grows linearly."""

from __future__ import annotations

import pytest
import torch
from samples import PROMPTS, groups_of, plain_logp, policy_of
from torch import Tensor

from vlrl.bench.memory import peak_bytes
from vlrl.policy import branches
from vlrl.policy.branches import Branches, Span, attention
from vlrl.policy.packing import Layout, dense_mask, image_runs
from vlrl.trainer.loss_inputs import make_batch
from vlrl.types import Group, Rollout


def layout_of(rows: list[tuple[int, list[int]]], images: tuple[int, int] = (0, 0)) -> Layout:
    """Rows of a prompt and its completions' lengths, padded to the longest; image tokens at `images` of the first row."""
    length = max(prompt + sum(spans) for prompt, spans in rows)
    order, segment = torch.zeros(len(rows), length, dtype=torch.long), torch.full((len(rows), length), -1)
    for r, (prompt, spans) in enumerate(rows):
        order[r, :prompt], segment[r, :prompt], at = torch.arange(prompt), 0, prompt
        for k, n in enumerate(spans, start=1):
            order[r, at : at + n], segment[r, at : at + n] = prompt + torch.arange(n), k
            at += n
    types = torch.zeros_like(order)
    types[0, images[0] : images[1]] = 1
    nothing = torch.zeros(0, dtype=torch.long)
    return Layout(order, order, order, segment, types, nothing, nothing, tuple(range(len(rows))))


ROWS = [(7, [5, 1, 9]), (12, [4, 13]), (3, [2])]


def inputs(layout: Layout, heads: int, key_heads: int, size: int = 8) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    rows, length = layout.order_RL.shape
    return [torch.randn(rows, length, h, size, generator=generator).transpose(1, 2).requires_grad_() for h in (heads, key_heads, key_heads)]


def test_spans_of_packed_rows() -> None:
    found = Branches.of(layout_of(ROWS))
    assert found.prompt_R == (7, 12, 3)
    assert found.spans_R[0] == (Span(7, 12), Span(12, 13), Span(13, 22)) and found.spans_R[2] == (Span(3, 5),)


@pytest.mark.parametrize("window", [None, 1, 3, 6, 100])
@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize("images", [(0, 0), (2, 6)])
def test_values_and_gradients_equal_those_of_a_dense_mask(window: int | None, key_heads: int, images: tuple[int, int]) -> None:
    layout = layout_of(ROWS, images)
    q, k, v = inputs(layout, 4, key_heads)
    real = (layout.segment_RL >= 0)[:, :, None, None]
    image_RL = image_runs(layout.types_RL)
    mask = dense_mask(layout.order_RL, layout.segment_RL, window, image_RL)
    keys, values = (x.repeat_interleave(4 // key_heads, dim=1) for x in (k, v))
    wanted = (((q @ keys.transpose(-1, -2)) * 0.3).masked_fill(~mask, float("-inf")).softmax(-1) @ values).transpose(1, 2) * real
    found, _ = attention(None, q, k, v, None, scaling=0.3, branches=Branches.of(layout, True), sliding_window=window)
    torch.testing.assert_close(found * real, wanted, atol=2e-6, rtol=0)
    weights = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1))
    for got, want in zip(torch.autograd.grad((found * real * weights).sum(), (q, k, v)), torch.autograd.grad((wanted * weights).sum(), (q, k, v))):
        torch.testing.assert_close(got, want, atol=5e-6, rtol=0)


def test_a_completion_does_not_see_its_siblings() -> None:
    layout = layout_of([(4, [3, 3])])
    q, k, v = inputs(layout, 2, 2)
    found, _ = attention(None, q, k, v, None, branches=Branches.of(layout))
    (grad,) = torch.autograd.grad(found[0, 7:].sum(), v)
    assert bool((grad[0, :, 4:7] == 0).all()) and bool((grad[0, :, :4] != 0).all())


def test_branches_under_activation_checkpointing_and_a_switch_back(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, twin = policy_of("text", checkpointing=True), policy_of("text", layout="padded")
    assert policy.family.has_branch_attention(policy.model) and not twin.family.has_branch_attention(twin.model)
    batch = make_batch(groups_of([PROMPTS["text"]]), policy.pad_id)
    grads = []
    for side, least in ((policy, 0), (policy, 10**9), (twin, 0)):
        monkeypatch.setattr(branches, "LEAST_ROW", least)
        side.model.zero_grad()
        side.forward(batch)["logp"].sum().backward()
        grads.append(torch.cat([p.grad.flatten() for p in side.model.parameters()]))
    for other in grads[1:]:
        assert (grads[0] - other).norm() / other.norm() < 1e-5


def test_the_saved_config_names_no_attention(tmp_path) -> None:
    policy = policy_of("text")
    policy.save(tmp_path)
    assert branches.ATTENTION_NAME not in (tmp_path / "config.json").read_text()


def test_memory_of_a_packed_row_is_linear_in_its_length() -> None:
    peaks = []
    for tokens in (1024, 2048):
        layout = layout_of([(32, [tokens] * 8)])
        q, k, v = inputs(layout, 2, 2)

        def work(q: Tensor = q, k: Tensor = k, v: Tensor = v, layout: Layout = layout) -> None:
            attention(None, q, k, v, None, branches=Branches.of(layout))[0].sum().backward()

        peaks.append(peak_bytes(work)[1])
    assert peaks[1] / peaks[0] < 2.1, peaks  # a dense mask would give 4


@pytest.mark.slow
def test_a_group_of_eight_answers_of_4096_tokens_trains_in_bounded_memory() -> None:
    policy = policy_of("text")
    ids = torch.randint(0, 200, (8, 4096), generator=torch.Generator().manual_seed(0)).tolist()
    group = Group(PROMPTS["text"], [Rollout(PROMPTS["text"], row, "", [0.0] * 4096) for row in ids])
    batch = make_batch([group], policy.pad_id)

    def work() -> Tensor:
        logp = policy.forward(batch)["logp"]
        logp.sum().backward()
        return logp

    logp, peak = peak_bytes(work)
    assert peak < 1.5 * 2**30, peak  # one dense mask of 32,768 tokens has 1 GiB, and is kept as float numbers by every layer: 4 GiB each
    with torch.no_grad():
        wanted = plain_logp(policy, batch.rollouts[3])
    torch.testing.assert_close(logp[3].detach(), wanted, atol=1e-4, rtol=0)
