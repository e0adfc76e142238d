"""Traces of requests, from files and from a seed."""

import gzip
import json

import pytest

from joulery.errors import FileError
from joulery.serving import at_rate, read_latencies, read_trace, synthetic_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:03.9799600,4808,10
"""


def test_azure_traces_are_read_in_order(tmp_path):
    """Time stamps with seven digits, or out of order, break the reader of Azure's trace."""
    path = tmp_path / "azure.csv.gz"
    path.write_bytes(gzip.compress(AZURE.encode()))
    first, second = read_trace(path)
    assert (first.prompt_tokens, first.output_tokens, first.arrival_seconds) == (4808, 10, 0.0)
    assert second.arrival_seconds == pytest.approx(0.052)


def test_mooncake_counts_milliseconds(tmp_path):
    """A trace in milliseconds replays a thousand times too slowly."""
    path = tmp_path / "mooncake.csv"
    path.write_text("timestamp_ms,input_tokens,output_tokens\n0,10,5\n2500,20,6\n", "utf-8")
    assert read_trace(path)[1].arrival_seconds == 2.5


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", '{"x": 1}\n', "{broken\n"])
def test_other_files_are_refused(tmp_path, text):
    """A file that is no trace gives an empty simulation or a traceback."""
    path = tmp_path / "trace"
    path.write_text(text, "utf-8")
    with pytest.raises(FileError):
        read_trace(path)


def test_tables_of_spreadsheets_are_read(tmp_path):
    """A byte order mark hides the first column."""
    path = tmp_path / "trace.csv"
    path.write_text("arrival_seconds,prompt_tokens,output_tokens\n0,10,5\n", "utf-8-sig")
    assert read_trace(path)[0].prompt_tokens == 10


@pytest.mark.parametrize("row", ["0,-10,5", "0,10,-5"])
def test_negative_lengths_are_refused(tmp_path, row):
    """A request of -5 tokens is replayed as one of 1."""
    path = tmp_path / "trace.csv"
    path.write_text(f"arrival_seconds,prompt_tokens,output_tokens\n{row}\n", "utf-8")
    with pytest.raises(FileError, match="negative"):
        read_trace(path)


@pytest.mark.parametrize("times", [(0.0, 2.0, 1.0), (2.0, 1.0, 3.0), (0.0, float("nan"), 1.0)])
def test_times_of_a_log_out_of_order_are_refused(tmp_path, times):
    """A model is fitted to negative latencies, or to none."""
    row = dict(zip(("queued_ts", "first_token_ts", "last_token_ts"), times, strict=True))
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(row | {"arrival_time": 0.0, "output_toks": 5}), "utf-8")
    with pytest.raises(FileError, match="out of order"):
        read_latencies(path)


def test_latencies_of_a_log(tmp_path):
    """Times to first token count from arrival stamps of another clock, or divide by zero."""
    rows = [
        {"arrival_time": 5.0, "queued_ts": 1.0, "first_token_ts": 1.5, "last_token_ts": 2.5}
        | {"output_toks": 11, "input_toks": 3},
        {"arrival_time": 4.0, "queued_ts": 0.0, "first_token_ts": 0.2, "last_token_ts": 0.2}
        | {"output_toks": 1, "input_toks": 3},
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    ttft, tpot = read_latencies(path)
    assert ttft.tolist() == pytest.approx([0.2, 0.5])
    assert tpot.tolist() == pytest.approx([0.0, 0.1])


def test_synthetic_traces_replay_from_their_seed():
    """Two runs of a benchmark see different requests."""
    one, same, other = (synthetic_trace(lambda _: 5.0, 50.0, seed=seed) for seed in (1, 1, 2))
    assert one == same != other
    assert 150 < len(one) < 350


def test_rates():
    """A trace at twice the rate keeps old arrival times."""
    requests = synthetic_trace(lambda _: 5.0, 50.0)
    assert at_rate(requests, 2.0)[-1].arrival_seconds == requests[-1].arrival_seconds / 2
