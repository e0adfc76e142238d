"""Sweeps: the same work under one power limit after another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.sweep._journal import FinishedRun, SweepJournal, has_journal
    from joulery.sweep._plan import (
        SweepPlan,
        Trial,
        checked_limits,
        common_limits,
        limit_range,
        settable_boards,
        spread_limits,
    )
    from joulery.sweep._run import (
        CommandWork,
        SimulatedWork,
        SweepEnvironment,
        SweepWork,
        accepted_limits,
        run_sweep,
        seconds_left,
        sweep_power_limits,
    )
    from joulery.sweep._table import Best, Metric, SettingResult, SweepTable

__all__ = [
    "Best",
    "CommandWork",
    "FinishedRun",
    "Metric",
    "SettingResult",
    "SimulatedWork",
    "SweepEnvironment",
    "SweepJournal",
    "SweepPlan",
    "SweepTable",
    "SweepWork",
    "Trial",
    "accepted_limits",
    "checked_limits",
    "common_limits",
    "has_journal",
    "limit_range",
    "run_sweep",
    "seconds_left",
    "settable_boards",
    "spread_limits",
    "sweep_power_limits",
]

__getattr__ = lazy(__name__)
