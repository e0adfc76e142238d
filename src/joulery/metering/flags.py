"""What can go wrong with a counter while it is being measured."""

from __future__ import annotations

from enum import StrEnum


class Flag(StrEnum):
    """An event during a window. The energy was repaired and its error bar widened."""

    RESET = "counter reset"
    WRAPPED = "counter wrapped"
    FROZEN = "counter frozen"
    JUMPED = "implausible jump"
    READ_ERROR = "read error"
    GAP = "gap between power samples"
    LOST = "device lost"
    UNREADABLE = "never readable"
    CLOCK_STEPPED = "wall clock stepped"
    NEVER_BEGUN = "window was not open"
