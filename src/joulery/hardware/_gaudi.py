"""Intel Gaudi cards, through HLML, the management library of their driver.

HLML follows NVML: power and limits in milliwatts, a counter of millijoules since the driver was
loaded. Its binding ``pyhlml`` looks for the library in one place only and prints where it is
missing, so the library is tried first. Functions that its release or the card lacks are found out
by calling them: limits came with 1.19 to 1.22. No code of HLML says that a right is missing.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from joulery.clock import REAL_CLOCK, Clock
from joulery.errors import (
    DeviceError,
    DeviceLostError,
    JouleryError,
    MissingHardwareError,
    MissingRightsError,
    UnsupportedError,
)
from joulery.frontier import Origin, Provenance
from joulery.hardware._device import (
    DeviceInfo,
    DeviceKind,
    EnergyReading,
    Obstacle,
    PowerLimitRange,
    Survey,
    Telemetry,
    Throttle,
    attempt,
    device_text,
    working_capabilities,
)
from joulery.units import hertz_from_megahertz, joules_from_millijoules, watts_from_milliwatts

LIBRARY = "/usr/lib/habanalabs/libhlml.so"
# Present where the kernel driver is loaded.
DRIVER = Path("/sys/module/habanalabs")
# Status codes and constants of hlml.h.
_NOT_SUPPORTED = 3
_ALREADY_INITIALIZED = 5
_AIP_IS_LOST = 15
_TEMPERATURE_ON_AIP = 0
_THROTTLES = {1: Throttle.POWER_CAP, 2: Throttle.THERMAL}
# By hand: that of Intel's GPUs, as nobody has published a comparison.
_RELATIVE_ERROR = 0.1
# A limit that reads back within this is the one that was set.
_LIMIT_SLACK_WATTS = 1.0


class GaudiCard:
    """One card, by its handle in ``pyhlml``. What works on it is found out by trying it."""

    def __init__(self, binding: Any, handle: Any, index: int, clock: Clock = REAL_CLOCK) -> None:
        self.info = DeviceInfo(
            f"gaudi:{index}", f"Intel Gaudi {index}", DeviceKind.GPU, "gaudi", index
        )
        self.provenance = Provenance(Origin.MEASURED, "HLML energy counter", _RELATIVE_ERROR)
        self._binding, self._handle, self._clock = binding, handle, clock
        self.capabilities = working_capabilities(self)
        limits = attempt(self.power_limits)
        name = attempt(lambda: self._text("hlmlDeviceGetName"))
        uuid = attempt(lambda: self._text("hlmlDeviceGetUUID"))
        serial = attempt(lambda: self._text("hlmlDeviceGetSerial"))
        self.info = replace(
            self.info,
            id=uuid or serial or self.info.id,
            name=f"Intel Gaudi {name}" if name else self.info.name,
            max_watts=limits.max_watts if limits else None,
        )

    __repr__ = device_text

    def read_energy(self) -> EnergyReading:
        """Energy since the driver was loaded."""
        millijoules = self._number("hlmlDeviceGetTotalEnergyConsumption")
        return EnergyReading(joules_from_millijoules(millijoules), self._clock.now())

    def read_power(self) -> float:
        """Power of the card."""
        return watts_from_milliwatts(self._number("hlmlDeviceGetPowerUsage"))

    def power_limits(self) -> PowerLimitRange:
        """Range of limits, default and limit in force."""
        lowest, highest = self._call("hlmlDeviceGetPowerManagementLimitConstraints")
        default = self._number("hlmlDeviceGetPowerManagementDefaultLimit")
        current = self._number("hlmlDeviceGetPowerManagementLimit")
        return PowerLimitRange(*map(watts_from_milliwatts, (lowest, highest, default, current)))

    def set_power_limit(self, watts: float) -> None:
        """Set the limit, to the milliwatt, and read it back."""
        self.power_limits().check(watts, self.info.name)
        try:
            self._call("hlmlDeviceSetPowerManagementLimit", round(watts * 1e3))
        except DeviceLostError:
            raise
        except JouleryError as error:
            if os.geteuid() == 0:
                raise
            raise MissingRightsError(
                f"{self.info.name} refuses a limit: {error.message}",
                remedy="run as root, or through Joulery's governor",
            ) from None
        current_watts = self.power_limits().current_watts
        if abs(current_watts - watts) > _LIMIT_SLACK_WATTS:
            raise DeviceError(
                f"asked {self.info.name} for {watts:g} W, it holds {current_watts:g} W",
                remedy="try `hl-smi`; firmware in secure mode takes no limits",
            )

    def telemetry(self) -> Telemetry:
        """Present state of the card; None for what it does not report."""
        load = attempt(lambda: self._call("hlmlDeviceGetUtilizationRates"))
        percent = getattr(load, "aip", load)  # a plain number in early releases
        megahertz = attempt(lambda: self._number("hlmlDeviceGetClockInfo"))
        celsius = attempt(lambda: self._number("hlmlDeviceGetTemperature", _TEMPERATURE_ON_AIP))
        reasons = attempt(lambda: self._call("hlmlDeviceGetCurrentClocksThrottleReasons"))
        return Telemetry(
            utilisation=percent / 100 if percent is not None and percent <= 100 else None,
            temperature_celsius=float(celsius) if celsius and celsius < 150 else None,
            clock_hertz=hertz_from_megahertz(megahertz) if megahertz else None,
            throttles=None
            if reasons is None
            else frozenset(throttle for bit, throttle in _THROTTLES.items() if reasons & bit),
        )

    def _text(self, function: str) -> str:
        return str(self._call(function).decode("utf-8", "replace")).strip()

    def _number(self, function: str, *arguments: Any) -> int:
        """A number that no working card states as zero."""
        value = int(self._call(function, *arguments))
        if value == 0:
            raise UnsupportedError(
                f"{function} on {self.info.name} states 0", remedy="update the Gaudi software"
            )
        return value

    def _call(self, function: str, *arguments: Any) -> Any:
        return _call(self._binding, function, self._handle, *arguments)


def _load_binding(library: str) -> Any:
    """Import ``pyhlml``, which warns of itself, where its library loads."""
    if importlib.util.find_spec("pyhlml") is None:
        raise MissingHardwareError(
            "there is no pyhlml to ask them by", remedy="pip install 'joulery[gaudi]'"
        )
    try:
        ctypes.CDLL(library)
    except OSError as failure:
        raise MissingHardwareError(
            f"HLML does not load: {failure}",
            remedy="install the Gaudi software that hl-smi belongs to; mount it into containers",
        ) from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import pyhlml
    return pyhlml


def _call(binding: Any, function: str, *arguments: Any) -> Any:
    """Call a function of the binding by name, with its failures as Joulery's errors."""
    call = getattr(binding, function, None)
    if call is None:
        raise UnsupportedError(
            f"this pyhlml has no {function}", remedy="pip install --upgrade habana-pyhlml"
        )
    try:
        return call(*arguments)
    except binding.HLMLError as failure:
        raise _error(failure, function) from None


def _error(failure: Any, function: str) -> JouleryError:
    """The error that an exception of the binding stands for; its class is named by the code."""
    reason = type(failure).__name__.removeprefix("HLMLError_")
    message = f"{function}: {reason} (HLML code {failure.value:d})"
    if failure.value == _AIP_IS_LOST:
        return DeviceLostError(message, remedy="see `dmesg`; reset the card by `hl-smi -r`")
    if failure.value == _NOT_SUPPORTED:
        return UnsupportedError(message, remedy="not on this card with this driver")
    return DeviceError(message, remedy="try again; see `hl-smi`")


def survey(clock: Clock = REAL_CLOCK, driver: Path = DRIVER, library: str = LIBRARY) -> Survey:
    """The cards of this machine by module, or the obstacle where some are present but unusable.

    Args:
        clock: Clock of the readings' times.
        driver: Folder of the kernel driver, present where there is a card.
        library: HLML, where the binding looks for it.
    """
    try:
        binding = _load_binding(library)
        _initialise(binding)
        count = _call(binding, "hlmlDeviceGetCount")
    except JouleryError as error:
        unusable = (Obstacle.from_error("Gaudi cards", error),) if driver.exists() else ()
        return Survey(obstacles=unusable)
    cards: list[GaudiCard] = []
    obstacles: list[Obstacle] = []
    for number, index in enumerate(_modules(binding, count)):
        try:
            handle = _call(binding, "hlmlDeviceGetHandleByIndex", number)
            card = GaudiCard(binding, handle, index, clock)
            if not card.capabilities:
                card.read_power()  # says why
            cards.append(card)
        except JouleryError as error:
            obstacles.append(Obstacle.from_error(f"Gaudi card {index}", error))
    return Survey(tuple(sorted(cards, key=lambda card: card.info.index)), tuple(obstacles))


def _initialise(binding: Any) -> None:
    try:
        binding.hlmlInit()
    except binding.HLMLError as failure:
        if failure.value != _ALREADY_INITIALIZED:
            raise _error(failure, "hlmlInit") from None


def _modules(binding: Any, count: int) -> list[int]:
    """Module of each card, by which run-times count them; positions may change with each start.

    A card that states none, such as a lost one, gets a free number and leaves the others theirs.
    """
    modules = [attempt(partial(_module, binding, number)) for number in range(count)]
    stated = [module for module in modules if module is not None]
    if len(set(stated)) < len(stated):
        return list(range(count))
    free = (number for number in range(count) if number not in stated)
    return [next(free) if module is None else module for module in modules]


def _module(binding: Any, number: int) -> int:
    handle = _call(binding, "hlmlDeviceGetHandleByIndex", number)
    return int(_call(binding, "hlmlDeviceGetModuleID", handle))
