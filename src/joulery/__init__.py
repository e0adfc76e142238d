"""Train and serve models with less energy.

- ``Run``: a training that is measured, and held at the power limit that an objective asks for.
- ``Meter``: the energy of any piece of code.
- ``predict`` and ``recommend``: time, energy and hardware of a training before it runs.
- ``plan_pipeline``: clocks of a pipeline-parallel training.
- ``Frontier`` and ``choose``: what these return, and how an objective picks from it.
- ``discover``: devices of this machine.

Framework callbacks are in ``joulery.integrations``, services in ``joulery.serving``.

Examples:
    >>> import joulery
    >>> meter = joulery.Meter()                   # doctest: +SKIP
    >>> with meter.window("epoch") as window:     # doctest: +SKIP
    ...     train_one_epoch()
    >>> window.joules                             # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.errors import JouleryError as JouleryError
    from joulery.frontier import (
        Frontier as Frontier,
        OperatingPoint as OperatingPoint,
        Provenance as Provenance,
        Setting as Setting,
    )
    from joulery.hardware import discover as discover
    from joulery.metering import Measurement as Measurement, Meter as Meter
    from joulery.objectives import (
        Cost as Cost,
        EnergyDelayProduct as EnergyDelayProduct,
        EnergyDelaySum as EnergyDelaySum,
        FastestWithin as FastestWithin,
        LeastCarbon as LeastCarbon,
        LeastEnergy as LeastEnergy,
        LeastMoney as LeastMoney,
        choose as choose,
        parse_objective as parse_objective,
    )
    from joulery.pipeline import plan_pipeline as plan_pipeline
    from joulery.prediction import predict as predict, recommend as recommend
    from joulery.training import Run as Run

__version__ = "0.1.0"


__getattr__, __dir__ = lazy(__name__)
