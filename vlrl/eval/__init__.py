"""Evaluation on benchmarks: suites, scoring profiles over the same responses, statistics, the journal of a
run and its HTML report."""

from vlrl.eval.scorer import Aggregate, ScoredResponse, Scorer
from vlrl.eval.suite import (
    Suite,
    aggregate_scores,
    as_suite,
    load_suite,
    score_item,
    score_response,
    suite_names,
)

__all__ = [
    "Aggregate",
    "ScoredResponse",
    "Scorer",
    "Suite",
    "aggregate_scores",
    "as_suite",
    "load_suite",
    "score_item",
    "score_response",
    "suite_names",
]
