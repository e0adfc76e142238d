"""Ledger of a served model: joules per prompt token, per generated token and of waiting.

Within a short interval, energy above waiting is prompt tokens × a + generated tokens × b +
iterations that decode × c + those × cached tokens × d + iterations of prompts alone × e: an
iteration reads all weights whatever its batch, and each token the cache of its request. The
coefficients come from a regression over many intervals; what they are not able to tell apart, such
as b and c when the batch never changes, is added up before it is reported. Power of waiting is not
fitted but taken from idle time.

Prompt tokens are counted when a prompt is complete, so they are spread back over the time that it
took. The error of a figure has three parts: the covariance of the fit, how far the figure moves
when terms of the model are left out, and a floor for what no interval shows.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from joulery.units import finite

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.serving._simulator import EngineState

# Readings are added up to intervals of this length; fewer intervals than the least give no figures.
_INTERVAL_SECONDS, _LEAST_INTERVALS = 0.5, 12
_MOST_INTERVALS = 4000
# So many intervals are added up to one, as long as so many remain (chosen as `_FLOOR` was).
_MOST_MERGED, _LEAST_MERGED = 3, 30
# Prompts are spread over at most this time.
_LONGEST_PROMPT_SECONDS = 10.0
# Relative error of the model itself, and share of the move without some terms that is bias: chosen
# so that 90 % intervals cover the simulated truth of an A100 and of H100s in 85 to 97 % of cases,
# with energies that are stale by up to 0.1 s.
_FLOOR, _BIAS = 0.015, 0.25
# Idle power counts as observed after so many idle seconds, without those in which sensors still
# show the work before.
_LEAST_IDLE_SECONDS, _SETTLING_SECONDS = 2.0, 0.5
# Columns of an interval that the regression uses: prompt tokens, tokens after the first, iterations
# that decode, those × cache, prompt tokens × length of their prompts, iterations of prompts alone.
_TERMS = (2, 3, 4, 5, 6, 7)
_GROUPS = ((2, 6, 7), (3, 4, 5))
_COLUMNS = 10
# A figure is stable when its error is below this (the gate of Aitra Meter is 3 %).
_STABLE = 0.03


@dataclass(frozen=True, slots=True)
class UncertainValue:
    """A figure with its standard error, in the same unit; NaN where unknown."""

    value: float = math.nan
    error: float = math.nan

    @property
    def relative_error(self) -> float:
        """Standard error as a share of the value."""
        return self.error / self.value if self.value else math.nan


@dataclass(frozen=True, slots=True)
class LedgerAccount:
    """Energy of a served model over a time.

    Attributes:
        seconds: Length of the time.
        joules: Energy of the boards.
        prefill_joules_per_token: Energy above waiting of a prompt token.
        decode_joules_per_token: Energy above waiting of a generated token.
        joules_per_request: Energy above waiting of a mean request.
        waiting_watts: Power of the boards while no request is there.
        waiting_joules: Energy that waiting power makes of the whole time.
        prompt_tokens: Prompt tokens computed.
        generation_tokens: Tokens generated.
        requests: Requests that arrived; NaN where the engine does not count them.
        flags: What a reader should know: ``few-intervals``, ``idle-assumed``, ``unstable``,
            ``inseparable``, ``idle-above-work``, ``counted-late``.
    """

    seconds: float
    joules: float
    prefill_joules_per_token: UncertainValue
    decode_joules_per_token: UncertainValue
    joules_per_request: UncertainValue
    waiting_watts: float
    waiting_joules: float
    prompt_tokens: float
    generation_tokens: float
    requests: float
    flags: tuple[str, ...] = ()


class EnergyLedger:
    """Learns what tokens of a served model cost, from readings of its engine and its boards.

    Args:
        idle_watts: Power of all boards while they wait, used until idle time is observed.
        interval_seconds: Length of the intervals of the regression.
    """

    def __init__(self, idle_watts: float, interval_seconds: float = _INTERVAL_SECONDS) -> None:
        self._assumed_watts = finite(idle_watts, "idle power in watts", minimum=0.0)
        self._interval_seconds = interval_seconds
        self._previous: EngineState | None = None
        # Rows: seconds, joules, the columns of `_TERMS` scaled by the setting in force, and prompt
        # and generated tokens as counted.
        self._open: deque[NDArray[np.float64]] = deque()
        self._intervals: deque[NDArray[np.float64]] = deque(maxlen=_MOST_INTERVALS)
        self._current = np.zeros(_COLUMNS)
        self._idle = np.zeros(2)  # seconds and joules of idle times
        self._idle_since = math.inf
        self._last_first_seconds = -math.inf
        self._totals = np.zeros(5)  # seconds, joules, prompt tokens, generated tokens, requests
        self._late = False

    def add(self, state: EngineState, scale: tuple[float, float] = (1.0, 1.0)) -> None:
        """Add a reading.

        Args:
            state: Engine and energy at this moment.
            scale: Energy of prompts and of generated tokens at the setting in force relative to
                full power, where a tuner moves the setting.
        """
        before, self._previous = self._previous, state
        if before is None or state.now_seconds <= before.now_seconds:
            return
        seconds, joules = state.now_seconds - before.now_seconds, state.joules - before.joules
        prompt = state.prompt_tokens - before.prompt_tokens
        tokens = state.generation_tokens - before.generation_tokens
        steps = state.iterations - before.iterations
        if min(prompt, tokens) < 0 or steps < 0 or math.isnan(joules):  # a counter restarted
            self._open.clear()
            self._idle_since = math.inf
            return
        if math.isnan(steps):  # each request in the batch gets a token per iteration
            steps = tokens / max(1.0, 0.5 * (before.running + state.running))
        self._late |= state.late
        self._totals += seconds, joules, prompt, tokens, state.arrived - before.arrived
        if before.running or before.waiting or state.running or state.waiting or tokens:
            self._idle_since = math.inf
        else:
            self._idle_since = min(self._idle_since, before.now_seconds)
        if before.now_seconds - self._idle_since >= _SETTLING_SECONDS:
            self._idle += seconds, joules
        cache = 0.5 * (before.kv_share + state.kv_share)
        # A first token comes from its prompt's own iteration; more iterations cannot decode.
        decoded = max(0.0, tokens - len(state.ttft_seconds))
        shared = min(steps, decoded)
        work = np.array([0.0, decoded, shared, shared * cache, 0.0]) * scale[1]
        alone = (steps - shared) * scale[0]
        self._open.append(np.array([seconds, joules, *work, alone, 0.0, tokens]))
        if prompt > 0:
            self._spread(prompt, scale[0], state)
        self._close_old()

    def _spread(self, prompt: float, scale: float, state: EngineState) -> None:
        """Spread prompt tokens back over the time that they took."""
        # Prompts are computed in order, so one began when it came or when the last was complete.
        now, last = state.now_seconds, self._last_first_seconds
        began = max(last, now - max(state.ttft_seconds, default=0.0))
        self._last_first_seconds = now
        remaining = max(min(now - began, _LONGEST_PROMPT_SECONDS), self._open[-1][0])
        rate, length = prompt / remaining, prompt / max(1, len(state.ttft_seconds))
        for row in reversed(self._open):
            part = min(remaining, row[0])
            row[[2, 6, 8]] += np.array([scale, scale * length, 1.0]) * rate * part
            remaining -= part
            if remaining <= 1e-9:
                return
        self._open[0][[2, 6, 8]] += np.array([scale, scale * length, 1.0]) * rate * remaining

    def _close_old(self) -> None:
        """Move readings that no prompt can reach any more into intervals."""
        horizon = sum(row[0] for row in self._open) - _LONGEST_PROMPT_SECONDS
        while self._open and horizon > 0:
            row = self._open.popleft()
            horizon -= row[0]
            self._current += row
            if self._current[0] >= self._interval_seconds:
                self._intervals.append(self._current)
                self._current = np.zeros(_COLUMNS)

    def _work(self) -> NDArray[np.float64]:
        """All intervals with work in them, with what is still open at the end."""
        rows, current = list(self._intervals), self._current.copy()
        for row in self._open:
            current += row
            if current[0] >= self._interval_seconds:
                rows.append(current)
                current = np.zeros(_COLUMNS)
        # Energy and tokens are not read at the same moment, which matters less the longer.
        size = max(1, min(_MOST_MERGED, len(rows) // _LEAST_MERGED))
        rows = rows[len(rows) % size :]
        table: NDArray[np.float64] = np.array(rows).reshape(-1, size, _COLUMNS).sum(axis=1)
        return np.asarray(table[table[:, 4] + table[:, 8] + table[:, 9] > 0])

    @property
    def waiting_watts(self) -> float:
        """Power of the boards while no request is there, observed or assumed."""
        seconds, joules = self._idle
        return float(joules / seconds) if seconds >= _LEAST_IDLE_SECONDS else self._assumed_watts

    def account(self) -> LedgerAccount:
        """Account of the whole time."""
        seconds, joules, prompt, tokens, requests = self._totals.tolist()
        flags = ["idle-assumed"] if self._idle[0] < _LEAST_IDLE_SECONDS else []
        work = self._work()
        prefill = decode = UncertainValue()
        if self._late:
            flags.append("counted-late")
        elif len(work) < _LEAST_INTERVALS or prompt <= 0 or tokens <= 0:
            flags.append("few-intervals")
        elif work[:, 1].sum() <= self.waiting_watts * work[:, 0].sum():
            flags.append("idle-above-work")
        else:
            prefill, decode, separable = _attribute(work, self.waiting_watts)
            flags += [] if separable else ["inseparable"]
            if not max(prefill.relative_error, decode.relative_error) <= _STABLE:
                flags.append("unstable")
        per_request = _per_request(prefill, decode, prompt, tokens, requests)
        if self._late and self._previous is not None and requests > 0:
            each = (joules - self.waiting_watts * seconds) / requests
            inside = self._previous.running + self._previous.waiting
            per_request = UncertainValue(each, each * (_FLOOR + inside / requests))
        if not min(prefill.value, decode.value) > 0:  # all is given to one: no token costs nothing
            prefill = decode = UncertainValue()
        return LedgerAccount(
            seconds,
            joules,
            prefill,
            decode,
            per_request,
            self.waiting_watts,
            self.waiting_watts * seconds,
            prompt,
            tokens,
            requests,
            tuple(flags),
        )


def _per_request(
    prefill: UncertainValue, decode: UncertainValue, prompt: float, tokens: float, requests: float
) -> UncertainValue:
    if not requests > 0:
        return UncertainValue()
    parts = prefill.value * prompt / requests, decode.value * tokens / requests
    errors = prefill.error * prompt / requests, decode.error * tokens / requests
    # What one figure has too much, the other has too little: their errors do not add up.
    return UncertainValue(sum(parts), abs(errors[0] - errors[1]) + _FLOOR * sum(parts))


def _attribute(
    work: NDArray[np.float64], waiting_watts: float
) -> tuple[UncertainValue, UncertainValue, bool]:
    """Joules per prompt token and per generated token, and whether they can be told apart."""
    best, covariance = _fit(work, _TERMS, waiting_watts)
    variants = [_fit(work, columns, waiting_watts)[0] for columns in ((2, 3, 4, 5), (2, 3, 4, 6))]
    # Leaving out terms shows how much hangs on them.
    bias = np.abs(np.array(variants) - best).max(axis=0) * _BIAS
    errors = np.sqrt(covariance + bias**2 + (_FLOOR * best) ** 2)
    separable = bool((errors < 0.5 * np.abs(best)).all())
    prefill, decode = (
        UncertainValue(float(v), float(e)) for v, e in zip(best, errors, strict=True)
    )
    return prefill, decode, separable


def _fit(
    work: NDArray[np.float64], columns: tuple[int, ...], waiting_watts: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Joules per prompt token and per generated token, and their variances by the fit."""
    means = work.mean(axis=0)
    active = [column for column in columns if means[column] > 0]
    while True:
        features = work[:, active] / means[active]
        target = work[:, 1] - waiting_watts * work[:, 0]
        gram = features.T @ features + 1e-6 * len(work) * np.eye(len(active))
        coefficients = np.linalg.solve(gram, features.T @ target)
        negative = [n for n, value in enumerate(coefficients) if value < 0]
        if not negative or len(active) == 1:
            break
        active.pop(negative[0])  # energy is never negative
    residual = target - features @ coefficients
    variance = float(residual @ residual) / max(1, len(work) - len(active))
    covariance = variance * np.linalg.inv(gram)
    # Sums of the terms that belong to prompts, and to generated tokens.
    picks = np.array([[float(column in group) for column in active] for group in _GROUPS])
    parts = picks @ np.maximum(0.0, coefficients)
    if not parts.sum() > 0:
        return np.full(2, np.nan), np.full(2, np.nan)
    # What is spent is spent: only the split between the two is uncertain.
    share = np.array([parts[1], -parts[0]]) / parts.sum()
    variance = share @ picks @ covariance @ picks.T @ share
    factor = target.mean() / parts.sum()
    per_token = factor / np.maximum(1e-12, means[8:10])
    return per_token * parts, per_token**2 * variance


def idle_gaps(busy_until: list[float], arrivals: list[float]) -> list[float]:
    """Lengths of the idle times between the end of all requests so far and the next arrival."""
    gaps, latest = [], -math.inf
    for (_, end), (arrival, _) in pairwise(zip(arrivals, busy_until, strict=True)):
        latest = max(latest, end)
        if arrival > latest:
            gaps.append(arrival - latest)
    return gaps
