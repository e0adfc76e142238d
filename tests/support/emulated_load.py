"""Drive the load of one emulated board from a process of its own.

The process must be started with ``EmulatedNode.env``. It ends with one JSON document: the steps
done, the seconds taken, and the true joules of the board.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from joulery.hardware import Workload
from joulery.testing.emulator.node import EmulatedNode

_MEMORY_BYTES = 4 << 30  # by hand: visible, and within every board
_WORKLOAD = Workload("emulated", 0.08, 0.04, 0.01, 0.9)


def main() -> None:
    """Run the steps that the arguments ask for, and report."""
    parser = argparse.ArgumentParser(description="load an emulated board")
    parser.add_argument("--board", type=int, default=0)
    parser.add_argument("--steps", type=float, required=True)
    options = parser.parse_args()
    node = EmulatedNode.attached()
    start = node.truth(options.board)
    node.set_processes(options.board, {os.getpid(): _MEMORY_BYTES})
    try:
        node.set_load(options.board, _WORKLOAD)
        node.wait_steps(options.board, options.steps)
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


if __name__ == "__main__":
    main()
