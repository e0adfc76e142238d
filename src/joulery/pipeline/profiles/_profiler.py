"""Measure time and energy of a rank's instructions clock by clock, inside a few iterations.

The sweep goes from the highest clock down, until the energy of one instruction of each kind rises.
Every rank counts the same iterations, so mostly all run at the same clock; where they do not, some
wait longer. Whatever goes wrong, the clock is restored and training goes on.
"""

from __future__ import annotations

import json
import logging
import math
import statistics
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from joulery.clock import REAL_CLOCK
from joulery.errors import InvalidValueError, JouleryError
from joulery.files import csv_text
from joulery.governor import lease
from joulery.hardware import Capability, ClockLock, require
from joulery.metering import EnergyTimeline, Sampler
from joulery.pipeline._files import write_text
from joulery.pipeline._instructions import Instruction
from joulery.pipeline.planning._rank_plan import RankStep
from joulery.pipeline.runtime._clock_setter import ClockSetter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import Self

    from numpy.typing import NDArray

    from joulery.clock import Clock
    from joulery.hardware import Device
    from joulery.metering import Knot
    from joulery.pipeline.runtime._clock_setter import Hold

_log = logging.getLogger("joulery")

_MAX_CLOCKS = 24
# Until a new clock and the power that follows it have settled.
_SETTLE_SECONDS = 0.1
# Energy must have risen so much, at so many clocks in a row, before lower ones are given up.
_RISE, _RISES = 0.005, 2
_SAMPLE_HERTZ = 200.0
# A clock is left once energies are known this well, or after so many times the iterations.
_SURE, _MAX_PATIENCE = 0.01, 8
# Time constants with which a board's power may follow its load.
_LAGS_SECONDS = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05)
# Weight of the guess that all kinds draw the mean, which decides only what spans cannot.
_GUESS = 1e-5
# A span that took this much longer than usual saw something else, such as a pause.
_LONGEST_SPAN = 5.0


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One kind of instruction at one clock, for one device.

    Attributes:
        stage: Pipeline stage.
        kind: Kind of instruction, such as ``forward``.
        hertz: Clock.
        seconds: Median time.
        joules: Energy.
        samples: Number of instructions measured.
        relative_error: One sigma of the joules by chance; NaN when unknown.
        waiting_watts: Power at that clock while the device waits; NaN when unknown.
        source: How the energy was measured.
    """

    stage: int
    kind: str
    hertz: float
    seconds: float
    joules: float
    samples: int
    relative_error: float = math.nan
    waiting_watts: float = math.nan
    source: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The row with the names of the file's columns."""
        return {
            "stage": self.stage,
            "instruction": self.kind,
            "frequency": round(self.hertz / 1e6, 6),
            "time": self.seconds,
            "energy": self.joules,
            "n_time_samples": self.samples,
            "relative_error": _known(self.relative_error, 6),
            "waiting_watts": _known(self.waiting_watts, 3),
            "source": self.source,
        }


class ClockProfiler:
    """Sweeps the clock of one device while it trains; takes the same calls as the controller.

    Args:
        device: Device of the rank, with an energy counter and a clock to lock.
        clocks_hertz: Clocks to try; some two dozen that the device supports unless given.
        iterations_per_clock: Iterations at each clock; more where they are not enough.
        hold: Function that leases the device.
        clock: Real or virtual clock.

    Attributes:
        done: Whether the sweep has ended and the clock is free again.
        failure: Error that ended it early; None if there was none.
        rows: Rows measured so far.
    """

    def __init__(
        self,
        device: Device,
        clocks_hertz: Sequence[float] = (),
        *,
        iterations_per_clock: int = 4,
        hold: Hold = lease,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        if iterations_per_clock < 1:
            raise InvalidValueError(
                f"{iterations_per_clock} iterations measure nothing", remedy="give 1 or more"
            )
        self.done = False
        self.failure: Exception | None = None
        self.rows: list[ProfileRow] = []
        self._device = device
        self._wanted = tuple(clocks_hertz)
        self._per_clock = iterations_per_clock
        self._setter = ClockSetter([device], hold=hold, clock=clock)
        self._clock = clock
        self._clocks: list[float] = []
        self._at = -1
        self._iterations = 0
        self._settled_at = math.inf
        self._began: tuple[int, str, float] | None = None
        self._works: list[tuple[int, str, float, float]] = []
        self._knots: list[tuple[float, float]] = []
        self._sampler: Sampler | None = None
        self._least = math.inf
        self._rises = 0

    def begin_iteration(self, reached: Callable[[], object] | None = None) -> None:
        """Note that an iteration begins; the clock changes here. Never raises."""
        self._reached(reached)
        self._guarded(self._next_iteration)

    def before(
        self,
        stage: int,
        kind: str,
        microbatch: int,  # noqa: ARG002 - the controller needs it
        reached: Callable[[], object] | None = None,
    ) -> None:
        """Note that an instruction begins. Never raises, but waits for the device to get there."""
        if not self.done:
            self._began = (stage, kind, self._reached(reached))

    def after(
        self,
        stage: int,
        kind: str,
        microbatch: int,  # noqa: ARG002 - the controller needs it
        reached: Callable[[], object] | None = None,
    ) -> None:
        """Note that an instruction has ended. Never raises, but waits for it."""
        begun, self._began = self._began, None
        if not self.done and begun is not None and begun[:2] == (stage, kind):
            self._works.append((*begun, self._reached(reached)))

    def close(self) -> None:
        """Restore the clock. May be called twice."""
        self.done = True
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.stop()
        for restore in (self._setter.reset, self._setter.release):
            # A governor that is gone restores by itself.
            with suppress(JouleryError, OSError):
                restore()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reached(self, reached: Callable[[], object] | None) -> float:
        if reached is not None:
            self._guarded(reached)
        return self._clock.now()

    def _guarded(self, act: Callable[[], object]) -> None:
        # The edge to a user's training: whatever goes wrong in here must not end it.
        try:
            if not self.done:
                act()
        except Exception as error:  # noqa: BLE001 - the fail-open guard
            self.failure = error
            _log.warning("pipeline profiling ended, training goes on: %s", error)
            self.close()

    def _next_iteration(self) -> None:
        if self._sampler is None:
            self._start()
        self._iterations += 1
        if self._iterations < self._per_clock or (self._at >= 0 and not self._conclude()):
            return
        self._iterations = 0
        self._at += 1
        if self._at >= len(self._clocks) or self._rises >= _RISES:
            self.close()
            return
        self._setter.set(_step(self._clocks[self._at]))
        self._settled_at = self._clock.now() + _SETTLE_SECONDS
        self._works.clear()
        self._knots = self._knots[-1:]

    def _start(self) -> None:
        for capability in (Capability.ENERGY, Capability.CLOCK_LOCK):
            require(self._device, capability)
        supported = sorted(cast("ClockLock", self._device).supported_clocks(), reverse=True)
        self._clocks = _chosen(supported, self._wanted)
        self._iterations = self._per_clock - 1
        track = EnergyTimeline(self._device, self._clock.now())
        self._sampler = Sampler([track], self._clock, _SAMPLE_HERTZ, self._add_knot)
        self._sampler.start()

    def _add_knot(self, _: int, knot: Knot) -> None:
        self._knots.append((knot.at_seconds, knot.joules))

    def _conclude(self) -> bool:
        """Turn the measurements at a clock into rows; False if more are needed first."""
        if self._sampler is not None:
            self._sampler.catch_up(self._clock.now(), 0.005)
        works = [work for work in self._works if work[2] >= self._settled_at]
        number = {name: n for n, name in enumerate(sorted({work[:2] for work in works}))}
        found = self._powers(number)
        last_chance = self._iterations >= _MAX_PATIENCE * self._per_clock
        if not last_chance and (found is None or not (found.relative_errors < _SURE).all()):
            return False
        if found is None:
            raise InvalidValueError(
                "the energy counter did not refresh within the iterations at one clock",
                remedy="give more iterations_per_clock",
            )
        device = self._device
        source = (
            f"{device.provenance.origin} by {device.info.name}; "
            f"time shares between {found.spans} counter refreshes"
        )
        total = 0.0
        for name, position in number.items():
            times = [end - begin for *work, begin, end in works if tuple(work) == name]
            seconds = statistics.median(times)
            self.rows.append(
                ProfileRow(
                    *name,
                    self._clocks[self._at],
                    seconds,
                    joules=float(found.watts[position]) * seconds,
                    samples=len(times),
                    relative_error=float(found.relative_errors[position]),
                    waiting_watts=found.waiting_watts,
                    source=f"{source} {1e3 * found.span_seconds:.0f} ms apart",
                )
            )
            total += self.rows[-1].joules
        self._rises = self._rises + 1 if total > self._least * (1 + _RISE) else 0
        self._least = min(self._least, total)
        return True

    def _powers(self, number: dict[tuple[int, str], int]) -> KindPowers | None:
        knots = [knot for knot in self._knots if knot[0] >= self._settled_at]
        # Unsettled instructions still fill their time, so that it does not pass for waiting.
        known = [
            TimedWork(number[work[:2]], work[2], work[3])
            for work in self._works
            if work[:2] in number
        ]
        return attribute_power(knots, known, len(number))


def blocking_watts(rows: Sequence[ProfileRow]) -> float:
    """The power of a waiting device at the highest clock measured; NaN when unknown."""
    known = [row for row in rows if not math.isnan(row.waiting_watts)]
    top = max((row.hertz for row in known), default=math.nan)
    found = [row.waiting_watts for row in known if row.hertz == top]
    return statistics.fmean(found) if found else math.nan


def write_profile(path: Path, rows: Sequence[ProfileRow]) -> None:
    """Write the rows of all ranks, as JSON or CSV by the file's name.

    Raises:
        InvalidValueError: There are no rows.
        FileError: The file cannot be written.
    """
    if not rows:
        raise InvalidValueError("no instruction was measured", remedy="run more iterations")
    ordered = sorted(rows, key=lambda row: (row.stage, row.kind, -row.hertz))
    if path.suffix == ".json":
        waiting = {"blocking_watts": _known(blocking_watts(rows), 3)}
        document = waiting | {"rows": [row.to_dict() for row in ordered]}
        text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    else:
        text = csv_text([row.to_dict() for row in ordered])
    write_text(path, text, "profile")


def _known(value: float, digits: int) -> float | None:
    return None if math.isnan(value) else round(value, digits)


def _chosen(supported: Sequence[float], wanted: Sequence[float]) -> list[float]:
    """The clocks to try, highest first."""
    if wanted:
        return sorted(wanted, reverse=True)
    stride = max(1, math.ceil(len(supported) / _MAX_CLOCKS))
    return list(supported[::stride])


def _step(hertz: float) -> RankStep:
    return RankStep(Instruction(-1, -1, "profiling", -1), hertz, 0.0)


@dataclass(frozen=True, slots=True)
class TimedWork:
    """One instruction as it ran; ``kind`` counts from 0."""

    kind: int
    begin_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True)
class KindPowers:
    """The power of each kind of instruction.

    Attributes:
        watts: (kinds,), power while the kind runs.
        relative_errors: (kinds,), one sigma; NaN where there are too few spans.
        waiting_watts: Power while none runs; NaN where there was no waiting.
        spans: Number of refreshes that the figures rest on.
        span_seconds: Typical time between them.
    """

    watts: NDArray[np.float64]
    relative_errors: NDArray[np.float64]
    waiting_watts: float
    spans: int
    span_seconds: float


def attribute_power(
    knots: Sequence[tuple[float, float]], works: Sequence[TimedWork], kinds: int
) -> KindPowers | None:
    """The power of each kind, from (seconds, joules) at the counter's refreshes.

    Counters refresh every 20-100 ms, which may span several instructions. The energy between two
    refreshes is the sum over kinds of power times the kind's time in between, waiting being a kind
    too; the mixture differs from span to span, so least squares finds the power of each. Power
    follows the load with a lag; the lag that fits best is taken.

    Returns:
        None where there are not even two refreshes.
    """
    at = np.array([knot[0] for knot in knots])
    joules = np.diff([knot[1] for knot in knots])
    lengths = np.diff(at)
    if not len(lengths) or not works:
        return None
    usual = float(np.median(lengths))
    kept = (lengths > 0) & (lengths < _LONGEST_SPAN * usual)
    if not kept.any():
        return None
    solutions = (
        _solved(
            np.diff(_cumulated(at, works, kinds, lag), axis=0)[kept],
            lengths[kept],
            joules[kept],
            usual,
        )
        for lag in _LAGS_SECONDS
    )
    return min(solutions, key=lambda solution: solution[0])[1]


def _cumulated(
    at: NDArray[np.float64], works: Sequence[TimedWork], kinds: int, lag: float
) -> NDArray[np.float64]:
    """Seconds of each kind until each moment, as they show in power that lags behind."""
    total = np.zeros((len(at), kinds))
    for kind in range(kinds):
        begins = np.array([work.begin_seconds for work in works if work.kind == kind])
        ends = np.array([work.end_seconds for work in works if work.kind == kind])
        if len(begins):
            total[:, kind] = _response(at, begins, lag) - _response(at, ends, lag)
    return total


def _response(
    at: NDArray[np.float64], steps: NDArray[np.float64], lag: float
) -> NDArray[np.float64]:
    """The integral of what a lagging sensor shows after unit steps, summed over them."""
    since = np.maximum(0.0, at[:, None] - steps[None, :])
    if lag > 0:
        since = since + lag * np.expm1(-since / lag)
    total: NDArray[np.float64] = since.sum(axis=1)
    return total


def _solved(
    shares: NDArray[np.float64],
    lengths: NDArray[np.float64],
    joules: NDArray[np.float64],
    usual: float,
) -> tuple[float, KindPowers]:
    kinds = shares.shape[1]
    waiting = lengths - shares.sum(axis=1)
    waits = bool(waiting.sum() > 0.01 * lengths.sum())
    matrix = np.column_stack([shares, waiting]) if waits else shares
    mean = joules.sum() / lengths.sum()
    strength = np.sqrt(_GUESS) * np.sqrt((matrix**2).sum(axis=0).mean())
    rows = np.vstack([matrix, strength * np.eye(matrix.shape[1])])
    found, *_ = np.linalg.lstsq(
        rows, np.concatenate([joules, np.full(matrix.shape[1], strength * mean)]), rcond=None
    )
    found = np.maximum(found, 0.0)
    left = joules - matrix @ found
    free = len(joules) - matrix.shape[1]
    errors = np.full(matrix.shape[1], np.nan)
    if free > 0:
        inverse = np.linalg.pinv(rows.T @ rows)
        variances = np.diag(inverse) * float(left @ left) / free
        # Where the guess decides, the figure is off by about as far as it moved from the guess.
        pulled = np.diag(inverse) * strength**2 * (found - mean)
        errors = np.sqrt(variances + pulled**2) / np.maximum(found, 1e-9)
    return float(left @ left), KindPowers(
        found[:kinds],
        errors[:kinds],
        float(found[kinds]) if waits else float("nan"),
        len(joules),
        usual,
    )
