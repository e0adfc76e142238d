"""A recurring job as traces describe it, and the score of each of its fixed settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import InfeasibleError, InvalidValueError
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
        target: Validation metric to reach, NaN where the trace states epochs only.
        max_epochs: Number of epochs after which a run gives up.
        max_watts: Highest power limit of the GPU, which weighs time in the cost.
        filled: Number of settings that were not measured but interpolated between limits.
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
    target: float
    max_epochs: int
    max_watts: float
    filled: int = 0

    def __post_init__(self) -> None:
        if not np.isfinite(self.epochs[self.batch_sizes.index(self.default)]).any():
            raise InvalidValueError(
                f"{self}: the default batch size {self.default} never reaches the target",
                remedy="choose another default, target or max_epochs in workloads.csv",
            )

    def __str__(self) -> str:
        return f"{self.dataset} on {self.gpu}"

    @property
    def model(self) -> str:
        """Dataset, network and optimizer, as far as the trace names them."""
        return "/".join(filter(None, (self.dataset, self.network, self.optimizer)))

    @property
    def default_arm(self) -> int:
        """Index of the default batch size."""
        return self.batch_sizes.index(self.default)

    @property
    def epoch_joules(self) -> Floats:
        """(arms, limits), energy of an epoch; NaN where not measured."""
        return self.epoch_seconds * self.watts

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

    def mean_epochs(self, epochs: Floats | None = None) -> Floats:
        """(arms,), expected epochs until one run reaches the target, failed runs repeated.

        Args:
            epochs: Epochs to use instead of the workload's own, where they have drifted.
        """
        samples = self.epochs if epochs is None else epochs
        is_run = np.arange(samples.shape[1]) < self.runs[:, None]
        reached = np.isfinite(samples) & (samples <= self.max_epochs)
        paid = np.where(is_run, np.where(reached, samples, self.max_epochs), 0.0).sum(axis=1)
        successes = reached.sum(axis=1)
        return np.where(successes > 0, paid / np.maximum(successes, 1), np.inf)

    def expected_cost(self, eta: float = 0.5, epochs: Floats | None = None) -> Floats:
        """(arms, limits), cost of one recurrence in joules; infinite where it never ends.

        NaN where a limit was not measured.
        """
        return np.asarray(self.mean_epochs(epochs)[:, None] * self.epoch_cost(eta))

    def optimum(self, eta: float = 0.5, epochs: Floats | None = None) -> tuple[int, int, float]:
        """Arm, limit and expected cost in joules of the best fixed setting."""
        cost = self.expected_cost(eta, epochs)
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
        within: (arms, limits), whether it keeps the bounds, within :data:`TOLERANCE`.
        charge: (arms, limits), factor that takes back what a setting saves by breaking a bound, by
            however little: else it could beat the best setting that keeps them. 1 for all others.
        arm: Batch size of the best setting.
        limit: Power limit of the best setting.
        reference: Fastest setting, which ratios refer to.
    """

    expected: Floats
    within: NDArray[np.bool_]
    charge: Floats
    arm: int
    limit: int
    reference: Totals

    @property
    def optimal(self) -> float:
        """Cost or value of the best setting."""
        return float(self.expected[self.arm, self.limit])


def score_settings(
    load: TracedWorkload, eta: float, objective: Objective | None, epochs: Floats | None = None
) -> SettingScores:
    """Score every setting by the cost with ``eta``, or by ``objective`` where one is given.

    Args:
        load: Workload whose settings are scored.
        eta: Weight of energy in the cost.
        objective: Objective instead of the cost; None for the cost.
        epochs: Epochs to use instead of the workload's own, where they have drifted.

    Raises:
        InfeasibleError: No setting meets the objective's bounds.
    """
    mean = load.mean_epochs(epochs)[:, None]
    seconds, joules = mean * load.epoch_seconds, mean * load.epoch_joules
    known = np.isfinite(seconds) & np.isfinite(joules)
    fastest = np.where(known, seconds, np.inf).argmin()
    reference = Totals(float(seconds.flat[fastest]), float(joules.flat[fastest]))
    if objective is None:
        arm, limit, _ = load.optimum(eta, epochs)
        cost = load.expected_cost(eta, epochs)
        return SettingScores(cost, known, np.ones(cost.shape), arm, limit, reference)
    finite = np.where(known, seconds, 1.0), np.where(known, joules, 1.0)
    exact = np.where(known, score(objective, *finite, reference), np.inf)
    best = int(exact.argmin())
    if not np.isfinite(exact.flat[best]):
        raise InfeasibleError(
            f"{load}: no setting meets {objective}",
            remedy=f"the fastest is expected to take {reference.seconds:g} s; widen the bound",
        )
    overshoot = objective.bounds.overshoot(*finite, reference)
    value = objective.value(*finite, reference)
    expected = np.where(known, value, seconds)
    charge = np.where(np.isfinite(exact), 1.0, np.maximum(1.0, exact.flat[best] / value))
    arm, limit = divmod(best, seconds.shape[1])
    within = known & (overshoot <= 1 + TOLERANCE)
    return SettingScores(expected, within, charge, arm, limit, reference)
