"""What a training is worth: what it costs now against what it teaches for later.

One step of lookahead (knowledge gradient; Frazier, Powell and Dayanik, INFORMS JoC 2009) on
log-normal costs whose means are correlated, with one thing more: a run may be stopped at a cost
ceiling, after which the best batch size is run instead. Outcomes of a run are laid out on nodes
of its predictive distribution, so the best ceiling is a running sum over nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.jobs.policies.job_batch import own_places

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from joulery.jobs.policies.counter_rng import Floats

    # From (rows, arms, arms) covariance and (rows, arms) spread of what a run shows: what is saved
    # per recurrence once a run has ended at each node, or was stopped there; (nodes, rows, run).
    # Arrays of the caller's own, to do sums in.
    Lessons = Callable[[Floats, Floats], tuple[Floats, Floats]]

NODES = np.linspace(-3.0, 3.0, 13)  # in standard deviations of the logarithm
WEIGHTS = np.exp(-0.5 * NODES**2) / np.exp(-0.5 * NODES**2).sum()
# Probability of an outcome beyond each node.
LEFT = 1.0 - np.cumsum(WEIGHTS)
STOPS = np.append(NODES[:-1], np.inf)  # a run that is stopped at the last node is not stopped
_NODES = NODES[:, None, None]
# Figures that are worked on at once: few enough to stay in a core's cache.
_BLOCK = 2**14


def _tails() -> tuple[Floats, Floats]:
    """Mean and variance of the outcomes beyond each node; the last node stands for itself."""
    above = np.triu(np.broadcast_to(WEIGHTS, (len(NODES), len(NODES))), k=1)
    above[-1, -1] = 1.0
    shares = above / above.sum(axis=1, keepdims=True)
    mean = shares @ NODES
    return mean, shares @ NODES**2 - mean**2


TAIL_MEAN, TAIL_VARIANCE = _tails()
_AT, _AT_MEAN, _AT_VARIANCE = (
    each[:, None, None, None] for each in (NODES, TAIL_MEAN, TAIL_VARIANCE)
)


@dataclass(frozen=True, slots=True)
class Prospects:
    """What lies ahead of a job.

    Attributes:
        horizon: Recurrences to come that profit from what is learned.
        dearest_try: A run of anything but the best may cost this many times the best.
        trial_runs: Runs of one batch size that are thought of together. A single run of a noisy
            job may teach too little to pay where several would (Frazier and Powell, Decision
            Analysis 2010).
    """

    horizon: float
    dearest_try: float
    trial_runs: float


@dataclass(frozen=True, slots=True)
class ExplorationPlan:
    """What running each batch size next is worth.

    Attributes:
        expected: (rows, arms), cost of a whole run.
        value: (rows, arms), cost saved by running it next instead of the best proven one, over
            this and the recurrences to come; negative where it costs more than it teaches.
        stop: (rows, arms), where to stop such a run, in standard deviations of the logarithm of
            its cost above the mean; infinite for nowhere.
    """

    expected: Floats
    value: Floats
    stop: Floats


def plan(
    mean: Floats,
    covariance: Floats,
    noise_variance: Floats,
    fallback: NDArray[np.int64],
    prospects: Prospects,
    lessons: Lessons | None = None,
) -> ExplorationPlan:
    """Weigh every batch size.

    Args:
        mean: (rows, arms), of the logarithm of a run's cost.
        covariance: (rows, arms, arms), of those means.
        noise_variance: (rows, arms), of the logarithm of one run.
        fallback: (rows,), the batch size that follows a stopped run.
        prospects: What lies ahead.
        lessons: What runs teach, where that is not by how much the cheapest gets cheaper.
    """
    own = covariance.diagonal(axis1=1, axis2=2)
    spread = np.sqrt(own + noise_variance)
    log_expected = mean + 0.5 * spread**2
    expected = np.exp(log_expected)
    restart = expected[own_places(fallback)][:, None]
    costs = spread * _NODES
    costs += mean
    np.exp(costs, out=costs)
    trial = np.sqrt(own + noise_variance / prospects.trial_runs)
    if lessons is None:
        finishing, stopping = _lessons(log_expected, covariance, trial)
    else:
        finishing, stopping = lessons(covariance, trial)
    values = _values(finishing, stopping, costs, restart, prospects)
    # Where even the cheapest outcome is too dear, stopping at once is all that is left.
    allowed = (costs <= prospects.dearest_try * restart) | (expected <= restart)
    node = np.where(allowed, values, -np.inf).argmax(axis=0)
    flat = values.reshape(len(NODES), -1)[node.ravel(), np.arange(node.size)]
    return ExplorationPlan(expected, flat.reshape(node.shape), STOPS.take(node))


def _values(
    finishing: Floats, stopping: Floats, costs: Floats, restart: Floats, prospects: Prospects
) -> Floats:
    """(nodes, rows, run), of a run that is stopped at a node, over this and what is to come."""
    per_run = prospects.horizon / prospects.trial_runs
    finishing *= per_run
    finishing -= costs
    finishing *= WEIGHTS[:, None, None]
    values = np.add.accumulate(finishing, axis=0)
    values += restart
    stopping *= per_run
    stopping -= costs
    stopping -= restart
    stopping *= LEFT[:, None, None]
    values += stopping
    return np.asarray(values)


def _lessons(log_expected: Floats, covariance: Floats, trial: Floats) -> tuple[Floats, Floats]:
    """(nodes, rows, run): how much less the best run will cost, once a run has ended or stopped.

    Stopped at a node, a run has told only that its outcome lies beyond; the others' expected cost
    then follows from the first two moments of what lies there.
    """
    least = np.empty((2, len(NODES), *log_expected.shape))
    size = log_expected.shape[1] ** 2
    step = max(1, _BLOCK // size)
    for start in range(0, len(log_expected), step):
        part = slice(start, start + step)
        _least(log_expected[part], covariance[part], trial[part], least[:, :, part])
    np.exp(least, out=least)
    lessons = np.exp(log_expected.min(axis=1))[:, None] - least
    return lessons[0], lessons[1]


def _least(log_expected: Floats, covariance: Floats, trial: Floats, out: Floats) -> None:
    """(2, nodes, rows, run): log cost of the best run then; few rows, which a cache can hold."""
    # (other, rows, run): how one standard deviation of a run's outcome moves another's mean. The
    # axis that minima are taken over comes first, where that is fastest.
    tilt = np.divide(covariance.transpose(2, 0, 1), trial, order="C")
    bow = 0.5 * tilt**2
    settled = log_expected.T[:, :, None] - bow
    step = max(1, _BLOCK // tilt.size)
    for start in range(0, len(NODES), step):
        part = slice(start, start + step)
        buffer = tilt * _AT[part]
        buffer += settled
        np.minimum.reduce(buffer, axis=1, out=out[0, part])
        np.multiply(bow, _AT_VARIANCE[part], out=buffer)
        buffer += settled
        buffer += tilt * _AT_MEAN[part]
        np.minimum.reduce(buffer, axis=1, out=out[1, part])
