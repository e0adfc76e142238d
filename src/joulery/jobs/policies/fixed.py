"""What policies share that keep to one setting per job and learn nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.jobs.policies.base import ActionKind, Actions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies.base import Outcomes
    from joulery.jobs.policies.counter_rng import CounterRng


@dataclass(frozen=True, slots=True)
class FixedSetting:
    """Where beliefs never change: one setting per lane.

    Attributes:
        arm: (lanes,).
        limit: (lanes,).
    """

    arm: NDArray[np.int64]
    limit: NDArray[np.int64]


class FixedPolicy:
    """Trains at the setting that it started with, without a ceiling."""

    __slots__ = ()

    def decide(
        self,
        beliefs: FixedSetting,
        rows: NDArray[np.int64],
        draws: CounterRng,  # noqa: ARG002 - nothing is left to chance
    ) -> Actions:
        """The setting."""
        return Actions(
            kind=np.full(len(rows), ActionKind.TRAIN),
            arm=beliefs.arm[rows],
            limit=beliefs.limit[rows],
            ceiling=np.full(len(rows), np.inf),
            why=np.zeros(len(rows), dtype=np.int64),
        )

    def begin(self, beliefs: FixedSetting, rows: NDArray[np.int64], actions: Actions) -> None:
        """Nothing to note."""

    def learn(self, beliefs: FixedSetting, outcomes: Outcomes) -> None:
        """Nothing to learn."""
