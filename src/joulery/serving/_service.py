"""A running service: its engine's metrics and the energy of its boards, read side by side.

Nothing here sits in the path of requests. When the engine or a board does not answer, the boards
return to their original setting and reading is tried again later.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from joulery.clock import REAL_CLOCK
from joulery.errors import JouleryError, UnsupportedError
from joulery.frontier import Frontier, OperatingPoint, Provenance
from joulery.metering import Meter
from joulery.serving._controller import ServingController
from joulery.serving._engines import EngineClient, EngineReader, implausible
from joulery.serving._knobs import BoardsKnob, board_of, service_boards
from joulery.serving._ledger import EnergyLedger, UncertainValue
from joulery.units import finite, human, human_duration, per_cent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from joulery.clock import Clock
    from joulery.governor import Hold
    from joulery.hardware import Device
    from joulery.serving._controller import LatencyObjective
    from joulery.serving._knobs import BoardsKnob as Knob
    from joulery.serving._ledger import LedgerAccount
    from joulery.serving._simulator import EngineState

_log = logging.getLogger("joulery")
# Time between two readings: shorter costs more than 0.5 % of a core with vLLM's page.
_TICK_SECONDS = 0.25
# After a failure, the next try comes so much later.
_RETRY_SECONDS = 2.0
# Counters that stand still for so long while requests are inside are a lie, or the engine hangs.
_STILL_SECONDS = 1.0
_MOST_LATENCIES = 20_000
# A cluster's share is read so often, and holds boards back that draw this part of it; by hand.
_SHARE_SECONDS, _HELD_BACK = 1.0, 0.95
# Parts of a sweep's row whose scatter is its error.
_BLOCKS = 8


class ServiceWatch:
    """Engine and boards of a service, read together.

    Args:
        engine: Address of the engine.
        devices: Boards of the service; all GPUs of this machine unless given.
        clock: Real or virtual clock.

    Raises:
        NotPossibleHereError: The engine does not answer.
        UnsupportedError: It is no engine that we know.
    """

    def __init__(
        self,
        engine: str | EngineClient,
        devices: Sequence[Device | str] | None = None,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self._client = EngineClient(engine) if isinstance(engine, str) else engine
        self.metrics = self._client.find_metrics()
        self.reader = EngineReader(self.metrics)
        self.url = self._client.url
        self._clock = clock
        self.meter = Meter(
            service_boards(clock) if devices is None else devices, clock=clock
        ).start()
        self.window = self.meter.begin("serving")
        self._joules = 0.0
        self.devices = self.meter.devices

    def read(self) -> EngineState:
        """State of the engine and energy of the boards now.

        Raises:
            NotPossibleHereError: The engine does not answer.
            UnsupportedError: Its page lacks what is needed.
        """
        state = self.reader.read(self._client.fetch(self.metrics.path), self._clock.now())
        # A later refresh of a counter may correct what was taken for the latest energy.
        joules = self.window.joules
        state.joules = self._joules = joules if math.isnan(joules) else max(self._joules, joules)
        return state

    @property
    def provenance(self) -> Provenance:
        """Source of the joules: measured, or simulated where boards are emulated."""
        return self.window.provenance

    @property
    def throttles(self) -> list[str]:
        """Reasons why the clock of a board was lowered, by power, heat or hardware."""
        return sorted(reason.value for reason in self.window.measurement.throttles)

    def ledger(self) -> EnergyLedger:
        """A ledger for the boards of this service."""
        idle = board_of(self.devices).awake_watts * max(1, len(self.devices))
        return EnergyLedger(idle)

    def close(self) -> None:
        """Stop measuring; a second time does nothing."""
        if not self.window.closed:
            self.meter.end(self.window)
        self.meter.close()
        self._client.close()


@dataclass(slots=True, repr=False)
class ServiceReport:
    """What a tuner did and saw.

    Attributes:
        engine: Name of the engine.
        knob: ``clock`` or ``limit``.
        account: Energy by the ledger.
        attained: Share of the requests that kept their bounds, by kind of latency.
        latencies: Median and 99th percentile of TTFT and TPOT, in seconds.
        saved: Share of the energy that the settings saved against full power, as predicted.
        seconds_at: Seconds at each setting, slowest first.
        decisions: Number of decisions.
        failures: Number of readings or settings that failed.
        restarts: Number of restarts of the engine.
        trouble: Latest failure.
        share_watts: Power that a cluster's agent leaves each board; None where it leaves all.
        short_seconds: Time in which that was too little for the bounds: requests were late while
            the boards drew all of it.
    """

    engine: str
    knob: str
    account: LedgerAccount
    attained: dict[str, float]
    latencies: dict[str, tuple[float, float]]
    saved: float
    seconds_at: dict[str, float]
    decisions: int
    failures: int
    restarts: int
    trouble: str = ""
    share_watts: float | None = None
    short_seconds: float = 0.0

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self}>"

    def __str__(self) -> str:
        account, shares = self.account, {"saved (predicted)": self.saved}
        shares |= {
            f"of {name.upper()} within bounds": self.attained[name] for name in self.attained
        }
        words = [
            f"{self.engine} by its {self.knob}",
            f"{human(account.joules, 'J')} in {human_duration(account.seconds)}",
            *(
                f"{per_cent(share)} {name}"
                for name, share in shares.items()
                if not math.isnan(share)
            ),
            self.trouble,
        ]
        return ", ".join(filter(None, words))


class Tuner:
    """Keeps a running service at the least energy that keeps its objective.

    A thread reads the engine's metrics, asks the controller and sets the boards through leases.
    Failures never raise after the start: the boards return to their original setting.

    Args:
        engine: Address of the engine, such as ``http://127.0.0.1:8000``.
        objective: Bounds to keep.
        devices: Boards of the service; all GPUs of this machine unless given.
        knob: ``clock``, ``limit`` or ``auto``.
        tick_seconds: Time between two decisions.
        clock: Real or virtual clock.
        hold: Function that holds a board; a lease of the governor unless given.
        threaded: Whether a thread steps; otherwise the caller does, as on a virtual clock.

    Raises:
        NotPossibleHereError: The engine does not answer.
        UnsupportedError: The engine exports no latencies, or the boards have no knob.
        JouleryError: At the start of its block: another process holds a board, or this user may
            not set it.

    Examples:
        >>> from joulery.serving import LatencyObjective, Tuner
        >>> with Tuner("http://127.0.0.1:8000", LatencyObjective(0.5, 0.05)):  # doctest: +SKIP
        ...     wait_for_the_night()
    """

    def __init__(  # noqa: PLR0913 - one argument per part that a test or site replaces
        self,
        engine: str | EngineClient,
        objective: LatencyObjective,
        *,
        devices: Sequence[Device | str] | None = None,
        knob: str = "auto",
        tick_seconds: float = _TICK_SECONDS,
        clock: Clock = REAL_CLOCK,
        hold: Hold | None = None,
        threaded: bool = True,
    ) -> None:
        self._threaded = threaded
        self._tick_seconds = finite(tick_seconds, "tick in seconds", minimum=0.01)
        self._clock = clock
        self.watch = ServiceWatch(engine, devices, clock)
        if not self.watch.metrics.ttft:
            self.watch.close()
            raise UnsupportedError(
                f"{self.watch.metrics.engine} exports no times to first token",
                remedy="use `joulery serving meter` and `sweep` with it",
            )
        self._knob: Knob = BoardsKnob(self.watch.devices, knob, hold, clock)
        self._curves = self._knob.curves()
        self._objective = objective
        self._controller = ServingController(objective, self._curves)
        self._tally = _Tally(objective)
        self.ledger = self.watch.ledger()
        self._next_try = self._next_look = -math.inf
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.report()}>"

    def __enter__(self) -> Self:
        try:
            self._knob.hold()
        except JouleryError:
            self.watch.close()
            raise
        if self._threaded:
            self._thread = threading.Thread(target=self._run, name="joulery-serving", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop, and put the original setting back."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2 * _RETRY_SECONDS)
        self._release()
        self.watch.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            began = self._clock.now()
            self.step()
            self._stop.wait(max(0.0, self._tick_seconds - (self._clock.now() - began)))

    def step(self) -> None:
        """Read, decide and set once. Never raises."""
        if self._clock.now() < self._next_try:
            return
        try:
            state = self._read()
            position = self._knob.position
            self.ledger.add(state, self._scale(position))
            self._tally.add(state, self._knob.settings[position], self._scale(position))
            state.lag_seconds = self._knob.lag.seconds
            self._knob.set(self._controller.decide(state))
            self._follow_share(state)
        except Exception as error:  # noqa: BLE001 - the service goes on whatever happens here
            self._fail(error)

    def _follow_share(self, state: EngineState) -> None:
        """Keep to the share of a cluster's budget; say when it is too small for the objective."""
        tally = self._tally
        if state.now_seconds >= self._next_look:
            self._next_look = state.now_seconds + _SHARE_SECONDS
            tally.share_watts = self._knob.follow()
        if tally.note_short(state, len(self.watch.devices)):
            _log.warning(
                "the cluster leaves %.0f W a board, too little for the objective", tally.share_watts
            )

    def _read(self) -> EngineState:
        restarts = self.watch.reader.restarts
        state, reader = self.watch.read(), self.watch.reader
        if reader.restarts > restarts:
            raise implausible("its counters fell, as after a restart")
        if reader.still_seconds >= _STILL_SECONDS:
            raise implausible("requests are inside, but no counter moves")
        return state

    def _scale(self, position: int) -> tuple[float, float]:
        curves = self._curves
        return float(curves.prefill_joules[position]), float(curves.decode_joules[position])

    def _fail(self, error: Exception) -> None:
        self._release()
        self._next_try = self._clock.now() + _RETRY_SECONDS
        if str(error) != self._tally.trouble:
            _log.warning("serving goes on at the original setting: %s", error)
        self._tally.trouble = str(error)
        self._tally.failures += 1
        # What was learned before the engine failed may not hold for what comes back.
        self._controller = ServingController(self._objective, self._curves)

    def _release(self) -> None:
        try:
            self._knob.release()
        except Exception as error:  # noqa: BLE001 - as above
            _log.warning("the governor restores the setting: %s", error)

    def report(self) -> ServiceReport:
        """What was done and seen until now."""
        tally = self._tally
        return ServiceReport(
            self.watch.metrics.engine,
            self._knob.kind,
            self.ledger.account(),
            tally.attained(),
            tally.quantiles(),
            tally.saved(self.ledger.waiting_watts),
            {
                str(setting): tally.seconds_at[str(setting)]
                for setting in self._knob.settings
                if str(setting) in tally.seconds_at
            },
            tally.decisions,
            tally.failures,
            self.watch.reader.restarts,
            tally.trouble,
            tally.share_watts,
            tally.short_seconds,
        )


@dataclass(slots=True)
class _Tally:
    """Figures of a tuner's report, added up as it goes."""

    objective: LatencyObjective
    ttft: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_LATENCIES))
    tpot: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_LATENCIES))
    seconds_at: dict[str, float] = field(default_factory=dict)
    decisions: int = 0
    failures: int = 0
    trouble: str = ""
    joules: float = 0.0
    seconds: float = 0.0
    scaled_joules: float = 0.0  # above waiting, at full power
    scaled_seconds: float = 0.0
    share_watts: float | None = None
    short_seconds: float = 0.0
    _previous: tuple[float, float] | None = None
    _latest: tuple[float, float] = (0.0, 0.0)

    def add(self, state: EngineState, setting: object, scale: tuple[float, float]) -> None:
        """Add the time since the last reading, spent at a setting."""
        self.decisions += 1
        self.ttft.extend(state.ttft_seconds)
        self.tpot.extend(state.tpot_seconds)
        before, self._previous = self._previous, (state.now_seconds, state.joules)
        if before is None:
            return
        seconds, joules = state.now_seconds - before[0], state.joules - before[1]
        self._latest = seconds, joules
        if not joules >= 0:
            return
        name = str(setting)
        self.seconds_at[name] = self.seconds_at.get(name, 0.0) + seconds
        relative = 0.5 * (scale[0] + scale[1])
        self.joules += joules
        self.seconds += seconds
        self.scaled_joules += joules / relative
        self.scaled_seconds += seconds / relative

    def note_short(self, state: EngineState, boards: int) -> bool:
        """Add time in which the share was too small for the bounds; whether that is the first."""
        seconds, joules = self._latest
        held_back = joules >= _HELD_BACK * (self.share_watts or math.inf) * boards * seconds
        late = max(state.ttft_seconds, default=0.0) > self.objective.ttft_seconds
        late |= max(state.tpot_seconds, default=0.0) > self.objective.tpot_seconds
        if not (late and held_back and seconds > 0):
            return False
        self.short_seconds += seconds
        return self.short_seconds == seconds

    def saved(self, waiting_watts: float) -> float:
        """Predicted saving: energy above waiting as it would have been at full power."""
        above = self.scaled_joules - waiting_watts * self.scaled_seconds
        full = above + waiting_watts * self.seconds
        if not full > 0:
            return math.nan
        return 1 - self.joules / full if self.scaled_seconds > self.seconds else 0.0

    def attained(self) -> dict[str, float]:
        bounds = {"ttft": self.objective.ttft_seconds, "tpot": self.objective.tpot_seconds}
        return {
            name: float(np.mean(np.array(values) <= bounds[name])) if values else math.nan
            for name, values in (("ttft", self.ttft), ("tpot", self.tpot))
        }

    def quantiles(self) -> dict[str, tuple[float, float]]:
        return {
            name: _quantiles(values) for name, values in (("ttft", self.ttft), ("tpot", self.tpot))
        }


def _quantiles(values: Sequence[float] | deque[float]) -> tuple[float, float]:
    if not values:
        return math.nan, math.nan
    middle, high = np.quantile(np.array(values), (0.5, 0.99))
    return float(middle), float(high)


@dataclass(frozen=True, slots=True)
class SweepRow:
    """A service at one setting.

    Attributes:
        setting: The setting.
        seconds: Time at it.
        watts: Mean power of all boards.
        prompt_tokens_per_second: Prompt tokens computed.
        tokens_per_second: Tokens generated.
        requests_per_second: Requests that arrived.
        ttft_seconds: Median and 99th percentile.
        tpot_seconds: Median and 99th percentile.
        joules_per_token: Energy per generated token with its standard error, prompts and waiting
            included; at the mean traffic of the whole sweep, so that rows compare.
        prefill_joules_per_token: Energy of a prompt token above waiting; NaN where unknown.
        decode_joules_per_token: Energy of a generated token above waiting; NaN where unknown.
    """

    setting: str
    seconds: float
    watts: float
    prompt_tokens_per_second: float
    tokens_per_second: float
    requests_per_second: float
    ttft_seconds: tuple[float, float]
    tpot_seconds: tuple[float, float]
    joules_per_token: UncertainValue
    prefill_joules_per_token: UncertainValue
    decode_joules_per_token: UncertainValue


def sweep_service(
    watch: ServiceWatch,
    knob: BoardsKnob,
    positions: Sequence[int],
    seconds: float,
    *,
    clock: Clock = REAL_CLOCK,
    on_row: Callable[[SweepRow], None] | None = None,
) -> tuple[list[SweepRow], Frontier | None]:
    """A running service under its own traffic at one setting after another.

    Args:
        watch: The service.
        knob: Its boards.
        positions: Positions to hold, in this order.
        seconds: Time at each, once as many requests have ended as the setting before left; at
            most as long is waited for them.
        clock: Real or virtual clock.
        on_row: Function to call with each row, whose energy is still that of its own traffic.

    Returns:
        The rows, and the frontier of time and energy of a mean request where requests came.

    Raises:
        JouleryError: Another process holds a board, this user may not set it, or the engine fails.
    """
    rows, whole = [], watch.ledger()
    try:
        knob.hold()
        for position in positions:
            knob.set(position)
            row = _hold(watch, str(knob.settings[position]), seconds, clock, whole)
            rows.append(row)
            if on_row is not None:
                on_row(row)
    finally:
        knob.release()
    rows = _at_equal_traffic(rows, whole.waiting_watts)
    requests = sum(row.requests_per_second for row in rows)
    answer = sum(row.tokens_per_second for row in rows) / requests if requests else math.nan
    points = [
        OperatingPoint(
            row.ttft_seconds[0] + answer * float(np.nan_to_num(row.tpot_seconds[0])),
            row.joules_per_token.value * answer,
            knob.settings[position],
            Provenance(
                watch.provenance.origin,
                f"{watch.metrics.engine}, {seconds:g} s each",
                row.joules_per_token.relative_error,
            ),
        )
        for position, row in zip(positions, rows, strict=True)
        if not math.isnan(answer * row.ttft_seconds[0] * row.joules_per_token.relative_error)
    ]
    return rows, Frontier.from_points(points, "one request") if points else None


def _at_equal_traffic(rows: Sequence[SweepRow], waiting_watts: float) -> list[SweepRow]:
    """Rows with waiting power shared by the mean traffic of all instead of each row's own."""
    rates = [row.tokens_per_second for row in rows if row.tokens_per_second > 0]
    share = waiting_watts / float(np.mean(rates)) if rates else math.nan
    return [
        replace(
            row,
            joules_per_token=UncertainValue(
                row.joules_per_token.value - waiting_watts / row.tokens_per_second + share,
                row.joules_per_token.error,
            ),
        )
        if row.tokens_per_second > 0
        else row
        for row in rows
    ]


def _settle(watch: ServiceWatch, seconds: float, clock: Clock) -> EngineState:
    """The state once as many requests have ended as are inside now, or after some time."""
    first = state = watch.read()
    while (
        not state.arrived - state.running - state.waiting >= first.arrived
        and state.now_seconds - first.now_seconds < seconds
    ):
        clock.sleep(_TICK_SECONDS)
        state = watch.read()
    return state


def _hold(
    watch: ServiceWatch, setting: str, seconds: float, clock: Clock, whole: EnergyLedger
) -> SweepRow:
    """Read the service for some time at one setting, after what the one before has left."""
    first = state = _settle(watch, seconds, clock)
    ledger, states = watch.ledger(), [first]
    ledger.add(first)
    whole.add(first)
    while state.now_seconds - first.now_seconds < seconds:
        clock.sleep(_TICK_SECONDS)
        state = watch.read()
        ledger.add(state)
        whole.add(state)
        states.append(state)
    elapsed = state.now_seconds - first.now_seconds
    tokens = state.generation_tokens - first.generation_tokens
    joules = state.joules - first.joules
    account = ledger.account()
    return SweepRow(
        setting,
        elapsed,
        joules / elapsed,
        (state.prompt_tokens - first.prompt_tokens) / elapsed,
        tokens / elapsed,
        max(0, state.arrived - first.arrived) / elapsed,
        _quantiles([latency for state in states[1:] for latency in state.ttft_seconds]),
        _quantiles([latency for state in states[1:] for latency in state.tpot_seconds]),
        _ratio(states, ledger.waiting_watts),
        account.prefill_joules_per_token,
        account.decode_joules_per_token,
    )


def _ratio(states: Sequence[EngineState], waiting_watts: float) -> UncertainValue:
    """Joules per generated token; the error of the part above waiting, from blocks of the time."""
    marks = [states[n] for n in np.linspace(0, len(states) - 1, _BLOCKS + 1).round().astype(int)]
    table = np.array([(mark.joules, mark.generation_tokens, mark.now_seconds) for mark in marks])
    joules, tokens, seconds = np.diff(table, axis=0).T
    if not tokens.sum() > 0:
        return UncertainValue()
    above = joules - waiting_watts * seconds
    residual = above - tokens * above.sum() / tokens.sum()
    variance = float(residual @ residual) * _BLOCKS / (_BLOCKS - 1)
    return UncertainValue(
        float(joules.sum() / tokens.sum()), math.sqrt(variance) / float(tokens.sum())
    )
