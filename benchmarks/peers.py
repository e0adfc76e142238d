"""What benchmarks share: their options, a worker where the peers are installed, their results."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from joulery.reports import table_text

ROOT = Path(__file__).resolve().parent.parent
PEER_PYTHON = ROOT / ".venv-peers" / "bin" / "python"


def benchmark_parser(about: str | None, quick: str) -> argparse.ArgumentParser:
    """A parser of the options that every benchmark has.

    Args:
        about: Docstring of the benchmark, of which the first line is shown.
        quick: Difference that ``--quick`` makes.
    """
    parser = argparse.ArgumentParser(description=(about or "").split("\n")[0])
    shared = Path(os.environ.get("JOULERY_DATA", ROOT.parent / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=shared, help="laid out like shared/data")
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--smoke", action="store_true", help="seconds, to see that it runs")
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    return parser


def peer_python() -> str:
    """The interpreter that has the peers, or this one with a word about what is missing."""
    if PEER_PYTHON.exists():
        return str(PEER_PYTHON)
    say("the peers are not installed (`make bench` does that): their columns stay empty")
    return sys.executable


def say(text: str) -> None:
    """Progress, on stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def work(
    script: Path, environment: dict[str, str], tasks: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Have ``script`` do ``tasks`` in a process of its own; its answers."""
    finished = subprocess.run(
        [peer_python(), str(script), json.dumps(tasks)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode != 0:
        raise SystemExit(f"{script.name} {tasks} failed:\n{finished.stderr[-4000:]}")
    answers: list[dict[str, Any]] = json.loads(finished.stdout.splitlines()[-1])
    return answers


def print_figures(figures: dict[str, float]) -> None:
    """The figures of ``--json``, as a table below the others."""
    rows = [(name, f"{value:.4g}") for name, value in figures.items()]
    print("\n" + table_text(["figure", "value"], rows, "lr"))


def write_results(
    path: str | None, benchmark: str, figures: dict[str, float], details: list[Any]
) -> None:
    """The machine-readable form that every benchmark shares."""
    if path:
        document = {"benchmark": benchmark, "figures": figures, "details": details}
        Path(path).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
