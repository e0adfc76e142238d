"""Exploration planning: what a training costs now against what it teaches for later.

One step of lookahead (knowledge gradient; Frazier, Powell and Dayanik, INFORMS JoC 2009) on
log-normal costs whose means are correlated, with one addition: a run may be stopped at a cost
ceiling, after which the best batch size is run instead. Outcomes of a run are laid out on nodes
of its predictive distribution, so the best ceiling is a running sum over nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.jobs.policies._job_batch import at_arm

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies._counter_rng import Floats

_NODES = np.linspace(-3.0, 3.0, 13)  # in standard deviations of the logarithm
_WEIGHTS = np.exp(-0.5 * _NODES**2) / np.exp(-0.5 * _NODES**2).sum()
# Probability of an outcome beyond each node.
_BEYOND = 1.0 - np.cumsum(_WEIGHTS)
_STOPS = np.append(_NODES[:-1], np.inf)  # a run that is stopped at the last node is not stopped
# Numbers that are worked on at once: few enough to stay in a core's cache.
_BLOCK = 2**14


# Mean and variance of the outcomes beyond each node; the last node stands for itself.
_ABOVE = np.triu(np.broadcast_to(_WEIGHTS, (len(_NODES), len(_NODES))), k=1)
_ABOVE[-1, -1] = 1.0
_SHARES = _ABOVE / _ABOVE.sum(axis=1, keepdims=True)
_TAIL_MEAN = _SHARES @ _NODES
_TAIL_VARIANCE = _SHARES @ _NODES**2 - _TAIL_MEAN**2
_AT, _AT_MEAN, _AT_VARIANCE = (
    moments[:, None, None, None] for moments in (_NODES, _TAIL_MEAN, _TAIL_VARIANCE)
)


@dataclass(frozen=True, slots=True)
class ExplorationConfig:
    """Limits of exploration: its cost, and the recurrences that it must pay for itself in.

    Attributes:
        horizon: Number of recurrences to come that profit from what is learned.
        reach: Octaves beyond the batch sizes that have reached the target within which others are
            trained; the next one always is. Far from what is known a batch size may never reach it,
            which costs as much as two runs to find out.
        max_cost_ratio: Largest cost of a run of anything but the best, over that of the best.
        trial_runs: Number of runs of one batch size that are valued together. A single run of a
            noisy job may teach too little to pay where several would (Frazier and Powell, Decision
            Analysis 2010).
    """

    horizon: float = 100.0
    reach: float = 0.5
    max_cost_ratio: float = 2.0
    trial_runs: float = 3.0


DEFAULT_EXPLORATION = ExplorationConfig()


@dataclass(frozen=True, slots=True)
class ExplorationPlan:
    """The value of running each batch size next.

    Attributes:
        expected: (rows, arms), expected cost of a whole run.
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
    config: ExplorationConfig,
) -> ExplorationPlan:
    """Value every batch size.

    Args:
        mean: (rows, arms), mean of the logarithm of a run's cost.
        covariance: (rows, arms, arms), covariance of those means.
        noise_variance: (rows, arms), variance of the logarithm of one run.
        fallback: (rows,), batch size that follows a stopped run.
        config: Limits of exploration.
    """
    own = covariance.diagonal(axis1=1, axis2=2)
    spread = np.sqrt(own + noise_variance)
    log_expected = mean + 0.5 * spread**2
    expected = np.exp(log_expected)
    restart = expected[at_arm(fallback)][:, None]
    costs = spread * _NODES[:, None, None]
    costs += mean
    np.exp(costs, out=costs)
    trial = np.sqrt(own + noise_variance / config.trial_runs)
    ended, stopped = _savings(log_expected, covariance, trial)
    values = _values(ended, stopped, costs, restart, config)
    # Where even the cheapest outcome is over the limit, stopping at once is all that is left.
    allowed = (costs <= config.max_cost_ratio * restart) | (expected <= restart)
    node = np.where(allowed, values, -np.inf).argmax(axis=0)
    flat = values.reshape(len(_NODES), -1)[node.ravel(), np.arange(node.size)]
    return ExplorationPlan(expected, flat.reshape(node.shape), _STOPS.take(node))


def _values(
    ended: Floats, stopped: Floats, costs: Floats, restart: Floats, config: ExplorationConfig
) -> Floats:
    """(nodes, rows, run), value of a run that is stopped at a node, over all recurrences."""
    per_run = config.horizon / config.trial_runs
    ended *= per_run
    ended -= costs
    ended *= _WEIGHTS[:, None, None]
    values = np.add.accumulate(ended, axis=0)
    values += restart
    stopped *= per_run
    stopped -= costs
    stopped -= restart
    stopped *= _BEYOND[:, None, None]
    values += stopped
    return np.asarray(values)


def _savings(log_expected: Floats, covariance: Floats, trial: Floats) -> tuple[Floats, Floats]:
    """(nodes, rows, run): fall of the best run's cost, once a run has ended or was stopped.

    Stopped at a node, a run has shown only that its outcome lies beyond; the others' expected cost
    then follows from the first two moments of what lies there.
    """
    least = np.empty((2, len(_NODES), *log_expected.shape))
    step = max(1, _BLOCK // log_expected.shape[1] ** 2)
    for start in range(0, len(log_expected), step):
        part = slice(start, start + step)
        _least(log_expected[part], covariance[part], trial[part], least[:, :, part])
    np.exp(least, out=least)
    savings = np.exp(log_expected.min(axis=1))[:, None] - least
    return savings[0], savings[1]


def _least(log_expected: Floats, covariance: Floats, trial: Floats, out: Floats) -> None:
    """(2, nodes, rows, run): log cost of the best run then; few rows, which a cache can hold."""
    # (other, rows, run): how one standard deviation of a run's outcome moves another's mean. The
    # axis that minima are taken over comes first, where that is fastest.
    tilt = np.divide(covariance.transpose(2, 0, 1), trial, order="C")
    bow = 0.5 * tilt**2
    settled = log_expected.T[:, :, None] - bow
    step = max(1, _BLOCK // tilt.size)
    for start in range(0, len(_NODES), step):
        part = slice(start, start + step)
        buffer = tilt * _AT[part]
        buffer += settled
        np.minimum.reduce(buffer, axis=1, out=out[0, part])
        np.multiply(bow, _AT_VARIANCE[part], out=buffer)
        buffer += settled
        buffer += tilt * _AT_MEAN[part]
        np.minimum.reduce(buffer, axis=1, out=out[1, part])
