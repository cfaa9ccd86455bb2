"""Records in the schema of each paper's data set: what its own code pays, a run of ours pays."""

from __future__ import annotations

import pytest
from record_kit import HERE, Read, cases, fields

CASES = cases()


def read_by_families():
    """(paper, family) of all cases; those that run a program are skipped where it is not installed."""
    return [
        pytest.param(
            paper,
            family,
            id=f"{paper}-{family}",
            marks=[pytest.mark.needs(case["needs"])] if "needs" in case else [],
        )
        for paper, case in CASES.items()
        for family in case["families"]
    ]


@pytest.mark.parametrize(("paper", "family"), read_by_families())
def test_the_papers_own_records_pay_as_its_code_pays(paper, family, tmp_path):
    case = CASES[paper]
    read = Read(case, family, tmp_path)
    assert len(read.rows) == len(case["cases"])
    for one, row, prompt in zip(case["cases"], read.rows, read.prompts, strict=True):
        assert fields(row, one.get("row", {})) == one.get("row", {})
        shown = str(prompt.messages)
        assert all(word in shown for word in one.get("prompt", ())), shown
        for answer in one["answers"]:
            paid = read.pays(prompt, answer)
            wanted = answer["pays"]
            assert {key: paid[key] for key in wanted} == pytest.approx(
                wanted, abs=answer.get("within", 1e-6)
            ), (answer, paid)


@pytest.mark.parametrize("paper", CASES)
def test_each_case_has_a_right_a_wrong_and_a_malformed_answer(paper):
    case = CASES[paper]
    assert case["released"] and (HERE / paper / "case.yaml").is_file()
    for one in case["cases"]:
        totals = [answer["pays"]["total"] for answer in one["answers"]]
        assert len(totals) >= 3 and max(totals) > min(totals), one["record"]
