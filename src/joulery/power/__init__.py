"""Choose the power limit or clock of a running job while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.power._knobs import (
        BothKnobs as BothKnobs,
        ClockKnob as ClockKnob,
        Knob as Knob,
        LimitKnob as LimitKnob,
        LimitPlan as LimitPlan,
    )
    from joulery.power._model import limit_curves as limit_curves
    from joulery.power._phases import PhaseTuner as PhaseTuner, PhaseUse as PhaseUse
    from joulery.power._profiles import PowerProfile as PowerProfile, ProfileFile as ProfileFile
    from joulery.power._ranks import (
        ProcessGroup as ProcessGroup,
        check_process_group as check_process_group,
    )
    from joulery.power._state_machine import KnobRange as KnobRange, TuningMachine as TuningMachine
    from joulery.power._step_period import (
        ObservedSteps as ObservedSteps,
        PowerObserver as PowerObserver,
    )
    from joulery.power._step_profiler import (
        Estimate as Estimate,
        Reading as Reading,
        TunerConfig as TunerConfig,
        TunerState as TunerState,
    )
    from joulery.power._tuner import (
        PowerTuner as PowerTuner,
        TuningResult as TuningResult,
        weighed_cost as weighed_cost,
    )
    from joulery.power._unequal import UnequalBoards as UnequalBoards


__getattr__, __dir__ = lazy(__name__)
