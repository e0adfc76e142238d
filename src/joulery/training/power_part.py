"""The power part of a run: its tuner, made at the first step, and what is told of it.

Fails open: whatever goes wrong in here, the training goes on without tuning.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from joulery.training.reports import write_report

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.power.result import TuningResult
    from joulery.power.tuner import PowerTuner
    from joulery.training.attempt import AttemptPower
    from joulery.training.environment import RunEnvironment
    from joulery.training.tuning import Wishes

_log = logging.getLogger("joulery")


class PowerPart:
    """Tunes the power of a run, if that can be done.

    Args:
        name: Of the run.
        site: Where it runs.

    Attributes:
        tuner: At work; None before :meth:`begin`, and where nothing is tuned.
    """

    def __init__(self, name: str, site: RunEnvironment) -> None:
        self.tuner: PowerTuner | None = None
        self._name = name
        self._site = site
        self._why_not: str | None = None

    def begin(self, wishes: Callable[[], Wishes]) -> AttemptPower | None:
        """Make the tuner; what is known of the limit then."""
        power: AttemptPower | None = None
        # The edge to somebody's training: whatever goes wrong in here must not end it.
        try:
            from joulery.training.tuning import tuned

            self.tuner, power, self._why_not = tuned(self._site, wishes())
        except Exception as error:  # noqa: BLE001 - the fail-open guard
            self._why_not = str(error)
        if self.tuner is None:
            _log.warning("power is not tuned, training goes on: %s", self._why_not)
        return power

    def resume(self) -> None:
        """Training follows."""
        if self.tuner is not None:
            self.tuner.resume()

    def pause(self) -> None:
        """What follows is no training."""
        if self.tuner is not None:
            self.tuner.pause()

    def close(self, steps: int) -> None:
        """Give the limit back, and tell what was found in ``steps`` steps."""
        if self.tuner is not None:
            self.tuner.close()
            self.tell(steps)

    def renew(self, steps: int) -> None:
        """Make ready for another tuner."""
        self.close(steps)
        self.tuner = None

    @property
    def result(self) -> TuningResult | None:
        """What was found out; None before the choice is made, or without tuning."""
        return None if self.tuner is None else self.tuner.result

    @property
    def why_not(self) -> str | None:
        """Why the power is not tuned; None while it is."""
        if self.tuner is not None and self.tuner.failure is not None:
            return str(self.tuner.failure)
        return self._why_not

    def tell(self, steps: int) -> None:
        """Tell ``joulery run``, if it is there."""
        try:
            write_report(self._told(steps))
        except Exception as error:  # noqa: BLE001 - the fail-open guard
            _log.warning("no report on this run: %s", error)

    def _told(self, steps: int) -> dict[str, Any]:
        result = self.result
        return {
            "name": self._name,
            "steps": steps,
            "why_not": self.why_not,
            "result": None if result is None else result.to_dict(),
            "summary": None if result is None else str(result),
        }
