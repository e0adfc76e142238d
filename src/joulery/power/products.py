"""Matrix products that stay on one core.

Libraries spread larger products over all cores. Inside a training job those are busy, and waiting
for them costs many times what the product does. OpenBLAS, which NumPy ships with, stays on one core
up to 64 × 64 × 64 multiplications, so larger products are taken in pieces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_MOST = 64**3


def product(left: Array, right: Array) -> Array:
    """``left @ right``, in pieces of rows."""
    import numpy as np

    rows = max(1, _MOST // (right.shape[0] * right.shape[1]))
    result = np.empty((len(left), right.shape[1]))
    for start in range(0, len(left), rows):
        np.matmul(left[start : start + rows], right, out=result[start : start + rows])
    return result
