"""A recurring job as traces describe it, and the score of each of its fixed settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import InfeasibleError
from joulery.jobs import Job
from joulery.objectives import Cost, Totals, score

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies import Floats
    from joulery.objectives import Objective

# Settings whose expected run exceeds a bound by no more than this still count as within it.
TOLERANCE = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class TracedWorkload:
    """The training of one model on one GPU type, at every setting that was traced.

    Attributes:
        gpu: Type of the GPU, as its trace is named.
        dataset: Name of the dataset; with a trace of one's own, the job's name.
        network: Name of the model.
        optimizer: Name of the optimizer.
        batch_sizes: Batch sizes that have both training runs and power data, ascending.
        epochs: (arms, runs), epochs to the target; NaN where a run did not reach it within
            ``max_epochs``.
        runs: (arms,), number of columns of ``epochs`` that are runs of that batch size.
        limits_watts: (limits,), power limits, ascending.
        epoch_seconds: (arms, limits), time of an epoch, NaN where not known.
        watts: (arms, limits), mean power, likewise.
        default: Batch size that the owner would run.
        max_epochs: Number of epochs after which a run gives up.
        max_watts: Highest power limit of the GPU, which weighs time in the cost.
        remarks: Notes on what was left out or assumed.
        changes: Recurrences, ascending, from which other epochs hold, and these, laid out likewise.
    """

    gpu: str
    dataset: str
    network: str
    optimizer: str
    batch_sizes: tuple[int, ...]
    epochs: Floats
    runs: Floats
    limits_watts: Floats
    epoch_seconds: Floats
    watts: Floats
    default: int
    max_epochs: int
    max_watts: float
    remarks: tuple[str, ...] = ()
    changes: tuple[tuple[int, Floats], ...] = ()

    def __str__(self) -> str:
        return f"{self.dataset} on {self.gpu}"

    @property
    def default_arm(self) -> int:
        """Index of the default batch size."""
        return self.batch_sizes.index(self.default)

    @property
    def epoch_joules(self) -> Floats:
        """(arms, limits), energy of an epoch; NaN where not measured."""
        return self.epoch_seconds * self.watts

    @property
    def stages(self) -> tuple[tuple[int, TracedWorkload], ...]:
        """First recurrence of each stage between two changes, and the workload as it is then."""
        later = [(at, replace(self, epochs=epochs, changes=())) for at, epochs in self.changes]
        return ((0, self), *later)

    def job(self, eta: float = 0.5) -> Job:
        """The job description that a policy gets."""
        return Job(
            name=f"{self.gpu}/{self.dataset}",
            batch_sizes=self.batch_sizes,
            default=self.default,
            cost=Cost(eta, self.max_watts),
            max_epochs=self.max_epochs,
            limits_watts=tuple(self.limits_watts.tolist()),
        )

    def epoch_cost(self, eta: float = 0.5) -> Floats:
        """(arms, limits), cost of an epoch in joules; NaN where not measured."""
        return (eta * self.watts + (1 - eta) * self.max_watts) * self.epoch_seconds

    def mean_epochs(self) -> Floats:
        """(arms,), expected epochs until one run reaches the target, failed runs repeated."""
        is_run = np.arange(self.epochs.shape[1]) < self.runs[:, None]
        reached = is_run & (self.epochs <= self.max_epochs)
        paid = np.where(is_run, np.where(reached, self.epochs, self.max_epochs), 0.0).sum(axis=1)
        successes = reached.sum(axis=1)
        return np.where(successes > 0, paid / np.maximum(successes, 1), np.inf)

    def expected_cost(self, eta: float = 0.5) -> Floats:
        """(arms, limits), cost of one recurrence in joules; infinite where it never ends.

        NaN where a limit was not measured.
        """
        return np.asarray(self.mean_epochs()[:, None] * self.epoch_cost(eta))

    def optimum(self, eta: float = 0.5) -> tuple[int, int, float]:
        """Arm, limit and expected cost in joules of the best fixed setting."""
        cost = self.expected_cost(eta)
        arm, limit = np.unravel_index(np.nanargmin(cost), cost.shape)
        return int(arm), int(limit), float(cost[arm, limit])

    def default_setting(self) -> tuple[int, int]:
        """Arm and limit without any optimisation: the default at the highest limit measured."""
        measured = np.flatnonzero(np.isfinite(self.epoch_seconds[self.default_arm]))
        return self.default_arm, int(measured[-1])


@dataclass(frozen=True, slots=True, eq=False)
class SettingScores:
    """The cost, or the score by an objective, of every fixed setting of a workload.

    Bounds apply to the expected run of a setting. A single run is scored without them, else one
    unlucky run would be infinitely bad.

    Attributes:
        expected: (arms, limits), cost or value of the expected run, bounds aside; infinite where
            the target is out of reach, NaN where a limit was not measured.
        within: (arms, limits), whether it keeps the bounds, within ``TOLERANCE``.
        charge: (arms, limits), factor that takes back what a setting saves by breaking a bound, by
            however little: else it could beat the best setting that keeps them. 1 for all others.
        arm: Batch size of the best setting.
        limit: Power limit of the best setting.
        reference: Fastest setting, which ratios refer to.
        default: (3,), seconds, joules and cost or value of the expected run without optimisation.
    """

    expected: Floats
    within: NDArray[np.bool_]
    charge: Floats
    arm: int
    limit: int
    reference: Totals
    default: Floats

    @property
    def optimal(self) -> float:
        """Cost or value of the best setting."""
        return float(self.expected[self.arm, self.limit])


def score_settings(load: TracedWorkload, eta: float, objective: Objective | None) -> SettingScores:
    """Score every setting by the cost with ``eta``, or by ``objective`` where one is given.

    Raises:
        InfeasibleError: No setting meets the objective's bounds.
    """
    mean = load.mean_epochs()[:, None]
    seconds, joules = mean * load.epoch_seconds, mean * load.epoch_joules
    measured = np.isfinite(seconds) & np.isfinite(joules)
    fastest = np.where(measured, seconds, np.inf).argmin()
    reference = Totals(float(seconds.flat[fastest]), float(joules.flat[fastest]))
    usual = load.default_setting()
    count = mean[usual[0], 0]
    count = count if np.isfinite(count) else load.max_epochs  # it fails, at that price
    spent = count * load.epoch_seconds[usual], count * load.epoch_joules[usual]
    if objective is None:
        arm, limit, _ = load.optimum(eta)
        cost = load.expected_cost(eta)
        default = np.array([*spent, count * load.epoch_cost(eta)[usual]])
        return SettingScores(cost, measured, np.ones(cost.shape), arm, limit, reference, default)
    finite = np.where(measured, seconds, 1.0), np.where(measured, joules, 1.0)
    exact = np.where(measured, score(objective, *finite, reference), np.inf)
    best = int(exact.argmin())
    if not np.isfinite(exact.flat[best]):
        raise InfeasibleError(
            f"{load}: no setting meets {objective}",
            remedy=f"the fastest is expected to take {reference.seconds:g} s; widen the bound",
        )
    overshoot = objective.bounds.overshoot(*finite, reference)
    value = objective.value(*finite, reference)
    expected = np.where(measured, value, seconds)
    charge = np.where(np.isfinite(exact), 1.0, np.maximum(1.0, exact.flat[best] / value))
    arm, limit = divmod(best, seconds.shape[1])
    within = measured & (overshoot <= 1 + TOLERANCE)
    default = np.array([*spent, objective.value(*spent, reference)])
    return SettingScores(expected, within, charge, arm, limit, reference, default)
