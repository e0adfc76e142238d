"""The policy ``oracle``: knows the best fixed setting of each job from the start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.errors import InvalidValueError
from joulery.recurring.default import FixedSetting

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from joulery.recurring.draws import Draws
    from joulery.recurring.lanes import Lanes
    from joulery.recurring.policy import Actions, Outcomes


@dataclass(frozen=True, slots=True, eq=False)
class Oracle:
    """Trains at a setting that somebody who knows the traces has found.

    Attributes:
        arm: (lanes,), the best batch size of each lane.
        limit: (lanes,), the best power limit.
    """

    arm: NDArray[np.int64]
    limit: NDArray[np.int64]

    name = "oracle"
    reasons = ("the best there is",)

    def start(self, lanes: Lanes) -> FixedSetting:
        """The settings that it was told.

        Raises:
            InvalidValueError: It was told of other lanes.
        """
        if len(self.arm) != len(lanes):
            raise InvalidValueError(
                f"the oracle knows {len(self.arm)} lanes, not {len(lanes)}",
                remedy="make one for these workloads and seeds",
            )
        return FixedSetting(self.arm, self.limit)

    def decide(
        self,
        beliefs: FixedSetting,
        rows: NDArray[np.int64],
        draws: Draws,  # noqa: ARG002 - nothing is left to chance
    ) -> Actions:
        """The best."""
        return beliefs.actions(rows)

    def begin(self, beliefs: FixedSetting, rows: NDArray[np.int64], actions: Actions) -> None:
        """Nothing to note."""

    def learn(self, beliefs: FixedSetting, outcomes: Outcomes) -> None:
        """Nothing to learn."""
