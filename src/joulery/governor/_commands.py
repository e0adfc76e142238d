"""Knobs that are set by commands, where a user may run those (by sudo, say) and no daemon may run.

The file names, by vendor, one command for each knob that the user may not set through the driver::

    [nvidia]
    set_power_limit = "sudo -n nvidia-smi -i {index} -pl {watts}"
    lock_clock = "sudo -n nvidia-smi -i {index} -lgc {mhz},{mhz}"
    unlock_clock = "sudo -n nvidia-smi -i {index} -rgc"

Values are read through the driver as ever.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from joulery.errors import DeviceError, FileError, MissingRightsError, flaw_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulery.hardware import ClockLock, Device, PowerLimit, PowerLimitRange

COMMANDS_VARIABLE = "JOULERY_COMMANDS"
_DEFAULT = "/etc/joulery/commands.toml"
# What a command of each knob may use.
_KNOBS = {
    "set_power_limit": {"index": 0, "watts": 0},
    "lock_clock": {"index": 0, "mhz": 0},
    "unlock_clock": {"index": 0},
}
_SECONDS = 4.0  # below the 5 s after which the daemon gives up a driver
# Commands may take whole watts only.
_SLACK_WATTS = 1.0


def with_commands(device: Device, environ: Mapping[str, str] | None = None) -> Device:
    """The device with the knobs that a file of commands sets; the device itself without a file."""
    environ = os.environ if environ is None else environ
    commands = _read(Path(environ.get(COMMANDS_VARIABLE) or _DEFAULT)).get(device.info.vendor)
    return cast("Device", _Commanded(device, commands)) if commands else device


def _read(path: Path) -> dict[str, dict[str, str]]:
    try:
        vendors = tomllib.loads(path.read_text(encoding="utf-8"))
        for commands in vendors.values():
            for knob, command in commands.items():
                command.format(**_KNOBS[knob])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise FileError(
            f"the commands in {path} cannot be used: {flaw_text(error)}",
            remedy="give [vendor] with set_power_limit, lock_clock or unlock_clock; commands may "
            "use {index}, and {watts} or {mhz}",
        ) from None
    return vendors


class _Commanded:
    """A device of which some knobs are set by commands."""

    def __init__(self, device: Device, commands: Mapping[str, str]) -> None:
        self._device = device
        self._commands = commands

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    # All methods of the knobs are here by name, because that is how a protocol is checked.
    def power_limits(self) -> PowerLimitRange:
        return cast("PowerLimit", self._device).power_limits()

    def supported_clocks(self) -> tuple[float, ...]:
        return cast("ClockLock", self._device).supported_clocks()

    def set_power_limit(self, watts: float) -> None:
        device = cast("PowerLimit", self._device)
        device.power_limits().check(watts, self._device.info.name)
        if not self._ran("set_power_limit", watts=f"{watts:.3f}".rstrip("0").rstrip(".")):
            device.set_power_limit(watts)
            return
        current_watts = device.power_limits().current_watts
        if abs(current_watts - watts) > _SLACK_WATTS:
            raise MissingRightsError(
                f"the command for {watts:g} W left {self._device.info.name} at {current_watts:g} W",
                remedy=f"try the command of {_DEFAULT} or ${COMMANDS_VARIABLE} by hand",
            )

    def lock_clock(self, hertz: float) -> None:
        if not self._ran("lock_clock", mhz=str(round(hertz / 1e6))):
            cast("ClockLock", self._device).lock_clock(hertz)

    def unlock_clock(self) -> None:
        if not self._ran("unlock_clock"):
            cast("ClockLock", self._device).unlock_clock()

    def _ran(self, knob: str, **values: str) -> bool:
        """Run the command of a knob; False if there is none."""
        if knob not in self._commands:
            return False
        words = shlex.split(self._commands[knob])
        command = [word.format(index=self._device.info.index, **values) for word in words]
        try:
            process = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DeviceError(str(error), remedy="try the command by hand") from None
        if process.returncode != 0:
            output = (process.stderr or process.stdout).strip()[-200:]
            raise MissingRightsError(
                f"`{shlex.join(command)}` failed: {output or process.returncode}",
                remedy="have the administrator allow this command in sudoers, without a password",
            )
        return True
