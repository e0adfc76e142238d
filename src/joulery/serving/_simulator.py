"""Simulator of an engine with continuous batching: discrete events, deterministic.

The scheduler is that of vLLM: each iteration decodes a token of every running request and fills
the rest of its token budget with chunks of prompts, in order of arrival, as far as the KV cache has
room. When the cache is full, the request that came last is preempted and computed again later.
Iterations without prompts that differ only by growing contexts are taken in one event.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from joulery.errors import InvalidValueError
from joulery.serving._controller import ClockLag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from joulery.serving._boards import ClockTable
    from joulery.serving._model import ServedModel
    from joulery.serving._requests import ServedRequest


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of an engine that decide its timing.

    Attributes:
        batched_tokens: Most tokens of an iteration (``--max-num-batched-tokens``).
        requests: Most requests that run at once (``--max-num-seqs``).
    """

    batched_tokens: int = 2048
    requests: int = 256


@dataclass(slots=True)
class EngineState:
    """An engine as its metrics show it at one moment.

    Attributes:
        now_seconds: Time of the reading.
        running: Requests in the batch.
        waiting: Requests in the queue.
        arrived: Requests so far; NaN where the engine does not count them.
        prompt_tokens: Prompt tokens computed so far.
        generation_tokens: Tokens generated so far.
        iterations: Iterations so far; NaN where the engine does not count them.
        kv_share: Share of the KV cache in use.
        ttft_seconds: Times to first token since the last reading.
        tpot_seconds: Times per output token of requests that ended since the last reading.
        joules: Energy of the boards so far.
        lag_seconds: Time that the boards take to follow a setting; NaN where unknown.
        late: Whether tokens are counted only when their request has ended.
    """

    now_seconds: float
    running: int = 0
    waiting: int = 0
    arrived: float = 0
    prompt_tokens: float = 0.0
    generation_tokens: float = 0.0
    iterations: float = math.nan
    kv_share: float = 0.0
    ttft_seconds: list[float] = field(default_factory=list)
    tpot_seconds: list[float] = field(default_factory=list)
    joules: float = 0.0
    lag_seconds: float = math.nan
    late: bool = False


class ServingPolicy(Protocol):
    """A choice of the boards' setting from what an engine's metrics show."""

    def decide(self, state: EngineState) -> int:
        """Position of the setting to use from now on."""
        ...


@dataclass(frozen=True)
class ServingRun:
    """Result of a simulated run.

    Attributes:
        arrival_seconds: Arrival of each request.
        first_seconds: Time of its first token.
        finish_seconds: Time of its last token.
        output_tokens: Tokens of its answer.
        seconds: End of the last request.
        joules: Energy of all boards, idle time included.
        idle_seconds: Time without any request.
        prefill_joules: Part of the energy above waiting that prompts took.
        decode_joules: Part that generated tokens took.
        prompt_tokens: Prompt tokens computed, those of preempted requests again.
        preemptions: Number of preempted requests.
    """

    arrival_seconds: NDArray[np.float64]
    first_seconds: NDArray[np.float64]
    finish_seconds: NDArray[np.float64]
    output_tokens: NDArray[np.int64]
    seconds: float
    joules: float
    idle_seconds: float
    prefill_joules: float
    decode_joules: float
    prompt_tokens: int
    preemptions: int

    @property
    def ttft_seconds(self) -> NDArray[np.float64]:
        """Time to first token of each request."""
        return self.first_seconds - self.arrival_seconds

    @property
    def tpot_seconds(self) -> NDArray[np.float64]:
        """Time per output token of each request after the first; 0 for answers of one token."""
        gaps = np.maximum(1, self.output_tokens - 1)
        return (self.finish_seconds - self.first_seconds) / gaps

    def attained(self, ttft_seconds: float, tpot_seconds: float) -> NDArray[np.bool_]:
        """Whether each request kept both bounds."""
        return (self.ttft_seconds <= ttft_seconds) & (self.tpot_seconds <= tpot_seconds)


class ServingSimulation:
    """An engine, its boards and the requests that come to it.

    Args:
        requests: Requests in order of arrival.
        model: Served model.
        settings: Settings of the boards, slowest first; the last is the one found.
        engine: Settings of the engine.
        policy: Policy that chooses among the settings; None keeps the last.
        tick_seconds: Time between two decisions.
        lag_seconds: Time until a decision is in force.
    """

    def __init__(  # noqa: PLR0913 - one argument per part of the machine
        self,
        requests: Sequence[ServedRequest],
        model: ServedModel,
        settings: Sequence[ClockTable],
        *,
        engine: EngineConfig | None = None,
        policy: ServingPolicy | None = None,
        tick_seconds: float = 0.1,
        lag_seconds: float = 0.0,
    ) -> None:
        self._model = model
        self._settings = settings
        self._engine = engine or EngineConfig()
        self._policy = policy
        self._tick_seconds = tick_seconds
        self._lag_seconds = lag_seconds
        self._arrivals = [request.arrival_seconds for request in requests]
        self._prompts = [request.prompt_tokens for request in requests]
        self._outputs = [request.output_tokens for request in requests]
        self._answers = np.array(self._outputs)
        longest = max((r.prompt_tokens + r.output_tokens for r in requests), default=0)
        if longest > model.kv_tokens:
            raise InvalidValueError(
                f"a request of {longest} tokens exceeds the KV cache of {model.kv_tokens}",
                remedy="serve the model on more boards, or leave the request out",
            )
        count = len(requests)
        self._first = [math.nan] * count
        self._finish = [math.nan] * count
        self._now, self._arrived, self._ended = 0.0, 0, 0
        self._waiting: deque[int] = deque()
        self._prefilling: dict[int, int] = {}  # tokens done, by request in order of admission
        self._decoding: dict[int, int] = {}  # step at which each ends, in order of admission
        self._ends: list[tuple[int, int]] = []  # heap of (step, request); stale after preemption
        self._steps = 0
        self._context = 0
        self._reserved = 0  # tokens of the KV cache that unfinished prompts have
        self._table = settings[-1]
        self._horizon = math.inf
        self._pending: deque[tuple[float, int]] = deque()
        self._lag = ClockLag()
        self._next_tick = 0.0 if policy is not None else math.inf
        self._state = EngineState(0.0, iterations=0.0)
        self._joules = self._idle_seconds = self._prefill_joules = self._decode_joules = 0.0
        self._computed = self._preemptions = 0
        self._work = (0.0, 0.0)

    def run(self) -> ServingRun:
        """Serve every request."""
        self.advance(math.inf)
        return self._result()

    def advance(self, until_seconds: float) -> None:
        """Serve until a moment, or until every request has ended."""
        self._horizon = until_seconds
        while self._ended < len(self._arrivals) and self._now < until_seconds:
            self._admit_arrivals()
            if self._now >= self._next_tick:
                self._tick()
            chunks = self._schedule_prompts()
            if chunks:
                self._iterate(chunks)
            elif self._decoding:
                self._decode()
            else:
                self._wait()

    @property
    def ended(self) -> int:
        """Number of requests that have ended."""
        return self._ended

    def joules_per_token(self) -> tuple[float, float]:
        """True joules of a prompt token and of a generated token until now, above waiting."""
        tokens = max(1.0, self._state.generation_tokens)
        return self._prefill_joules / max(1, self._computed), self._decode_joules / tokens

    def take_work(self) -> tuple[float, float]:
        """Arithmetic and traffic since the last call, in seconds at the highest clock."""
        work, self._work = self._work, (0.0, 0.0)
        return work

    def use(self, table: ClockTable) -> None:
        """Serve under another setting of the boards from now on."""
        self._table = table

    def _admit_arrivals(self) -> None:
        arrivals, count = self._arrivals, self._arrived
        while count < len(arrivals) and arrivals[count] <= self._now:
            self._waiting.append(count)
            count += 1
        self._arrived = count

    def _tick(self) -> None:
        while self._pending and self._pending[0][0] <= self._now:
            due, position = self._pending.popleft()
            if self._table is not self._settings[position]:
                self._table = self._settings[position]
                self._lag.add(self._now - due + self._lag_seconds)
        if self._policy is None or self._now < self._next_tick:
            return
        position = self._policy.decide(self.read_metrics())
        self._pending.append((self._now + self._lag_seconds, position))
        self._next_tick = self._now + self._tick_seconds
        if self._lag_seconds == 0.0:
            self._tick()

    def read_metrics(self) -> EngineState:
        """The engine as its metrics show it now; times since the last reading."""
        state = self._state
        state.now_seconds, state.arrived = self._now, self._arrived
        state.running = len(self._decoding) + len(self._prefilling)
        state.waiting = len(self._waiting)
        state.kv_share = (self._context + self._reserved) / self._model.kv_tokens
        state.joules = self._joules
        state.lag_seconds = self._lag.seconds
        self._state = EngineState(
            self._now,
            prompt_tokens=state.prompt_tokens,
            generation_tokens=state.generation_tokens,
            iterations=state.iterations,
        )
        return state

    def _next_event_seconds(self) -> float:
        arrival = self._arrivals[self._arrived] if self._arrived < len(self._arrivals) else math.inf
        lagging = self._pending[0][0] if self._pending else math.inf
        return min(arrival, self._next_tick, lagging, self._horizon)

    def _wait(self) -> None:
        """Let idle time pass until something happens."""
        seconds = max(0.0, self._next_event_seconds() - self._now)
        self._idle_seconds += seconds
        self._joules += self._idle_watts() * seconds
        self._now += seconds
        if self._pending:
            self._tick()

    def _idle_watts(self) -> float:
        return self._table.board.awake_watts * self._model.boards

    def _schedule_prompts(self) -> list[tuple[int, int]]:
        """Chunks of prompts for the next iteration, as (request, tokens)."""
        if not self._waiting and not self._prefilling:
            return []
        budget = self._engine.batched_tokens - len(self._decoding)
        chunks = []
        for request, done in self._prefilling.items():
            tokens = min(self._prompts[request] - done, budget)
            if tokens <= 0:
                break
            chunks.append((request, tokens))
            budget -= tokens
        kv_tokens = self._model.kv_tokens
        places = self._engine.requests - len(self._decoding) - len(self._prefilling)
        while self._waiting and budget > 0 and places > 0:
            request = self._waiting[0]
            prompt = self._prompts[request]
            if self._context + self._reserved + len(self._decoding) + prompt > kv_tokens:
                break
            self._waiting.popleft()
            self._prefilling[request] = 0
            self._reserved += prompt
            tokens = min(prompt, budget)
            chunks.append((request, tokens))
            budget, places = budget - tokens, places - 1
        return chunks

    def _iterate(self, chunks: list[tuple[int, int]]) -> None:
        """One iteration with prompts."""
        prefill, pairs = 0, 0.0
        for request, tokens in chunks:
            prefill += tokens
            pairs += tokens * (self._prefilling[request] + 0.5 * tokens)
        batch, model, cost = len(self._decoding), self._model, self._table.cost
        work = model.work(prefill, pairs, batch, self._context)
        seconds, joules = cost(*work)
        self._note(work, 1)
        awake = self._table.board.awake_watts
        decode = 0.0
        if batch:
            alone, decode = cost(*model.work(0, 0.0, batch, self._context))
            decode -= awake * alone
        self._prefill_joules += (joules - awake * seconds - decode) * model.boards
        self._decode_joules += decode * model.boards
        self._joules += joules * model.boards
        self._now += seconds
        self._computed += prefill
        self._state.iterations += 1
        self._advance_decoding(1)
        for request, tokens in chunks:
            done = self._prefilling[request] + tokens
            if done == self._prompts[request]:
                self._start_decoding(request)
            else:
                self._prefilling[request] = done

    def _note(self, work: tuple[float, float, float], count: int) -> None:
        compute, memory = self._work
        self._work = compute + count * work[0], memory + count * work[1]

    def _start_decoding(self, request: int) -> None:
        del self._prefilling[request]
        prompt, output = self._prompts[request], self._outputs[request]
        self._reserved -= prompt
        self._state.prompt_tokens += prompt
        self._state.generation_tokens += 1
        if math.isnan(self._first[request]):
            self._first[request] = self._now
            self._state.ttft_seconds.append(self._now - self._arrivals[request])
        if output <= 1:
            self._end(request)
            return
        end = self._steps + output - 1
        self._decoding[request] = end
        self._context += prompt + 1
        heapq.heappush(self._ends, (end, request))

    def _decode(self) -> None:
        """Iterations without prompts until something changes."""
        batch, model = len(self._decoding), self._model
        room = model.kv_tokens - self._context - self._reserved
        if room < batch:
            self._preempt()
            return
        while self._decoding.get(self._ends[0][1]) != self._ends[0][0]:
            heapq.heappop(self._ends)
        count = min(self._ends[0][0] - self._steps, room // batch)
        work = model.work(0, 0.0, batch, self._context)
        seconds, joules = self._table.cost(*work)
        until = self._next_event_seconds() - self._now
        if count * seconds > until:
            count = max(1, min(count, math.ceil(until / seconds)))
        if count > 4:
            middle = self._context + 0.5 * count * batch
            work = model.work(0, 0.0, batch, middle)
            seconds, joules = self._table.cost(*work)
        self._note(work, count)
        awake = self._table.board.awake_watts
        self._decode_joules += count * (joules - awake * seconds) * model.boards
        self._joules += count * joules * model.boards
        self._now += count * seconds
        self._state.iterations += count
        self._advance_decoding(count)
        if self._pending:
            self._tick()

    def _advance_decoding(self, count: int) -> None:
        batch = len(self._decoding)
        self._steps += count
        self._context += count * batch
        self._state.generation_tokens += count * batch
        ends, steps = self._ends, self._steps
        while ends and ends[0][0] <= steps:
            end, request = heapq.heappop(ends)
            if self._decoding.get(request) == end:
                del self._decoding[request]
                self._context -= self._prompts[request] + self._outputs[request]
                self._end(request)

    def _end(self, request: int) -> None:
        self._ended += 1
        self._finish[request] = self._now
        answer = int(self._answers[request])
        if answer > 1:
            seconds = (self._now - self._first[request]) / (answer - 1)
            self._state.tpot_seconds.append(seconds)

    def _preempt(self) -> None:
        """Free the KV cache of the request that came last; it is computed again later."""
        self._preemptions += 1
        request, end = self._decoding.popitem()
        left = end - self._steps
        generated = self._outputs[request] - left
        self._context -= self._prompts[request] + generated
        self._prompts[request] += generated
        self._outputs[request] = left
        self._waiting.appendleft(request)

    def _result(self) -> ServingRun:
        return ServingRun(
            np.array(self._arrivals),
            np.array(self._first),
            np.array(self._finish),
            self._answers,
            self._now,
            self._joules,
            self._idle_seconds,
            self._prefill_joules,
            self._decode_joules,
            self._computed,
            self._preemptions,
        )
