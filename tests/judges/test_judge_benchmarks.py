"""Benchmarks of judges: records in their released schema, and their own scoring rules by hand."""

from __future__ import annotations

import math

import pytest
from judge_kit import judge_of
from test_judge_check import fields

from vlrl.beside.benchmarks import best_of, compared, summary, ties_score
from vlrl.beside.check import labelled_rates
from vlrl.plugins.registry import ConfigError

REWARD_BENCH = [  # allenai/reward-bench-2
    {
        "id": "12",
        "prompt": "What is 2 + 2?",
        "chosen": ["value 9"],
        "rejected": ["value 1", "value 3", "value 2"],
        "num_correct": 1,
        "num_incorrect": 3,
        "total_completions": 4,
        "models": ["a", "b", "c", "d"],
        "subset": "Math",
        "additional_metadata": None,
    },
    {
        "id": "13",
        "prompt": "Who?",
        "chosen": ["value 7"],
        "rejected": ["value 7", "value 2"],
        "subset": "Focus",
    },
    {
        "id": "14",
        "prompt": "Who?",
        "chosen": ["value 2"],
        "rejected": ["value 7", "value 3"],
        "subset": "Focus",
    },
    {"id": "ref:0", "prompt": "A colour?", "chosen": ["value 9"], "rejected": ["value 2"], "subset": "Ties"},
    {
        "id": "tied:0",
        "prompt": "A colour of the rainbow?",
        "chosen": ["value 9", "value 8"],
        "rejected": ["value 3", "value 2"],
        "subset": "Ties",
    },
]
JUDGE_BENCH = [  # ScalerLab/JudgeBench
    {
        "pair_id": "81ac57f2",
        "original_id": "10082",
        "source": source,
        "question": "2 + 2?",
        "response_model": "gpt-4o-2024-05-13",
        "response_A": "four",
        "response_B": "five",
        "label": label,
    }
    for source, label in (("mmlu-pro-math", "A>B"), ("livecodebench", "B>A"))
]
OTHERS = [  # VL-RewardBench, Multimodal RewardBench
    {"id": "RLAIF-V-1", "query": "How many?", "response": ["five", "four"], "human_ranking": [1, 0]},
    {
        "ID": "1",
        "Text": "How many?",
        "Output1": "four",
        "Output2": "five",
        "Better": "Output1",
        "Category": "vqa",
    },
]


def rated(prompt):
    """The number that stands in the answer."""
    return f"Score: {fields(prompt)['ANSWER'].split()[-1]}"


def test_reward_bench_2(tmp_path):
    judge, sent = judge_of(rated, tmp_path, template="quality")
    found = labelled_rates(judge, REWARD_BENCH)
    assert len(sent) == 4 + 3 + 2 + 4  # what two records have in common is asked once
    assert found["rows"] == 5
    assert found["accuracy"] == pytest.approx((1 + 0.5 + 0) / 3)
    # gaps 7 and 5 of 9, spread 1: all accurate, preferred and hard
    ties = 0.3 + 0.3 + 0.2 + 0.2 + 0.01 * math.tanh(5 - 1)
    assert found["by_group"] == pytest.approx({"Math": 1.0, "Focus": 0.25, "Ties": ties})
    assert found["macro"] == pytest.approx((1.25 + ties) / 3)


def test_ties_by_hand():
    def score(ref, tied):
        return ties_score({"ref:1": ref, "tied:1": tied})

    assert score(([5.0], [4.0]), ([5.0, 3.0], [2.0])) == pytest.approx(0.6 + 0.01 * math.tanh(1 / 2 - 1))
    assert score(([5.0], [1.0]), ([5.0, 5.0], [2.0])) == pytest.approx(1.01)  # no spread
    assert score(([5.0], [6.0]), ([5.0, 4.0], [2.0])) == pytest.approx(0.5 + 0.01 * math.tanh(-2))
    assert score(([1.0], [1.0]), ([1.0, 1.0], [1.0])) == 0.0  # a judge that sees no difference
    with pytest.raises(ConfigError, match="ref:N or tied:N"):
        ties_score({"7": ([1.0], [0.0])})


def test_judge_bench_in_both_orders(tmp_path):
    def first_is_four(prompt):
        return f"Verdict: {'A' if fields(prompt)['ANSWER A'] == 'four' else 'B'}"

    judge, sent = judge_of(first_is_four, tmp_path / "a", template="pair")
    found = labelled_rates(judge, JUDGE_BENCH)
    assert len(sent) == 2  # the second record's two orders are the first one's
    assert found["accuracy"] == 0.5 and found["by_group"] == {"mmlu-pro-math": 1.0, "livecodebench": 0.0}
    always, _ = judge_of(lambda prompt: "Verdict: A", tmp_path / "b", template="pair")
    found = labelled_rates(always, JUDGE_BENCH)
    assert found["accuracy"] == 0.0 and found["flip"] == 1.0  # +1 - 1 is not above 0
    half, _ = judge_of(
        lambda prompt: "Verdict: A" if fields(prompt)["ANSWER A"] == "four" else "Verdict: tie",
        tmp_path / "c",
        template="pair",
    )
    assert labelled_rates(half, JUDGE_BENCH[:1])["accuracy"] == 1.0  # +1 + 0
    silent, _ = judge_of(lambda prompt: "I cannot say.", tmp_path / "d", template="pair")
    assert labelled_rates(silent, JUDGE_BENCH)["null"] == 1.0  # no coin is thrown


def test_other_schemas():
    vl, mm = (compared(row, 0) for row in OTHERS)
    assert (vl.chosen, vl.rejected) == (("four",), ("five",)) == (mm.chosen, mm.rejected)
    assert mm.group == "vqa" and vl.question == "How many?"
    assert compared({"question": "q", "answer": "a", "label": True}, 0) is None
    with pytest.raises(ConfigError, match=r"record 3 has \['text'\].*JudgeBench"):
        compared({"text": "x"}, 3)


def test_shared_credit_and_groups():
    assert best_of([1.0, 2.0], [2.0, 2.0]) == pytest.approx(1 / 3)
    found = summary([("a", 1.0), ("a", 1.0), ("a", 0.0), ("b", 0.0)], {})
    assert found["accuracy"] == 0.5 and found["macro"] == pytest.approx(1 / 3)
    assert summary([("", 1.0)], {}) == {"accuracy": 1.0}
