"""Properties of accelerators that the models of this room need, with gaps filled in."""

from __future__ import annotations

import json
import math
import re
import tomllib
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulery.errors import FileError, InvalidValueError, UnknownDeviceError
from joulery.frontier import Origin
from joulery.hardware import catalog
from joulery.prediction._bayes import fitted, fitted_cache
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from joulery.hardware import Board

# Bytes of one element. MXFP8 and NVFP4 carry a scale per block of 32 and 16 elements.
BYTES = {
    "fp32": 4.0,
    "tf32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "mxfp8": 1.03,
    "nvfp4": 0.56,
}
PRECISIONS = tuple(BYTES)


@dataclass(frozen=True, slots=True)
class Accelerator:
    """An accelerator as the kernel, power and plan models see it.

    Attributes:
        name: Short name in the catalog.
        architecture: The vendor's name for the generation.
        peaks: Dense peak in operations per second by precision.
        bytes_per_second: Bandwidth of the memory.
        memory_bytes: Memory that the driver states, or its size where that is not known.
        l2_bytes: Size of the last-level cache.
        units: Streaming multiprocessors or compute units.
        clock_hertz: Highest clock.
        limit_watts: Default power limit.
        min_limit_watts: Lowest power limit.
        min_clock_hertz: Lowest core clock.
        idle_watts: Draw without work.
        leakage: Draw of a board that a process holds, relative to other boards of its limit.
        link_bytes_per_second: Bandwidth to the neighbours, one direction.
        link_domain: Number of devices that such links join.
        network_bytes_per_second: Bandwidth to other nodes per device, one direction.
        vendor: Maker, such as ``nvidia``.
        operation_joules: Energy of one operation that the power limit has to feed, by precision.
        assumed: What a description does not state and is assumed, in words.
        observed: What a self-test of the board says instead of its specification, in words.
        consumer: Whether it is sold for games and desktops.
    """

    name: str
    architecture: str
    peaks: Mapping[str, float] = field(hash=False)
    bytes_per_second: float
    memory_bytes: float
    l2_bytes: float
    units: int
    clock_hertz: float
    limit_watts: float
    min_limit_watts: float
    min_clock_hertz: float
    idle_watts: float
    leakage: float
    link_bytes_per_second: float
    link_domain: int
    network_bytes_per_second: float
    vendor: str
    operation_joules: Mapping[str, float] = field(hash=False)
    assumed: tuple[str, ...] = ()
    observed: tuple[str, ...] = ()
    consumer: bool = False

    @property
    def power_deviation(self) -> float:
        """Standard deviation of the logarithm of predicted power without a reading."""
        return _POWER if self.vendor == "nvidia" else _POWER_ELSEWHERE

    @property
    def sixteen_bits(self) -> str:
        """The precision of 16 bits that mixed precision takes: bf16, or fp16 where it lacks."""
        return "bf16" if "bf16" in self.peaks else "fp16"

    @property
    def in_pcie_server(self) -> bool:
        """Whether boards exchange data over PCIe, but for bridges between two."""
        return self.link_domain == 2 or self.link_bytes_per_second <= self.pcie_bytes_per_second

    @property
    def node_devices(self) -> int:
        """Devices of a server."""
        return _PCIE_SERVER if self.in_pcie_server else self.link_domain

    @property
    def host_devices(self) -> int:
        """Devices of a host: racks of more, such as NVL72, are made of hosts of four."""
        return self.node_devices if self.node_devices <= _LARGEST_HOST else 4

    @property
    def pcie_bytes_per_second(self) -> float:
        """Bandwidth of its PCIe slot, one direction."""
        return _PCIE.get(self.architecture, _OLD_PCIE)

    def peak(self, precision: str) -> float:
        """Dense peak of the fastest unit that computes in ``precision``.

        Raises:
            InvalidValueError: The device has no such unit, or there is no such precision.
        """
        if precision not in BYTES:
            raise InvalidValueError(
                f"no precision {precision!r}", remedy=f"one of {', '.join(PRECISIONS)}"
            )
        peak = self.peaks.get(precision)
        if peak is None:
            raise InvalidValueError(
                f"{self.name} does not compute in {precision}",
                remedy=f"it computes in {', '.join(self.peaks)}",
            )
        return peak

    def fed(self, precision: str) -> float:
        """Operations per second that the default power limit can feed."""
        available = self.limit_watts * (1 - _STATIC_SHARE) - _STATIC_WATTS
        return available / self.operation_joules[precision]

    def rates(self, precision: str) -> tuple[float, float]:
        """Peak of single kernels, and of long dense work, which the power limit bounds.

        Without matrix units boards that cannot feed their peak run at low clocks throughout.
        """
        if precision == "fp32":
            return self.sustained(precision), math.inf
        return self.peak(precision), self.fed(precision)

    def sustained(self, precision: str) -> float:
        """Peak of long, dense work: small boards never feed their nominal one."""
        return float((self.peak(precision) ** -6 + self.fed(precision) ** -6) ** (-1 / 6))


# On NVIDIA's boards (four of gpu_power_benchmark, each left out in turn) and on others, where
# nothing was measured (a factor of two at 90 %).
_POWER, _POWER_ELSEWHERE = 0.3, 0.42

# PCI Express × 16, one direction, after protocol overhead: 5.0 since Hopper, 4.0 for all before.
_PCIE = dict.fromkeys(("Hopper", "Blackwell", "Blackwell Ultra", "CDNA3", "CDNA4"), 50e9)
_OLD_PCIE = 25e9
# Boards of a PCIe server, as most are sold for training, and of the largest host; by the vendors.
_PCIE_SERVER = _LARGEST_HOST = 8

# One network card of 400 Gb/s per device; 200 before Hopper; as vendors' reference servers have it.
_NETWORK = {"Hopper": 50e9, "Blackwell": 50e9, "Blackwell Ultra": 100e9, "CDNA3": 50e9}
_NETWORK |= {"CDNA4": 50e9, "Gaudi": 37.5e9}
_OLD_NETWORK = 25e9

# Ampere's other chips, made in another process than A100's and with other memory: an RTX 3090 draws
# 127 of 350 W between two bursts of work, an A100 59 of 400 W (readings of GPU_Power_Benchmark).
# Half of that in logarithms: one board says little about others of its process.
_LEAKY = {("Ampere", "GDDR"): 1.6}


# Generations without BF16 units: NVIDIA's before compute capability 8.0, AMD's before CDNA.
_WITHOUT_BF16 = ("Kepler", "Maxwell", "Pascal", "Volta", "Turing", "GCN")

# Power that no arithmetic gets: 10 W and 6 % of the limit, from the operator times of P4, P100, T4
# and V100 (NeuSight data), which their power limits explain with one energy per generation.
_STATIC_WATTS, _STATIC_SHARE = 10.0, 0.06

# Other generations: the trend of the above, per year since 2020.
_VECTOR_2020, _TENSOR_2020, _YEARLY = 10.0, 1.05, 0.17
# Energy of an operation relative to FP16/BF16: narrower multipliers are smaller.
_PRECISION_ENERGY = {"bf16": 1.0, "fp16": 0.9, "tf32": 2.0, "fp8": 0.5, "mxfp8": 0.5, "nvfp4": 0.27}


def _operation_joules(specs: catalog.Specs, precision: str) -> float:
    """Energy of an operation: by generation where boards of it were measured, else by the trend."""
    trend = math.exp(-_YEARLY * (specs.year - 2020))
    energies = fitted()["operation_picojoules"].get(specs.architecture, {})
    if precision == "fp32":
        return float(1e-12 * energies.get("vector", _VECTOR_2020 * trend))
    tensor = energies.get("tensor", _TENSOR_2020 * trend)
    return float(1e-12 * tensor * _PRECISION_ENERGY[precision])


@cache
def _extra_boards() -> dict[str, dict[str, Any]]:
    """Accelerators beside the catalog of boards that can be simulated."""
    text = files(__package__).joinpath("accelerators.toml").read_text(encoding="utf-8")
    return {entry["name"]: entry for entry in tomllib.loads(text)["accelerator"]}


@cache
def _refused() -> dict[str, str]:
    """Accelerators whose makers publish too little, with the reason."""
    text = files(__package__).joinpath("accelerators.toml").read_text(encoding="utf-8")
    return dict(tomllib.loads(text)["refused"])


def accelerator_names() -> tuple[str, ...]:
    """Names of every accelerator that predictions know."""
    return (*catalog.names(), *_extra_boards())


def accelerator(source: str | Path | Accelerator) -> Accelerator:
    """An accelerator of the catalog, or of a file: a TOML file or that of a self-test.

    A file needs ``name``, ``memory_bytes``, ``memory_bytes_per_second``, ``tensor_flops`` and
    ``default_limit_watts``. What it leaves out of ``link_bytes_per_second`` and ``link_domain``
    (devices that such links join), ``network_bytes_per_second`` (per device) and ``l2_bytes`` is
    assumed, which predictions say; further names are those of ``Specs`` in the catalog of boards
    (``from joulery.hardware import catalog``).

    The file that ``joulery doctor --selftest`` writes stands for that board: one of the catalog,
    with the idle power and the limits that were observed.

    Raises:
        InvalidValueError: The source is neither text nor a path nor an accelerator.
        UnknownDeviceError: No such accelerator; the remedy names the nearest of its generation.
        FileError: The file cannot be read, or lacks a figure.
    """
    if isinstance(source, Accelerator):
        return source
    if not isinstance(source, str | Path):
        raise InvalidValueError(
            f"{source!r} is no device type", remedy='give the name of one, such as "h100"'
        )
    path = Path(source)
    if path.suffix == ".json":
        return _tested(path)
    if isinstance(source, Path) or path.suffix == ".toml":
        return _described(_read_file(path), str(source))
    return _named(source)


@fitted_cache
def _named(name: str) -> Accelerator:
    key = _plain(name)
    for extra, entry in _extra_boards().items():
        if key in map(_plain, (extra, entry["full_name"], *entry.get("aliases", ()))):
            return _described(entry, extra)
    for refused, reason in _refused().items():
        if key.startswith(_plain(refused)):
            raise UnknownDeviceError(
                f"{name} cannot be predicted: {reason}",
                remedy="write what you know into a TOML file (name, memory_bytes, "
                "memory_bytes_per_second, tensor_flops, default_limit_watts) and give its path",
            )
    return _assembled(catalog.specs(name), catalog.board(name))


def _plain(name: str) -> str:
    return re.sub(r"nvidia|intel|amd|google|aws|[^a-z0-9]", "", name.lower())


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as problem:
        raise FileError(
            f"cannot read {path}: {problem.strerror}", remedy="give the path of a TOML file"
        ) from None
    except ValueError as problem:
        raise FileError(
            f"{path} is not TOML: {problem}",
            remedy="write a name and a value per line, such as memory_bytes = 16e9",
        ) from None


def _tested(path: Path) -> Accelerator:
    """A board of the catalog, with the limits and idle power that its self-test observed."""
    try:
        document = json.loads(path.read_bytes())
        board, specs = _named(document["board"]), document["specs"]
        watts = {name: finite(specs[name], name, minimum=1.0) for name in _OBSERVED & specs.keys()}
        origin = Origin(document["provenance"])
    except OSError as problem:
        raise FileError(f"cannot read {path}: {problem.strerror}", remedy=_SELFTEST) from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
        raise FileError(f"{path} is not of a self-test: {problem}", remedy=_SELFTEST) from None
    board = replace(
        board,
        idle_watts=watts.get("idle_watts", board.idle_watts),
        min_limit_watts=watts.get("min_limit_watts", board.min_limit_watts),
        limit_watts=watts.get("default_limit_watts", board.limit_watts),
    )
    if board.min_limit_watts > board.limit_watts:
        raise FileError(f"{path}: its lowest limit is above the default", remedy=_SELFTEST)
    words = (
        f"{name.removesuffix('_watts').replace('_', ' ')} {watts[name]:g} W ({origin.value})"
        for name in sorted(watts)
    )
    return replace(board, observed=tuple(words))


_OBSERVED = {"idle_watts", "min_limit_watts", "default_limit_watts"}
_SELFTEST = "give a file that `joulery doctor --selftest` wrote, or a TOML file"
_REQUIRED = (
    *("name", "memory_bytes", "memory_bytes_per_second", "tensor_flops"),
    "default_limit_watts",
)
_DEFAULTS: dict[str, Any] = {
    "vendor": "",
    "architecture": "",
    "source": "as described",
    "units": 128,
}
_DEFAULTS |= {"year": 2024, "boost_clock_hertz": 1.5e9, "aliases": ()}


def _described(entry: dict[str, Any], origin: str) -> Accelerator:
    """An accelerator from names and values."""
    fields_of_specs = {field.name for field in fields(catalog.Specs)}
    unknown = [name for name in entry if name not in fields_of_specs | {_NETWORK_NAME}]
    missing = [name for name in _REQUIRED if not entry.get(name)]
    if unknown or missing:
        flaw = f"lacks {', '.join(missing)}" if missing else f"has an unknown name {unknown[0]!r}"
        raise FileError(
            f"the description of an accelerator in {origin} {flaw}",
            remedy=f"give {', '.join(_REQUIRED)}, and where known "
            f"{', '.join(sorted({*fields_of_specs, _NETWORK_NAME} - {*_REQUIRED}))}",
        )
    for name, value in entry.items():
        if name not in _TEXTS:
            finite(value, name.replace("_", " "), minimum=0.0)
            _check_unit(name, value, origin)
    values = {"full_name": entry["name"], "max_limit_watts": entry["default_limit_watts"]}
    values |= _DEFAULTS | entry
    if entry.get("link_bytes_per_second", 0.0) > max(_PCIE.values()):
        values.setdefault("link_domain", _DOMAIN)
    network = values.pop(_NETWORK_NAME, None)
    specs = catalog.Specs(**values)
    board = _assembled(specs, catalog.derived(specs, catalog.fitted_boards()))
    board = board if network is None else replace(board, network_bytes_per_second=float(network))
    assumed = tuple(say(board) for name, say in _ASSUMED.items() if name not in entry)
    return replace(board, assumed=assumed)


# Devices that links of their own join where a description does not say: a server of eight.
_DOMAIN = 8
_NETWORK_NAME = "network_bytes_per_second"
# What matters between devices and is seldom on a sheet, in words.
_ASSUMED: dict[str, Callable[[Accelerator], str]] = {
    "link_bytes_per_second": lambda board: (
        f"{board.link_bytes_per_second / 1e9:g} GB/s to neighbours"
    ),
    "link_domain": lambda board: (
        "PCIe alone in a node"
        if board.link_domain < 2
        else f"links among {board.link_domain} of them"
    ),
    _NETWORK_NAME: lambda board: f"{board.network_bytes_per_second / 1e9:g} GB/s to other nodes",
    "l2_bytes": lambda board: f"{board.l2_bytes / 1e6:g} MB of cache",
}
# Ends of what has been built and will be soon, by unit; a value beyond is in another unit.
_PLAUSIBLE = {
    "_watts": (3.0, 2e4, "watts, such as 700"),
    "_flops": (1e11, 1e18, "operations per second, such as 989e12"),
    "_hertz": (1e6, 2e10, "hertz, such as 1.98e9"),
    "_bytes_per_second": (1e8, 1e15, "bytes per second, such as 3.35e12"),
    "memory_bytes": (5e8, 1e14, "bytes, such as 80e9"),
    "l2_bytes": (1e5, 1e12, "bytes, such as 50e6"),
}


def _check_unit(name: str, value: float, origin: str) -> None:
    for ending, (least, most, unit) in _PLAUSIBLE.items():
        if name.endswith(ending) and value and not least <= value <= most:
            raise FileError(
                f"{name} = {value:g} in {origin} is in another unit", remedy=f"give {unit}"
            )


_TEXTS = (
    *("name", "full_name", "vendor", "architecture", "source", "memory_kind", "aliases"),
    "same_chip_as",
)


_CONSUMER = ("GeForce", "TITAN", "Radeon RX")


def _assembled(specs: catalog.Specs, board: Board) -> Accelerator:
    tensor = specs.tensor_flops or specs.fp32_flops or 0.0
    peaks = {
        "fp32": specs.fp32_flops or tensor,
        "tf32": specs.tf32_flops,
        "bf16": 0.0 if specs.architecture in _WITHOUT_BF16 else tensor,
        "fp16": tensor,
        "fp8": specs.fp8_flops,
        "mxfp8": specs.fp8_flops,
        "nvfp4": specs.fp4_flops,
    }
    return Accelerator(
        name=specs.name,
        architecture=specs.architecture,
        peaks={key: value for key, value in peaks.items() if value},
        bytes_per_second=specs.memory_bytes_per_second or 0.0,
        memory_bytes=float(specs.memory_bytes or 0),
        l2_bytes=float(specs.l2_bytes or 4e6),
        units=specs.units or 1,
        clock_hertz=specs.boost_clock_hertz,
        limit_watts=specs.default_limit_watts,
        min_limit_watts=board.min_limit_watts,
        min_clock_hertz=board.min_clock_hertz,
        idle_watts=board.idle_watts,
        leakage=_LEAKY.get((specs.architecture, (specs.memory_kind or "")[:4]), 1.0),
        link_bytes_per_second=specs.link_bytes_per_second
        or _PCIE.get(specs.architecture, _OLD_PCIE),
        link_domain=specs.link_domain or 1,
        network_bytes_per_second=_NETWORK.get(specs.architecture, _OLD_NETWORK),
        vendor=specs.vendor,
        operation_joules={name: _operation_joules(specs, name) for name in BYTES},
        consumer=any(word in specs.full_name for word in _CONSUMER),
    )
