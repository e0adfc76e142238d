"""Discovery of the devices of this machine, and of what keeps others from being used.

Third parties add devices through the entry-point group ``joulery.devices``: each entry point is
a callable that takes the clock and returns devices. See ``docs/how-to/add-a-device.md``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from joulery.arguments import check_type
from joulery.clock import REAL_CLOCK, check_clock_source
from joulery.errors import JouleryError
from joulery.hardware._device import Capability, Device, DeviceKind, Obstacle, Survey, protocol_of
from joulery.hardware._sensors import check_sensor_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from importlib.metadata import EntryPoint

    from joulery.clock import Clock

_log = logging.getLogger("joulery")

ENTRY_POINTS = "joulery.devices"


def discover(
    clock: Clock = REAL_CLOCK, *, environ: Mapping[str, str] | None = None
) -> list[Device]:
    """The devices of this machine.

    A missing driver is not an error: what cannot be used is left out, or lacks the capability.
    ``survey`` also lists the reasons. Only a node meter that was named and cannot be used is
    logged as a warning, since figures without it are others than the user asked for.

    Args:
        clock: Clock of every reading's time.
        environ: Variables that name node meters (``joulery.hardware.node``) and the CPU's
            design power (``joulery.hardware._estimate``); those of this process unless given.

    Raises:
        InvalidValueError: ``clock`` is none, such as the name of a device, or ``environ`` is not
            a mapping.
    """
    check_type(environ, Mapping | None, "environ must be a mapping", "leave it out")
    result = survey(check_clock_source(clock), environ=environ)
    for obstacle in result.obstacles:
        if obstacle.subject.startswith("node meter "):
            _log.warning(
                "%s is left out: %s (%s)", obstacle.subject, obstacle.reason, obstacle.remedy
            )
    return list(result.devices)


def survey(clock: Clock = REAL_CLOCK, *, environ: Mapping[str, str] | None = None) -> Survey:
    """The devices of this machine, and the obstacles to using others."""
    from joulery.hardware import (
        _estimate as estimate,
        _gaudi as gaudi,
        _hwmon as hwmon,
        _rapl as rapl,
        amd,
        node,
        nvidia,
    )
    from joulery.hardware._integrated import with_energy

    variables = os.environ if environ is None else environ
    result = (
        _attempted("NVIDIA GPUs", lambda: nvidia.survey(clock))
        + _attempted("AMD GPUs", lambda: amd.survey(clock))
        + _attempted("Gaudi cards", lambda: gaudi.survey(clock))
        + _attempted("sensors of hwmon", lambda: hwmon.survey(clock))
        + _attempted("CPU energy counters", lambda: rapl.survey(clock))
        + _attempted("node meters", lambda: node.survey(variables, clock))
        + _attempted("sensor file", _check_sensor_file)
    )
    for point in entry_points():
        result += _plugin(point, clock)
    if not any(_counts_cpu_energy(device) for device in result.devices):
        result += _attempted("CPU energy estimate", lambda: estimate.survey(variables, clock))
    # Devices with a power sensor but no counter, such as old GPUs, are integrated.
    counting = tuple(with_energy(device, clock) for device in result.devices)
    return _without_duplicates(Survey(counting, result.obstacles))


def _check_sensor_file() -> Survey:
    check_sensor_file()
    return Survey()


def _attempted(subject: str, find: Callable[[], Survey]) -> Survey:
    """Result of ``find``, or the obstacle that its error describes."""
    try:
        return find()
    except JouleryError as error:
        return Survey(obstacles=(Obstacle.from_error(subject, error),))


def entry_points() -> Iterable[EntryPoint]:
    """Device plug-ins installed in this environment."""
    # Costs some 50 ms, so it is imported only here.
    from importlib import metadata

    return metadata.entry_points(group=ENTRY_POINTS)


def _plugin(point: EntryPoint, clock: Clock) -> Survey:
    subject = f"plug-in {point.name} ({point.value})"
    try:
        devices = tuple(point.load()(clock))
        flaws = [flaw for device in devices if (flaw := _flaw(device))]
    except JouleryError as error:
        return Survey(obstacles=(Obstacle.from_error(subject, error),))
    # Third-party code may fail in any way, and must not take the other devices with it.
    except Exception as failure:  # noqa: BLE001 - a fail-open edge: reported, not hidden
        flaws = [f"{type(failure).__name__}: {failure}"]
    if flaws:
        remedy = "report it to the plug-in's author, or uninstall it"
        return Survey(obstacles=tuple(Obstacle(subject, flaw, remedy) for flaw in flaws))
    return Survey(devices)


def _flaw(device: object) -> str:
    """Reason why an object is not a device; empty if it is one."""
    if not isinstance(device, Device):
        return f"{type(device).__name__} is not a device"
    for capability in device.capabilities:
        if not isinstance(device, protocol_of(capability)):
            return f"{type(device).__name__} claims {capability.value} but lacks its methods"
    return ""


def _counts_cpu_energy(device: Device) -> bool:
    return device.info.kind is DeviceKind.CPU and Capability.ENERGY in device.capabilities


def _without_duplicates(result: Survey) -> Survey:
    """Keep the first of devices with the same id; a second would count its energy twice."""
    devices: dict[str, Device] = {}
    obstacles = list(result.obstacles)
    for device in result.devices:
        if devices.setdefault(device.info.id, device) is not device:
            subject = f"{device.info.name} ({device.info.vendor})"
            reason = f"another device has the id {device.info.id!r} already"
            remedy = "name each node meter once; uninstall one of the plug-ins"
            obstacles.append(Obstacle(subject, reason, remedy))
    return Survey(tuple(devices.values()), tuple(obstacles))
