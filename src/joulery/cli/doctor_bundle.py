"""``joulery doctor --bundle``: what a report about a physical board needs, without secrets."""

from __future__ import annotations

import getpass
import json
import os
import platform
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from joulery import __version__
from joulery.cli.dispatch import Output
from joulery.cli.options import write_file
from joulery.cli.progress import Progress
from joulery.clock import REAL_CLOCK
from joulery.errors import JouleryError
from joulery.hardware import Capability, find_machines
from joulery.metering import find_refreshes
from joulery.reports import table_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulery.clock import Clock
    from joulery.hardware import Device, EnergyMeter

SCHEMA = "joulery.bundle/1"
_PACKAGES = (
    "numpy",
    "nvidia-ml-py",
    "amdsmi",
    "habana-pyhlml",
    "msgspec",
    "torch",
    "jax",
    "pyvisa",
)
_READ_SECONDS, _EVERY_SECONDS = 2.0, 0.005  # by hand: twenty refreshes of most counters
# Names of variables whose values are secrets, or tell who somebody is.
_SECRET_NAMES = re.compile(
    r"TOKEN|PASS|SECRET|KEY|CREDENTIAL|AUTH|COOKIE|USER|LOGNAME|HOST|EMAIL|HOME", re.IGNORECASE
)
# Variables that name machines, and what stands for one in their values.
_LOCATIONS = ("JOULERY_NODE_METER", "JOULERY_STORE", "JOULERY_GOVERNOR")
_HOST_NAMES = re.compile(r"(?:ipmi:|//(?:[^/@\s]*@)?|::)([A-Za-z0-9][\w.-]+)")
_SHORTEST_SECRET = 3  # by hand: shorter values are part of too many words
# What looks like a name of a person or machine, or like a secret, whatever its source.
_PATTERNS = (
    # A bracket or full stop at the end belongs to the sentence; within, it may be of a password.
    (re.compile(r"\b([a-z][a-z0-9+.-]*)://\S*[^\s'\".,;:)\]}>]", re.IGNORECASE), r"\1://HOST"),
    (re.compile(r"[\w.+-]+@[\w-]+(\.[\w-]+)+"), "EMAIL"),
    (re.compile(r"/(home|Users)/[^\s/'\"]+"), "~"),
    (re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b"), "ADDRESS"),
    (re.compile(r"\b(?:[0-9a-f]{1,4}:){3,7}[0-9a-f]{0,4}", re.IGNORECASE), "ADDRESS"),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE), "UUID"),
    (re.compile(r"\b(?=[\w-]*\d)[A-Za-z0-9_-]{24,}\b"), "TOKEN"),
)
_SECTIONS = {
    "versions": "Joulery, Python, the kernel, and packages that it may use",
    "machine": "processor, container or virtual machine",
    "variables": "names of JOULERY_… variables that are set, without their values",
    "doctor": "the document and the text of `joulery doctor`",
    "counters": "how the energy counters behaved for two seconds",
    "selftest": "the file of `joulery doctor --selftest`, where it is in this folder",
}


def write_bundle(
    path: Path, devices: Sequence[Device], diagnosis: Output, selftest: Path
) -> Output:
    """Collect everything, take names and secrets out, and write it."""
    text = cast("str", diagnosis.text() if callable(diagnosis.text) else diagnosis.text)
    contents = {
        "versions": _versions(),
        "machine": _machine(),
        "variables": sorted(name for name in os.environ if name.startswith("JOULERY_")),
        "doctor": {"document": diagnosis.document, "text": text.splitlines()},
        "counters": _behaviours(devices),
        "selftest": _read_selftest(selftest),
    }
    document = {"schema": SCHEMA, **scrub(contents, _secrets(os.environ))}
    write_file(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n", "--bundle")
    sections = {name: _SECTIONS[name] for name in contents if contents[name]}
    summary = {"file": str(path), "sections": sections}
    return Output(summary, lambda: _text(path, sections))


def scrub(value: Any, secrets: Mapping[str, str]) -> Any:
    """A document without secrets: texts in it have placeholders instead.

    Args:
        value: Document, list or text.
        secrets: Placeholders by the text that they stand for.
    """
    if isinstance(value, dict):
        return {scrub(key, secrets): scrub(item, secrets) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [scrub(item, secrets) for item in value]
    if not isinstance(value, str):
        return value
    for secret in sorted(secrets, key=len, reverse=True):
        pattern = rf"(?<![A-Za-z0-9]){re.escape(secret)}(?![A-Za-z0-9])"
        value = re.sub(pattern, secrets[secret], value, flags=re.IGNORECASE)
    for expression, placeholder in _PATTERNS:
        value = expression.sub(placeholder, value)
    return value


def _secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Texts that tell who and where this is, and values of variables that sound secret."""
    secrets = {
        value: name.upper()
        for name, value in environ.items()
        if _SECRET_NAMES.search(name) and not value.isdigit()
    }
    locations = " ".join(environ.get(name, "") for name in _LOCATIONS)
    secrets |= dict.fromkeys(_HOST_NAMES.findall(locations), "HOST")
    host = socket.gethostname()
    secrets |= {
        str(Path.home()): "~",
        _user(): "USER",
        host: "HOST",
        host.partition(".")[0]: "HOST",
    }
    # Of root and single letters nothing can be told, and they are part of other texts.
    return {
        text: placeholder
        for text, placeholder in secrets.items()
        if len(text) >= _SHORTEST_SECRET and text not in {"root", "/root", "localhost"}
    }


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        return ""


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    versions = {
        "joulery": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()),
    }
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def _machine() -> dict[str, Any]:
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text("utf-8", errors="replace")
    except OSError:
        cpuinfo = ""
    model = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    kinds = {machine.name for machine in find_machines()}
    return {
        "processor": model[1] if model else platform.processor(),
        "cores": os.cpu_count(),
        "container": "container" in kinds,
        "virtual_machine": "virtual machine" in kinds,
        "wsl": "WSL" in kinds,
    }


def _behaviours(devices: Sequence[Device]) -> list[dict[str, Any]]:
    """Refreshes of all counters, which are read at the same time."""
    if not devices:
        return []
    progress = Progress()
    progress.show(f"reading {len(devices)} devices for {_READ_SECONDS:g} s")
    with ThreadPoolExecutor(len(devices)) as pool:
        behaviours = list(pool.map(_behaviour, devices))
    progress.done()
    return behaviours


def _behaviour(device: Device, clock: Clock = REAL_CLOCK) -> dict[str, Any]:
    """Refreshes of a device's counter over a short time; the error where it cannot be read."""
    about = {"name": device.info.name, "kind": device.info.kind.value}
    if Capability.ENERGY not in device.capabilities:
        return about | {"counter": False}
    began, stamps = clock.now(), set()
    rows: list[tuple[float, float]] = []
    try:
        while not rows or clock.now() < began + _READ_SECONDS:
            reading = cast("EnergyMeter", device).read_energy()
            rows.append((clock.now(), reading.joules))
            stamps.add(reading.refreshed_at_seconds)
            clock.sleep(_EVERY_SECONDS)
    except JouleryError as error:
        return about | {"error": error.message}
    times, joules = np.array(rows).T
    refreshes = find_refreshes(times, joules)
    return about | {
        "readings": len(rows),
        "changes": int(np.count_nonzero(np.diff(joules))),
        "stamps": len(stamps - {None}),
        "period_seconds": refreshes.period_seconds if refreshes else None,
        "mean_watts": float((joules[-1] - joules[0]) / (times[-1] - times[0]))
        if len(rows) > 1
        else None,
    }


def _read_selftest(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def _text(path: Path, sections: Mapping[str, str]) -> str:
    table = table_of(
        list(sections.items()), {"part": lambda item: item[0], "contents": lambda item: item[1]}
    )
    return (
        f"{path} holds\n\n{table}\n\n"
        "Host, user, home folder, addresses, UUIDs and values of secret variables are replaced.\n"
        "Read it before you send it. Nothing was sent."
    )
