"""Evaluation on benchmarks: suites, scoring profiles over the same responses, statistics, the journal of a
run and its HTML report."""

from vlrl.eval.scorer import Aggregate, Scorer
from vlrl.eval.suite import (
    Suite,
    aggregate_scores,
    as_suite,
    load_suite,
    score_item,
    score_response,
    suite_names,
)
from vlrl.plugins.scoring import Verdict

__all__ = [
    "Aggregate",
    "Scorer",
    "Suite",
    "Verdict",
    "aggregate_scores",
    "as_suite",
    "load_suite",
    "score_item",
    "score_response",
    "suite_names",
]
