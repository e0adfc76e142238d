"""What a tuning machine is told, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """What the tuner is doing."""

    WARMUP = "warmup"
    PROBING = "probing"
    HOLDING = "holding"
    DRIFTED = "drifted"
    STOPPED = "stopped"


class TuningEvent(StrEnum):
    """Why a reading was taken."""

    STEP = "step"
    PAUSED = "paused"
    RESUMED = "resumed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Reading:
    """What the machine is told.

    Attributes:
        now_seconds: On a monotonic clock.
        joules: Used so far by all devices of the job.
        sigma_joules: One sigma of where exactly the counter stands now.
        steps: Done so far.
        event: Why now.
    """

    now_seconds: float
    joules: float
    sigma_joules: float
    steps: int
    event: TuningEvent = TuningEvent.STEP


@dataclass(frozen=True, slots=True)
class Command:
    """What the machine wants.

    Attributes:
        position: Where the knob should be.
        steps: Steps until the next reading.
        state: What it is doing.
    """

    position: int
    steps: int
    state: State
