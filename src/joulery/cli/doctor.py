"""``joulery doctor``: the devices of this machine, their capabilities, and how to get more."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from joulery.hardware import Device, Obstacle, Survey

# For each extra: a module that it installs, and its purpose.
_EXTRAS = {
    "plots": ("matplotlib", "frontiers as PNG"),
    "instruments": ("pyvisa", "SCPI wattmeters for the whole node"),
    "amd": ("amdsmi", "AMD GPUs"),
    "torch": ("torch", "PyTorch"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the options."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Survey the machine and print what was found."""
    from joulery.hardware import survey, visible_devices

    found = survey()
    mine = {device.info.id for device in visible_devices(found.devices)}
    lent = _lent(found)
    if arguments.json:
        sys.stdout.write(json.dumps(_document(found, mine, lent), allow_nan=False) + "\n")
    else:
        sys.stdout.write(_rendered(found, mine, lent))
    return 0


def _lent(found: Survey) -> dict[str, Obstacle | None] | None:
    """Why a running governor refuses each device to this user; None without a governor."""
    from joulery.errors import DeviceError
    from joulery.governor import daemon_obstacles
    from joulery.hardware import Capability

    knobs = {Capability.POWER_LIMIT, Capability.CLOCK_LOCK}
    try:
        return daemon_obstacles(each for each in found.devices if each.capabilities & knobs)
    except (DeviceError, OSError):  # it does not answer
        return None


def _document(
    found: Survey, mine: set[str], lent: dict[str, Obstacle | None] | None
) -> dict[str, Any]:
    refusals = None if lent is None else {name: why and asdict(why) for name, why in lent.items()}
    return {
        "devices": [_device_document(device, mine) for device in found.devices],
        "obstacles": [
            {"what": obstacle.what, "why": obstacle.why, "remedy": obstacle.remedy}
            for obstacle in found.obstacles
        ],
        "governor": refusals,
        "extras": {name: _installed(module) for name, (module, _) in _EXTRAS.items()},
        "may_set_limits": may_set_limits() or None in (lent or {}).values(),
    }


def _device_document(device: Device, mine: set[str]) -> dict[str, Any]:
    info = device.info
    return {
        "id": info.id,
        "name": info.name,
        "kind": info.kind.value,
        "vendor": info.vendor,
        "index": info.index,
        "max_watts": info.max_watts,
        "visible": info.id in mine,
        "capabilities": sorted(capability.value for capability in device.capabilities),
        "provenance": device.provenance.origin.value,
        "source": device.provenance.source,
        "power_limit": _limits(device),
    }


def _limits(device: Device) -> dict[str, float] | None:
    from joulery.errors import JouleryError
    from joulery.hardware import Capability, PowerLimit

    if Capability.POWER_LIMIT not in device.capabilities or not isinstance(device, PowerLimit):
        return None
    try:
        limits = device.power_limits()
    except JouleryError:
        return None
    return {
        "min_watts": limits.min_watts,
        "max_watts": limits.max_watts,
        "default_watts": limits.default_watts,
        "current_watts": limits.current_watts,
    }


def _rendered(found: Survey, mine: set[str], lent: dict[str, Obstacle | None] | None) -> str:
    from joulery.reports import table_text as table

    rows = [_row(device, mine) for device in found.devices]
    headers = ["device", "id", "energy", "power limit", "clock", "this job's", "provenance"]
    lines = ["What can be measured and changed here", ""]
    lines.append(table(headers, rows, "lllllll") if rows else "No device was found.")
    if any("assumed" in row[-1] for row in rows):
        lines += ["", "Figures marked `assumed` are estimates: good for a rough idea only."]
    if found.obstacles:
        lines += ["", "Obstacles"]
        for obstacle in found.obstacles:
            lines += [f"  {obstacle.what}: {obstacle.why}", f"    → {obstacle.remedy}"]
    hints = _hints(found)
    if hints:
        lines += ["", "How to get more", *hints]
    if lent is not None:
        lines += ["", "A governor lends power limits and clocks; for this user it answers"]
        for name, refusal in lent.items():
            lines.append(f"  {name}: {'yes' if refusal is None else f'no, {refusal.why}'}")
            lines += [] if refusal is None else [f"    → {refusal.remedy}"]
    elif not may_set_limits():
        text = "Power limits and clocks can be read, but only root may set them, or a governor"
        lines += ["", f"{text} that an administrator starts (`joulery governor serve`)."]
    return "\n".join(lines) + "\n"


def _row(device: Device, mine: set[str]) -> list[str]:
    from joulery.hardware import Capability

    limits = _limits(device)
    has = device.capabilities
    return [
        device.info.name,
        device.info.id,
        _energy(device),
        "–"
        if limits is None
        else f"{limits['current_watts']:g} W ({limits['min_watts']:g}–{limits['max_watts']:g})",
        "lockable" if Capability.CLOCK_LOCK in has else "–",
        "yes" if device.info.id in mine else "no",
        str(device.provenance),
    ]


def _energy(device: Device) -> str:
    from joulery.frontier import Origin
    from joulery.hardware import Capability

    if Capability.ENERGY not in device.capabilities:
        return "–"
    if device.provenance.origin is Origin.ASSUMED:
        return "estimated"
    return "sampled" if "integrated" in device.provenance.source else "counter"


def _hints(found: Survey) -> list[str]:
    """Ways to measure more, besides removing obstacles."""
    from joulery.hardware import DeviceKind

    kinds = {device.info.kind for device in found.devices}
    hints = []
    if DeviceKind.GPU not in kinds and not any("GPU" in o.what for o in found.obstacles):
        hints.append("  GPUs: none found; they show up once their vendor's driver is loaded")
    if DeviceKind.NODE not in kinds:
        hints.append(
            "  the whole node: name a meter in JOULERY_NODE_METER (visa:…, ipmi:, redfish:https://…)"
        )
    return hints + [
        f"  {purpose}: pip install 'joulery[{name}]'"
        for name, (module, purpose) in _EXTRAS.items()
        if not _installed(module)
    ]


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def may_set_limits() -> bool:
    """Whether drivers let this user change limits and clocks."""
    return os.geteuid() == 0
