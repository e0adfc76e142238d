"""Policies that keep to one setting per job and learn nothing: ``default`` and ``oracle``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import InvalidValueError
from joulery.jobs.policies._base import ActionKind, Actions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies._base import Outcomes
    from joulery.jobs.policies._counter_rng import CounterRng
    from joulery.jobs.policies._job_batch import JobBatch


@dataclass(frozen=True, slots=True)
class FixedSetting:
    """Beliefs that never change.

    Attributes:
        arm: (jobs,), batch size to train.
        limit: (jobs,), power limit to hold.
    """

    arm: NDArray[np.int64]
    limit: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DefaultPolicy:
    """No change: the default batch size at the highest power limit, without a ceiling."""

    name = "default"
    version = 1
    reasons = ("the default",)

    def start(self, jobs: JobBatch) -> FixedSetting:
        """The default setting of each job."""
        limits = np.isfinite(jobs.limits_watts).sum(axis=1)
        # Where limits are left alone, the only limit is an unknown one, at index 0.
        return FixedSetting(jobs.default, np.maximum(limits - 1, 0))

    def decide(
        self,
        beliefs: FixedSetting,
        rows: NDArray[np.int64],
        rng: CounterRng,  # noqa: ARG002 - nothing is left to chance
    ) -> Actions:
        """The setting of each job."""
        return Actions(
            kind=np.full(len(rows), ActionKind.TRAIN),
            arm=beliefs.arm[rows],
            limit=beliefs.limit[rows],
            ceiling=np.full(len(rows), np.inf),
            reason=np.zeros(len(rows), dtype=np.int64),
        )

    def begin(self, beliefs: FixedSetting, rows: NDArray[np.int64], actions: Actions) -> None:
        """Change nothing."""

    def learn(self, beliefs: FixedSetting, outcomes: Outcomes) -> None:
        """Learn nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class OraclePolicy(DefaultPolicy):
    """The best fixed setting of each job instead, found beforehand from its traces.

    Attributes:
        arm: (jobs,), the best batch size of each job.
        limit: (jobs,), the best power limit.
    """

    arm: NDArray[np.int64]
    limit: NDArray[np.int64]

    name = "oracle"
    reasons = ("the best fixed setting",)

    def start(self, jobs: JobBatch) -> FixedSetting:
        """The settings that were given.

        Raises:
            InvalidValueError: There are not as many settings as jobs.
        """
        if len(self.arm) != len(jobs):
            raise InvalidValueError(
                f"the oracle has settings of {len(self.arm)} jobs, not of {len(jobs)}",
                remedy="make one for these workloads and seeds",
            )
        return FixedSetting(self.arm, self.limit)
