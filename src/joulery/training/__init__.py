"""Meter, tuner and recurring decisions in a user's training loop, into which they never raise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.training._callbacks import (
        CallbackLoop as CallbackLoop,
        Sink as Sink,
        callback_text as callback_text,
    )
    from joulery.training._config import (
        DEFAULT_OBJECTIVE as DEFAULT_OBJECTIVE,
        DRY_RUN_VARIABLE as DRY_RUN_VARIABLE,
        KNOB_VARIABLE as KNOB_VARIABLE,
        OBJECTIVE_VARIABLE as OBJECTIVE_VARIABLE,
        STEPS_VARIABLE as STEPS_VARIABLE,
        DecisionService as DecisionService,
    )
    from joulery.training._live import LiveReader as LiveReader
    from joulery.training._run import Run as Run
    from joulery.training._run_log import (
        RunLog as RunLog,
        RunState as RunState,
    )
    from joulery.training._tuning import (
        REPORTS_VARIABLE as REPORTS_VARIABLE,
        read_reports as read_reports,
    )


__getattr__, __dir__ = lazy(__name__)
