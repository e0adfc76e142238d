"""Which measurement to take next: the one that narrows the predictions most."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joulery.predict._bayes import slopes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.predict._bayes import Array, Belief, Model


def probe_values(
    belief: Belief,
    candidates: Sequence[Model],
    targets: Model,
    noise: float,
) -> Array:
    """Mean standard deviation of the log-predictions that would remain after each candidate.

    A probe shifts the belief by an amount that is not known beforehand, but narrows it by one that
    is: the smaller the remaining deviation, the better the probe.

    Args:
        belief: What is known now.
        candidates: Log-measurements that each probe would give, from log-constants.
        targets: Log-predictions that matter.
        noise: Standard deviation of a log-measurement around its model.
    """
    wanted = slopes(targets, belief.mean)
    remaining = []
    for candidate in candidates:
        seen = slopes(candidate, belief.mean)
        covered = belief.covariance @ seen.T
        gram = seen @ covered + noise**2 * np.eye(len(seen))
        after = belief.covariance - covered @ np.linalg.solve(gram, covered.T)
        variance = np.einsum("ij,jk,ik->i", wanted, after, wanted)
        remaining.append(float(np.sqrt(np.maximum(variance, 0.0)).mean()))
    return np.array(remaining)
