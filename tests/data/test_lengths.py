"""Lengths counted before training are those that the policy makes."""

from pathlib import Path

import pytest
from vlrl_data.tools.lengths import split_by_length, summary, token_count

from vlrl.plugins.registry import build
from vlrl.plugins.stages import PromptTemplate, Source

FIXTURES = Path(__file__).parents[2] / "data" / "fixtures"


@pytest.fixture(scope="module")
def policy():
    from vlrl.policy import Family, Policy

    family = build(
        Family,
        {
            "name": "qwen2_5_vl",
            "tiny": {"hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1},
            "max_pixels": 100352,
        },
    )
    return Policy(family)


@pytest.mark.parametrize(
    "spec",
    [
        "lab_digits",
        "lab_video",
        "lab_knights",
        str(FIXTURES / "easyr1.jsonl"),
        str(FIXTURES / "ms_swift.jsonl"),
    ],
)
def test_same_as_the_policy(policy, spec):
    rows = build(Source, {"name": "files", "path": spec} if "/" in spec else spec)()
    template = build(PromptTemplate, {"name": "chat", "style": "think_open"})
    for row in rows[:3]:
        prompt = template(row)
        assert token_count(prompt, policy.processor) == len(policy.encode(prompt))


def test_rows_over_budget_are_told(policy):
    rows = build(Source, {"name": "lab_knights", "count": 20})()
    template = build(PromptTemplate, "chat")
    counts = sorted(token_count(template(row), policy.processor) for row in rows)
    kept, dropped = split_by_length(rows, template, policy.processor, counts[9])
    assert len(kept) == sum(count <= counts[9] for count in counts) and len(kept) + len(dropped) == 20
    figures = summary(kept, dropped, counts[9])
    assert figures["longest"] == counts[-1] and all(length.tokens > counts[9] for length in dropped)
