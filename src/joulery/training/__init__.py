"""Meter, tuner and recurring decisions in a user's training loop, into which they never raise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.training._callbacks import CallbackLoop, Sink
    from joulery.training._config import DRY_RUN_VARIABLE, OBJECTIVE_VARIABLE, DecisionService
    from joulery.training._run import Run
    from joulery.training._tuning import REPORTS_VARIABLE, read_reports

__all__ = [
    "DRY_RUN_VARIABLE",
    "OBJECTIVE_VARIABLE",
    "REPORTS_VARIABLE",
    "CallbackLoop",
    "DecisionService",
    "Run",
    "Sink",
    "read_reports",
]

__getattr__ = lazy(__name__)
