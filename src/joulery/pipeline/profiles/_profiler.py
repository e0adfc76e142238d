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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from joulery.clock import REAL_CLOCK
from joulery.errors import InvalidValueError
from joulery.fail_open import fail_open
from joulery.files import csv_text
from joulery.hardware import Capability, ClockLock, require
from joulery.metering import EnergyTimeline, Sampler
from joulery.pipeline._files import write_text
from joulery.pipeline.profiles._read import MOMENTS, TOO_NOISY, read_rows
from joulery.pipeline.runtime._clock_setter import ClockSetter
from joulery.units import HERTZ_PER_MEGAHERTZ

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import Self

    from numpy.typing import NDArray

    from joulery.clock import Clock
    from joulery.governor import Hold
    from joulery.hardware import Device
    from joulery.metering import Knot

_log = logging.getLogger("joulery")

# Clocks to profile, evenly spaced; by hand.
_MAX_CLOCKS = 24
# Until a new clock and the power that follows it have settled; by hand.
_SETTLE_SECONDS = 0.1
# Energy must have risen so much, at so many clocks in a row, before lower ones are given up; by
# hand.
_RISE, _RISES = 0.005, 2
# Several times within a refresh of any energy counter; by hand.
_SAMPLE_HERTZ = 200.0
# A clock is left once energies are known this well, or after so many times the iterations; by hand.
_SURE, _MAX_PATIENCE = 0.01, 8
# From the median absolute deviation to a standard error of the median, for normal noise.
_ERROR_OF_MEDIAN = 1.4826 * 1.2533
# Time constants with which a board's power may follow its load; by hand.
_LAGS_SECONDS = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05)
# Weight of the guess that all kinds draw the mean, which decides only what spans cannot; by hand.
_GUESS = 1e-5
# A span that took this much longer than usual saw something else, such as a pause; by hand.
_LONGEST_SPAN = 5.0


class ClockProfiler:
    """Sweeps the clock of one device while it trains; takes the same calls as the controller.

    Args:
        device: Device of the rank, with an energy counter and a clock to lock.
        clocks_hertz: Clocks to try; some two dozen that the device supports unless given.
        iterations_per_clock: Iterations at each clock; more where they are not enough.
        path: File for the rows, written after each clock, JSON or CSV by its name. What is in it
            already is not measured again, so that a run that was interrupted resumes. Give each
            rank its own file in one folder; the folder is a profile.
        hold: Function that leases the device; that of the governor unless given.
        clock: Real or virtual clock.

    Attributes:
        done: Whether the sweep has ended and the clock is free again.
        failure: Error that ended it early; None if there was none.
        rows: Measurements so far: a row per kind of instruction and clock, with the names that
            ``joulery.pipeline.profiles_from_rows`` takes, and with ``relative_error`` (one
            sigma of the energy by chance) and ``source`` (how it was measured).
    """

    def __init__(
        self,
        device: Device,
        clocks_hertz: Sequence[float] = (),
        *,
        iterations_per_clock: int = 4,
        path: Path | None = None,
        hold: Hold | None = None,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        if iterations_per_clock < 1:
            raise InvalidValueError(
                f"{iterations_per_clock} iterations measure nothing", remedy="give 1 or more"
            )
        self.done = False
        self.failure: Exception | None = None
        self.rows: list[dict[str, Any]] = read_rows(path) if path and path.exists() else []
        self._path = path
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
        self._moments: dict[tuple[int, str], list[list[float]]] = {}
        self._knots: list[tuple[float, float]] = []
        self._sampler: Sampler | None = None
        self._least = math.inf
        self._rises = 0

    @fail_open(None)
    def begin_iteration(
        self,
        reached: Callable[[], object] | None = None,
        *,
        microbatches: int | None = None,  # noqa: ARG002 - the controller needs it
    ) -> None:
        """Note that an iteration begins; the clock changes here. Never raises."""
        if not self.done:
            self._reached(reached)
            self._next_iteration()

    @fail_open(None)
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

    @fail_open(None)
    def after(
        self,
        stage: int,
        kind: str,
        microbatch: int,
        reached: Callable[[], object] | None = None,
    ) -> None:
        """Note that an instruction has ended. Never raises, but waits for it."""
        begin, self._began = self._began, None
        if not self.done and begin is not None and begin[:2] == (stage, kind):
            end = self._reached(reached)
            self._works.append((*begin, end))
            # The last iteration that all ranks certainly run at their highest clock.
            if not self.rows and self._iterations == self._per_clock - 1:
                moments = self._moments.setdefault((stage, kind), [])
                moments.append([microbatch, begin[2], end])

    def end_iteration(self, reached: Callable[[], object] | None = None) -> None:
        """Nothing: instructions may also come after the end, such as optimizer steps."""

    def fail(self, error: Exception) -> None:
        """End the sweep because of an error; see ``joulery.fail_open``."""
        self.failure = error
        _log.warning("pipeline profiling ended, training goes on: %s", error)
        self.close()

    def close(self) -> None:
        """Restore the clock. May be called twice."""
        self.done = True
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.stop()
        self._setter.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reached(self, reached: Callable[[], object] | None) -> float:
        if reached is not None:
            reached()
        return self._clock.now()

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
        self._setter.set(self._clocks[self._at])
        self._settled_at = self._clock.now() + _SETTLE_SECONDS
        self._works.clear()
        self._knots = self._knots[-1:]

    def _start(self) -> None:
        for capability in (Capability.ENERGY, Capability.CLOCK_LOCK):
            require(self._device, capability)
        supported = sorted(cast("ClockLock", self._device).supported_clocks(), reverse=True)
        stride = max(1, math.ceil(len(supported) / _MAX_CLOCKS))
        totals: dict[float, float] = {}
        for row in self.rows:
            megahertz = float(row["frequency"])
            totals[megahertz] = totals.get(megahertz, 0.0) + float(row["energy"])
        for _, joules in sorted(totals.items(), reverse=True):
            self._note_energy(joules)
        clocks = sorted(self._wanted or supported[::stride], reverse=True)
        self._clocks = [hertz for hertz in clocks if _megahertz(hertz) not in totals]
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
        names = sorted({work[:2] for work in self._works})
        settled = {work[:2] for work in self._works if work[2] >= self._settled_at}
        # Unsettled instructions still fill their time, so that it does not pass for waiting.
        spans = {name: [work[2:] for work in self._works if work[:2] == name] for name in names}
        knots = [knot for knot in self._knots if knot[0] >= self._settled_at]
        power = attribute_power(knots, list(spans.values()))
        last_chance = self._iterations >= _MAX_PATIENCE * self._per_clock
        is_sure = power is not None and bool((power.relative_errors < _SURE).all())
        if not last_chance and not (is_sure and len(settled) == len(names)):
            return False
        if power is None or len(settled) < len(names):
            raise InvalidValueError(
                "the energy counter did not refresh, or work did not run, within the iterations at "
                "one clock",
                remedy="give more iterations_per_clock",
            )
        device = self._device
        source = (
            f"{device.provenance.origin} by {device.info.name}; time shares between "
            f"{power.spans} counter refreshes {1e3 * power.span_seconds:.0f} ms apart"
        )
        rows: list[dict[str, Any]] = []
        for name, watts, error in zip(names, power.watts, power.relative_errors, strict=True):
            times = [end - begin for begin, end in spans[name] if begin >= self._settled_at]
            seconds = statistics.median(times)
            self._refuse_noise(name, float(error), times)
            rows.append(
                {
                    "stage": name[0],
                    "instruction": name[1],
                    "frequency": _megahertz(self._clocks[self._at]),
                    "time": seconds,
                    "energy": float(watts) * seconds,
                    "n_time_samples": len(times),
                    "relative_error": _round(float(error), 6),
                    "waiting_watts": _round(power.waiting_watts, 3),
                    "source": source,
                    **({MOMENTS: self._moments.pop(name)} if name in self._moments else {}),
                }
            )
        self.rows += rows
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_profile(self._path, self.rows)
        self._note_energy(sum(float(row["energy"]) for row in rows))
        return True

    def _note_energy(self, joules: float) -> None:
        """Count the clocks in a row at which more energy is needed."""
        self._rises = self._rises + 1 if joules > self._least * (1 + _RISE) else 0
        self._least = min(self._least, joules)

    def _refuse_noise(self, name: tuple[int, str], error: float, times: list[float]) -> None:
        """Refuse figures that no plan should rest on."""
        middle = statistics.median(times)
        spread = statistics.median(abs(seconds - middle) for seconds in times)
        time_error = _ERROR_OF_MEDIAN * spread / math.sqrt(len(times)) / middle
        worst = max(time_error, error if math.isfinite(error) else math.inf)
        if worst > TOO_NOISY:
            raise InvalidValueError(
                f"{name[1]} of stage {name[0]} at {_megahertz(self._clocks[self._at]):g} MHz is "
                f"known to {100 * worst:.0f} % only after {self._iterations} iterations",
                remedy="give more iterations_per_clock, or profile while nothing else runs",
            )


def write_profile(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write the rows of all ranks' profilers, as JSON or CSV by the file's name.

    Raises:
        InvalidValueError: There are no rows.
        FileError: The file cannot be written.
    """
    if not rows:
        raise InvalidValueError("no instruction was measured", remedy="run more iterations")
    ordered = sorted(rows, key=lambda row: (row["stage"], row["instruction"], -row["frequency"]))
    as_json = path.suffix == ".json"
    if as_json:
        text = json.dumps(ordered, indent=1, allow_nan=False) + "\n"
    else:  # a cell has no room for a list
        text = csv_text([{k: v for k, v in row.items() if k != MOMENTS} for row in ordered])
    write_text(path, text, "profile")


def _megahertz(hertz: float) -> float:
    return round(hertz / HERTZ_PER_MEGAHERTZ, 6)


def _round(value: float, digits: int) -> float | None:
    return None if math.isnan(value) else round(value, digits)


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
    knots: Sequence[tuple[float, float]], spans: Sequence[Sequence[tuple[float, float]]]
) -> KindPowers | None:
    """The power of each kind, from (seconds, joules) at the counter's refreshes.

    Counters refresh every 20-100 ms, which may span several instructions. The energy between two
    refreshes is the sum over kinds of power times the kind's time in between, waiting being a kind
    too; the mixture differs from span to span, so least squares finds the power of each. Power
    follows the load with a lag; the lag that fits best is taken.

    Args:
        knots: Seconds and joules at each refresh.
        spans: Times at which the instructions of each kind began and ended.

    Returns:
        None where there are not even two refreshes.
    """
    at = np.array([knot[0] for knot in knots])
    joules = np.diff([knot[1] for knot in knots])
    lengths = np.diff(at)
    if not len(lengths) or not spans:
        return None
    usual = float(np.median(lengths))
    usable = (lengths > 0) & (lengths < _LONGEST_SPAN * usual)
    if not usable.any():
        return None
    edges = [np.array(edges_of_span).T for edges_of_span in spans]
    solutions = []
    for lag in _LAGS_SECONDS:
        # Seconds of each kind until each moment, as they show in power that lags behind.
        until = [_response(at, begins, lag) - _response(at, ends, lag) for begins, ends in edges]
        shares = np.diff(np.column_stack(until), axis=0)[usable]
        solutions.append(_solve(shares, lengths[usable], joules[usable], usual))
    return min(solutions, key=lambda solution: solution[0])[1]


def _response(
    at: NDArray[np.float64], steps: NDArray[np.float64], lag: float
) -> NDArray[np.float64]:
    """The integral of what a lagging sensor shows after unit steps, summed over them."""
    since = np.maximum(0.0, at[:, None] - steps[None, :])
    if lag > 0:
        since = since + lag * np.expm1(-since / lag)
    total: NDArray[np.float64] = since.sum(axis=1)
    return total


def _solve(
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
    solution, *_ = np.linalg.lstsq(
        rows, np.concatenate([joules, np.full(matrix.shape[1], strength * mean)]), rcond=None
    )
    solution = np.maximum(solution, 0.0)
    residuals = joules - matrix @ solution
    free = len(joules) - matrix.shape[1]
    errors = np.full(matrix.shape[1], np.nan)
    if free > 0:
        inverse = np.linalg.pinv(rows.T @ rows)
        variances = np.diag(inverse) * float(residuals @ residuals) / free
        # Where the guess decides, the figure is off by about as far as it moved from the guess.
        pulled = np.diag(inverse) * strength**2 * (solution - mean)
        errors = np.sqrt(variances + pulled**2) / np.maximum(solution, 1e-9)
    return float(residuals @ residuals), KindPowers(
        solution[:kinds],
        errors[:kinds],
        float(solution[kinds]) if waits else float("nan"),
        len(joules),
        usual,
    )
