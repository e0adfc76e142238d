"""``joulery doctor``: the devices of this machine, their capabilities, and how to get more."""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulery import hardware
from joulery.cli.dispatch import Output
from joulery.cli.extras import EXTRAS, install_command, missing_modules
from joulery.cli.options import Action, flag, option, quantity, written
from joulery.errors import DeviceError, JouleryError
from joulery.frontier import Origin
from joulery.hardware import Capability, DeviceKind
from joulery.reports import table_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from joulery.frontier import Provenance
    from joulery.hardware import Device, Obstacle, Survey

_KNOBS = {Capability.POWER_LIMIT, Capability.CLOCK_LOCK}
_KINDS = {
    DeviceKind.GPU: "GPU",
    DeviceKind.CPU: "CPU",
    DeviceKind.MEMORY: "DRAM domain",
    DeviceKind.NODE: "node",
}


def _run(arguments: argparse.Namespace) -> Output:
    if arguments.selftest:
        from joulery.cli.doctor_selftest import run_selftest

        return run_selftest(arguments)
    survey = hardware.survey()
    visible = {device.info.id for device in hardware.visible_devices(survey.devices)}
    lent = _ask_governor(survey)
    output = Output(_document(survey, visible, lent), lambda: _text(survey, visible, lent))
    if arguments.bundle is None:
        return output
    from joulery.cli.doctor_bundle import write_bundle

    return write_bundle(arguments.bundle, survey.devices, output, arguments.out)


def _ask_governor(survey: Survey) -> dict[str, Obstacle | None] | None:
    """Reasons why a running governor refuses devices to this user; None without a governor."""
    from joulery.governor import daemon_obstacles

    try:
        return daemon_obstacles(device for device in survey.devices if device.capabilities & _KNOBS)
    except (DeviceError, OSError):  # it does not answer
        return None


def _document(
    survey: Survey, visible: set[str], lent: dict[str, Obstacle | None] | None
) -> dict[str, Any]:
    refusals = (
        None
        if lent is None
        else {name: obstacle and asdict(obstacle) for name, obstacle in lent.items()}
    )
    return {
        "devices": [_device_document(device, visible) for device in survey.devices],
        "obstacles": [asdict(obstacle) for obstacle in survey.obstacles],
        "governor": refusals,
        "more": dict(_hints(survey)),
        "extras": {name: not missing_modules(name) for name in EXTRAS},
        "serving": _engines(),
        "machine": [asdict(machine) for machine in hardware.find_machines()],
        "may_set_limits": bool(_settable(survey, lent)),
    }


def _settable(survey: Survey, lent: dict[str, Obstacle | None] | None) -> list[Device]:
    """Devices whose limit or clock this user may set, alone or through a governor."""
    root, answers = may_set_limits(), lent or {}
    lendable = {name for name, refusal in answers.items() if refusal is None}
    return [
        device
        for device in survey.devices
        if device.capabilities & _KNOBS and (root or device.info.id in lendable)
    ]


def _device_document(device: Device, visible: set[str]) -> dict[str, Any]:
    info = device.info
    return {
        "id": info.id,
        "name": info.name,
        "kind": info.kind.value,
        "vendor": info.vendor,
        "index": info.index,
        "max_watts": info.max_watts,
        "visible": info.id in visible,
        "capabilities": sorted(capability.value for capability in device.capabilities),
        "provenance": device.provenance.origin.value,
        "relative_error": _provenance(device).relative_error,
        "source": device.provenance.source,
        "power_limit": _limits(device),
    }


def _limits(device: Device) -> dict[str, float] | None:
    if Capability.POWER_LIMIT not in device.capabilities or not isinstance(
        device, hardware.PowerLimit
    ):
        return None
    try:
        return asdict(device.power_limits())
    except JouleryError:
        return None


def _text(survey: Survey, visible: set[str], lent: dict[str, Obstacle | None] | None) -> str:
    devices = table_of(
        survey.devices,
        {
            "device": lambda device: device.info.name,
            "id": lambda device: device.info.id,
            "energy": _energy,
            "power limit": _power_limit,
            "clock": lambda device: (
                "lockable" if Capability.CLOCK_LOCK in device.capabilities else "–"
            ),
            "this job's": lambda device: "yes" if device.info.id in visible else "no",
            "provenance": lambda device: str(_provenance(device)),
        },
    )
    settable = _settable(survey, lent)
    mine = [device for device in survey.devices if device.info.id in visible]
    lines = [_summary(mine, [device for device in mine if device in settable]), ""]
    lines.append(devices if survey.devices else "No device was found.")
    if any(device.provenance.origin is Origin.ASSUMED for device in survey.devices):
        lines += ["", "Figures marked `assumed` are estimates: good for a rough idea only."]
    if survey.obstacles:
        lines += ["", "Obstacles"]
        for obstacle in survey.obstacles:
            lines += [f"  {obstacle.subject}: {obstacle.reason}", f"    → {obstacle.remedy}"]
    lines += _machine_lines(settable=bool(settable))
    hints = [f"  {subject}: {remedy}" for subject, remedy in _hints(survey)]
    if hints:
        lines += ["", "How to get more", *hints]
    for url, engine in _engines().items():
        text = f"{engine} serves a model at {url}: see `joulery serving meter --engine {url}`"
        lines += ["", text]
    if lent is not None:
        lines += ["", "A governor lends power limits and clocks; for this user it answers"]
        for name, refusal in lent.items():
            lines.append(f"  {name}: {'yes' if refusal is None else f'no, {refusal.reason}'}")
            lines += [] if refusal is None else [f"    → {refusal.remedy}"]
    elif not may_set_limits() and any(device.capabilities & _KNOBS for device in survey.devices):
        text = "Power limits and clocks can be read, but only root may set them, or a governor"
        lines += ["", f"{text} that an administrator starts (`joulery governor serve`)."]
    return "\n".join(lines) + "\n"


def _summary(devices: Sequence[Device], settable: Sequence[Device]) -> str:
    """What this user can do here, in a sentence."""
    metered = [device for device in devices if Capability.ENERGY in device.capabilities]
    counted = [device for device in metered if device.provenance.origin is not Origin.ASSUMED]
    guessed = [device for device in metered if device.provenance.origin is Origin.ASSUMED]
    abilities = []
    if counted:
        abilities.append(f"measure {_counts(counted)}")
        fixed = [device for device in devices if device.capabilities & _KNOBS]
        if settable:
            whose = "its" if len(settable) == 1 else "their"
            whose += "" if len(settable) == len(counted) else f" ({_counts(settable)})"
            abilities[0] += f" and set {whose} {_knobs(settable)}"
        elif fixed:
            abilities[0] += f", but not set {'its' if len(fixed) == 1 else 'their'} {_knobs(fixed)}"
    if guessed:
        abilities.append(f"estimate {_counts(guessed)}")
    if not abilities:
        return "Nothing can be measured here yet"
    text = f"You can {', and '.join(abilities)}"
    if not counted:
        return f"{text}; no counter of energy was found"
    simulated = any(device.provenance.origin is Origin.SIMULATED for device in counted)
    return text + ("; the boards are emulated" if simulated else "")


def _counts(devices: Sequence[Device]) -> str:
    """Such as ``8 GPUs and 2 CPUs``."""
    kinds = Counter(device.info.kind for device in devices)
    return " and ".join(
        f"{count} {_KINDS[kind]}{'s' if count > 1 else ''}" for kind, count in kinds.items()
    )


def _knobs(devices: Sequence[Device]) -> str:
    capabilities = frozenset[Capability]().union(*(device.capabilities for device in devices))
    ending = "s" if len(devices) > 1 else ""
    names = {Capability.POWER_LIMIT: "limit", Capability.CLOCK_LOCK: "clock"}
    return " and ".join(f"{names[knob]}{ending}" for knob in names if knob in capabilities)


def _provenance(device: Device) -> Provenance:
    """Provenance with the error of a long measurement of a busy board, its sensor's included."""
    sensor, watts = getattr(device, "power_sensor", None), device.info.max_watts
    if sensor is None or not watts or device.info.share != 1.0:
        return device.provenance
    error = math.hypot(
        device.provenance.relative_error or 0.0, sensor.error_joules(watts, 1.0) / watts
    )
    return replace(device.provenance, relative_error=error)


def _machine_lines(*, settable: bool) -> list[str]:
    """What is special about this machine; what is to say of CPUs, devices and obstacles say."""
    lines = []
    for machine in hardware.find_machines():
        if not machine.name.endswith("CPU"):
            clauses = machine.impossible.split("; ")
            if settable:  # which was found, whatever holds for most machines of the kind
                clauses = [clause for clause in clauses if not clause.startswith("limits")]
            lines += [
                "",
                f"Kind of machine: {machine.name}",
                f"  measured: {machine.measured}",
                f"  estimated: {machine.estimated}",
                *([f"  not possible: {'; '.join(clauses)}"] if clauses else []),
                f"  still works: {machine.works}",
            ]
    return lines


def _engines() -> dict[str, str]:
    """Serving engines of this machine, by address."""
    from joulery.serving import find_engines

    return find_engines()


def _power_limit(device: Device) -> str:
    survey = _limits(device)
    if survey is None:
        return "–"
    return f"{survey['current_watts']:g} W ({survey['min_watts']:g}–{survey['max_watts']:g})"


def _energy(device: Device) -> str:
    if Capability.ENERGY not in device.capabilities:
        return "–"
    if device.provenance.origin is Origin.ASSUMED:
        return "estimated"
    return "sampled" if "integrated" in device.provenance.source else "counter"


def _hints(survey: Survey) -> Iterator[tuple[str, str]]:
    """What else could be measured or done, and how; besides removing obstacles."""
    kinds = {device.info.kind for device in survey.devices}
    if DeviceKind.GPU not in kinds and not any("GPU" in o.subject for o in survey.obstacles):
        text = "none found; they show up with their vendor's driver"
        yield "GPUs", f"{text}. To try things without one: joulery emulate a100 -- COMMAND"
    if DeviceKind.NODE not in kinds:
        meters = "visa:…, ipmi:, redfish:https://…"
        yield "the whole node", f"name a meter in JOULERY_NODE_METER ({meters})"
    for extra, (_, purpose) in EXTRAS.items():
        if missing_modules(extra):
            yield purpose, install_command(extra)


def may_set_limits() -> bool:
    """Whether drivers let this user change limits and clocks."""
    return os.geteuid() == 0


_SELFTEST_FILE = Path("joulery-selftest.json")
_EPILOG = """\
--selftest switches a load on and off, sets limits and clocks by leases and restores them, and says
what agrees with what Joulery assumes about the board. PyTorch with CUDA is the load, where it is
installed; otherwise keep the board busy by a program of yours. Nobody else should use the board.
--bundle says what is in its file; nothing is sent anywhere.

examples:
  joulery doctor --selftest --device gpu:0
  joulery emulate a100 -- joulery doctor --selftest --duration 30s
  joulery doctor --bundle report.json
"""
COMMAND = Action(
    _run,
    (
        flag("--selftest", "compare one board with what Joulery assumes about it"),
        option(
            "--device", "the board of the self-test (gpu:0, an id …), by default the first", "NAME"
        ),
        option("--duration", "time of the self-test (10min)", "TIME", quantity("s", 5.0)),
        written(
            "--out",
            "file of the self-test (joulery-selftest.json)",
            ".json",
            default=_SELFTEST_FILE,
        ),
        written(
            "--bundle",
            "write what a report needs, without names and secrets, to this file",
            ".json",
        ),
    ),
    epilog=_EPILOG,
)
