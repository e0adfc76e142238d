"""Sweeps: the same work under one power limit after another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.sweep._journal import (
        FinishedRun as FinishedRun,
        SweepJournal as SweepJournal,
        has_journal as has_journal,
    )
    from joulery.sweep._plan import (
        SweepPlan as SweepPlan,
        Trial as Trial,
        checked_limits as checked_limits,
        common_limits as common_limits,
        limit_range as limit_range,
        settable_boards as settable_boards,
        spread_limits as spread_limits,
    )
    from joulery.sweep._run import (
        CommandWork as CommandWork,
        SimulatedWork as SimulatedWork,
        SweepEnvironment as SweepEnvironment,
        SweepWork as SweepWork,
        accepted_limits as accepted_limits,
        run_sweep as run_sweep,
        seconds_left as seconds_left,
        sweep_power_limits as sweep_power_limits,
    )
    from joulery.sweep._table import (
        Best as Best,
        Metric as Metric,
        SettingResult as SettingResult,
        SweepTable as SweepTable,
    )


__getattr__, __dir__ = lazy(__name__)
