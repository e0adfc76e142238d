"""The policy ``default``: what the owner would run, at the highest power limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.recurring.policy import Actions, Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.recurring.draws import Draws
    from joulery.recurring.lanes import Lanes
    from joulery.recurring.policy import Outcomes


@dataclass(frozen=True, slots=True)
class FixedSetting:
    """Where beliefs never change: one setting per lane.

    Attributes:
        arm: (lanes,).
        limit: (lanes,).
    """

    arm: NDArray[np.int64]
    limit: NDArray[np.int64]

    def actions(self, rows: NDArray[np.int64]) -> Actions:
        """Train at the setting, without a ceiling."""
        return Actions(
            kind=np.full(len(rows), Kind.TRAIN),
            arm=self.arm[rows],
            limit=self.limit[rows],
            ceiling=np.full(len(rows), np.inf),
            why=np.zeros(len(rows), dtype=np.int64),
        )


@dataclass(frozen=True, slots=True)
class Default:
    """No change: the default batch size at the highest power limit."""

    name = "default"
    reasons = ("the default",)

    def start(self, lanes: Lanes) -> FixedSetting:
        """The setting of each lane."""
        limits = np.isfinite(lanes.limits_watts).sum(axis=1)
        # Where limits are left alone, there is one place for them, and it is unknown.
        return FixedSetting(lanes.default, np.maximum(limits - 1, 0))

    def decide(
        self,
        beliefs: FixedSetting,
        rows: NDArray[np.int64],
        draws: Draws,  # noqa: ARG002 - nothing is left to chance
    ) -> Actions:
        """The default."""
        return beliefs.actions(rows)

    def begin(self, beliefs: FixedSetting, rows: NDArray[np.int64], actions: Actions) -> None:
        """Nothing to note."""

    def learn(self, beliefs: FixedSetting, outcomes: Outcomes) -> None:
        """Nothing to learn."""
