"""Spend fewer joules per trained model.

>>> import joulery
>>> meter = joulery.Meter()                   # doctest: +SKIP
>>> with meter.window("epoch") as window:     # doctest: +SKIP
...     train_one_epoch()
>>> window.joules                             # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from joulery.errors import JouleryError
    from joulery.frontier import Frontier, OperatingPoint, Provenance, Setting
    from joulery.hardware import discover
    from joulery.metering.measurement import Measurement
    from joulery.metering.meter import Meter
    from joulery.objectives import choose
    from joulery.training.run import Run

__version__ = "0.1.0"

__all__ = [
    "Frontier",
    "JouleryError",
    "Measurement",
    "Meter",
    "OperatingPoint",
    "Provenance",
    "Run",
    "Setting",
    "choose",
    "discover",
]

# Where each name lives; imported on first use, so that `import joulery` costs next to nothing.
_HOMES = {
    "Frontier": "frontier",
    "JouleryError": "errors",
    "Measurement": "metering.measurement",
    "Meter": "metering.meter",
    "OperatingPoint": "frontier",
    "Provenance": "frontier",
    "Run": "training.run",
    "Setting": "frontier",
    "choose": "objectives",
    "discover": "hardware",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'joulery' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"joulery.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
