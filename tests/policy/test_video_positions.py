"""Rotary positions around a video: the text after it begins one after the highest position, of time or of
space."""

import pytest
import torch
from samples import Flicker, Noise, ask, policy_of, processed

from vlrl.policy.families.qwen2_5_vl import sequential_positions


def transformers_positions(policy, prompt):
    inputs = {
        k: v
        for k, v in processed(policy, prompt).items()
        if k.endswith("grid_thw") or k in ("input_ids", "mm_token_type_ids", "second_per_grid_ts")
    }
    return policy.model.model.get_rope_index(**inputs)[0][:, 0]


@pytest.mark.parametrize(("frames", "time"), [(4, [0, 2]), (12, [0, 2, 4, 6, 8, 10])])
def test_text_begins_after_the_highest_position_of_a_video(frames, time):
    policy = policy_of("qwen2_5_vl")
    prompt = ask("Which way?", (Noise(1),), (Flicker(3, frames),))
    encoded = policy.encode(prompt)
    first = encoded.types.index(2)
    last = first + encoded.types.count(2)
    assert encoded.types[first:last] == [2] * (6 * len(time))  # 2 x 3 merged patches at every moment
    start = int(encoded.positions[0, first])
    assert encoded.positions[:, first:last].tolist() == [
        [start + t for t in time for _ in range(6)], [start, start, start, start + 1, start + 1,
            start + 1] * len(time),
        [start, start + 1, start + 2] * 2 * len(time),
    ]  # fmt: skip
    after = start + max(time[-1], 2) + 1
    rest = list(range(after, after + len(encoded) - last))
    assert encoded.positions[:, last:].tolist() == [rest] * 3 and encoded.next_position == rest[-1] + 1
    torch.testing.assert_close(
        encoded.positions[:, :last], transformers_positions(policy, prompt)[:, :last], atol=0, rtol=0
    )
    if frames == 4:
        torch.testing.assert_close(encoded.positions, transformers_positions(policy, prompt), atol=0, rtol=0)


def test_a_second_run_of_media_follows_a_shifted_one():
    before_AL = torch.tensor([[0, 1, 6, 2, 3, 3, 5], [0, 1, 1, 2, 3, 3, 5], [0, 1, 1, 2, 3, 4, 5]])
    moved_AL, following = sequential_positions(before_AL, [0, 2, 2, 0, 1, 1, 0])
    assert (
        moved_AL.tolist() == [[0, 1, 6, 7, 8, 8, 10], [0, 1, 1, 7, 8, 8, 10], [0, 1, 1, 7, 8, 9, 10]]
        and following == 11
    )
