"""Drive the load of one emulated board from a process of its own.

    python -m joulery.testing.emulator.workload --board 0 --busy-seconds 2 --idle-seconds 1

The process must be started with ``EmulatedNode.env``. It ends with one JSON document: the steps
done, the seconds taken, and the true joules of the board.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING

from joulery.clock import REAL_CLOCK
from joulery.hardware import Workload
from joulery.testing.emulator.node import EmulatedNode

if TYPE_CHECKING:
    from collections.abc import Sequence

_MEMORY_BYTES = 4 << 30


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pattern that the arguments ask for, and report."""
    options = _parser().parse_args(arguments)
    node = EmulatedNode.attached()
    workload = Workload(
        "emulated",
        options.compute_seconds,
        options.memory_seconds,
        options.host_seconds,
        options.activity,
    )
    start = node.truth(options.board)
    node.set_processes(options.board, {os.getpid(): _MEMORY_BYTES})
    try:
        for _ in range(options.cycles):
            node.set_load(options.board, workload)
            if options.steps:
                node.wait_steps(options.board, options.steps)
            else:
                REAL_CLOCK.sleep(options.busy_seconds)
            node.set_load(options.board, None)
            REAL_CLOCK.sleep(options.idle_seconds)
    finally:
        node.set_load(options.board, None)
        node.set_processes(options.board, {})
    end = node.truth(options.board)
    report = {
        "steps": end.steps - start.steps,
        "seconds": end.now_seconds - start.now_seconds,
        "true_joules": end.joules - start.joules,
    }
    sys.stdout.write(json.dumps(report) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m joulery.testing.emulator.workload", description="load an emulated board"
    )
    parser.add_argument("--board", type=int, default=0)
    parser.add_argument("--cycles", type=int, default=1, help="busy and idle, this many times")
    parser.add_argument("--busy-seconds", type=float, default=1.0)
    parser.add_argument("--idle-seconds", type=float, default=0.0)
    parser.add_argument("--steps", type=float, default=0.0, help="instead of --busy-seconds")
    parser.add_argument("--compute-seconds", type=float, default=0.08, help="of one step")
    parser.add_argument("--memory-seconds", type=float, default=0.04, help="of one step")
    parser.add_argument("--host-seconds", type=float, default=0.01, help="of one step")
    parser.add_argument("--activity", type=float, default=0.9)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
