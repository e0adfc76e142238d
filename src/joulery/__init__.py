"""Spend fewer joules per trained model.

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
    from joulery.errors import JouleryError
    from joulery.frontier import Frontier, OperatingPoint, Provenance, Setting
    from joulery.hardware import discover
    from joulery.metering import Measurement, Meter
    from joulery.objectives import (
        Cost,
        EnergyDelayProduct,
        EnergyDelaySum,
        FastestWithin,
        LeastCarbon,
        LeastEnergy,
        LeastMoney,
        choose,
        parse_objective,
    )
    from joulery.pipeline import plan_pipeline
    from joulery.predict import recommend
    from joulery.training import Run

__version__ = "0.1.0"

__all__ = [
    "Cost",
    "EnergyDelayProduct",
    "EnergyDelaySum",
    "FastestWithin",
    "Frontier",
    "JouleryError",
    "LeastCarbon",
    "LeastEnergy",
    "LeastMoney",
    "Measurement",
    "Meter",
    "OperatingPoint",
    "Provenance",
    "Run",
    "Setting",
    "choose",
    "discover",
    "parse_objective",
    "plan_pipeline",
    "recommend",
]

_api = lazy(__name__)


def __getattr__(name: str) -> object:
    if name == "predict":  # a room that can be called like its function
        from importlib import import_module

        return import_module("joulery.predict")
    return _api(name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
