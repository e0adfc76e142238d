"""Controller of a served model: the least energy that keeps the objectives on TTFT and TPOT.

The controller is told what the engine's metrics show and answers with a position of the knob; it
does no input or output. It never predicts latencies from nothing: it keeps the recent ones, as they
would have been at full power, and predicts how each setting stretches them: tokens throughout,
prompts until the next reading shows that one waits. A setting is good when, of the requests that
would keep their bounds at full power, no more than a small share would miss them. Part of the room
between a latency and its bound, the margin, stays unused; the margin grows with each request that
missed a bound because of us and shrinks slowly while none does. It is larger while few latencies
are known. Settings that would fill the engine are out: its queue would grow without end.

Beside this standing choice, which needs a history, three guards act on what is seen now: a queue
that will not drain in time, tokens that already come too slowly, and a jump of the load or an
engine that is full.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.errors import InvalidValueError
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from joulery.serving._boards import ServingBoard
    from joulery.serving._simulator import EngineState

# Share of all requests that may miss a bound because of us, as predicted with the margin. Constants
# of this module were chosen on simulated boards with traces of `benchmarks/serving.py`, whose
# figures are of other arrivals; this one and the margin on four of the printed cases too.
_ALLOWANCE = 0.003
# Margin as a share of the slack: at the start and at least, and at most; it is larger by the next
# over the root of the number of latencies that are known.
_LEAST_MARGIN, _MOST_MARGIN, _EARLY_MARGIN = 0.25, 0.9, 1.5
# Growth of the margin at a miss, and its decline per request that is well.
_MARGIN_UP, _MARGIN_DOWN = 0.12, 0.0004
# Latencies are remembered for so long, at least so many of them and at most so many; before the
# power goes down, a few are needed.
_MEMORY_SECONDS, _KEPT_SAMPLES, _MOST_SAMPLES, _LEAST_SAMPLES = 600.0, 300, 1000, 8
_RECENT_SECONDS = 30.0
# The standing choice is made anew so often, and goes down by at most so many positions at once.
_CHOICE_SECONDS, _STEPS_DOWN = 1.0, 2
# A clock takes so long to follow a setting until it was seen to do so, so many times, in less or
# more (by hand: the slowest that we know of).
_LAG_SECONDS, _LEAST_LAGS = 0.2, 3
# Bounds are tight when latencies at full power reach this share of them.
_TIGHT = 0.7
# Arrivals beyond so many standard deviations above the recent mean are a jump of the load; full
# power stays until so long after its last sign, when latencies show what the new load needs.
_JUMP_SIGMAS, _JUMP_SECONDS, _JUMP_HOLD_SECONDS = 4.0, 2.0, 5.0
# The batch shall stay below this share of the one at which the engine was full; weight of the
# latest reading in its mean (jumps to 92 % of a goodput, arrivals by seeds 401 to 403).
_CROWDED, _LATEST_WEIGHT = 0.9, 0.1


@dataclass(frozen=True, slots=True)
class LatencyObjective:
    """Bounds on the latencies of requests.

    Attributes:
        ttft_seconds: Bound of the time to the first token.
        tpot_seconds: Bound of the time per output token of a request.
        quantile: Share of the requests that shall keep both.
    """

    ttft_seconds: float
    tpot_seconds: float
    quantile: float = 0.99

    def __post_init__(self) -> None:
        finite(self.ttft_seconds, "TTFT bound in seconds", minimum=1e-6)
        finite(self.tpot_seconds, "TPOT bound in seconds", minimum=1e-6)
        if not 0.5 <= self.quantile < 1:
            raise InvalidValueError(
                f"quantile must be 0.5 to below 1, not {self.quantile}", remedy="give 0.99 for p99"
            )


@dataclass(frozen=True)
class KnobCurves:
    """Prediction of how each position of the knob changes time and energy; the last is full power.

    Attributes:
        prefill: Time of prompts relative to full power.
        decode: Time of generated tokens relative to full power.
        prefill_joules: Energy of prompts above waiting, relative to full power.
        decode_joules: Energy of generated tokens above waiting, relative to full power.
    """

    prefill: NDArray[np.float64]
    decode: NDArray[np.float64]
    prefill_joules: NDArray[np.float64]
    decode_joules: NDArray[np.float64]


def knob_curves(
    board: ServingBoard, settings: Sequence[tuple[float, float | None]], fixed_share: float = 0.1
) -> KnobCurves:
    """Curves of a board from the catalog.

    Args:
        board: Board, or one of a group of equal boards.
        settings: Power limit in watts and locked clock in hertz of each position.
        fixed_share: Time on host and links as a share of the kernels' time.
    """
    rows = []
    for limit_watts, clock_hertz in settings:
        table = board.within(limit_watts, clock_hertz)
        costs = [table.cost(*work) for work in ((0.9, 0.1, 0.05), (0.2, 0.8, fixed_share))]
        rows.append(
            [
                *(cost[0] for cost in costs),
                *(cost[1] - board.awake_watts * cost[0] for cost in costs),
            ]
        )
    table_array = np.array(rows)
    relative = table_array / table_array[-1]
    return KnobCurves(*(relative[:, column] for column in range(4)))


class ClockLag:
    """Time that boards take to follow a setting, from the latest times that it took."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=4 * _LEAST_LAGS)

    def add(self, seconds: float) -> None:
        """Add the time that one change took."""
        self._times.append(seconds)

    @property
    def seconds(self) -> float:
        """The longest of the latest times; NaN after too few changes."""
        return max(self._times) if len(self._times) >= _LEAST_LAGS else math.nan


class _Latencies:
    """Recent latencies of one kind as they would have been at full power, and their margin.

    A latency is the sum of tokens, which stretch with the setting, and of prompts, the request's
    own or those of others. Prompts stretch only until a reading shows them: from then on guards
    raise the power.

    Args:
        bound_seconds: Bound of the latency.
    """

    def __init__(self, bound_seconds: float) -> None:
        self._bound = bound_seconds
        # Rows: time, tokens and prompts of each request; the oldest columns are overwritten.
        self._ring = np.empty((3, _MOST_SAMPLES))
        self._count = 0
        self._next_look = -math.inf
        self._tight = True
        self.margin = _LEAST_MARGIN

    def __len__(self) -> int:
        return min(self._count, _MOST_SAMPLES)

    def add(self, now: float, latency: float, parts: tuple[float, float], least: float) -> None:
        """Add a request; the margin learns from it.

        Args:
            now: Time of the reading.
            latency: Latency as it was.
            parts: Tokens and prompts of it at full power, as long as they may have been.
            least: Latency at full power if all of it was stretched.
        """
        self._ring[:, self._count % _MOST_SAMPLES] = now, *parts
        self._count += 1
        ours = latency > self._bound >= least
        change = _MARGIN_UP if ours else -_MARGIN_DOWN
        self.margin = min(_MOST_MARGIN, max(_LEAST_MARGIN, self.margin + change))

    def _samples(self, now: float) -> NDArray[np.float64]:
        samples = self._ring[:, : len(self)]
        age = (self._count - 1 - np.arange(len(self))) % _MOST_SAMPLES
        return samples[:, (samples[0] >= now - _MEMORY_SECONDS) | (age < _KEPT_SAMPLES)]

    def is_kept(self, stretched: Any, at_full_power: Any) -> NDArray[np.bool_]:
        """Whether stretched latencies leave the margin of the slack unused."""
        slack = self._bound - at_full_power
        margin = min(_MOST_MARGIN, self.margin + _EARLY_MARGIN / math.sqrt(max(1, len(self))))
        return np.asarray(stretched - at_full_power <= (1 - margin) * slack)

    def is_tight(self, now: float) -> bool:
        """Whether some requests come close to the bound already at full power."""
        if now >= self._next_look and self._count:
            self._next_look = now + _CHOICE_SECONDS
            late = self._samples(now)[1:].sum(axis=0) > _TIGHT * self._bound
            self._tight = bool(late.mean() > _ALLOWANCE) if len(late) else True
        return self._tight

    def losses(self, now: float, curves: KnobCurves, unseen_seconds: float) -> NDArray[np.float64]:
        """Share of requests that each position would make late, the worse of long and short.

        Args:
            now: Time of the reading.
            curves: Effect of each position.
            unseen_seconds: Time until the clock responds to a prompt.
        """
        times, tokens, prompts = self._samples(now)
        at_full_power = tokens + prompts
        prefill, decode = curves.prefill[:, None], curves.decode[:, None]
        unseen = np.minimum(prompts, unseen_seconds / prefill)
        stretched = at_full_power + tokens * (decode - 1) + unseen * (prefill - 1)
        lost = (at_full_power <= self._bound) & ~self.is_kept(stretched, at_full_power)
        losses = lost.mean(axis=1) if len(times) else np.ones(len(curves.decode))
        recent = times >= now - _RECENT_SECONDS
        if recent.sum() >= _LEAST_SAMPLES:
            losses = np.maximum(losses, lost[:, recent].mean(axis=1))
        return np.asarray(losses)


class ServingController:
    """Chooses the position of a knob for a served model; see the module's text.

    Args:
        objective: Bounds to keep.
        curves: Predicted effect of each position.
    """

    def __init__(self, objective: LatencyObjective, curves: KnobCurves) -> None:
        self._objective = objective
        self._curves = curves
        self._top = len(curves.prefill) - 1
        self._position = self._standing = self._with_prompts = self._top
        self._ttft = _Latencies(objective.ttft_seconds)
        self._tpot = _Latencies(objective.tpot_seconds)
        # Settings by the time of their decision; stretches between readings, by time and whether
        # prompts were computed.
        self._decided: deque[tuple[float, int]] = deque([(-math.inf, self._top)])
        self._past: deque[tuple[float, bool, float, float]] = deque(maxlen=600)
        self._load = _Load()
        self._next_choice = -math.inf

    def decide(self, state: EngineState) -> int:
        """Position to use from now on."""
        now = state.now_seconds
        lag = _LAG_SECONDS if math.isnan(state.lag_seconds) else state.lag_seconds
        stretches = self._stretches_in_force(now, lag)
        computed = self._load.add(state, stretches)
        self._past.append((now, computed, *stretches))
        self._learn(state)
        if now >= self._next_choice:
            self._next_choice = now + _CHOICE_SECONDS
            self._standing = max(self._choose(now, lag), self._standing - _STEPS_DOWN)
        if self._load.jumped(now):
            self._standing = self._top
        self._position = max(
            self._standing, self._queue_guard(now), self._token_guard(), self._chunk_guard(now)
        )
        self._decided.append((now, self._position))
        return self._position

    def _stretches_in_force(self, now: float, lag_seconds: float) -> tuple[float, float]:
        """Stretches of prompts and tokens in the middle of the time since the last reading."""
        middle = 0.5 * (now + self._past[-1][0]) if self._past else now
        while len(self._decided) > 1 and self._decided[1][0] + lag_seconds <= middle:
            self._decided.popleft()
        position = self._decided[0][1]
        return float(self._curves.prefill[position]), float(self._curves.decode[position])

    def _learn(self, state: EngineState) -> None:
        """Remember new latencies as they would have been at full power."""
        now = state.now_seconds
        for latency in state.ttft_seconds:
            prefill, _ = self._stretches_since(now - latency)
            self._ttft.add(now, latency, (0.0, latency / prefill), latency / prefill)
        for latency in state.tpot_seconds:
            prefill, decode = self._stretches_since(now - self._load.answer_tokens * latency)
            own = min(self._load.usual_token_seconds, latency / decode)
            prompts = latency - own * decode
            # The clock may have risen for these prompts between two readings: half-way.
            likely = prompts / math.sqrt(prefill)
            self._tpot.add(now, latency, (own, likely), own + prompts / prefill)

    def _stretches_since(self, since: float) -> tuple[float, float]:
        """Mean stretches since a moment, that of prompts while some were computed."""
        prefill = decode = 0.0
        prompts = count = 0
        for moment, computed, one_prefill, one_decode in reversed(self._past):
            if moment < since and count:
                break
            decode, count = decode + one_decode, count + 1
            if computed:
                prefill, prompts = prefill + one_prefill, prompts + 1
        mean = decode / count
        return (prefill / prompts, mean) if prompts else (self._past[-1][2], mean)

    def _choose(self, now: float, lag_seconds: float) -> int:
        """The standing position: least energy among those that keep the objective."""
        if len(self._ttft) < _LEAST_SAMPLES or len(self._tpot) < _LEAST_SAMPLES:
            return self._top
        # A prompt to which the clock has not responded yet delays its first token, or one of an
        # answer's tokens: half of their mean number, since short answers suffer most.
        unseen, tokens = self._load.tick_seconds + lag_seconds, 0.5 * self._load.answer_tokens
        stretched = self._tpot.losses(now, self._curves, math.inf) <= _ALLOWANCE
        self._with_prompts = int(np.argmax(stretched)) if stretched.any() else self._top
        losses = self._ttft.losses(now, self._curves, unseen)
        losses = losses + self._tpot.losses(now, self._curves, unseen / tokens)
        share = self._load.prompt_share
        joules = share * self._curves.prefill_joules + (1 - share) * self._curves.decode_joules
        # A slower batch is a larger one, the more so the nearer the engine is to its capacity.
        running = self._load.running * (self._curves.decode / self._past[-1][3]) ** 2
        allowed = (losses <= _ALLOWANCE) & (running <= _CROWDED * self._load.most_running(now))
        allowed[-1] = True
        lowest = int(np.argmax(allowed))
        return lowest + int(np.argmin(joules[lowest:]))

    def _queue_guard(self, now: float) -> int:
        """Lowest position at which every waiting request gets its first token in time."""
        ages, seconds = self._load.queue(now)
        if not len(ages):
            return 0
        full = ages + seconds
        if full[-1] > self._objective.ttft_seconds:
            return self._top
        stretched = ages + seconds * self._curves.prefill[:, None]
        kept = self._ttft.is_kept(stretched, full).all(axis=1)
        return int(np.argmax(kept)) if kept.any() else self._top

    def _token_guard(self) -> int:
        """Lowest position at which tokens come in time at the present pace."""
        seconds = self._load.token_seconds / self._curves.decode[self._position]
        if not seconds > 0:
            return 0
        if seconds > self._objective.tpot_seconds:
            return self._top
        kept = self._tpot.is_kept(seconds * self._curves.decode, seconds)
        return int(np.argmax(kept)) if kept.any() else self._top

    def _chunk_guard(self, now: float) -> int:
        """Lowest position at which waiting prompts delay the tokens of others in time."""
        return self._with_prompts if self._load.prompts_wait and self._tpot.is_tight(now) else 0


class _Load:
    """Load of an engine, from the differences of its counters."""

    def __init__(self) -> None:
        self._previous: EngineState | None = None
        # Time, arrivals, prompt and generated tokens of each reading.
        self._history: deque[tuple[float, float, float, float]] = deque()
        self._queue: deque[float] = deque()
        self._units: deque[float] = deque(maxlen=200)
        self._iterations: deque[float] = deque(maxlen=200)
        self._unit_seconds = 0.0
        self._lengths: deque[float] = deque(maxlen=200)  # prompt tokens
        self._mean_prompt = self._prompt_spread = 0.0
        self._rate = 0.0
        self._until = self._jump_until = -math.inf
        self._paces: deque[tuple[float, float, float]] = deque()
        self.token_seconds = 0.0  # per token, now
        self.usual_token_seconds = math.inf  # without prompts in between
        self.prompt_share = 0.0
        self.tick_seconds = 0.0  # between readings
        self.answer_tokens = 1.0
        self.running = 0.0  # requests in the batch, on average
        self._full = -math.inf, 0  # when the engine was full, and its requests then

    def add(self, state: EngineState, stretches: tuple[float, float]) -> bool:
        """Add a reading; whether prompts were computed since the last one.

        Args:
            state: The reading.
            stretches: Stretches of prompts and tokens since the last one.
        """
        before, self._previous = self._previous, state
        now = state.now_seconds
        if before is None:
            return False
        arrivals = state.arrived - before.arrived
        prompt = state.prompt_tokens - before.prompt_tokens
        tokens = state.generation_tokens - before.generation_tokens
        self._history.append((now, arrivals, prompt, tokens))
        while self._history[0][0] < now - _RECENT_SECONDS:
            self._history.popleft()
        self._queue.extend([now] * int(arrivals))
        firsts = len(state.ttft_seconds)
        # Requests that were aborted leave without a first token.
        inside = state.running + state.waiting
        for _ in range(min(len(self._queue), max(firsts, len(self._queue) - inside))):
            self._queue.popleft()
        self.running += _LATEST_WEIGHT * (state.running - self.running)
        if self._queue and self._queue[0] < now and len(self._queue) <= state.waiting:
            # Requests wait while no prompt is computed: the engine has no place for them.
            self._full = now, state.running
            self._jump_until = now + _JUMP_HOLD_SECONDS
        if state.late:  # the prompts of these first tokens are not counted yet
            prompt = firsts * self._mean_prompt
        if firsts == 1:
            self._lengths.append(prompt)
            if prompt >= 64:
                self._units.append(state.ttft_seconds[0] / prompt / stretches[0])
        self._follow_pace(before, state, stretches[1])
        self._summarise(now)
        return firsts > 0 or prompt > 0 or bool(self._queue)

    def _follow_pace(self, before: EngineState, state: EngineState, stretch: float) -> None:
        if state.late:
            return
        now, running = state.now_seconds, min(before.running, state.running)
        seconds = now - before.now_seconds if running else 0.0
        iterations = state.iterations - before.iterations
        if math.isnan(iterations):  # each request in the batch gets a token per iteration
            iterations = (state.generation_tokens - before.generation_tokens) / max(1, running)
        self._paces.append((now, seconds, iterations if running else 0.0))
        while self._paces[0][0] < now - 1.0:
            self._paces.popleft()
        total = sum(entry[2] for entry in self._paces)
        self.token_seconds = sum(entry[1] for entry in self._paces) / total if total else 0.0
        if iterations > 0 and seconds > 0:
            self._iterations.append(seconds / iterations / stretch)

    def _summarise(self, now: float) -> None:
        if now < self._until:
            return
        self._until = now + 1.0
        seconds = max(1.0, now - self._history[0][0])
        arrivals = sum(entry[1] for entry in self._history)
        prompt = sum(entry[2] for entry in self._history)
        self._rate = arrivals / seconds
        self.tick_seconds = seconds / len(self._history)
        if arrivals:
            self._mean_prompt = prompt / arrivals
            tokens = sum(entry[3] for entry in self._history)
            self.answer_tokens = max(1.0, tokens / arrivals)
        if self._lengths:
            self._prompt_spread = float(np.std(np.array(self._lengths)))
        if self._units:
            self._unit_seconds = float(np.quantile(np.array(self._units), 0.2))
        if self._iterations:
            self.usual_token_seconds = float(np.median(np.array(self._iterations)))
        self.prompt_share = min(1.0, prompt / seconds * self._unit_seconds)

    @property
    def prompts_wait(self) -> bool:
        """Whether some requests have no first token."""
        return bool(self._queue)

    def most_running(self, now: float) -> float:
        """Requests at which the engine took no more, as far as it was ever full lately."""
        moment, running = self._full
        return running if now - moment < _MEMORY_SECONDS else math.inf

    def queue(self, now: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Ages of requests without a first token, oldest first, and seconds until they get it."""
        ages = now - np.array(self._queue)
        number = np.arange(1, len(ages) + 1)
        # Lengths of prompts that wait are not known: mean and two standard deviations of the sum.
        tokens = number * self._mean_prompt + 2 * np.sqrt(number) * self._prompt_spread
        return ages, np.asarray(tokens * self._unit_seconds, float)

    def jumped(self, now: float) -> bool:
        """Whether more requests came lately than chance explains."""
        count = 0.0
        for moment, arrivals, *_ in reversed(self._history):
            if moment < now - _JUMP_SECONDS:
                break
            count += arrivals
        usual = self._rate * _JUMP_SECONDS
        if count > usual + _JUMP_SIGMAS * math.sqrt(usual + 1):
            self._jump_until = now + _JUMP_HOLD_SECONDS
        return now < self._jump_until
