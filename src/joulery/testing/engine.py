"""A stand-in for a serving engine: speaks vLLM's metrics and obeys an emulated board.

    python -m joulery.testing.engine --port 8000 --board h100 --rate 4

Requests come by themselves at a given rate; the simulator of continuous batching serves them in
real time. On an emulated node (``EmulatedNode.env``) the boards' locked clock or power limit sets
the pace, and the boards draw what the work takes. Without one, it runs at full clocks.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import threading
from bisect import bisect_left
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from joulery.clock import REAL_CLOCK
from joulery.hardware import Steady
from joulery.serving import (
    EngineConfig,
    EngineState,
    ServedModel,
    ServingSimulation,
    served_model,
    serving_board,
    synthetic_trace,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from joulery.clock import Clock
    from joulery.serving import ServedRequest, ServingBoard
    from joulery.testing.emulator.node import EmulatedNode

# Bucket edges of vLLM's histograms, in seconds.
_COMMON_EDGES = (0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
TTFT_EDGES = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, *_COMMON_EDGES, 160.0, 640.0)
TPOT_EDGES = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, *_COMMON_EDGES)
# Time between two looks at the boards' clock: boards follow a lock within tens of milliseconds.
_SLICE_SECONDS = 0.05
_SHAPE = {"name": "stand-in", "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8}
_SHAPE |= {"feedforward": 14336, "vocabulary": 128256, "sequence": 8192}


class _Histogram:
    """A histogram as Prometheus exports it."""

    def __init__(self, edges: Sequence[float]) -> None:
        self._edges = (*edges, math.inf)
        self._counts = [0] * len(self._edges)
        self._sum = 0.0

    def add(self, values: Sequence[float]) -> None:
        """Count values."""
        for value in values:
            self._counts[bisect_left(self._edges, value)] += 1
            self._sum += value

    def lines(self, name: str, labels: str) -> list[str]:
        """Lines of the page."""
        lines, total = [f"# TYPE {name} histogram"], 0
        for edge, count in zip(self._edges, self._counts, strict=True):
            total += count
            text = "+Inf" if math.isinf(edge) else repr(edge)
            lines.append(f'{name}_bucket{{{labels},le="{text}"}} {float(total)}')
        return [
            *lines,
            f"{name}_sum{{{labels}}} {self._sum}",
            f"{name}_count{{{labels}}} {float(total)}",
        ]


class StandInEngine:
    """An engine that serves simulated requests in real time.

    Args:
        requests: Requests, with arrivals from the engine's start.
        board: Board it runs on.
        model: Served model.
        node: Emulated node whose boards 0 to ``model.boards - 1`` it runs on; None for none.
        settings: Settings of the engine.
        port: Port to listen on; 0 for any.
        clock: Real clock.
        page: Function that changes the page of metrics before it is sent, for tests of faults.
    """

    def __init__(  # noqa: PLR0913 - a test names what it changes
        self,
        requests: Sequence[ServedRequest],
        board: ServingBoard,
        model: ServedModel | None = None,
        *,
        node: EmulatedNode | None = None,
        settings: EngineConfig | None = None,
        port: int = 0,
        clock: Clock = REAL_CLOCK,
        page: Callable[[str], str] | None = None,
    ) -> None:
        self.board = board
        self.model = model or served_model(_SHAPE, board)
        self.page = page or (lambda text: text)
        self._node = node
        self._clock = clock
        self._full = board.within(board.limit_watts)
        self._simulation = ServingSimulation(requests, self.model, [self._full], engine=settings)
        self._started = clock.now()
        self._lock = threading.Lock()
        self._ttft, self._tpot = _Histogram(TTFT_EDGES), _Histogram(TPOT_EDGES)
        self._latest = EngineState(0.0, iterations=0.0)
        self._coming: EngineState | None = None
        self._ended = self._coming_ended = 0
        self._rows: list[Steady] = []
        self._stop = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._server.daemon_threads = True
        self._threads = [
            threading.Thread(target=self._serve, daemon=True),
            threading.Thread(target=self._server.serve_forever, daemon=True),
        ]

    @property
    def url(self) -> str:
        """Address of the engine."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._server.shutdown()
        self._server.server_close()
        self._threads[0].join(2.0)

    def truth(self) -> tuple[float, float]:
        """True joules per prompt token and per generated token until now."""
        return self._simulation.joules_per_token()

    def _serve(self) -> None:
        while not self._stop.wait(_SLICE_SECONDS):
            with self._lock:
                self._advance()

    def _advance(self) -> None:
        """Serve up to now at the boards' clock, and have the boards draw what that takes.

        An iteration under way ends later than now: its tokens are counted only then.
        """
        now = self._clock.now() - self._started
        if self._coming is not None:
            if now < self._coming.now_seconds:
                return
            self._ttft.add(self._coming.ttft_seconds)
            self._tpot.add(self._coming.tpot_seconds)
            self._latest, self._ended, self._coming = self._coming, self._coming_ended, None
        if self._node is not None:
            clock_hertz = self._node.truth(0).steady.clock_hertz
            share = max(0.05, clock_hertz / self._node.specs[0].board.max_clock_hertz)
            self._simulation.use(self.board.within(math.inf, share * self.board.max_clock_hertz))
        self._simulation.advance(now)
        self._coming, self._coming_ended = self._simulation.read_metrics(), self._simulation.ended
        if self._node is not None:
            self._load_boards(self._node, self._coming.now_seconds - self._latest.now_seconds)

    def _load_boards(self, node: EmulatedNode, elapsed_seconds: float) -> None:
        """Load the emulated boards with the mix of work of the last slice."""
        compute, memory = self._simulation.take_work()
        board = node.specs[0].board
        self._rows = []
        for clock_hertz in board.clocks():
            share, watts = clock_hertz / board.max_clock_hertz, self.board.awake_watts
            if compute + memory > 0:
                busy = self.board.busy_seconds(compute, memory, share)
                above = self.board.busy_watts(compute, memory, share) - watts
                watts += above * min(1.0, busy / max(1e-3, elapsed_seconds))
            self._rows.append(Steady(clock_hertz, 1.0, watts, watts))
        for index in range(self.model.boards):
            node.set_table(index, self._rows)

    @property
    def is_slowed(self) -> bool:
        """Whether a locked clock, rather than the power limit, holds the first board back."""
        if self._node is None or not self._rows:
            return False
        with self._lock:
            truth = self._node.truth(0)
            free = [row.clock_hertz for row in self._rows if row.busy_watts <= truth.limit_watts]
        return truth.steady.clock_hertz < 0.97 * max(free, default=0.0)

    def metrics(self) -> str:
        """The page of metrics."""
        with self._lock:
            state = self._latest
            labels = f'engine="0",model_name="{self.model.name}"'
            values = {
                "num_requests_running": ("gauge", state.running),
                "num_requests_waiting": ("gauge", state.waiting),
                "kv_cache_usage_perc": ("gauge", state.kv_share),
                "prompt_tokens_total": ("counter", state.prompt_tokens),
                "generation_tokens_total": ("counter", state.generation_tokens),
                "request_success_total": ("counter", self._ended),
                "iteration_tokens_total_count": ("untyped", state.iterations),
            }
            lines = []
            for name, (kind, value) in values.items():
                lines += [f"# TYPE vllm:{name} {kind}", f"vllm:{name}{{{labels}}} {float(value)}"]
            lines += self._ttft.lines("vllm:time_to_first_token_seconds", labels)
            lines += self._tpot.lines("vllm:request_time_per_output_token_seconds", labels)
        return self.page("\n".join(lines) + "\n")  # without the lock: a page may hang

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                """Answer with the page of metrics."""
                body = engine.metrics().encode() if self.path == "/metrics" else b""
                self.send_response(200 if self.path in ("/metrics", "/health") else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        return Handler


def main() -> None:
    """Run a stand-in engine until it is stopped."""
    parser = argparse.ArgumentParser(description="a stand-in for a serving engine")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--board", default="h100", help="board of the catalog")
    parser.add_argument("--rate", type=float, default=2.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    from joulery.testing.emulator.node import STATE_VARIABLE, EmulatedNode

    node = EmulatedNode.attached() if STATE_VARIABLE in os.environ else None
    requests = synthetic_trace(lambda _: options.rate, options.seconds, seed=options.seed)
    with StandInEngine(
        requests, serving_board(options.board), node=node, port=options.port
    ) as engine:
        sys.stdout.write(f"serving at {engine.url}\n")
        sys.stdout.flush()
        REAL_CLOCK.sleep(options.seconds)


if __name__ == "__main__":
    main()
