"""Python interface of the compiled core: walk a frontier, recall durations, round to clocks."""

from __future__ import annotations

import ctypes
import functools
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_void_p,
)
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.errors import JouleryError, MissingExtraError
from joulery.pipeline.planning.native.build import library_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

UNBOUNDED = 1 << 61


class _Graph(Structure):
    _fields_ = (
        ("instructions", c_int32),
        ("edges", c_int32),
        *(
            (name, c_void_p)
            for name in (
                "curve_of",
                "first_vertex",
                "vertex_time",
                "vertex_room",
                "edge_from",
                "edge_to",
                "edge_time",
                "order",
            )
        ),
    )


class _Walk(Structure):
    _fields_ = (
        ("instructions", c_int32),
        ("vertices", c_size_t),
        ("moments", c_size_t),
        ("pieces", c_size_t),
        ("vertex_room", c_size_t),
        ("moment_room", c_size_t),
        ("piece_room", c_size_t),
        ("vertex", POINTER(c_int64)),
        ("recall", c_void_p * 5),  # only the core reads it
        ("keyframes", c_size_t * 2),
        ("augmentations", c_int64),
        ("samples", c_size_t),
        ("sample_room", c_size_t),
        ("sample", POINTER(c_double)),
        ("durations", POINTER(c_float)),
    )


class _Truth(Structure):
    _fields_ = (
        ("first", c_void_p),
        ("seconds", c_void_p),
        ("watts", c_void_p),
        ("unit_seconds", c_double),
        ("unit_watts", c_double),
        ("joules", c_double),
    )


class _Clocks(Structure):
    _fields_ = (
        ("instructions", c_int32),
        *(
            (name, c_void_p)
            for name in (
                "order",
                "first_before",
                "before",
                "before_seconds",
                "first_after",
                "after",
                "after_seconds",
                "curve_of",
                "first_point",
                "seconds",
                "cost",
                "on_hull",
            )
        ),
    )


@functools.cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(library_path()))
    except OSError as refused:
        raise MissingExtraError(
            f"the pipeline planner's core cannot be loaded: {refused}",
            remedy="install Joulery again on this machine, or make the cache folder writable",
        ) from None
    library.joulery_walk.restype = POINTER(_Walk)
    library.joulery_walk.argtypes = [POINTER(_Graph)]
    library.joulery_sample.restype = POINTER(_Walk)
    library.joulery_sample.argtypes = [POINTER(_Graph), POINTER(_Truth)]
    library.joulery_free.restype = None
    library.joulery_free.argtypes = [POINTER(_Walk)]
    library.joulery_durations.restype = c_int
    library.joulery_durations.argtypes = [POINTER(_Walk), c_int64, c_void_p]
    library.joulery_round.restype = c_int
    library.joulery_round.argtypes = [
        POINTER(_Clocks), c_void_p, c_double, c_int32, c_void_p, c_void_p,
    ]  # fmt: skip
    library.joulery_improve.restype = c_int
    library.joulery_improve.argtypes = [
        POINTER(_Clocks), c_double, c_int32, c_void_p, c_void_p,
    ]  # fmt: skip
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


def _out_of_memory() -> JouleryError:
    return JouleryError(
        "not enough memory to plan this pipeline",
        remedy="plan fewer microbatches; the clocks repeat",
    )


class Walk:
    """A frontier walked by the compiled core, in whole units of time and power.

    Args:
        arrays: Arrays in the order of ``JouleryGraph`` in native.h, from ``curve_of`` on.
    """

    def __init__(self, arrays: Sequence[NDArray[Any]]) -> None:
        self._instructions = len(arrays[0])
        self._free = _library().joulery_free
        graph = _Graph(self._instructions, len(arrays[4]), *map(_address, arrays))
        self._walk = _library().joulery_walk(byref(graph))
        if not self._walk:
            raise _out_of_memory()
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
        if not _library().joulery_durations(self._walk, time, _address(found)):
            raise _out_of_memory()
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
        graph = _Graph(len(arrays[0]), len(arrays[4]), *map(_address, arrays))
        truth = _Truth(*map(_address, curves), *units)
        found = library.joulery_sample(byref(graph), byref(truth))
        if not found:
            raise _out_of_memory()
        try:
            walk = found.contents
            shape = (walk.samples, len(arrays[0]))
            self.table: NDArray[np.float64] = np.ctypeslib.as_array(
                walk.sample, (walk.samples, 4)
            ).copy()
            self.durations: NDArray[np.float32] = np.ctypeslib.as_array(
                walk.durations, shape
            ).copy()
        finally:
            library.joulery_free(found)


class Rounder:
    """Rounding of durations to clock choices by the compiled core.

    Args:
        arrays: Arrays in the order of ``JouleryClocks`` in native.h, from ``order`` on.
    """

    def __init__(self, arrays: Sequence[NDArray[Any]]) -> None:
        self._arrays = tuple(arrays)
        self._round = _library().joulery_round
        self._improve = _library().joulery_improve
        self._clocks = _Clocks(len(arrays[0]), *map(_address, arrays))

    def __call__(
        self, durations: NDArray[np.float64], deadline_seconds: float, attempts: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """A point for each instruction, and when the instruction starts."""
        choice = np.empty(len(durations), dtype=np.int32)
        start = np.empty(len(durations), dtype=np.float64)
        done = self._round(
            byref(self._clocks),
            _address(durations),
            deadline_seconds,
            attempts,
            _address(choice),
            _address(start),
        )
        if not done:
            raise _out_of_memory()
        return choice, start

    def improve(
        self, chosen: NDArray[np.int32], deadline_seconds: float, trials: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Points that cost no more, after so many trials, and when instructions start."""
        choice = chosen.copy()
        start = np.empty(len(choice), dtype=np.float64)
        done = self._improve(
            byref(self._clocks), deadline_seconds, trials, _address(choice), _address(start)
        )
        if not done:
            raise _out_of_memory()
        return choice, start
