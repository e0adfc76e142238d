"""Whole-node power from the management controller, through ``ipmitool dcmi power reading``.

The controller averages over about a second and rounds to whole watts. Its accuracy is the power
supplies' and not stated, so the relative error is unknown.
"""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

from joulery.errors import (
    DeviceError,
    InvalidValueError,
    MissingHardwareError,
    MissingRightsError,
    UnsupportedError,
)
from joulery.frontier import Origin, Provenance
from joulery.hardware._device import Capability, DeviceInfo, DeviceKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TIMEOUT_SECONDS = 10.0  # by hand: slow controllers take some seconds

_WATTS = re.compile(r"Instantaneous power reading:\s*(\d+(?:\.\d+)?)\s*Watts", re.IGNORECASE)
_STATE = re.compile(r"Power reading state is:\s*(\w+)", re.IGNORECASE)
# A host name or address; anything else could be read as an option by ipmitool.
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:_-]*")


class IpmiMeter:
    """The node's power as its management controller states it.

    ``host`` is empty for this machine's own controller. ``ipmitool`` takes the password from its
    own variable ``IPMI_PASSWORD``, so it never shows in the process list.
    """

    def __init__(
        self, host: str = "", user: str = "", *, run: Callable[[Sequence[str]], str] | None = None
    ) -> None:
        name = f"BMC of {host or 'this node'}"
        self.info = DeviceInfo(f"ipmi:{host or 'local'}", name, DeviceKind.NODE, "ipmi")
        self.provenance = Provenance(Origin.MEASURED, "IPMI DCMI power reading")
        self.capabilities = frozenset({Capability.POWER})
        self._command = command(host, user)
        self._run = run or run_command

    def read_power(self) -> float:
        """Watts of the whole node, about a second old."""
        return parse_power_reading(self._run(self._command))


def command(host: str = "", user: str = "") -> tuple[str, ...]:
    """The ``ipmitool`` call for a controller."""
    reading = ("dcmi", "power", "reading")
    if not host:
        return ("ipmitool", *reading)
    if not _HOST.fullmatch(host):
        raise InvalidValueError(f"not a host: {host!r}", remedy='write "ipmi:bmc.example.org"')
    account = ("-U", user) if user else ()
    return ("ipmitool", "-I", "lanplus", "-H", host, *account, "-E", *reading)


def parse_power_reading(output: str) -> float:
    """Watts from the output of ``ipmitool dcmi power reading``.

    Examples:
        >>> parse_power_reading("Instantaneous power reading:    332 Watts")
        332.0
    """
    match = _WATTS.search(output)
    if match is None:
        first = next((line.strip() for line in output.splitlines() if line.strip()), "nothing")
        raise UnsupportedError(
            f"the management controller states no power: {first!r}",
            remedy="not every controller speaks DCMI; try Redfish or a wattmeter",
        )
    state = _STATE.search(output)
    watts = float(match[1])
    # A switched-off sensor answers 0 or its last value, neither of which is a reading.
    if watts == 0 or (state is not None and not state[1].lower().startswith("activ")):
        raise DeviceError(
            "the management controller's power reading is not active",
            remedy="switch power measurement on in the controller's settings",
        )
    return watts


def run_command(arguments: Sequence[str]) -> str:
    """Output of a command, with every failure as one of Joulery's errors."""
    try:
        process = subprocess.run(
            arguments, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS
        )
    except FileNotFoundError:
        raise MissingHardwareError(
            f"{arguments[0]} is not installed", remedy="install your system's ipmitool package"
        ) from None
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise DeviceError(
            f"{arguments[0]} does not answer: {failure}",
            remedy="check that this user may run it and that the controller is reachable",
        ) from None
    if process.returncode == 0:
        return process.stdout
    complaint = (process.stderr or process.stdout).strip().partition("\n")[0]
    if re.search(r"/dev/ipmi|permission|privilege|password", complaint, re.IGNORECASE):
        raise MissingRightsError(
            f"{arguments[0]}: {complaint}",
            remedy="give this user read and write access to /dev/ipmi0 (or an account on the BMC)",
        )
    raise DeviceError(
        f"{arguments[0]} failed with {process.returncode}: {complaint}",
        remedy=f"run `{' '.join(arguments)}` by hand",
    )
