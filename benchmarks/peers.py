"""Run a benchmark's worker where the peers are installed, on emulated boards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PEER_PYTHON = ROOT / ".venv-peers" / "bin" / "python"


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


def write_results(
    path: str | None, benchmark: str, figures: dict[str, float], details: list[Any]
) -> None:
    """The machine-readable form that every benchmark shares."""
    if path:
        document = {"benchmark": benchmark, "figures": figures, "details": details}
        Path(path).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
