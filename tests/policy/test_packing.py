"""Packed and padded rows and their attention masks, against values by hand."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.flex_attention import create_mask

from vlrl.plugins.registry import ConfigError, build
from vlrl.policy import Family
from vlrl.policy.encoded import EncodedPrompt
from vlrl.policy.packing import (
    Node,
    block_mask,
    build_layout,
    dense_mask,
    image_runs,
    mask_mod,
    packing_is_cheaper,
)


def prompt(*ids: int, next_position: int | None = None) -> EncodedPrompt:
    return EncodedPrompt(
        list(ids),
        (),
        [0] * len(ids),
        torch.arange(len(ids)),
        len(ids) if next_position is None else next_position,
    )


def test_a_packed_row() -> None:
    layout = build_layout(
        [prompt(1, 2), prompt(9)],
        [0, 0, 1],
        [[3, 4, 5], [6], [7, 8]],
        [[0, 1, 2], [0], [1]],
        3,
        pad_id=0,
        packed=True,
    )
    assert layout.ids_RL.tolist() == [
        [1, 2, 3, 4],
        [9, 7, 0, 0],
    ]  # last tokens predict nothing; the second completion adds none
    assert layout.positions.tolist() == [[0, 1, 2, 3], [0, 1, 0, 0]]
    assert layout.subtree_end_RL.tolist() == [[4, 4, 4, 4], [4, 4, 0, 0]]
    assert layout.source_N.tolist() == [
        1,
        2,
        3,
        1,
        5,
    ]  # the prompt's last token predicts every completion's first
    assert layout.target_N.tolist() == [0, 1, 2, 3, 7]
    assert not layout.is_tree and layout.nodes_R == ((Node(0, 2, 4), Node(2, 4, 4)), (Node(0, 2, 2),))


def test_completion_positions_continue_the_prompts() -> None:
    layout = build_layout(
        [prompt(1, 2, 3, next_position=2)], [0, 0], [[4, 5, 6], [7, 8]], [[], []], 3, pad_id=0, packed=True
    )
    assert layout.ids_RL.tolist() == [[1, 2, 3, 4, 5, 7]]
    assert layout.positions.tolist() == [[0, 1, 2, 2, 3, 2]]  # an image's tokens may share positions
    assert layout.order_RL.tolist() == [[0, 1, 2, 3, 4, 3]]
    assert layout.is_tree


def test_a_padded_row_per_completion() -> None:
    layout = build_layout([prompt(1, 2)], [0, 0], [[3, 4], [5]], [[0, 1], [0]], 2, pad_id=0, packed=False)
    assert layout.ids_RL.tolist() == [[1, 2, 3], [1, 2, 0]]
    assert layout.source_N.tolist() == [1, 2, 4]
    assert not layout.is_tree and layout.nodes_R == ((Node(0, 3, 3),), (Node(0, 2, 2),))


@pytest.mark.parametrize(
    ("prompt_length", "lengths", "linear", "cheaper"),
    [
        (100, [11, 11], 0.0, False),  # one row of 120: 14400 pairs; two of 110, half of their pairs: 12100
        (100, [11, 11], 100.0, True),  # 120 * 220 = 26400 <= 220 * 155 = 34100
        (100, [11, 11, 11], 0.0, True),  # 330 tokens are more than twice 130
        (10, [101, 101], 0.0, False),  # one row of 210: 44100; two of 110: 12100
        (10, [101, 101], 1000.0, False),  # 210 * 1210 = 254100; 220 * 1055 = 232100
        (10, [101, 101], 10000.0, True),  # 210 * 10210 = 2144100 <= 220 * 10055 = 2212100
    ],
)
def test_packing_is_cheaper_for_long_prompts_and_short_completions(
    prompt_length: int, lengths: list[int], linear: float, cheaper: bool
) -> None:
    padded = [prompt_length + length - 1 for length in lengths]
    assert (
        packing_is_cheaper([prompt_length + sum(length - 1 for length in lengths)], padded, linear) is cheaper
    )


def test_attention_mask_of_a_packed_row() -> None:
    order, below = torch.tensor([[0, 1, 2, 3, 2, 0]]), torch.tensor([[6, 6, 4, 4, 5, 0]])
    assert dense_mask(order, below)[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],  # the second completion does not attend to the first
        [1, 1, 0, 0, 0, 0],  # padding sees the prompt, so that no softmax is empty
    ]
    near = dense_mask(order, below, window=2)[0, 0].int().tolist()
    assert near[3] == [0, 0, 1, 1, 0, 0] and near[4] == [0, 1, 0, 0, 1, 0]  # two back in its own sequence
    both = dense_mask(order, below, image_RL=torch.tensor([[1, 1, 0, 0, 0, 0]]))[0, 0].int().tolist()
    assert both[0] == [1, 1, 0, 0, 0, 0]


def test_runs_of_image_tokens() -> None:
    assert image_runs(torch.tensor([[1, 1, 0, 1, 0, 2, 2], [0, 0, 0, 0, 0, 0, 1]])).tolist() == [
        [1, 1, 0, 2, 0, 3, 3],
        [0, 0, 0, 0, 0, 0, 1],
    ]


@pytest.mark.parametrize("window", [None, 3])
def test_flex_masks_equal_dense_masks(window: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    nodes = [
        Node(0, 40, 150),
        Node(40, 70, 120),
        Node(70, 100, 100),
        Node(100, 120, 120),
        Node(120, 150, 150),
    ]
    below, order = torch.zeros(2, 160, dtype=torch.long), torch.zeros(2, 160, dtype=torch.long)
    for k, node in enumerate(nodes):
        above = sum(other.end - other.start for other in nodes[:k] if node.start < other.subtree_end)
        below[:, node.start : node.end], order[:, node.start : node.end] = (
            node.subtree_end if k else 160,
            above + torch.arange(node.end - node.start),
        )
    images = image_runs((torch.rand(2, 160, generator=generator) > 0.7).long())
    dense = dense_mask(order, below, window, images)
    assert torch.equal(
        create_mask(mask_mod(order, below, window, images), 2, 1, 160, 160, device="cpu"), dense
    )
    blocks = block_mask(order, below, window, images).to_dense().bool()[:, 0]
    for q, k in ((0, 0), (1, 0), (1, 1)):
        part = dense[:, 0, q * 128 : (q + 1) * 128, k * 128 : (k + 1) * 128]
        assert torch.equal(blocks[:, q, k], part.flatten(1).any(-1))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.parametrize("bad", [{"attn": "flex"}, {"attn": "flash_attention_2"}])
def test_unavailable_attention_implementations_are_refused(bad: dict) -> None:
    with pytest.raises(ConfigError, match=r"policy\.attn"):
        build(Family, {"name": "text", "tiny": {}, **bad})
