"""Choose the power limit or clock of a running job while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.power._inference import InferenceTuner, Slo
    from joulery.power._knobs import BothKnobs, ClockKnob, LimitKnob, LimitPlan
    from joulery.power._model import limit_curves
    from joulery.power._profiles import PowerProfile, ProfileFile
    from joulery.power._ranks import ProcessGroup
    from joulery.power._state_machine import KnobRange, TuningMachine
    from joulery.power._step_period import ObservedSteps, PowerObserver
    from joulery.power._step_profiler import Estimate, Reading, TunerConfig, TunerState
    from joulery.power._tuner import PowerTuner, TuningResult, weighed_cost

__all__ = [
    "BothKnobs",
    "ClockKnob",
    "Estimate",
    "InferenceTuner",
    "KnobRange",
    "LimitKnob",
    "LimitPlan",
    "ObservedSteps",
    "PowerObserver",
    "PowerProfile",
    "PowerTuner",
    "ProcessGroup",
    "ProfileFile",
    "Reading",
    "Slo",
    "TunerConfig",
    "TunerState",
    "TuningMachine",
    "TuningResult",
    "limit_curves",
    "weighed_cost",
]

__getattr__ = lazy(__name__)
