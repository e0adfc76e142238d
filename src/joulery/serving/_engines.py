"""Metrics of serving engines as data: which names each exports, and how to read a page of them.

A reader turns pages of Prometheus text into ``EngineState``. Histograms are read as
differences between two pages: counts by bucket and the exact sum give back the latencies of the few
requests in between, since a single request's latency is the sum itself.
"""

from __future__ import annotations

import http.client
import math
import re
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from joulery.errors import InvalidValueError, NotPossibleHereError, UnsupportedError
from joulery.serving._simulator import EngineState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# An engine whose page is not complete within this time is taken to hang.
_TIMEOUT_SECONDS = 1.0
_MOST_BYTES = 8 << 20
# Ports of vLLM, SGLang, llama.cpp and TGI by default.
_USUAL_PORTS = (8000, 30000, 8080, 3000)


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """Names of an engine's metrics; of several, the first that a page has is used.

    A name may select a label, as in ``tokens_total{mode="decode"}``.

    Attributes:
        engine: Name of the engine.
        prefix: Start of all its names, by which a page is recognised.
        path: Path of the page.
        running: Gauge of the requests in the batch.
        waiting: Gauge of the requests in the queue.
        kv_share: Gauge of the KV cache in use, 0 to 1.
        prompt_tokens: Counter of prompt tokens.
        generation_tokens: Counter of generated tokens.
        finished: Counter of requests that ended.
        iterations: Counter of the engine's iterations.
        ttft: Histogram of times to first token, in seconds.
        tpot: Histogram of the mean times per output token of requests, in seconds.
        gaps: Histogram of times between two tokens, in seconds, used where there is no such mean.
        late: Counters of those above that move only when a request has ended.
    """

    engine: str
    prefix: str
    running: tuple[str, ...]
    waiting: tuple[str, ...]
    prompt_tokens: tuple[str, ...]
    generation_tokens: tuple[str, ...]
    finished: tuple[str, ...] = ()
    kv_share: tuple[str, ...] = ()
    iterations: tuple[str, ...] = ()
    ttft: tuple[str, ...] = ()
    tpot: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    path: str = "/metrics"


ENGINES = (
    EngineMetrics(
        "vLLM",
        "vllm:",
        running=("vllm:num_requests_running",),
        waiting=("vllm:num_requests_waiting",),
        prompt_tokens=("vllm:prompt_tokens_total",),
        generation_tokens=("vllm:generation_tokens_total",),
        finished=("vllm:request_success_total",),
        kv_share=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        iterations=("vllm:iteration_tokens_total_count",),
        ttft=("vllm:time_to_first_token_seconds",),
        tpot=("vllm:request_time_per_output_token_seconds",),
        gaps=(
            "vllm:inter_token_latency_seconds",
            "vllm:time_per_output_token_seconds",  # before 0.11
        ),
    ),
    EngineMetrics(
        "SGLang",
        "sglang:",
        running=("sglang:num_running_reqs",),
        waiting=("sglang:num_queue_reqs",),
        prompt_tokens=(
            'sglang:realtime_tokens_total{mode="prefill_compute"}',
            "sglang:prompt_tokens_total",
        ),
        generation_tokens=(
            'sglang:realtime_tokens_total{mode="decode"}',
            "sglang:inter_token_latency_seconds_count",
            "sglang:generation_tokens_total",
        ),
        finished=("sglang:num_requests_total",),
        kv_share=("sglang:token_usage",),
        ttft=("sglang:time_to_first_token_seconds",),
        tpot=("sglang:time_per_output_token_seconds",),
        gaps=("sglang:inter_token_latency_seconds",),
        late=("sglang:prompt_tokens_total", "sglang:generation_tokens_total"),
    ),
    EngineMetrics(  # exports no latencies
        "llama.cpp",
        "llamacpp:",
        running=("llamacpp:requests_processing",),
        waiting=("llamacpp:requests_deferred",),
        prompt_tokens=("llamacpp:prompt_tokens_total",),
        generation_tokens=("llamacpp:tokens_predicted_total",),
        kv_share=("llamacpp:kv_cache_usage_ratio",),
        iterations=("llamacpp:n_decode_total",),
        late=("llamacpp:tokens_predicted_total",),
    ),
    EngineMetrics(
        "TensorRT-LLM",
        "trtllm_",
        running=("trtllm_num_requests_running",),
        waiting=("trtllm_num_requests_waiting",),
        prompt_tokens=("trtllm_prompt_tokens_total",),
        generation_tokens=("trtllm_generation_tokens_total",),
        finished=("trtllm_request_success_total",),
        kv_share=("trtllm_kv_cache_utilization",),
        ttft=("trtllm_time_to_first_token_seconds",),
        tpot=("trtllm_time_per_output_token_seconds",),
        late=("trtllm_prompt_tokens_total", "trtllm_generation_tokens_total"),
        path="/prometheus/metrics",
    ),
    EngineMetrics(  # has no time to first token, and its time per token includes the prompt
        "TGI",
        "tgi_",
        running=("tgi_batch_current_size",),
        waiting=("tgi_queue_size",),
        prompt_tokens=("tgi_request_input_length_sum",),
        generation_tokens=("tgi_request_generated_tokens_sum",),
        finished=("tgi_request_success_total", "tgi_request_success"),
        late=("tgi_request_generated_tokens_sum",),
    ),
)

_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{([^}]*)\})? +(\S+)", re.MULTILINE)
_EDGE = re.compile(r'le="([^"]+)"')
_MODEL = re.compile(r'model_name="([^"]*)"')


class _Page:
    """A page of Prometheus text: values by name, with their labels as written."""

    def __init__(self, text: str, prefix: str) -> None:
        self._values: dict[str, list[tuple[str, float]]] = {}
        for name, labels, number in _LINE.findall(text):
            if name.startswith(prefix):
                with suppress(ValueError):  # a line that is cut off, or not of this format
                    self._values.setdefault(name, []).append((labels, float(number)))

    def has(self, name: str) -> bool:
        return name.partition("{")[0] in self._values

    def first(self, names: Sequence[str], suffix: str = "") -> str:
        """The first of some names that the page has; empty for none."""
        return next((name + suffix for name in names if self.has(name + suffix)), "")

    def rows(self, name: str) -> list[tuple[str, float]]:
        """Labels and values of a name; of one that selects a label, perhaps none yet."""
        name, _, label = name.partition("{")
        return [row for row in self._values.get(name, ()) if label.rstrip("}") in row[0]]

    def total(self, name: str) -> float:
        return sum(value for _, value in self.rows(name))


def recognise_engine(text: str) -> EngineMetrics:
    """The engine that a page of metrics comes from.

    Raises:
        UnsupportedError: No engine that we know.
    """
    for metrics in ENGINES:
        if re.search(rf"^{re.escape(metrics.prefix)}", text, re.MULTILINE):
            return metrics
    raise UnsupportedError(
        "the page has no metrics of a serving engine that is known here",
        remedy=f"known are {', '.join(metrics.engine for metrics in ENGINES)}; "
        "llama.cpp needs --metrics, SGLang --enable-metrics",
    )


def find_engines(timeout_seconds: float = 0.3) -> dict[str, str]:
    """Names of the engines that answer at their usual ports of this machine, by address."""
    engines = {}
    for port in _USUAL_PORTS:
        client = EngineClient(f"http://127.0.0.1:{port}", timeout_seconds)
        try:
            engines[client.url] = client.find_metrics().engine
        except (NotPossibleHereError, UnsupportedError):
            continue
        finally:
            client.close()
    return engines


class EngineReader:
    """Turns pages of an engine's metrics into states; counters that restart begin anew.

    Args:
        metrics: Names of the engine's metrics.

    Attributes:
        restarts: Number of pages on which a counter had fallen, as after a restart of the engine.
        still_seconds: Time for which no counter has moved though requests are inside.
        tokens_by_model: Prompt and generated tokens since the first page, by the label
            ``model_name``.
    """

    def __init__(self, metrics: EngineMetrics) -> None:
        self.metrics = metrics
        self.restarts = 0
        self.still_seconds = 0.0
        self.tokens_by_model: dict[str, tuple[float, float]] = {}
        self._model_pages: dict[str, tuple[float, float]] | None = None
        self._ttft = _HistogramReader()
        self._tpot = _HistogramReader()
        self._gaps = _GapReader()
        self._offsets: dict[str, float] = {}
        self._latest: dict[str, float] = {}
        self._seen: set[str] = set()
        self._progress: tuple[float, ...] = ()
        self._moved_seconds = math.nan

    def read(self, text: str, now_seconds: float) -> EngineState:
        """State of the engine by one page.

        Raises:
            UnsupportedError: The page lacks the counters of tokens, or its figures cannot be true.
        """
        metrics, page = self.metrics, _Page(text, self.metrics.prefix)
        self._check(page)
        fallen = self._begin_anew(page)
        prompt = self._counter(page, metrics.prompt_tokens)
        tokens = self._counter(page, metrics.generation_tokens)
        if math.isnan(prompt) or math.isnan(tokens):
            raise UnsupportedError(
                f"the page of {metrics.engine} lacks {metrics.prompt_tokens[0]} or "
                f"{metrics.generation_tokens[0]}",
                remedy="see whether the engine's metrics are on, and report its version",
            )
        self._note_models(page)
        running, waiting, kv_share = (
            page.total(self._first(page, names))
            for names in (metrics.running, metrics.waiting, metrics.kv_share)
        )
        finished = self._counter(page, metrics.finished)
        iterations = self._counter(page, metrics.iterations)
        ttft, tpot = (
            reader.latencies(page, self._first(page, names, "_bucket"))
            for reader, names in ((self._ttft, metrics.ttft), (self._tpot, metrics.tpot))
        )
        gaps = self._gaps.latencies(page, self._first(page, metrics.gaps, "_sum"), finished)
        self.restarts += fallen
        counts = prompt, tokens, iterations, self._ttft.count, self._gaps.count
        self._follow_progress(now_seconds, running + waiting, counts)
        return EngineState(
            now_seconds,
            running=int(running),
            waiting=int(waiting),
            arrived=running + waiting + finished,
            prompt_tokens=prompt,
            generation_tokens=tokens,
            iterations=iterations,
            kv_share=kv_share,
            ttft_seconds=ttft,
            tpot_seconds=tpot or gaps,
            late=any(
                page.first(names) in metrics.late
                for names in (metrics.prompt_tokens, metrics.generation_tokens)
            ),
        )

    def _first(self, page: _Page, names: Sequence[str], suffix: str = "") -> str:
        """The first name that the page has, and has to have from now on."""
        name = page.first(names, suffix)
        self._seen.update([name] if name else [])
        return name

    def _check(self, page: _Page) -> None:
        """Refuse pages without what they had, and counts and sums that no engine can have."""
        for name in self._seen:
            if not page.has(name):
                raise implausible(f"{name} is no longer there")
        metrics = self.metrics
        names = [*metrics.running, *metrics.waiting, *metrics.prompt_tokens, *metrics.finished]
        names += [*metrics.generation_tokens, *metrics.iterations, *metrics.kv_share]
        for name in (*metrics.ttft, *metrics.tpot, *metrics.gaps):
            names += [f"{name}_bucket", f"{name}_sum"]
        for name in names:
            for _, value in page.rows(name):
                if not 0 <= value < math.inf:
                    raise implausible(f"{name} is {value:g}")

    def _begin_anew(self, page: _Page) -> bool:
        """Whether a counter fell; it goes on where it stood when the engine's began anew."""
        fallen = False
        for name, latest in self._latest.items():
            if page.total(name) < latest:
                self._offsets[name] = self._offsets.get(name, 0.0) + latest
                fallen = True
        return fallen

    def _follow_progress(self, now: float, inside: float, counts: tuple[float, ...]) -> None:
        # NaN differs from itself: what the engine does not count is left out.
        progress = tuple(count for count in counts if not math.isnan(count))
        if progress != self._progress or not inside:
            self._progress, self._moved_seconds = progress, now
        self.still_seconds = now - self._moved_seconds

    def _counter(self, page: _Page, names: Sequence[str]) -> float:
        name = self._first(page, names)
        if not name:
            return math.nan
        self._latest[name] = page.total(name)
        return self._offsets.get(name, 0.0) + self._latest[name]

    def _note_models(self, page: _Page) -> None:
        counts: dict[str, list[float]] = {}
        for kind, names in enumerate((self.metrics.prompt_tokens, self.metrics.generation_tokens)):
            for labels, value in page.rows(page.first(names)):
                label = _MODEL.search(labels)
                counts.setdefault(label[1] if label else "", [0.0, 0.0])[kind] += value
        latest = {name: (pair[0], pair[1]) for name, pair in counts.items()}
        pages = latest if self._model_pages is None else self._model_pages
        for name, pair in latest.items():
            before = pages.get(name, (0.0, 0.0))
            # Counters that fell began anew with the engine.
            new = [
                now - then if now >= then else now for now, then in zip(pair, before, strict=True)
            ]
            prompt, tokens = self.tokens_by_model.get(name, (0.0, 0.0))
            self.tokens_by_model[name] = prompt + new[0], tokens + new[1]
        self._model_pages = pages | latest


class _HistogramReader:
    """Latencies between two pages, from one histogram."""

    def __init__(self) -> None:
        self._buckets: dict[float, float] = {}
        self._sum = 0.0
        self.count = 0.0

    def latencies(self, page: _Page, name: str) -> list[float]:
        """Latencies since the last page; none from the first, or after a restart."""
        buckets: dict[float, float] = {}
        for labels, count in page.rows(name):
            edge = _EDGE.search(labels)
            if edge is not None:
                key = math.inf if "Inf" in edge[1] else float(edge[1])
                buckets[key] = buckets.get(key, 0.0) + count
        total = page.total(name.replace("_bucket", "_sum"))
        before, self._buckets = self._buckets, buckets
        seconds, self._sum = total - self._sum, total
        self.count = max(buckets.values(), default=0.0)
        if before.keys() != buckets.keys() or any(buckets[key] < before[key] for key in buckets):
            return []
        return spread_latencies(before, buckets, max(0.0, seconds))


class _GapReader:
    """Mean times per output token of requests that ended, from a histogram of all gaps."""

    def __init__(self) -> None:
        self.count = 0.0
        # Requests that had ended at the last sharing out, and seconds and number of gaps then.
        self._marks = math.nan, 0.0, 0.0

    def latencies(self, page: _Page, name: str, finished: float) -> list[float]:
        """The mean of all gaps since requests ended, for each that has ended now."""
        seconds, self.count = page.total(name), page.total(name.replace("_sum", "_count"))
        before = self._marks
        if finished == before[0]:
            return []
        self._marks = finished, seconds, self.count
        gaps = self.count - before[2]
        if not (finished > before[0] and gaps > 0 and seconds >= before[1]):
            return []  # the first page, or after a restart
        return [(seconds - before[1]) / gaps] * round(finished - before[0])


def implausible(flaw: str) -> UnsupportedError:
    """Error of a page whose figures no engine can have."""
    return UnsupportedError(
        f"the engine's figures cannot be true: {flaw}",
        remedy="see its page of metrics; reading is tried again",
    )


def spread_latencies(
    before: Mapping[float, float], after: Mapping[float, float], seconds: float
) -> list[float]:
    """Latencies that lie in the buckets that grew, and add up to the growth of the sum.

    Examples:
        >>> spread_latencies({0.1: 5, 0.25: 7, float("inf"): 7}, {0.1: 5, 0.25: 8, float("inf"): 8},
        ...     0.14)
        [0.14]
    """
    parts, low, below = [], 0.0, 0.0
    for edge in sorted(after):
        grown = after[edge] - before[edge]
        count = round(grown - below)
        if count > 0:
            parts.append((count, low, edge if math.isfinite(edge) else max(2 * low, seconds)))
        below, low = grown, edge
    width = sum(count * (high - bottom) for count, bottom, high in parts)
    bottom_sum = sum(count * bottom for count, bottom, _ in parts)
    share = min(1.0, max(0.0, (seconds - bottom_sum) / width)) if width > 0 else 0.0
    return [
        round(bottom + share * (high - bottom), 12)
        for count, bottom, high in parts
        for _ in range(count)
    ]


class EngineClient:
    """Fetches an engine's metrics over HTTP; one connection, kept open.

    Args:
        url: Address of the engine, such as ``http://127.0.0.1:8000``.
        timeout_seconds: Longest time to wait for an answer.

    Raises:
        InvalidValueError: The address is no HTTP address.
    """

    def __init__(self, url: str, timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidValueError(
                f"{url!r} is no address of an engine", remedy="write http://HOST:PORT"
            )
        self.url = url
        self._path = parts.path if parts.path not in ("", "/") else None
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        self._connection = kind(parts.hostname, parts.port, timeout=timeout_seconds)
        self._timeout_seconds = timeout_seconds

    def fetch(self, path: str = "/metrics") -> str:
        """The page of metrics.

        Raises:
            NotPossibleHereError: The engine does not answer, or not with a page of metrics.
        """
        late = threading.Event()
        # The connection's own limit is for each packet: a page that drips would take for ever.
        deadline = threading.Timer(self._timeout_seconds, self._abort, (late,))
        deadline.daemon = True
        deadline.start()
        try:
            try:
                answer = self._ask(path)
            except (http.client.RemoteDisconnected, ConnectionError):
                self._connection.close()  # servers close what was quiet for some seconds
                answer = self._ask(path)
            body = answer.read(_MOST_BYTES)
            if late.is_set():
                raise TimeoutError("its page took too long")
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            reason = "its page took too long" if late.is_set() else error or type(error).__name__
            raise NotPossibleHereError(
                f"the engine at {self.url} does not answer: {reason}",
                remedy="start it, or give its address with --engine",
            ) from None
        finally:
            deadline.cancel()
        if answer.status != 200:
            raise NotPossibleHereError(
                f"the engine at {self.url} answers {answer.status} for its metrics",
                remedy="switch its metrics on (SGLang --enable-metrics, llama.cpp --metrics)",
            )
        return body.decode("utf-8", "replace")

    def _ask(self, path: str) -> http.client.HTTPResponse:
        self._connection.request("GET", self._path or path)
        return self._connection.getresponse()

    def _abort(self, late: threading.Event) -> None:
        """End a request that takes too long."""
        late.set()
        channel = self._connection.sock
        if channel is not None:
            with suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)

    def find_metrics(self) -> EngineMetrics:
        """The engine that answers, by the page at its usual places.

        Raises:
            NotPossibleHereError: Nothing answers.
            UnsupportedError: It is no engine that we know.
        """
        error: Exception | None = None
        for path in dict.fromkeys(metrics.path for metrics in ENGINES):
            try:
                return recognise_engine(self.fetch(path))
            except (NotPossibleHereError, UnsupportedError) as problem:
                error = error or problem
        raise error or UnsupportedError("no engine", remedy="start one")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
