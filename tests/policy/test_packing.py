"""Rows of tokens and who sees whom, by hand."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.flex_attention import create_mask

from vlrl.policy import Family
from vlrl.policy.encoded import Encoded
from vlrl.policy.packing import block_mask, lay_out, may_attend, packing_pays, pictures, rule
from vlrl.registry import ConfigError, build


def prompt(*ids: int, next_position: int | None = None) -> Encoded:
    return Encoded(list(ids), (), [0] * len(ids), torch.arange(len(ids)), len(ids) if next_position is None else next_position)


def test_a_packed_row() -> None:
    layout = lay_out([prompt(1, 2), prompt(9)], [0, 0, 1], [[3, 4, 5], [6], [7, 8]], [[0, 1, 2], [0], [1]], 3, pad_id=0, packed=True)
    assert layout.ids_RL.tolist() == [[1, 2, 3, 4], [9, 7, 0, 0]]  # last tokens predict nothing; the second completion adds none
    assert layout.positions.tolist() == [[0, 1, 2, 3], [0, 1, 0, 0]]
    assert layout.segment_RL.tolist() == [[0, 0, 1, 1], [0, 1, -1, -1]]
    assert layout.source_N.tolist() == [1, 2, 3, 1, 5]  # the prompt's last token predicts every completion's first
    assert layout.target_N.tolist() == [0, 1, 2, 3, 7]
    assert not layout.branches and layout.rows == (0, 1)


def test_completions_go_on_where_the_prompt_ends() -> None:
    layout = lay_out([prompt(1, 2, 3, next_position=2)], [0, 0], [[4, 5, 6], [7, 8]], [[], []], 3, pad_id=0, packed=True)
    assert layout.ids_RL.tolist() == [[1, 2, 3, 4, 5, 7]]
    assert layout.positions.tolist() == [[0, 1, 2, 2, 3, 2]]  # a picture's tokens may share positions
    assert layout.order_RL.tolist() == [[0, 1, 2, 3, 4, 3]]
    assert layout.branches


def test_a_padded_row_per_completion() -> None:
    layout = lay_out([prompt(1, 2)], [0, 0], [[3, 4], [5]], [[0, 1], [0]], 2, pad_id=0, packed=False)
    assert layout.ids_RL.tolist() == [[1, 2, 3], [1, 2, 0]]
    assert layout.source_N.tolist() == [1, 2, 4]
    assert not layout.branches and layout.rows == (0, 0)


@pytest.mark.parametrize(
    ("prompt_length", "lengths", "linear", "pays"),
    [
        (100, [11, 11], 0.0, False),  # one row of 120: 14400 pairs; two of 110, half of their pairs: 12100
        (100, [11, 11], 100.0, True),  # 120 * 220 = 26400 <= 220 * 155 = 34100
        (100, [11, 11, 11], 0.0, True),  # 330 tokens are more than twice 130
        (10, [101, 101], 0.0, False),  # one row of 210: 44100; two of 110: 12100
        (10, [101, 101], 1000.0, False),  # 210 * 1210 = 254100; 220 * 1055 = 232100
        (10, [101, 101], 10000.0, True),  # 210 * 10210 = 2144100 <= 220 * 10055 = 2212100
    ],
)
def test_when_packing_pays(prompt_length: int, lengths: list[int], linear: float, pays: bool) -> None:
    assert packing_pays([prompt_length], [0] * len(lengths), lengths, linear) is pays


def test_who_sees_whom() -> None:
    order, segment = torch.tensor([[0, 1, 2, 3, 2, 0]]), torch.tensor([[0, 0, 1, 1, 2, -1]])
    assert may_attend(order, segment)[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],  # the second completion does not see the first
        [1, 1, 0, 0, 0, 1],
    ]
    near = may_attend(order, segment, window=2)[0, 0].int().tolist()
    assert near[3] == [0, 0, 1, 1, 0, 0] and near[4] == [0, 1, 0, 0, 1, 0]  # two back in its own sequence
    both = may_attend(order, segment, picture_RL=torch.tensor([[1, 1, 0, 0, 0, 0]]))[0, 0].int().tolist()
    assert both[0] == [1, 1, 0, 0, 0, 0]


def test_runs_of_picture_tokens() -> None:
    assert pictures(torch.tensor([[1, 1, 0, 1, 0, 2, 2], [0, 0, 0, 0, 0, 0, 1]])).tolist() == [[1, 1, 0, 2, 0, 3, 3], [0, 0, 0, 0, 0, 0, 1]]


@pytest.mark.parametrize("window", [None, 3])
def test_flex_masks_say_the_same(window: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    segment = torch.randint(-1, 4, (2, 160), generator=generator).sort(-1).values.roll(-20, -1)
    order = torch.arange(160).expand(2, -1)
    picture = pictures((torch.rand(2, 160, generator=generator) > 0.7).long())
    dense = may_attend(order, segment, window, picture)
    assert torch.equal(create_mask(rule(order, segment, window, picture), 2, 1, 160, 160, device="cpu"), dense)
    blocks = block_mask(order, segment, window, picture).to_dense().bool()[:, 0]
    for q, k in ((0, 0), (1, 0), (1, 1)):
        part = dense[:, 0, q * 128 : (q + 1) * 128, k * 128 : (k + 1) * 128]
        assert torch.equal(blocks[:, q, k], part.flatten(1).any(-1))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.parametrize("bad", [{"attn": "flex"}, {"attn": "flash_attention_2"}])
def test_kernels_that_cannot_run_are_refused(bad: dict) -> None:
    with pytest.raises(ConfigError, match=r"policy\.attn"):
        build(Family, {"name": "text", "tiny": {}, **bad})
