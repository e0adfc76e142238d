"""Choose which jobs run, or keep their floors, where not all of them fit under the caps.

That is a knapsack with nested capacities: the densest jobs are in, the sparsest out, and those
around the edge are tried in all combinations, which is exact for few jobs and near it for many.
"""

from __future__ import annotations

import numpy as np

# Jobs around the edge of which all combinations are tried: 4,096 take some 2 ms.
_CORE = 12


def choose_subset(values: np.ndarray, needs: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Jobs of the largest total value whose needs fit into every part.

    Args:
        values: Value of each job.
        needs: Watts that each job takes of each part, as an array of jobs × parts.
        room: Watts of each part.
    """
    if not len(room):
        return np.ones(len(values), dtype=bool)
    slack = room + 1e-9 * np.abs(np.where(np.isfinite(room), room, 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(needs > 0, needs / np.maximum(slack, 1e-300), 0.0).max(axis=1)
    order = np.argsort(-values / np.maximum(shares, 1e-300), kind="stable")
    order = order[(needs[order] <= slack).all(axis=1)]
    fits = (np.cumsum(needs[order], axis=0) <= slack).all(axis=1)
    edge = int(fits.argmin()) if not fits.all() else len(order)
    first = max(0, min(edge - _CORE // 2, len(order) - _CORE))
    core = order[first : first + _CORE]
    chosen = np.zeros(len(values), dtype=bool)
    chosen[order[:first]] = True
    chosen[core] = _best(values[core], needs[core], slack - needs[chosen].sum(axis=0))
    for job in order[~chosen[order]]:
        chosen[job] = (needs[chosen].sum(axis=0) + needs[job] <= slack).all()
    return chosen


def _best(values: np.ndarray, needs: np.ndarray, room: np.ndarray) -> np.ndarray:
    """The best combination of a few jobs, by trying all."""
    members = np.arange(1 << len(values))[:, None] >> np.arange(len(values)) & 1
    total = np.where((members @ needs <= room).all(axis=1), members @ values, -np.inf)
    best: np.ndarray = members[int(total.argmax())].astype(bool)
    return best
