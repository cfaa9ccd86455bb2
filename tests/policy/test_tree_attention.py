"""Attention of packed rows without a dense mask, against a dense mask: values and gradients, windows, images,
padding; memory that grows linearly."""

from __future__ import annotations

import pytest
import torch
from samples import PROMPTS, groups_of, plain_logp, policy_of
from torch import Tensor

from benchmarks.memory import peak_bytes
from vlrl.policy import tree_attention
from vlrl.policy.packing import Layout, Node, dense_mask, image_runs
from vlrl.policy.tree_attention import RowTrees, attention
from vlrl.trainer.step.loss_inputs import make_batch
from vlrl.types import Group, Rollout

Tree = tuple[int, list["Tree"]]  # tokens of a node, and its children


def layout_of(rows: list[Tree], images: tuple[int, int] = (0, 0)) -> Layout:
    """Rows of trees, padded to the longest; image tokens at `images` of the first row."""
    placed = [place(tree, 0, 0) for tree in rows]
    length = max(nodes[0][0].subtree_end for nodes in placed)
    order, below = (
        torch.zeros(len(rows), length, dtype=torch.long),
        torch.zeros(len(rows), length, dtype=torch.long),
    )
    for r, nodes in enumerate(placed):
        for k, (node, first) in enumerate(nodes):
            part = slice(node.start, node.end)
            order[r, part], below[r, part] = (
                first + torch.arange(node.end - node.start),
                node.subtree_end if k else length,
            )
    types = torch.zeros_like(order)
    types[0, images[0] : images[1]] = 1
    nothing = torch.zeros(0, dtype=torch.long)
    return Layout(
        order,
        order,
        order,
        below,
        types,
        nothing,
        nothing,
        tuple(tuple(node for node, _ in nodes) for nodes in placed),
    )


def place(tree: Tree, at: int, first: int) -> list[tuple[Node, int]]:
    """(node, index of its first token in its sequence) of a tree whose root begins at `at` of the row."""
    size, children = tree
    found: list[tuple[Node, int]] = []
    end = at + size
    for child in children:
        more = place(child, end, first + size)
        found += more
        end = more[0][0].subtree_end
    return [(Node(at, at + size, end), first), *found]


def flat(prompt: int, completions: list[int]) -> Tree:
    return prompt, [(n, []) for n in completions]


ROWS = [flat(7, [5, 1, 9]), flat(12, [4, 13]), flat(3, [2])]
TREES = [
    (7, [(6, [(5, []), (2, [(3, []), (1, [])])]), (9, [])]),
    (4, []),
    (0, [(5, [(2, []), (3, [])]), (4, [])]),
]


def inputs(layout: Layout, heads: int, key_heads: int, size: int = 8) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    rows, length = layout.order_RL.shape
    return [
        torch.randn(rows, length, h, size, generator=generator).transpose(1, 2).requires_grad_()
        for h in (heads, key_heads, key_heads)
    ]


def test_the_mask_of_a_tree() -> None:
    """By hand: root of 2 tokens; a node of 1 with children of 1 and 1; a node of 1."""
    layout = layout_of([(2, [(1, [(1, []), (1, [])]), (1, [])])])
    assert (
        layout.nodes_R == ((Node(0, 2, 6), Node(2, 3, 5), Node(3, 4, 4), Node(4, 5, 5), Node(5, 6, 6)),)
        and layout.is_tree
    )
    assert dense_mask(layout.order_RL, layout.subtree_end_RL)[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 0, 1, 0],
        [1, 1, 0, 0, 0, 1],
    ]


@pytest.mark.parametrize("window", [None, 1, 3, 6, 100])
@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize("images", [(0, 0), (2, 6), (8, 12)])
@pytest.mark.parametrize("rows", [ROWS, TREES], ids=["groups", "trees"])
def test_values_and_gradients_equal_those_of_a_dense_mask(
    window: int | None, key_heads: int, images: tuple[int, int], rows: list[Tree]
) -> None:
    layout = layout_of(rows, images)
    q, k, v = inputs(layout, 4, key_heads)
    real = (layout.subtree_end_RL > 0)[:, :, None, None]
    image_RL = image_runs(layout.types_RL)
    mask = dense_mask(layout.order_RL, layout.subtree_end_RL, window, image_RL) | ~real.squeeze(-1)[:, None]
    keys, values = (x.repeat_interleave(4 // key_heads, dim=1) for x in (k, v))
    wanted = (
        ((q @ keys.transpose(-1, -2)) * 0.3).masked_fill(~mask, float("-inf")).softmax(-1) @ values
    ).transpose(1, 2) * real
    found, _ = attention(
        None, q, k, v, None, scaling=0.3, trees=RowTrees(layout, True), sliding_window=window
    )
    torch.testing.assert_close(found * real, wanted, atol=2e-6, rtol=0)
    weights = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1))
    for got, want in zip(
        torch.autograd.grad((found * real * weights).sum(), (q, k, v)),
        torch.autograd.grad((wanted * weights).sum(), (q, k, v)),
    ):
        torch.testing.assert_close(got, want, atol=5e-6, rtol=0)


def test_a_completion_does_not_see_its_siblings() -> None:
    layout = layout_of([flat(4, [3, 3])])
    q, k, v = inputs(layout, 2, 2)
    found, _ = attention(None, q, k, v, None, trees=RowTrees(layout))
    (grad,) = torch.autograd.grad(found[0, 7:].sum(), v)
    assert bool((grad[0, :, 4:7] == 0).all()) and bool((grad[0, :, :4] != 0).all())


def test_trees_under_activation_checkpointing_and_a_switch_back(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, twin = policy_of("text", checkpointing=True), policy_of("text", layout="padded")
    assert tree_attention.is_installed(policy.model) and not tree_attention.is_installed(twin.model)
    batch = make_batch(groups_of([PROMPTS["text"]]), policy.pad_id)
    grads = []
    for side, least in ((policy, 0), (policy, 10**9), (twin, 0)):
        monkeypatch.setattr(tree_attention, "MIN_ROW", least)
        side.model.zero_grad()
        side.forward(batch)["logp"].sum().backward()
        grads.append(torch.cat([p.grad.flatten() for p in side.model.parameters()]))
    for other in grads[1:]:
        assert (grads[0] - other).norm() / other.norm() < 1e-5


def test_the_saved_config_names_no_attention(tmp_path) -> None:
    policy = policy_of("text")
    policy.save(tmp_path)
    assert tree_attention.ATTENTION_NAME not in (tmp_path / "config.json").read_text()


def test_memory_of_a_packed_row_is_linear_in_its_length() -> None:
    peaks = []
    for tokens in (1024, 2048):
        layout = layout_of([flat(32, [tokens] * 8)])
        q, k, v = inputs(layout, 2, 2)

        def work(q: Tensor = q, k: Tensor = k, v: Tensor = v, layout: Layout = layout) -> None:
            attention(None, q, k, v, None, trees=RowTrees(layout))[0].sum().backward()

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
    assert peak < 1.5 * 2**30, (
        peak
    )  # one dense mask of 32,768 tokens has 1 GiB, and is kept as float numbers by every layer: 4 GiB each
    with torch.no_grad():
        wanted = plain_logp(policy, batch.rollouts[3])
    torch.testing.assert_close(logp[3].detach(), wanted, atol=1e-4, rtol=0)
