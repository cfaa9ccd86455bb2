"""Statistics of evaluation: k samples, intervals, comparisons, calibration. Scores are in [0, 1]; records of
different clusters are independent."""

from vlrl.eval.statistics.calibration import brier, expected_calibration_error, risk_coverage
from vlrl.eval.statistics.comparison import (
    Comparison,
    compare,
    mcnemar,
    minimum_detectable_effect,
    permutation_test,
)
from vlrl.eval.statistics.intervals import (
    Interval,
    bootstrap,
    clustered_standard_error,
    mean_interval,
    wilson,
)
from vlrl.eval.statistics.samples import (
    avg_at_k,
    equivalence_classes,
    g_pass_at_k,
    maj_at_k,
    mean_g_pass_at_k,
    pass_at_k,
)

__all__ = [
    "Comparison",
    "Interval",
    "avg_at_k",
    "bootstrap",
    "brier",
    "clustered_standard_error",
    "compare",
    "equivalence_classes",
    "expected_calibration_error",
    "g_pass_at_k",
    "maj_at_k",
    "mcnemar",
    "mean_g_pass_at_k",
    "mean_interval",
    "minimum_detectable_effect",
    "pass_at_k",
    "permutation_test",
    "risk_coverage",
    "wilson",
]
