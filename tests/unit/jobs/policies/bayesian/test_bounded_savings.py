"""What a run may teach under a bound, against every pair of batch sizes worked out in full."""

import numpy as np
import pytest

from joulery.jobs.policies.bayesian._bounds import (
    COARSE_NODES,
    STEEPNESS,
    BoundedRuns,
    saved_shares,
)
from joulery.objectives import Bounds, FastestWithin, LeastEnergy

ROWS, ARMS, LIMITS = 9, 4, 3


class Within:
    """The least energy within any bounds."""

    def __str__(self):
        return "within both"

    def __init__(self, bounds):
        self.bounds = bounds

    def value(self, seconds, joules, reference):
        """Joules."""
        return joules


def runs_of(objective, able):
    """Random jobs."""
    chance = np.random.default_rng(7)
    shape = (ROWS, ARMS, LIMITS)
    seconds = np.log(60.0) + 0.3 * chance.normal(size=shape)
    watts = np.log(200.0) + 0.3 * chance.normal(size=shape)
    unknown = chance.random(shape) < 0.2
    seconds[unknown], watts[unknown] = np.nan, np.nan
    epoch = seconds, watts, np.where(unknown, np.inf, 1e-4)
    size = np.log(10.0) + 0.3 * chance.normal(size=(ROWS, ARMS))
    factors = 0.3 * chance.normal(size=(ROWS, ARMS, ARMS))
    return BoundedRuns.of(objective, size, able, epoch), factors


def in_full(runs, tilt, node, row, run, *, ended):
    """One outcome of one run, with plain loops."""
    size = runs.size[row] + tilt[row, run] * node - 0.5 * tilt[row, run] ** 2
    allowed = runs.eligible[row].copy()
    allowed[run] |= ended
    fastest = min((size + runs.fastest[row])[allowed], default=np.inf)
    longest = min(runs.deadline, runs.slowdown + fastest)
    beyond = size[:, None] + runs.seconds[row] - longest
    if runs.excess_joules is not None:
        beyond = np.maximum(beyond, size[:, None] + runs.excess_joules[row])
    scores = size[:, None] + runs.value[row] + STEEPNESS * np.maximum(0.0, beyond)
    held = scores[runs.best[0][row], runs.best[1][row]]
    least = scores[allowed].min()
    if not (np.isfinite(held) and np.isfinite(least)):
        return 0.0
    return 1.0 - np.exp(-max(0.0, held - least))


@pytest.mark.parametrize(
    "objective",
    [
        LeastEnergy(max_slowdown=0.05),
        LeastEnergy(deadline_seconds=500.0),
        FastestWithin(1e5),
        Within(Bounds(500.0, 0.05, 1e5)),
    ],
    ids=str,
)
@pytest.mark.parametrize("able_share", [0.2, 0.6, 1.0])
def test_few_pairs_tell_what_all_of_them_do(objective, able_share):
    """Leaving out what cannot matter must not change what a run is worth."""
    able = np.random.default_rng(3).random((ROWS, ARMS)) < able_share
    able[:, 2] = True
    runs, tilt = runs_of(objective, able)
    ended, stopped = (saved_shares(runs, tilt, ended=end) for end in (True, False))
    for row in range(ROWS):
        for run in range(ARMS):
            for at, node in enumerate(COARSE_NODES):
                full = in_full(runs, tilt, node, row, run, ended=True)
                assert ended[row, run, at] == pytest.approx(full, abs=1e-9)
                full = in_full(runs, tilt, node, row, run, ended=False)
                assert stopped[row, run, at] == pytest.approx(full, abs=1e-9)


def test_what_only_fills_rows_up_is_left_out():
    """Jobs of fewer batch sizes are padded; a run of padding must teach nothing."""
    able = np.ones((ROWS, ARMS), dtype=bool)
    able[:, 3:] = False
    runs, tilt = runs_of(LeastEnergy(max_slowdown=0.05), able)
    short = BoundedRuns.of(
        LeastEnergy(max_slowdown=0.05),
        runs.size,
        able,
        (
            np.where(np.isinf(runs.value), np.nan, runs.seconds),
            runs.seconds,
            np.full(runs.seconds.shape, 1e-4),
        ),
        valid=able,
    )
    shares = saved_shares(short, tilt, ended=True)
    assert not shares[:, 3:].any()
    assert shares[:, :3].any()
