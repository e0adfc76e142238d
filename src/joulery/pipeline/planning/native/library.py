"""Python interface of the compiled core: walk a frontier, round its durations to clocks."""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, byref, c_double, c_int, c_int32, c_size_t, c_void_p
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.errors import JouleryError, MissingExtraError
from joulery.pipeline.planning.native.build import library_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

UNBOUNDED = 1 << 61
# How much work a plan may cost; see round.c.
QUICK, USUAL, THOROUGH = range(3)


def _fields(names: str, kind: Any) -> Iterator[tuple[str, Any]]:
    return ((name, kind) for name in names.split())


class _Graph(ctypes.Structure):
    _fields_ = (
        *_fields("instructions edges", c_int32),
        *_fields("curve_of first_vertex vertex_time vertex_room", c_void_p),
        *_fields("edge_from edge_to edge_time order", c_void_p),
        *_fields("first_hull hull_seconds hull_cost", c_void_p),
        *_fields("unit_seconds unit_watts joules", c_double),
    )


class _Frontier(ctypes.Structure):
    _fields_ = (
        ("samples", c_size_t),
        *_fields("sample durations", POINTER(c_double)),
    )


class _Clocks(ctypes.Structure):
    _fields_ = (
        ("instructions", c_int32),
        *_fields("order first_before before before_seconds", c_void_p),
        *_fields("first_after after after_seconds", c_void_p),
        *_fields("curve_of first_point seconds cost on_hull", c_void_p),
        *_fields("sample_seconds sample_durations", c_void_p),
        ("samples", c_int32),
    )


_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "joulery_walk": (POINTER(_Frontier), [POINTER(_Graph)]),
    "joulery_free": (None, [POINTER(_Frontier)]),
    "joulery_round": (
        c_int,
        [POINTER(_Clocks), c_void_p, c_int32, c_int32, c_void_p, c_void_p],
    ),
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


def _address(array: NDArray[Any]) -> int:
    if not array.flags.c_contiguous:
        raise JouleryError(
            "an array for the compiled core is not contiguous", remedy="report this as a bug"
        )
    return int(array.ctypes.data)


def _check_memory(status: object) -> None:
    if not status:
        raise JouleryError(
            "not enough memory to plan this pipeline",
            remedy="plan fewer microbatches; the clocks repeat",
        )


def walk(
    arrays: Sequence[NDArray[Any]], units: tuple[float, float, float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Walk a frontier.

    Args:
        arrays: Arrays in the order of ``JouleryGraph`` in native.h, from ``curve_of`` on.
        units: Seconds and watts of a whole unit, and joules by which lines between samples may
            be off.

    Returns:
        (samples, 4): increasing seconds, watts that a second more would save, joules needed above
        waiting, joules that no durations go below. And (samples, instructions): durations.
    """
    graph = _Graph(len(arrays[0]), len(arrays[4]), *map(_address, arrays), *units)
    status = _library().joulery_walk(byref(graph))
    _check_memory(status)
    try:
        frontier = status.contents
        count = frontier.samples
        table = np.ctypeslib.as_array(frontier.sample, (count, 4))
        durations = np.ctypeslib.as_array(frontier.durations, (count, len(arrays[0])))
        return table[::-1].copy(), durations[::-1].copy()
    finally:
        _library().joulery_free(status)


class Rounder:
    """Rounding of a frontier's durations to clock choices by the compiled core.

    Args:
        arrays: Arrays in the order of ``JouleryClocks`` in native.h, from ``order`` on.
    """

    def __init__(self, arrays: Sequence[NDArray[Any]]) -> None:
        self._arrays = tuple(arrays)  # the core reads them
        self._clocks = _Clocks(len(arrays[0]), *map(_address, arrays), len(arrays[-1]))

    def __call__(
        self, deadlines: NDArray[np.float64], effort: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """(deadlines, instructions): a point for each, and when the instruction starts."""
        shape = len(deadlines), len(self._arrays[0])
        choice, start = np.empty(shape, dtype=np.int32), np.empty(shape)
        out = _address(choice), _address(start)
        addresses = _address(deadlines)
        status = _library().joulery_round(byref(self._clocks), addresses, shape[0], effort, *out)
        _check_memory(status)
        return choice, start
