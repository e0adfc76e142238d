"""A recurring job as traces know it: epochs to the target per run, time and power per setting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import InvalidValueError
from joulery.jobs.job import Job
from joulery.objectives import Cost

if TYPE_CHECKING:
    from joulery.jobs.policies.counter_rng import Floats


@dataclass(frozen=True, slots=True, eq=False)
class TracedWorkload:
    """What is known about training one model on one GPU type, at every setting that was tried.

    Attributes:
        gpu: Type of board, as its trace is named.
        dataset: What is trained on; with a trace of one's own, the job's name.
        network: The model.
        optimizer: Of the training.
        batch_sizes: That have both training runs and power data, ascending.
        epochs: (arms, runs), to reach the target; NaN where a run did not, within ``max_epochs``.
        runs: (arms,), how many of the columns of ``epochs`` are runs of that batch size.
        limits_watts: (limits,), ascending.
        epoch_seconds: (arms, limits), NaN where not known.
        watts: (arms, limits), likewise.
        default: Batch size that the owner would run.
        target: Validation metric to reach, NaN where the trace states epochs only.
        max_epochs: After which a run gives up.
        max_watts: Highest power limit of the board, which weighs time in the cost.
        filled: How many settings were not measured but taken from neighbouring limits.
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
        """Position of the default batch size."""
        return self.batch_sizes.index(self.default)

    @property
    def epoch_joules(self) -> Floats:
        """(arms, limits), NaN where not measured."""
        return self.epoch_seconds * self.watts

    def job(self, eta: float = 0.5) -> Job:
        """What a policy is told about this workload."""
        return Job(
            name=f"{self.gpu}/{self.dataset}",
            batch_sizes=self.batch_sizes,
            default=self.default,
            cost=Cost(eta, self.max_watts),
            max_epochs=self.max_epochs,
            limits_watts=tuple(self.limits_watts.tolist()),
        )

    def epoch_cost(self, eta: float = 0.5) -> Floats:
        """(arms, limits), in joules; NaN where not measured."""
        return (eta * self.watts + (1 - eta) * self.max_watts) * self.epoch_seconds

    def mean_epochs(self, epochs: Floats | None = None) -> Floats:
        """(arms,), expected epochs until one run reaches the target, failed runs repeated.

        Args:
            epochs: Instead of the workload's own, where they have drifted.
        """
        samples = self.epochs if epochs is None else epochs
        is_run = np.arange(samples.shape[1]) < self.runs[:, None]
        reached = np.isfinite(samples) & (samples <= self.max_epochs)
        paid = np.where(is_run, np.where(reached, samples, self.max_epochs), 0.0).sum(axis=1)
        successes = reached.sum(axis=1)
        return np.where(successes > 0, paid / np.maximum(successes, 1), np.inf)

    def expected_cost(self, eta: float = 0.5, epochs: Floats | None = None) -> Floats:
        """(arms, limits), of one recurrence in joules; infinite where the target is out of reach.

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
