"""Exactly rounded statistics of Python floats, which the advantage estimators use.

Sums are `math.fsum`'s, so a result does not depend on the order of the values, on the device or on the number
of processes. Equal values have exactly their own value as mean and exactly 0 as deviation: a group without a
learning signal stays at zero instead of at rounding noise divided by eps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean, exactly rounded; 0 without values.

    Args:
        values: the numbers.

    Returns:
        sum(values) / len(values); exactly the common value where all are equal.

    >>> mean([0.1, 0.1, 0.1])
    0.1
    >>> mean([1.0, 0.0, 0.0, 1.0])
    0.5
    """
    if not values:
        return 0.0
    return values[0] if min(values) == max(values) else math.fsum(values) / len(values)


def std(values: Sequence[float], unbiased: bool = True) -> float:
    """Standard deviation; 0 for fewer than two values.

        sqrt(sum_i (v_i - mean)^2 / (n - 1)), with n in place of n - 1 where `unbiased` is false

    Args:
        values: the numbers.
        unbiased: divide by n - 1 (the sample standard deviation) instead of n.

    Returns:
        The standard deviation, in the values' unit.

    >>> std([1.0, 3.0], unbiased=False)
    1.0
    """
    if len(values) < 2:
        return 0.0
    centre = mean(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - unbiased))


def centred(values: Sequence[float], divisor: float) -> list[float]:
    """Deviations from the mean over a divisor: (v_i - mean) / divisor; exactly 0 where a value equals the
    mean, whatever the divisor.

    Args:
        values: the numbers of one group.
        divisor: what the deviations are divided by, for instance `std(values) + eps`.

    Returns:
        One number per value.

    >>> centred([1.0, 0.0], 0.5)
    [1.0, -1.0]
    >>> centred([0.7, 0.7], 0.0)
    [0.0, 0.0]
    """
    centre = mean(values)
    return [(v - centre) / divisor if v != centre else 0.0 for v in values]
