"""Requests of a served model: traces from files, and synthetic ones from a seed."""

from __future__ import annotations

import csv
import gzip
import io
import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.errors import FileError, document_errors, flaw_text
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """A request to a served model.

    Attributes:
        arrival_seconds: Arrival after the start of the trace.
        prompt_tokens: Length of the prompt, without what a prefix cache holds.
        output_tokens: Length of the answer, at least 1.
    """

    arrival_seconds: float
    prompt_tokens: int
    output_tokens: int


# Names of (arrival, prompt, output) in published traces, and seconds per unit of arrival.
_COLUMNS = (
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens", 1.0),  # Azure
    ("timestamp_ms", "input_tokens", "output_tokens", 1e-3),  # Mooncake
    ("timestamp", "input_length", "output_length", 1e-3),  # Mooncake as published
    ("arrival_time", "input_toks", "output_toks", 1.0),  # LLMServingSim
    ("arrival_seconds", "prompt_tokens", "output_tokens", 1.0),
)


def read_trace(path: str | Path) -> list[ServedRequest]:
    """Requests of a trace, ordered by arrival; CSV or JSON lines, also compressed by gzip.

    Raises:
        FileError: The file cannot be read, or its columns are unknown.
    """
    rows = _rows(Path(path))
    remedy = "give a time and two whole numbers of tokens in every row"
    with document_errors(str(path), remedy=remedy):
        return _requests(rows, Path(path))


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
        if text.lstrip().startswith("{"):
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        return list(csv.DictReader(io.StringIO(text)))
    except (OSError, EOFError, ValueError, csv.Error, RecursionError) as error:
        raise FileError(
            f"cannot read {path}: {flaw_text(error)}", remedy="give a CSV or JSONL file"
        ) from None


def read_latencies(path: str | Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Times to first token and per output token of an engine's log, ordered by arrival.

    The log names ``queued_ts``, ``first_token_ts`` and ``last_token_ts`` of each request.

    Raises:
        FileError: The file cannot be read, or lacks these names.
    """
    remedy = "give queued_ts, first_token_ts, …"
    with document_errors(f"{path} is no log of an engine", remedy=remedy):
        rows = sorted(_rows(Path(path)), key=lambda row: float(row["arrival_time"]))
        stamps = ("queued_ts", "first_token_ts", "last_token_ts", "output_toks")
        table = np.array([[float(row[name]) for name in stamps] for row in rows]).reshape(-1, 4)
    queued, first, last, tokens = table.T
    if not (
        len(table) and np.isfinite(table).all() and (queued <= first).all() & (first <= last).all()
    ):
        raise FileError(
            f"{path}: times of a request are missing or out of order",
            remedy="give queued_ts ≤ first_token_ts ≤ last_token_ts of each request, in seconds",
        )
    return first - queued, (last - first) / np.maximum(1.0, tokens - 1)


def _requests(rows: Sequence[dict[str, Any]], path: Path) -> list[ServedRequest]:
    names = rows[0] if rows else {}
    columns = next((entry for entry in _COLUMNS if set(entry[:3]) <= set(names)), None)
    if columns is None:
        raise FileError(
            f"{path} has no columns of a request trace",
            remedy="name them arrival_seconds, prompt_tokens, output_tokens",
        )
    arrival, prompt, output, unit = columns
    times = [finite(_seconds(row[arrival]) * unit, "time of a request") for row in rows]
    start = min(times)
    lengths = [(int(row[prompt]), int(row[output])) for row in rows]
    if min(map(min, lengths)) < 0:
        raise ValueError("a request has a negative number of tokens")
    requests = [
        ServedRequest(time - start, max(1, tokens), max(1, answer))
        for time, (tokens, answer) in zip(times, lengths, strict=True)
    ]
    return sorted(requests, key=lambda request: request.arrival_seconds)


def _seconds(value: Any) -> float:
    try:
        return float(value)
    except ValueError:
        # Seven digits of a second are more than Python reads.
        return datetime.fromisoformat(str(value)[:26]).timestamp()


def synthetic_trace(
    rate: Callable[[float], float],
    seconds: float,
    *,
    prompt_tokens: float = 1000.0,
    output_tokens: float = 200.0,
    seed: int = 0,
) -> list[ServedRequest]:
    """Poisson arrivals with log-normal lengths.

    Args:
        rate: Requests per second at a moment.
        seconds: Length of the trace.
        prompt_tokens: Median length of prompts.
        output_tokens: Median length of answers.
        seed: Seed of the random numbers.
    """
    rng = np.random.default_rng(seed)
    highest = max(rate(moment) for moment in np.linspace(0.0, seconds, 2001))
    requests, moment = [], 0.0
    while highest > 0:
        moment += rng.exponential(1 / highest)
        if moment >= seconds:
            break
        if rng.random() * highest <= rate(moment):
            prompt, output = np.exp(rng.normal(0.0, (0.9, 0.8)))
            requests.append(
                ServedRequest(
                    moment,
                    max(8, min(16000, round(prompt_tokens * prompt))),
                    max(1, min(2000, round(output_tokens * output))),
                )
            )
    return requests


def at_rate(requests: Sequence[ServedRequest], factor: float) -> list[ServedRequest]:
    """The same requests arriving ``factor`` times as fast."""
    return [
        ServedRequest(
            request.arrival_seconds / factor, request.prompt_tokens, request.output_tokens
        )
        for request in requests
    ]
