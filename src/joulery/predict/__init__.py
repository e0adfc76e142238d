"""Predict time, energy, power and memory of training on hardware that has not run it."""

from __future__ import annotations

from joulery.predict._bayes import Belief, population
from joulery.predict._devices import PRECISIONS, Device, device
from joulery.predict._kernels import (
    CONSTANTS,
    POWER_CONSTANTS,
    Kernels,
    joined,
    kernel_power,
    kernel_times,
    matmuls,
    streams,
)

__all__ = [
    "CONSTANTS",
    "POWER_CONSTANTS",
    "PRECISIONS",
    "Belief",
    "Device",
    "Kernels",
    "device",
    "joined",
    "kernel_power",
    "kernel_times",
    "matmuls",
    "population",
    "streams",
]
