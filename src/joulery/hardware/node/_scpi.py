"""Whole-node wattmeters of the Yokogawa WT300 family, over SCPI through PyVISA.

The commands are those of the WT300/WT300E communication manual (IM WT310E-17EN): active power is
the numeric item ``P``. A WT310E updates every 100 ms to 20 s as set on its panel and is accurate to
0.1 % of reading + 0.05 % of range.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from joulery.errors import DeviceError, JouleryError, MissingExtraError, UnsupportedError
from joulery.frontier import Origin, Provenance
from joulery.hardware._device import Capability, DeviceInfo, DeviceKind

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUT_SECONDS = 3.0  # by hand: instruments answer within a second

# 0.1 % of reading + 0.05 % of range (at 50/60 Hz), read at a third of the range.
_RELATIVE_ERROR = 0.0025
# SCPI's stand-ins for "over range" and "not a number" where a meter does not spell them out.
_SENTINEL = 9.9e37


class WattMeter:
    """One wattmeter at the node's plug."""

    capabilities = frozenset({Capability.POWER})

    def __init__(self, session: VisaSession, maker: str, model: str, serial: str) -> None:
        name = f"{maker.title()} {model}"
        self.info = DeviceInfo(f"scpi:{model}:{serial}", name, DeviceKind.NODE, "scpi")
        self.provenance = Provenance(Origin.MEASURED, f"{model} wattmeter", _RELATIVE_ERROR)
        self._session = session

    def read_power(self) -> float:
        """Watts at the plug, as of the meter's last update."""
        reply = self._session.query(":NUMERIC:NORMAL:VALUE?")
        try:
            watts = float(reply)
        except ValueError:
            raise DeviceError(
                f"expected a number from the meter, got {reply!r}",
                remedy="check that no other program changes the meter's output items",
            ) from None
        if not abs(watts) < _SENTINEL:
            raise DeviceError(
                f"{self.info.name} shows no power (over range or no data)",
                remedy="set the meter's ranges to automatic",
            )
        if watts < 0:
            raise DeviceError(
                f"{self.info.name} states {watts:g} W",
                remedy="swap the current terminals: the meter sees the node as a source",
            )
        return watts

    def close(self) -> None:
        """End the session; the meter keeps running."""
        self._session.close()


def open_meter(resource: str, connect: Callable[[str], VisaSession] | None = None) -> WattMeter:
    """Connect to a wattmeter, such as ``TCPIP0::192.0.2.7::INSTR``, and select what it reports."""
    session = (connect or connect_visa)(resource)
    try:
        return _set_up(session, resource)
    except JouleryError:
        session.close()
        raise


def _set_up(session: VisaSession, resource: str) -> WattMeter:
    # Such as YOKOGAWA,WT310E,C2QG12345V,F1.04.
    reply = session.query("*IDN?")
    maker, model, serial = ([part.strip() for part in reply.split(",")] + [""] * 3)[:3]
    kind = model.upper()
    if not kind.startswith("WT3"):
        raise UnsupportedError(
            f"{resource} is not a WT300-family wattmeter, but {reply!r}",
            remedy="check the VISA resource; add other instruments as plug-in devices",
        )
    # On meters of several phases the sum over them is the node's power.
    element = "SIGMA" if kind.startswith(("WT332", "WT333", "WT330")) else "1"
    # Only the layout of replies on this connection; measuring ranges and panel stay as found.
    session.write(":COMMUNICATE:HEADER OFF")
    session.write(":NUMERIC:FORMAT ASCII")
    session.write(":NUMERIC:NORMAL:NUMBER 1")
    session.write(f":NUMERIC:NORMAL:ITEM1 P,{element}")
    return WattMeter(session, maker, model, serial)


class VisaSession:
    """A PyVISA resource, for any thread, whose failures are Joulery's errors."""

    def __init__(self, resource: Any, name: str, failures: tuple[type[Exception], ...]) -> None:
        self._resource = resource
        self._name = name
        self._failures = failures
        # A query is a write and a read; the pairs of two threads must not interleave.
        self._lock = threading.Lock()

    def query(self, command: str) -> str:
        """Send a command and return the reply without its line end."""
        return str(self._done(self._resource.query, command)).strip()

    def write(self, command: str) -> None:
        """Send a command that has no reply."""
        self._done(self._resource.write, command)

    def close(self) -> None:
        """End the session."""
        self._resource.close()

    def _done(self, call: Callable[[str], object], command: str) -> object:
        try:
            with self._lock:
                return call(command)
        except self._failures as failure:
            raise DeviceError(
                f"{self._name} failed at {command!r}: {_reason(failure)}",
                remedy="check that the meter is on and the network up",
            ) from None


def _reason(failure: Exception) -> str:
    return str(failure).partition("\n")[0] or type(failure).__name__


def connect_visa(resource: str, library: str = "") -> VisaSession:
    """Open a VISA resource; ``library`` is PyVISA's backend, empty for its own choice."""
    try:
        import pyvisa
    except ImportError:
        raise MissingExtraError(
            "PyVISA is not installed", remedy="pip install 'joulery[instruments]'"
        ) from None
    failures = (pyvisa.errors.Error, OSError)
    try:
        session: Any = pyvisa.ResourceManager(library).open_resource(
            resource,
            open_timeout=int(TIMEOUT_SECONDS * 1e3),
            read_termination="\n",
            write_termination="\n",
            timeout=int(TIMEOUT_SECONDS * 1e3),
        )
    except (*failures, ValueError) as failure:
        raise DeviceError(
            f"cannot open {resource}: {_reason(failure)}",
            remedy="check the resource with `pyvisa-shell list` and that the meter is on",
        ) from None
    return VisaSession(session, resource, failures)
