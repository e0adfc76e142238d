"""How the tuner goes about it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rules:
    """How the tuner goes about it.

    Attributes:
        horizon_seconds: How long the job will run at least, as far as one can guess.
        horizon_steps: How many steps it will do at least.
        tolerance: Expected relative regret that is good enough.
        settle_seconds: Time after a change of the knob that is not measured.
        stretch_seconds: Shortest stretch worth an energy reading; several counter refreshes.
        hold_seconds: Length of a stretch while holding.
        most_slices: Slices after which the best guess must do.
        longest_slice_seconds: No slice is longer, unless it has few steps.
        observe_only: Go back to the reference when done.
        watch_drift: Profile again when the job changes.
        work_steps: Steps of the work that deadlines and budgets refer to.
    """

    horizon_seconds: float = 900.0
    horizon_steps: int = 10_000
    tolerance: float = 0.0005
    settle_seconds: float = 0.1
    stretch_seconds: float = 0.15
    hold_seconds: float = 4.0
    most_slices: int = 60
    longest_slice_seconds: float = 20.0
    observe_only: bool = False
    watch_drift: bool = True
    work_steps: float = 1.0
