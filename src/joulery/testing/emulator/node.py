"""A machine with emulated boards, and the controls of their load and faults."""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import shutil
import sys
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Self

from joulery.clock import REAL_CLOCK
from joulery.errors import InvalidValueError, MissingHardwareError, UnknownDeviceError, UsageError
from joulery.files import lock
from joulery.hardware import Board, Steady, clock_states
from joulery.testing.emulator.board import (
    MAX_BOARDS,
    BoardSpec,
    FaultRecord,
    ProcessRecord,
    SpecRecord,
    phases_of,
    record_of,
    rows_of,
)
from joulery.testing.emulator.build import SONAME, build

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from joulery.clock import Clock
    from joulery.hardware import Workload
    from joulery.testing.emulator.board import Phase

STATE_VARIABLE = "JOULERY_EMULATOR_STATE"
FOLDER_VARIABLE = "JOULERY_EMULATOR_FOLDER"
# Status codes of nvml.h, and the emulator's own marks.
NO_PERMISSION = 4
GPU_IS_LOST = 15
# Errors of a folder that another process or user has, or has just removed.
_TAKEN = (BlockingIOError, PermissionError, NotADirectoryError, FileNotFoundError)
_EVERY_BOARD = -1
_UNLIMITED = -1
_IGNORED = -1
_LOADED: dict[str, ctypes.CDLL] = {}


@dataclass(frozen=True, slots=True)
class Truth:
    """True state of a board, exact at ``now_seconds`` on the node's own time.

    Attributes:
        joules: Energy since the node was made.
        watts: Power at this moment.
        steps: Steps of work done since the node was made.
        steady: Steady state of the load: clock, seconds per step (0 when idle), watts.
        limit_watts: Power limit in force.
        now_seconds: Seconds since the node was made.
    """

    joules: float
    watts: float
    steps: float
    steady: Steady
    limit_watts: float
    now_seconds: float


@dataclass(frozen=True, slots=True)
class Shown:
    """Values of the counter and the sensor, before they round.

    Attributes:
        joules: Value of the counter.
        watts: Value of the power sensor, noise included.
        refreshed_at_seconds: Time of their refresh, on the node's own time.
    """

    joules: float
    watts: float
    refreshed_at_seconds: float


class EmulatedNode:
    """Emulated boards behind a real ``libnvidia-ml.so.1``; one per process at a time.

    Args:
        boards: Names from the catalog, or specifications.
        directory: Folder of the shared state; a temporary one by default. The boards' ids follow
            from it.
        time_held: Whether the node's time is held at 0 and moved by ``advance`` only.
        cache: Folder of the compiled library; under ``~/.cache`` by default.
    """

    def __init__(
        self,
        boards: Sequence[str | BoardSpec],
        *,
        directory: Path | None = None,
        time_held: bool = False,
        cache: Path | None = None,
    ) -> None:
        self._boards = tuple(boards)
        self._time_held = time_held
        self._directory = directory
        self._cache = cache
        self._stack = ExitStack()
        self._library: ctypes.CDLL | None = None
        self._folder = Path()
        self._state = Path()
        self.specs: tuple[BoardSpec, ...] = ()

    def __enter__(self) -> Self:
        self.specs = tuple(_resolved(board) for board in self._boards)
        if len(self.specs) > MAX_BOARDS:
            raise InvalidValueError(
                f"{len(self.specs)} boards are too many", remedy=f"give at most {MAX_BOARDS}"
            )
        self._folder = build(self._cache)
        self._library = library = _prepared(self._folder / SONAME)
        directory = self._directory or self._stack.enter_context(_temporary_folder())
        self._state = directory / "state"
        node = f"{os.uname().nodename}{directory}"
        records = [record_of(spec, index, node) for index, spec in enumerate(self.specs)]
        array = (SpecRecord * len(records))(*records)
        path = os.fsencode(self._state)
        _checked(library.emulator_create(path, len(records), array, self._time_held))
        boards = [asdict(spec.board) for spec in self.specs]
        (directory / "boards.json").write_text(json.dumps(boards), encoding="utf-8")
        _checked(library.emulator_open(path))
        self._stack.callback(library.emulator_close)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()
        self._library = None

    @classmethod
    def attached(cls, environment: Mapping[str, str] | None = None) -> EmulatedNode:
        """The node that this process was started on, through ``env`` of its maker."""
        environment = os.environ if environment is None else environment
        state = environment.get(STATE_VARIABLE)
        if state is None:
            raise MissingHardwareError(
                f"{STATE_VARIABLE} is not set: this process runs on no emulated node",
                remedy="start it with the environment that EmulatedNode.env gives",
            )
        boards = json.loads((Path(state).parent / "boards.json").read_text(encoding="utf-8"))
        node = cls([BoardSpec(Board(**constants)) for constants in boards])
        node.specs = tuple(_resolved(board) for board in node._boards)
        folder = environment.get(FOLDER_VARIABLE)
        node._folder, node._state = Path(folder) if folder else build(), Path(state)
        node._library = _prepared(node._folder / SONAME)
        _checked(node._library.emulator_open(os.fsencode(state)))
        return node

    @property
    def env(self) -> dict[str, str]:
        """The environment for a process that shall see these boards."""
        environment = os.environ
        # A file of its own, as every machine has: governors lock the driver's library.
        folder = self._state.parent / "driver"
        if not folder.exists():
            (folder / "bin").mkdir(parents=True)
            _write_nvidia_smi(folder / "bin" / "nvidia-smi")
            shutil.copy(self._folder / SONAME, folder)
        paths = [str(folder), *filter(None, [environment.get("LD_LIBRARY_PATH")])]
        programs = [str(folder / "bin"), *filter(None, [environment.get("PATH")])]
        return {
            **environment,
            "LD_LIBRARY_PATH": os.pathsep.join(paths),
            "PATH": os.pathsep.join(programs),
            STATE_VARIABLE: str(self._state),
            FOLDER_VARIABLE: str(folder),
        }

    def load_in_process(self) -> None:
        """Make ``import pynvml`` of this very process see these boards.

        Raises:
            UsageError: This process has already loaded another NVML.
        """
        pynvml = sys.modules.get("pynvml")
        loaded = getattr(pynvml, "nvmlLib", None)
        if loaded is not None and loaded._handle != self._c._handle:  # noqa: SLF001 - no other way to compare
            raise UsageError(
                "this process has already loaded another NVML",
                remedy="start a process of its own with the environment that env gives",
            )

    @contextmanager
    def driven(self) -> Iterator[None]:
        """Keep loads that follow programs off the boards, for a process that sets them itself."""
        self._mark.touch()
        try:
            yield
        finally:
            self._mark.unlink(missing_ok=True)

    @property
    def is_driven(self) -> bool:
        """Whether a process sets the loads itself."""
        return self._mark.exists()

    @property
    def _mark(self) -> Path:
        return self._state.parent / "driven"

    def set_load(
        self, index: int, workload: Workload | None, phases: Sequence[Phase] | None = None
    ) -> None:
        """Run ``workload`` repeatedly on a board from now on; None for idle.

        Args:
            index: The board.
            workload: Work of a step.
            phases: Repeating pattern of power around its mean; the factors are not
                normalised, so give them a weighted mean of 1 to keep the mean power.
        """
        if workload is None:
            self.set_table(index, ())
            return
        states = clock_states(self._spec(index).board, workload)
        busy = 1.0 - workload.host_seconds / states[-1].seconds
        self.set_table(index, states, phases, utilisation=busy)

    def set_table(
        self,
        index: int,
        states: Sequence[Steady],
        phases: Sequence[Phase] | None = None,
        *,
        utilisation: float = 1.0,
    ) -> None:
        """Load a board with a table of clock states, ascending in clock; empty for idle."""
        self._spec(index)
        rows, pattern = rows_of(states), phases_of(phases or ())
        percent = round(100 * utilisation) if states else 0
        _checked(self._c.emulator_set_load(index, len(rows), rows, len(pattern), pattern, percent))

    def set_processes(self, index: int, memory_bytes: Mapping[int, int]) -> None:
        """Set the processes that hold a board, with the memory of each by process id."""
        records = [ProcessRecord(pid, size) for pid, size in memory_bytes.items()]
        array = (ProcessRecord * len(records))(*records)
        _checked(self._c.emulator_set_processes(index, len(records), array))

    def truth(self, index: int) -> Truth:
        """True state of a board at this moment."""
        out = (ctypes.c_double * 9)()
        _checked(self._c.emulator_truth(self._known(index), out))
        steady = Steady(out[3], out[4], out[5], out[6])
        return Truth(out[0], out[1], out[2], steady, out[7], out[8])

    def true_joules(self, index: int) -> float:
        """Energy of a board since the node was made, exact at this moment."""
        return self.truth(index).joules

    def shown(self, index: int) -> Shown:
        """Values of a board's counter and sensor at this moment, before they round."""
        out = (ctypes.c_double * 3)()
        _checked(self._c.emulator_shown(self._known(index), out))
        return Shown(out[0], out[1], out[2])

    def power_limit(self, index: int) -> float:
        """Power limit in force, in watts."""
        return self.truth(index).limit_watts

    def set_power_limit(self, index: int, watts: float) -> None:
        """Set a limit as the administrator would, whatever faults are on."""
        _checked(self._c.emulator_set_limit(self._known(index), watts))

    def wait_steps(self, index: int, steps: float, clock: Clock = REAL_CLOCK) -> None:
        """Wait until a board has done ``steps`` more steps of its load."""
        truth = self.truth(index)
        due = truth.steps + steps
        while truth.steps < due and truth.steady.seconds > 0:
            # A changed limit changes the step time, so check at least ten times a second.
            clock.sleep(min(0.1, (due - truth.steps) * truth.steady.seconds))
            truth = self.truth(index)

    def fault(
        self,
        index: int | None,
        code: int,
        function: str = "*",
        *,
        calls: int | None = None,
        after_seconds: float = 0.0,
    ) -> None:
        """Let calls of the driver fail.

        Args:
            index: The board; None for every board and for calls without a board.
            code: The NVML error code to return.
            function: Name of the C function (with its ``_v2``), or a prefix that ends in ``*``.
            calls: Number of calls that fail; None for all.
            after_seconds: Time from now until it starts.
        """
        remaining = _UNLIMITED if calls is None else calls
        self._add_fault(
            FaultRecord(code=code, calls_left=remaining), index, function, after_seconds
        )

    def slow(
        self, index: int | None, seconds: float, function: str = "*", *, busy: bool = False
    ) -> None:
        """Let calls of the driver take ``seconds`` longer, asleep or (``busy``) burning."""
        record = FaultRecord(delay_seconds=seconds, busy=busy, calls_left=_UNLIMITED)
        self._add_fault(record, index, function, 0.0)

    def lose(self, index: int, after_seconds: float = 0.0) -> None:
        """Let a board fall off the bus."""
        self.fault(index, GPU_IS_LOST, after_seconds=after_seconds)

    def deny(self, index: int | None) -> None:
        """Refuse every change of a setting, as a driver does to those without rights."""
        for function in ("nvmlDeviceSet*", "nvmlDeviceReset*"):
            self.fault(index, NO_PERMISSION, function)

    def ignore(self, index: int | None, function: str) -> None:
        """Let calls of a function report success and do nothing."""
        self.fault(index, _IGNORED, function)

    def clear_faults(self) -> None:
        """Let every call work again; counters stay reset or frozen."""
        self._c.emulator_clear_faults()

    def reset_counter(self, index: int, after_seconds: float = 0.0) -> None:
        """Restart a board's energy counter from zero, as reloading the driver does."""
        _checked(self._c.emulator_reset_counter(self._known(index), after_seconds))

    def freeze_counter(self, index: int, after_seconds: float = 0.0) -> None:
        """Stop a board's counter and power sensor from refreshing."""
        _checked(self._c.emulator_freeze_counter(self._known(index), after_seconds))

    def thaw_counter(self, index: int) -> None:
        """Let a frozen counter jump to where it should be."""
        _checked(self._c.emulator_thaw_counter(self._known(index)))

    def calls(self) -> int:
        """NVML calls that all processes have made."""
        return int(self._c.emulator_calls())

    def hold_time(self, wall_seconds: float = 1.7e9) -> float:
        """Stop the node's time, for tests that move it; returns the present time.

        Args:
            wall_seconds: Time since 1970 for timestamps from now on.
        """
        return float(self._c.emulator_hold_time(wall_seconds))

    def advance(self, seconds: float) -> None:
        """Move held time on."""
        self._c.emulator_advance(seconds)

    def release_time(self) -> None:
        """Let held time run on by itself."""
        self._c.emulator_release_time()

    @property
    def _c(self) -> ctypes.CDLL:
        if self._library is None:
            raise UsageError(
                "the emulated node is not running",
                remedy="use it inside its with block",
            )
        return self._library

    def _spec(self, index: int) -> BoardSpec:
        return self.specs[self._known(index)]

    def _known(self, index: int) -> int:
        if not 0 <= index < len(self.specs):
            raise UnknownDeviceError(
                f"there is no board {index} among {len(self.specs)}",
                remedy="boards count from 0",
            )
        return index

    def _add_fault(
        self, record: FaultRecord, index: int | None, function: str, after_seconds: float
    ) -> None:
        record.function = function.encode()
        record.board = _EVERY_BOARD if index is None else self._known(index)
        _checked(self._c.emulator_add_fault(ctypes.byref(record), after_seconds))


def _resolved(board: str | BoardSpec) -> BoardSpec:
    if isinstance(board, BoardSpec):
        return board
    from joulery.hardware import catalog

    return BoardSpec(catalog.board(board))


def _prepared(path: Path) -> ctypes.CDLL:
    """Load the library for all of this process, so that pynvml finds it by its name later."""
    # The folder is named by what was compiled. A second copy would have boards of its own, so
    # nodes with different caches share the first.
    if path.parent.name in _LOADED:
        return _LOADED[path.parent.name]
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    library.emulator_spec_size.restype = ctypes.c_uint64
    library.emulator_calls.restype = ctypes.c_uint64
    library.emulator_hold_time.restype = ctypes.c_double
    library.emulator_hold_time.argtypes = [ctypes.c_double]
    library.emulator_advance.argtypes = [ctypes.c_double]
    library.emulator_set_limit.argtypes = [ctypes.c_uint32, ctypes.c_double]
    library.emulator_reset_counter.argtypes = [ctypes.c_uint32, ctypes.c_double]
    library.emulator_freeze_counter.argtypes = [ctypes.c_uint32, ctypes.c_double]
    library.emulator_add_fault.argtypes = [ctypes.c_void_p, ctypes.c_double]
    if library.emulator_spec_size() != ctypes.sizeof(SpecRecord):
        raise UsageError(
            "emulator.h and board.py disagree about struct spec", remedy="make them match"
        )
    _LOADED[path.parent.name] = library
    return library


def _checked(code: int) -> None:
    if code != 0:
        raise UsageError(
            "the emulated node refused",
            remedy="check the state file, the index and the sizes of what was given",
        )


def _write_nvidia_smi(path: Path) -> None:
    """Put ``nvidia-smi`` at ``path``; some tools require it before they use NVML."""
    # -P: modules beside the program must not hide those that it imports.
    words = [sys.executable, "-P", str(Path(__file__).with_name("nvidia_smi.py"))]
    path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
    path.chmod(0o755)


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """The first free folder of a numbered row, locked while this process lives.

    The ids of boards follow from it: a command that is run again has the boards that it had, and
    nodes that run at the same time have boards of their own.
    """
    prefix = f"joulery-emulator-{os.geteuid()}-"
    row = (Path(tempfile.gettempdir(), f"{prefix}{number}") for number in count())
    folder, descriptor = next(filter(None, map(_locked, row)))
    try:
        for entry in folder.iterdir():  # of a process that was killed
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        yield folder
    finally:
        shutil.rmtree(folder)
        os.close(descriptor)


def _locked(folder: Path) -> tuple[Path, int] | None:
    """A folder of this user's and the descriptor that locks it; None where others have it."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    with ExitStack() as stack, suppress(*_TAKEN):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        stack.callback(os.close, descriptor)
        lock(descriptor)
        status = os.fstat(descriptor)
        # Who had it may have removed it since it was opened.
        if status.st_uid == os.geteuid() and os.path.samestat(status, folder.stat()):
            stack.pop_all()
            return folder, descriptor
    return None
