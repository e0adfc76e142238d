"""Readers of engines' metrics."""

import contextlib
import math
import socket
import threading

import numpy as np
import pytest
from hypothesis import given, strategies as st

from joulery.errors import InvalidValueError, NotPossibleHereError, UnsupportedError
from joulery.serving import ENGINES, EngineClient, EngineReader, recognise_engine
from joulery.serving._engines import spread_latencies

LABELS = '{engine="0",model_name="m"}'


def vllm_page(scale=1.0, tpot="vllm:request_time_per_output_token_seconds", kv="kv_cache"):
    """A page as vLLM writes it, with counters ``scale`` times as large."""
    rows = {
        "vllm:num_requests_running": 3,
        "vllm:num_requests_waiting": 2,
        f"vllm:{kv}_usage_perc": 0.25,
        "vllm:prompt_tokens_total": 1000 * scale,
        "vllm:generation_tokens_total": 200 * scale,
        'vllm:request_success_total{finished_reason="stop"}': 10 * scale,
        'vllm:request_success_total{finished_reason="length"}': 5 * scale,
        "vllm:iteration_tokens_total_count": 100 * scale,
    }
    lines = [f"{name}{'' if '{' in name else LABELS} {value}" for name, value in rows.items()]
    for name in ("vllm:time_to_first_token_seconds", tpot):
        lines += [
            f'{name}_bucket{{model_name="m",le="0.1"}} {4 * scale}',
            f'{name}_bucket{{model_name="m",le="0.25"}} {6 * scale}',
            f'{name}_bucket{{model_name="m",le="+Inf"}} {6 * scale}',
            f"{name}_sum{LABELS} {0.6 * scale}",
            f"{name}_count{LABELS} {6 * scale}",
        ]
    return "# HELP vllm:prompt_tokens_total text\n" + "\n".join(lines) + "\n"


# Names and types that vLLM 0.32 exports, of those that the reader looks for.
VLLM_0_32 = {
    "vllm:generation_tokens_total": "counter",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:iteration_tokens_total": "histogram",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:prompt_tokens_total": "counter",
    "vllm:request_success_total": "counter",
    "vllm:request_time_per_output_token_seconds": "histogram",
    "vllm:time_to_first_token_seconds": "histogram",
}


def test_names_of_vllm_are_those_of_a_real_one():
    """A name was made up, or a histogram is read as a counter."""
    metrics = ENGINES[0]
    for names in (metrics.running, metrics.waiting, metrics.kv_share):
        assert VLLM_0_32[names[0]] == "gauge"
    for names in (metrics.prompt_tokens, metrics.generation_tokens, metrics.finished):
        assert VLLM_0_32[names[0]] == "counter"
    for name in (metrics.ttft[0], metrics.tpot[0], metrics.iterations[0].removesuffix("_count")):
        assert VLLM_0_32[name] == "histogram"


@pytest.mark.parametrize("tpot", ENGINES[0].tpot + ENGINES[0].gaps)
@pytest.mark.parametrize("kv", ["kv_cache", "gpu_cache"])
def test_pages_of_several_versions_of_vllm(tpot, kv):
    """A renamed metric of another version of vLLM is not found."""
    reader = EngineReader(recognise_engine(vllm_page(tpot=tpot, kv=kv)))
    first = reader.read(vllm_page(1.0, tpot, kv), 0.0)
    second = reader.read(vllm_page(2.0, tpot, kv), 1.0)
    assert (first.running, first.waiting, first.kv_share) == (3, 2, 0.25)
    assert (first.prompt_tokens, second.generation_tokens) == (1000.0, 400.0)
    assert second.arrived - first.arrived == 15
    ended = 6 if tpot in ENGINES[0].tpot else 15  # each with the mean of all gaps
    assert (len(second.ttft_seconds), len(second.tpot_seconds)) == (6, ended)
    assert np.mean(second.tpot_seconds) == pytest.approx(0.1)
    assert sum(second.ttft_seconds) == pytest.approx(0.6)
    assert first.ttft_seconds == []
    assert reader.tokens_by_model == {"m": (1000.0, 200.0)}  # since the first page


def test_a_restart_goes_on_counting():
    """A restarted engine gives negative tokens or freezes the ledger."""
    reader = EngineReader(ENGINES[0])
    reader.read(vllm_page(3.0), 0.0)
    state = reader.read(vllm_page(1.0), 1.0)
    assert state.prompt_tokens == 4000.0
    assert state.ttft_seconds == []
    assert reader.restarts > 0
    assert reader.tokens_by_model == {"m": (1000.0, 200.0)}


@pytest.mark.parametrize("gauge", ["running", "waiting"])
def test_a_gauge_that_goes_is_no_empty_engine(gauge):
    """An engine that renames a gauge looks idle, and its boards stay slow."""
    reader = EngineReader(ENGINES[0])
    reader.read(vllm_page(), 0.0)
    with pytest.raises(UnsupportedError, match="no longer there"):
        reader.read(vllm_page(2.0).replace(f"num_requests_{gauge}", "nr"), 1.0)


SGLANG = """sglang:num_running_reqs{model_name="m"} 3
sglang:num_queue_reqs{model_name="m"} 0
sglang:num_requests_total{model_name="m"} 5
sglang:prompt_tokens_total{model_name="m"} 700
sglang:generation_tokens_total{model_name="m"} 90
"""


def test_tokens_of_sglang_are_those_computed_until_now():
    """SGLang's totals move when requests end, and a prompt token costs six times the truth."""
    rows = {"prefill_compute": 1000, "prefill_cache": 400, "decode": 200}
    live = "".join(
        f'sglang:realtime_tokens_total{{model_name="m",mode="{mode}"}} {tokens}\n'
        for mode, tokens in rows.items()
    )
    state = EngineReader(recognise_engine(SGLANG)).read(SGLANG + live, 0.0)
    assert (state.prompt_tokens, state.generation_tokens, state.late) == (1000.0, 200.0, False)


def test_tokens_counted_at_the_end_are_said_to_be_late():
    """Tokens of engines that count when a request ends get an energy that is not theirs."""
    assert EngineReader(recognise_engine(SGLANG)).read(SGLANG, 0.0).late
    page = "llamacpp:prompt_tokens_total 5\nllamacpp:tokens_predicted_total 7\n"
    state = EngineReader(recognise_engine(page)).read(page, 0.0)
    assert state.late
    assert math.isnan(state.arrived)  # it counts no requests


def test_long_answers_are_no_hanging_engine():
    """Counters that move when requests end stand still during an answer of minutes."""
    name = "sglang:time_to_first_token_seconds"
    reader = EngineReader(recognise_engine(SGLANG))
    for second in range(5):
        counts = f'{name}_bucket{{le="+Inf"}} {second}\n{name}_sum 1\n'
        reader.read(SGLANG + counts, float(second))
    assert reader.still_seconds == 0.0


@pytest.mark.parametrize("page", ["", "no metrics here\n", "vllm:num_requests_running 1\n"])
def test_pages_without_counters_are_refused(page):
    """An empty page counts as an idle engine."""
    with pytest.raises(UnsupportedError):
        EngineReader(ENGINES[0]).read(page, 0.0)


@given(st.text())
def test_any_text_is_parsed_or_refused(text):
    """An engine that lies brings the tuner down."""
    with contextlib.suppress(UnsupportedError):
        EngineReader(recognise_engine(text)).read(text, 0.0)


@pytest.mark.parametrize("metrics", ENGINES, ids=lambda metrics: metrics.engine)
def test_every_engine_is_recognised_by_its_own_names(metrics):
    """A name of one engine is read as another's."""
    page = f"{metrics.prompt_tokens[0]} 5\n{metrics.generation_tokens[0]} 7\n"
    assert recognise_engine(page) is metrics
    state = EngineReader(metrics).read(page, 0.0)
    assert (state.prompt_tokens, state.generation_tokens) == (5.0, 7.0)


@given(st.lists(st.floats(0.001, 50.0), min_size=1, max_size=6))
def test_latencies_lie_in_their_buckets_and_add_up(values):
    """Latencies between two pages are not those that the engine counted."""
    edges = (0.01, 0.1, 1.0, 10.0, math.inf)
    before = dict.fromkeys(edges, 0.0)
    after = {edge: float(sum(value <= edge for value in values)) for edge in edges}
    latencies = spread_latencies(before, after, sum(values))
    assert len(latencies) == len(values)
    assert sum(latencies) == pytest.approx(sum(values), rel=0.001)
    for latency, value in zip(sorted(latencies), sorted(values), strict=True):
        assert sum(latency <= edge for edge in edges) == pytest.approx(
            sum(value <= edge for edge in edges), abs=1
        )


@pytest.mark.parametrize("url", ["ftp://x", "http://", "::"])
def test_wrong_addresses_are_refused(url):
    """A typing error in the address looks like an engine that is down."""
    with pytest.raises((InvalidValueError, ValueError)):
        EngineClient(url)


def test_an_engine_that_is_down_says_so():
    """A connection that is refused gives a traceback."""
    with pytest.raises(NotPossibleHereError, match="does not answer"):
        EngineClient("http://127.0.0.1:9").find_metrics()


def test_a_page_that_drips_is_given_up_in_time():
    """An engine that sends a byte now and then keeps the boards slow for ever."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = EngineClient(f"http://127.0.0.1:{listener.getsockname()[1]}", 0.3)
        ended = threading.Event()

        def drip():
            channel, _ = listener.accept()
            with channel, contextlib.suppress(OSError):
                channel.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                while not ended.wait(0.05):
                    channel.sendall(b"#")

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(NotPossibleHereError, match="too long"):
            client.fetch()
        ended.set()
        thread.join()
        client.close()
