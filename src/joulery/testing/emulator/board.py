"""Specification of an emulated board, and its C structures."""

from __future__ import annotations

import ctypes
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.hardware import Board, Steady

# Sizes of the tables in emulator.h.
MAX_BOARDS = 16
MAX_PHASES = 8
_MAX_CLOCKS = 512
_MAX_ROWS = 1024
_MAX_SLICES = 8
_TOTAL_SLICES = 7  # of a board that is cut into MIG instances
# NVML_DEVICE_ARCH_… and NVML_BRAND_TESLA.
_PASCAL, _AMPERE = 4, 7
_TESLA = 2


@dataclass(frozen=True, slots=True)
class BoardSpec:
    """One emulated board.

    Attributes:
        board: Constants of its type, from the catalog.
        stamped: Whether a field value's timestamp is the counter's refresh; False for the call.
        has_counter: False for a board from before Volta: power sensor but no energy counter.
        has_power_fields: Whether instant and average power are available as field values.
        averages_power: Whether the plain power call gives the mean over the last second.
        noise: Largest relative error of the power sensor.
        window_seconds: Time before a refresh that the sensor averages over; 0 for the power at the
            refresh. Below the refresh period it misses the rest.
        sensor_lag_seconds: Mean delay with which the sensor follows beyond that.
        gain: Watts and joules stated per true one.
        offset_watts: Watts stated at zero.
        counts_looks: Whether the counter adds up what the sensor looks at, instead of all energy.
        refresh_phase_seconds: Time of the counter's first refresh after the node's start.
        counter_start_joules: Counter value at the node's start; the driver was loaded earlier.
        memory_bytes: On-board memory.
        mig_slices: Compute slices of each MIG instance; empty for MIG switched off.
    """

    board: Board
    stamped: bool = True
    has_counter: bool = True
    has_power_fields: bool = True
    averages_power: bool = False
    noise: float = 0.0
    window_seconds: float = 0.0
    sensor_lag_seconds: float = 0.0
    gain: float = 1.0
    offset_watts: float = 0.0
    counts_looks: bool = False
    refresh_phase_seconds: float = 0.0
    counter_start_joules: float = 1234.567
    memory_bytes: int = 80 << 30
    mig_slices: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.board.clocks()) > _MAX_CLOCKS:
            raise InvalidValueError(
                f"{self.board.name} has more than {_MAX_CLOCKS} clocks",
                remedy="give the board a larger clock_step_hertz",
            )
        if self.counts_looks and not self.window_seconds:
            raise InvalidValueError(
                "a sensor without a window looks at nothing that could be counted",
                remedy="give window_seconds above 0",
            )
        if len(self.mig_slices) > _TOTAL_SLICES or sum(self.mig_slices) > _TOTAL_SLICES:
            raise InvalidValueError(
                f"MIG slices {self.mig_slices} do not fit on a board",
                remedy=f"give instances of at most {_TOTAL_SLICES} slices in total",
            )


@dataclass(frozen=True, slots=True)
class Phase:
    """Part of a repeating pattern of power, such as the backward pass of a step.

    Attributes:
        factor: Power relative to the steady power of the load.
        seconds: Duration at full clock; it stretches with the step.
    """

    factor: float
    seconds: float

    def __post_init__(self) -> None:
        if not (self.factor >= 0 and self.seconds > 0):
            raise InvalidValueError(
                f"a phase cannot have factor {self.factor} for {self.seconds} s",
                remedy="give a factor of 0 or more and a duration above 0 s",
            )


class SliceRecord(ctypes.Structure):
    """``struct slice`` of emulator.h."""

    _fields_ = (
        ("uuid", ctypes.c_char * 96),
        ("profile", ctypes.c_char * 32),
        ("compute_slices", ctypes.c_uint32),
        ("memory_mebibytes", ctypes.c_uint32),
    )


class SpecRecord(ctypes.Structure):
    """``struct spec`` of emulator.h."""

    _fields_ = (
        ("name", ctypes.c_char * 96),
        ("uuid", ctypes.c_char * 96),
        ("serial", ctypes.c_char * 32),
        ("idle_watts", ctypes.c_double),
        ("min_watts", ctypes.c_double),
        ("max_watts", ctypes.c_double),
        ("default_watts", ctypes.c_double),
        ("period_seconds", ctypes.c_double),
        ("phase_seconds", ctypes.c_double),
        ("lag_seconds", ctypes.c_double),
        ("noise", ctypes.c_double),
        ("window_seconds", ctypes.c_double),
        ("sensor_lag_seconds", ctypes.c_double),
        ("gain", ctypes.c_double),
        ("offset_watts", ctypes.c_double),
        ("counter_start_joules", ctypes.c_double),
        ("memory_bytes", ctypes.c_uint64),
        ("pci_domain", ctypes.c_uint32),
        ("pci_bus", ctypes.c_uint32),
        ("pci_device", ctypes.c_uint32),
        ("pci_device_id", ctypes.c_uint32),
        ("pci_subsystem_id", ctypes.c_uint32),
        ("architecture", ctypes.c_uint32),
        ("capability_major", ctypes.c_uint32),
        ("capability_minor", ctypes.c_uint32),
        ("brand", ctypes.c_uint32),
        ("stamped", ctypes.c_uint32),
        ("has_counter", ctypes.c_uint32),
        ("has_power_fields", ctypes.c_uint32),
        ("averages_power", ctypes.c_uint32),
        ("counts_looks", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
        ("memory_megahertz", ctypes.c_uint32),
        ("idle_celsius", ctypes.c_uint32),
        ("hot_celsius", ctypes.c_uint32),
        ("total_slices", ctypes.c_uint32),
        ("slice_count", ctypes.c_uint32),
        ("slices", SliceRecord * _MAX_SLICES),
        ("clock_count", ctypes.c_uint32),
        ("padding", ctypes.c_uint32),
        ("clocks_hertz", ctypes.c_double * _MAX_CLOCKS),
    )


class RowRecord(ctypes.Structure):
    """``struct row`` of emulator.h."""

    _fields_ = (
        ("hertz", ctypes.c_double),
        ("seconds", ctypes.c_double),
        ("watts", ctypes.c_double),
        ("busy_watts", ctypes.c_double),
    )


class PhaseRecord(ctypes.Structure):
    """``struct phase`` of emulator.h."""

    _fields_ = (("factor", ctypes.c_double), ("seconds", ctypes.c_double))


class ProcessRecord(ctypes.Structure):
    """``struct process`` of emulator.h."""

    _fields_ = (("pid", ctypes.c_uint32), ("memory_bytes", ctypes.c_uint64))


class FaultRecord(ctypes.Structure):
    """``struct fault`` of emulator.h."""

    _fields_ = (
        ("function", ctypes.c_char * 80),
        ("board", ctypes.c_int32),
        ("code", ctypes.c_int32),
        ("calls_left", ctypes.c_int64),
        ("since", ctypes.c_double),
        ("delay_seconds", ctypes.c_double),
        ("busy", ctypes.c_uint32),
    )


def record_of(spec: BoardSpec, index: int, node: str) -> SpecRecord:
    """The C form of a board; its identity follows from its node, name and index."""
    board, clocks = spec.board, spec.board.clocks()
    record = SpecRecord(
        name=f"NVIDIA {board.name}".encode(),
        uuid=f"GPU-{_identity(node, board.name, index)}".encode(),
        serial=f"132{index:010d}".encode(),
        idle_watts=board.idle_watts,
        min_watts=board.min_limit_watts,
        max_watts=board.max_limit_watts,
        default_watts=board.default_limit_watts,
        period_seconds=board.counter_period_seconds,
        phase_seconds=spec.refresh_phase_seconds,
        lag_seconds=board.power_lag_seconds,
        noise=spec.noise,
        window_seconds=spec.window_seconds,
        sensor_lag_seconds=spec.sensor_lag_seconds,
        gain=spec.gain,
        offset_watts=spec.offset_watts,
        counter_start_joules=spec.counter_start_joules,
        memory_bytes=spec.memory_bytes,
        pci_bus=0x17 + 0x10 * index % 0xE0,
        pci_device_id=0x20B010DE,
        pci_subsystem_id=0x134F10DE,
        architecture=_AMPERE if spec.has_counter else _PASCAL,
        capability_major=8 if spec.has_counter else 6,
        brand=_TESLA,
        stamped=spec.stamped,
        has_counter=spec.has_counter,
        has_power_fields=spec.has_power_fields,
        averages_power=spec.averages_power,
        counts_looks=spec.counts_looks,
        memory_megahertz=1593,
        idle_celsius=30,
        hot_celsius=80,
        total_slices=_TOTAL_SLICES if spec.has_counter else 0,
        slice_count=len(spec.mig_slices),
        clock_count=len(clocks),
    )
    record.clocks_hertz[: len(clocks)] = clocks
    for number, slices in enumerate(spec.mig_slices):
        mebibytes = (spec.memory_bytes >> 20) * slices // (_TOTAL_SLICES + 1)
        record.slices[number] = SliceRecord(
            uuid=f"MIG-{_identity(node, board.name, index, number)}".encode(),
            profile=f"{slices}g.{mebibytes >> 10}gb".encode(),
            compute_slices=slices,
            memory_mebibytes=mebibytes,
        )
    return record


def _identity(*parts: object) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_DNS, "/".join(["emulated", *map(str, parts)]))


def rows_of(states: Sequence[Steady]) -> ctypes.Array[RowRecord]:
    """The C form of a table of clock states."""
    if len(states) > _MAX_ROWS:
        raise InvalidValueError(
            f"a table of {len(states)} clock states is too long",
            remedy=f"give at most {_MAX_ROWS}",
        )
    rows = (RowRecord(s.clock_hertz, s.seconds, s.watts, s.busy_watts) for s in states)
    return (RowRecord * len(states))(*rows)


def phases_of(phases: Sequence[Phase]) -> ctypes.Array[PhaseRecord]:
    """The C form of a pattern."""
    if len(phases) > MAX_PHASES:
        raise InvalidValueError(
            f"a pattern of {len(phases)} phases is too long", remedy=f"give at most {MAX_PHASES}"
        )
    return (PhaseRecord * len(phases))(*(PhaseRecord(p.factor, p.seconds) for p in phases))
