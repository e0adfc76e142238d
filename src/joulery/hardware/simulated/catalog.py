"""Catalog of accelerators and reference workloads: specifications, and constants for simulation.

Examples:
    >>> board("Tesla V100-SXM2-32GB").max_limit_watts
    300.0
    >>> specs("h100").memory_bytes_per_second
    3350000000000.0
"""

from __future__ import annotations

import difflib
import re
import tomllib
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from statistics import fmean
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError, UnknownDeviceError
from joulery.hardware.simulated._physics import Board, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

# A workload can make up for too low an awake power (by activity) but not for one that is too
# high, so the rule stays below every share seen. The fit errors of boards derived from the others
# hardly depend on it between 0 and 0.85; at 1, host-bound work on a V100 is off by 14 %.
_AWAKE_MARGIN = 0.6

# Where no source states them.
_IDLE_SHARE = 0.1  # median of the boards that state one
_MIN_LIMIT_SHARE = 0.4  # by hand: boards that state one have 0.45 in the median
_MIN_CLOCK_SHARE = 0.14  # by hand: 210 MHz of some 1,500
_CLOCK_STEP_HERTZ = 15e6  # as an A100 and an H100 state it


@dataclass(frozen=True, slots=True)
class Specs:
    """Specification of an accelerator by its vendor; None where no source states a value.

    Attributes:
        name: Short name, unique in the catalog.
        full_name: Name that the driver reports.
        vendor: ``nvidia`` or ``amd``.
        architecture: Vendor's name of the generation.
        year: Year of the first boards.
        source: Document behind the numbers.
        default_limit_watts: Power limit after start-up.
        max_limit_watts: Highest power limit.
        boost_clock_hertz: Highest core clock of the specification.
        min_limit_watts: Lowest power limit.
        idle_watts: Assumed power of an unused board.
        memory_kind: Type of memory, such as ``HBM2``.
        memory_bytes: Memory that the driver states, or its size where that is not known.
        memory_bytes_per_second: Bandwidth of the memory.
        fp32_flops: Peak without matrix units.
        tensor_flops: Dense peak in FP16/BF16.
        tf32_flops: Dense peak in TF32.
        fp8_flops: Dense peak in FP8.
        fp4_flops: Dense peak in FP4.
        l2_bytes: Last-level cache on the chip.
        link_bytes_per_second: Bandwidth to the other devices of its node, one direction.
        link_domain: Number of devices within one such switched domain.
        units: Number of streaming multiprocessors or compute units.
        base_clock_hertz: Guaranteed core clock.
        min_clock_hertz: Lowest core clock.
        clock_step_hertz: Distance between supported clocks.
        same_chip_as: Fitted board whose power shares also hold here.
        aliases: Other names that people and drivers use.
    """

    name: str
    full_name: str
    vendor: str
    architecture: str
    year: int
    source: str
    default_limit_watts: float
    max_limit_watts: float
    boost_clock_hertz: float
    min_limit_watts: float | None = None
    idle_watts: float | None = None
    memory_kind: str | None = None
    memory_bytes: int | None = None
    memory_bytes_per_second: float | None = None
    fp32_flops: float | None = None
    tensor_flops: float | None = None
    tf32_flops: float | None = None
    fp8_flops: float | None = None
    fp4_flops: float | None = None
    l2_bytes: int | None = None
    link_bytes_per_second: float | None = None
    link_domain: int | None = None
    units: int | None = None
    base_clock_hertz: float | None = None
    min_clock_hertz: float | None = None
    clock_step_hertz: float | None = None
    same_chip_as: str | None = None
    aliases: tuple[str, ...] = ()


def names() -> tuple[str, ...]:
    """Short names of every accelerator, in the catalog's order."""
    return tuple(_entries())


def specs(name: str) -> Specs:
    """Specification of an accelerator.

    Args:
        name: Short name, driver name or alias; case, spaces, dashes and maker do not matter.

    Raises:
        UnknownDeviceError: No such accelerator; the remedy names the nearest.
    """
    return _specs(_canonical(name))


def board(name: str) -> Board:
    """Constants for simulation: fitted where measurements exist, else derived from the specs."""
    return _board(_canonical(name))


def fitted_boards() -> tuple[Board, ...]:
    """Every board whose constants were fitted to measurements."""
    return tuple(_board(name) for name, entry in _entries().items() if "fitted" in entry)


def workload(name: str, board: Board) -> Workload:
    """A reference workload as it would run on ``board``.

    Compute scales with the peak of the arithmetic it uses, memory traffic with the bandwidth;
    time on the host does not change. On a board outside the catalog it runs as on the board on
    which it was measured.

    Raises:
        InvalidValueError: No such workload.
    """
    entry = _workloads().get(_key(name))
    if entry is None:
        raise InvalidValueError(
            f"no reference workload {name!r}", remedy=f"one of {', '.join(workload_names())}"
        )
    compute_scale = memory_scale = 1.0
    if _key(board.name) in _aliases():
        target, source = specs(board.name), specs(entry["measured_on"])
        compute_scale = _ratio(
            _peak(source, entry["arithmetic"]), _peak(target, entry["arithmetic"])
        )
        memory_scale = _ratio(source.memory_bytes_per_second, target.memory_bytes_per_second)
    return Workload(
        entry["name"],
        entry["compute_seconds"] * compute_scale,
        entry["memory_seconds"] * memory_scale,
        entry["host_seconds"],
        entry["activity"],
    )


def workload_names() -> tuple[str, ...]:
    """Names of the reference workloads."""
    return tuple(entry["name"] for entry in _workloads().values())


def _peak(accelerator: Specs, arithmetic: str) -> float | None:
    flops = accelerator.tensor_flops if arithmetic == "tensor" else accelerator.fp32_flops
    return flops or accelerator.fp32_flops or accelerator.tensor_flops


def _ratio(source: float | None, target: float | None) -> float:
    return source / target if source and target else 1.0


def _key(name: str) -> str:
    """``"Tesla V100-SXM2-32GB"`` and ``"v100 sxm2 32gb"`` are the same."""
    # Drivers put the maker in front of some names and not of others, by version.
    return re.sub(r"nvidia|amd|instinct|tesla|[^a-z0-9]", "", name.lower())


def _canonical(name: str) -> str:
    key = _key(name)
    aliases = _aliases()
    if key in aliases:
        return aliases[key]
    near = difflib.get_close_matches(key, aliases, n=4)
    nearest = ", ".join(dict.fromkeys(aliases[match] for match in near))
    raise UnknownDeviceError(
        f"no accelerator {name!r} in the catalog",
        remedy=f"the nearest are {nearest}; `joulery predict --devices` lists all"
        if nearest
        else "`joulery predict --devices` lists all, such as V100, A100 and H100",
    )


_WHOLE = ("year", "units", "memory_bytes", "l2_bytes", "link_domain")


@cache
def _specs(name: str) -> Specs:
    names = {field.name for field in fields(Specs)}
    entry = {key: value for key, value in _entries()[name].items() if key in names}
    for key, value in entry.items():
        if isinstance(value, int | float):
            entry[key] = int(value) if key in _WHOLE else float(value)
    entry["aliases"] = tuple(entry["aliases"])
    return Specs(**entry)


@cache
def _board(name: str) -> Board:
    accelerator = _specs(name)
    entry = _entries()[name].get("fitted")
    if entry is not None:
        return _assembled(accelerator, entry, fitted=True)
    sibling = accelerator.same_chip_as
    return derived(accelerator, (board(sibling),) if sibling else fitted_boards())


def derived(specs: Specs, references: Sequence[Board]) -> Board:
    """Constants of an unmeasured board: watts as shares of the default limit on ``references``.

    One reference is enough when it carries the same chip.
    """
    limit = specs.default_limit_watts

    def shares(name: str) -> list[float]:
        return [getattr(board, name) / board.default_limit_watts for board in references]

    margin = _AWAKE_MARGIN if len(references) > 1 else 1.0
    names = ", ".join(board.name for board in references)
    constants = {
        "awake_watts": max(margin * min(shares("awake_watts")) * limit, specs.idle_watts or 0.0),
        "clock_watts": fmean(shares("clock_watts")) * limit,
        "dynamic_watts": fmean(shares("dynamic_watts")) * limit,
        "memory_watts": fmean(shares("memory_watts")) * limit,
        "voltage_floor": fmean(board.voltage_floor for board in references),
        "knee_share": fmean(board.knee_clock_hertz / board.max_clock_hertz for board in references),
        "source": f"derived from {specs.source}, with the power shares of {names}",
    }
    return _assembled(specs, constants, fitted=False)


def _assembled(specs: Specs, constants: dict[str, Any], *, fitted: bool) -> Board:
    """A board from its specification, and the constants that no vendor states with their source.

    ``knee_share`` is the knee clock as a fraction of the highest.
    """
    limit, highest = specs.default_limit_watts, specs.boost_clock_hertz
    watts = {name: value for name, value in constants.items() if name != "knee_share"}
    return Board(
        name=specs.name,
        idle_watts=min(specs.idle_watts or _IDLE_SHARE * limit, constants["awake_watts"]),
        knee_clock_hertz=constants["knee_share"] * highest,
        min_clock_hertz=specs.min_clock_hertz or _MIN_CLOCK_SHARE * highest,
        max_clock_hertz=highest,
        clock_step_hertz=specs.clock_step_hertz or _CLOCK_STEP_HERTZ,
        min_limit_watts=specs.min_limit_watts or _MIN_LIMIT_SHARE * limit,
        max_limit_watts=specs.max_limit_watts,
        default_limit_watts=limit,
        fitted=fitted,
        **watts,
    )


@cache
def _aliases() -> dict[str, str]:
    aliases: dict[str, str] = {}
    for name, entry in _entries().items():
        for spelling in (name, entry["full_name"], *entry["aliases"]):
            aliases.setdefault(_key(spelling), name)
    return aliases


@cache
def _entries() -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in _read("boards.toml")["board"]}


@cache
def _workloads() -> dict[str, dict[str, Any]]:
    return {_key(entry["name"]): entry for entry in _read("workloads.toml")["workload"]}


def _read(file: str) -> dict[str, Any]:
    return tomllib.loads(
        files("joulery.hardware.simulated").joinpath(file).read_text(encoding="utf-8")
    )
