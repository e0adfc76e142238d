"""Page's cumulative sums (Biometrika 1954): lasting changes add up, single outliers do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SIGNS = np.array([1.0, -1.0])


def accumulate(
    sums: NDArray[np.float64],
    deviation: NDArray[np.float64] | float,
    allowance: float,
    largest: float,
) -> NDArray[np.float64]:
    """The sums upward and downward after one more value.

    Args:
        sums: (…, 2), upward and downward, 0 at first.
        deviation: (…), how far the value is from what was expected, in units of the change to
            detect.
        allowance: Part of each deviation that does not count.
        largest: Most that one value counts.
    """
    clipped = np.clip(deviation, -largest, largest)
    result: NDArray[np.float64] = np.maximum(
        0.0, sums + np.multiply.outer(clipped, _SIGNS) - allowance
    )
    return result
