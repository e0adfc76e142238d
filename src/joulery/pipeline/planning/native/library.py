"""Python interface of the compiled core: walk a frontier, recall durations, round to clocks."""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, byref, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.errors import JouleryError, MissingExtraError
from joulery.pipeline.planning.native.build import library_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

UNBOUNDED = 1 << 61


def _fields(names: str, kind: Any) -> Iterator[tuple[str, Any]]:
    return ((name, kind) for name in names.split())


class _Graph(ctypes.Structure):
    _fields_ = (
        *_fields("instructions edges", c_int32),
        *_fields("curve_of first_vertex vertex_time vertex_room", c_void_p),
        *_fields("edge_from edge_to edge_time order", c_void_p),
    )


class _Walk(ctypes.Structure):
    _fields_ = (
        ("instructions", c_int32),
        *_fields("vertices moments pieces vertex_room moment_room piece_room", c_size_t),
        ("vertex", POINTER(c_int64)),
        ("recall", c_void_p * 5),  # only the core reads it
        ("keyframes", c_size_t * 2),
        ("augmentations", c_int64),
        *_fields("samples sample_room", c_size_t),
        ("sample", POINTER(c_double)),
        ("durations", POINTER(c_float)),
    )


class _Truth(ctypes.Structure):
    _fields_ = (
        *_fields("first seconds watts", c_void_p),
        *_fields("unit_seconds unit_watts joules", c_double),
    )


class _Clocks(ctypes.Structure):
    _fields_ = (
        ("instructions", c_int32),
        *_fields("order first_before before before_seconds", c_void_p),
        *_fields("first_after after after_seconds", c_void_p),
        *_fields("curve_of first_point seconds cost on_hull", c_void_p),
    )


_WALK = POINTER(_Walk)
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "joulery_walk": (_WALK, [POINTER(_Graph)]),
    "joulery_sample": (_WALK, [POINTER(_Graph), POINTER(_Truth)]),
    "joulery_free": (None, [_WALK]),
    "joulery_durations": (c_int, [_WALK, c_int64, c_void_p]),
    "joulery_round": (c_int, [POINTER(_Clocks), c_void_p, c_double, c_int32, c_void_p, c_void_p]),
    "joulery_improve": (c_int, [POINTER(_Clocks), c_double, c_int32, c_void_p, c_void_p]),
}


@functools.cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(library_path()))
    except OSError as error:
        raise MissingExtraError(
            f"the pipeline planner's core cannot be loaded: {error}",
            remedy="install Joulery again on this machine, or make the cache folder writable",
        ) from None
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def available() -> bool:
    """Whether the compiled core can be used; without it HiGHS does the work, slowly."""
    try:
        _library()
    except JouleryError:
        return False
    return True


def _address(array: NDArray[Any]) -> int:
    if not array.flags.c_contiguous:
        raise JouleryError(
            "an array for the compiled core is not contiguous", remedy="report this as a bug"
        )
    return int(array.ctypes.data)


def _check_memory(done: object) -> None:
    if not done:
        raise JouleryError(
            "not enough memory to plan this pipeline",
            remedy="plan fewer microbatches; the clocks repeat",
        )


def _graph(arrays: Sequence[NDArray[Any]]) -> _Graph:
    return _Graph(len(arrays[0]), len(arrays[4]), *map(_address, arrays))


class Walk:
    """A frontier walked by the compiled core, in whole units of time and power.

    Args:
        arrays: Arrays in the order of ``JouleryGraph`` in native.h, from ``curve_of`` on.

    Attributes:
        times: (vertices,), iteration times, slowest first.
        flows: (vertices,), cost that a unit of time less adds below each of them.
        pieces: Number of changes of durations along the frontier.
    """

    def __init__(self, arrays: Sequence[NDArray[Any]]) -> None:
        self._instructions = len(arrays[0])
        self._free = _library().joulery_free
        self._walk = _library().joulery_walk(byref(_graph(arrays)))
        _check_memory(self._walk)
        found = self._walk.contents
        pairs = np.ctypeslib.as_array(found.vertex, (found.vertices, 2))
        self.times: NDArray[np.int64] = pairs[:, 0].copy()
        self.flows: NDArray[np.int64] = pairs[:, 1].copy()
        self.pieces = int(found.pieces)

    def __del__(self) -> None:
        walk = getattr(self, "_walk", None)
        if walk:
            self._free(walk)

    def durations(self, time: int) -> NDArray[np.int64]:
        """The duration of every instruction in an iteration of ``time`` units."""
        found = np.empty(self._instructions, dtype=np.int64)
        _check_memory(_library().joulery_durations(self._walk, time, _address(found)))
        return found


class Samples:
    """A frontier of coarser curves walked by the compiled core, checked against the exact ones.

    Args:
        arrays: Arrays in the order of ``JouleryGraph`` in native.h, from ``curve_of`` on.
        curves: Exact curves in the order of ``JouleryTruth``: first, seconds, watts.
        units: Seconds and watts of a whole unit, and joules by which lines between samples may
            be off.

    Attributes:
        table: (samples, 4), slowest first: seconds, watts, joules needed above the slowest
            iteration's, and joules that no durations go below.
        durations: (samples, instructions), seconds.
    """

    def __init__(
        self,
        arrays: Sequence[NDArray[Any]],
        curves: Sequence[NDArray[Any]],
        units: tuple[float, float, float],
    ) -> None:
        library = _library()
        truth = _Truth(*map(_address, curves), *units)
        found = library.joulery_sample(byref(_graph(arrays)), byref(truth))
        _check_memory(found)
        walk = found.contents
        shape = (walk.samples, len(arrays[0]))
        table = np.ctypeslib.as_array(walk.sample, (walk.samples, 4))
        self.table: NDArray[np.float64] = table.copy()
        self.durations: NDArray[np.float32] = np.ctypeslib.as_array(walk.durations, shape).copy()
        library.joulery_free(found)


class Rounder:
    """Rounding of durations to clock choices by the compiled core.

    Args:
        arrays: Arrays in the order of ``JouleryClocks`` in native.h, from ``order`` on.
    """

    def __init__(self, arrays: Sequence[NDArray[Any]]) -> None:
        self._arrays = tuple(arrays)  # the core reads them
        self._round = _library().joulery_round
        self._improve = _library().joulery_improve
        self._clocks = _Clocks(len(arrays[0]), *map(_address, arrays))

    def __call__(
        self, durations: NDArray[np.float64], deadline_seconds: float, attempts: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """A point for each instruction, and when the instruction starts."""
        choice = np.empty(len(durations), dtype=np.int32)
        start = np.empty(len(durations), dtype=np.float64)
        out = _address(choice), _address(start)
        wanted = _address(durations)
        _check_memory(self._round(byref(self._clocks), wanted, deadline_seconds, attempts, *out))
        return choice, start

    def improve(
        self, chosen: NDArray[np.int32], deadline_seconds: float, trials: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Points that cost no more, after so many trials, and when instructions start."""
        choice = chosen.copy()
        start = np.empty(len(choice), dtype=np.float64)
        out = _address(choice), _address(start)
        _check_memory(self._improve(byref(self._clocks), deadline_seconds, trials, *out))
        return choice, start
