"""What a prompt says about length is what the reward asks for."""

import pytest
from vlrl_rewards.format.lengths import LengthRange

from vlrl.methods.papers.prompt_based_length_control_rl import PromptBasedLengthControlRl
from vlrl.plugins.registry import ConfigError
from vlrl.types import Rollout, Row


def asked(row, **fields):
    prompt = PromptBasedLengthControlRl(**fields)(row)
    return prompt.messages[-1]["content"][-1]["text"].splitlines()[-1], prompt.row.meta["length"]


@pytest.mark.parametrize(
    ("length", "text"),
    [
        ([0, 9], "Answer with at most 9 tokens."),
        ([9, 100_000], "Answer with at least 9 tokens."),
        ([9, 9], "Answer with exactly 9 tokens."),
        ([5, 9], "Answer with 5 to 9 tokens."),
    ],
)
def test_bounds_of_the_row(length, text):
    assert asked(Row("r", "q", 1, meta={"length": length})) == (text, length)


@pytest.mark.parametrize("kind", ["less", "more", "equal", "between"])
def test_drawn_bounds_stay_with_the_row_and_can_be_kept(kind):
    rows = [Row(f"r{i}", "q", 1) for i in range(20)]
    found = [asked(row, kinds=(kind,), shortest=4, longest=8) for row in rows]
    assert (
        found == [asked(row, kinds=(kind,), shortest=4, longest=8) for row in rows]
        and len(set(map(str, found))) > 1
    )
    for text, (low, high) in found:
        assert (
            (low == 0 or 4 <= low <= 8)
            and (high == 100_000 or 4 <= high <= 8)
            and low <= high
            and str(high if kind == "less" else low) in text
        )


def test_the_reward_reads_the_prompts_bounds():
    prompt = PromptBasedLengthControlRl()(Row("r", "q", 1, meta={"length": [4, 8]}))
    assert [LengthRange()(Rollout(prompt, [1] * n)) for n in (2, 4, 8, 10, 99)] == [-0.5, 0, 0, -0.25, -1]


def test_mistakes_are_named():
    with pytest.raises(ConfigError, match="longer"):
        PromptBasedLengthControlRl(kinds=("longer",))
    with pytest.raises(ConfigError, match="shortest"):
        PromptBasedLengthControlRl(shortest=9, longest=8)
