"""Evaluation: suites, scorer profiles over the same responses, statistics, journal and page."""

from vlrl.eval.scorer import Aggregate, Mark, Scorer
from vlrl.eval.suite import Suite, as_suite, figures, load, mark_item, names, score_item

__all__ = ["Aggregate", "Mark", "Scorer", "Suite", "as_suite", "figures", "load", "mark_item", "names", "score_item"]
