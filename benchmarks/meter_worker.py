"""Measurement tasks of the meter benchmark, in a process that sees emulated boards.

Called by ``meter.py`` with a JSON list of tasks; prints the list of answers.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import random
import resource
import statistics
import sys
import time
from typing import Any

CODECARBON_JOULES_PER_KWH = 3.6e6


def have(package: str) -> bool:
    """Whether a peer is installed."""
    return importlib.util.find_spec(package) is not None


def overhead(task: dict[str, Any]) -> dict[str, Any]:
    """Median time to begin and end a window, with and without reading its joules."""
    from joulery.metering import Meter
    from joulery.testing.emulator import EmulatedNode

    node = EmulatedNode.attached()
    node.clear_faults()
    if task["delay_us"]:
        node.slow(None, task["delay_us"] * 1e-6, "nvmlDeviceGet*", busy=True)
    answer: dict[str, Any] = {"boards": len(node.specs), "delay_us": task["delay_us"]}
    with Meter(["gpu"]) as meter:
        time.sleep(1.0)

        def ours() -> float:
            with meter.window("step") as window:
                pass
            return window.joules

        answer["ours_us"] = _median_us(ours, task["repeats"])

        def bare() -> None:
            with meter.window("step"):
                pass

        answer["ours_bare_us"] = _median_us(bare, task["repeats"])
    if have("zeus"):
        from zeus.monitor import ZeusMonitor

        monitor = ZeusMonitor(gpu_indices=list(range(len(node.specs))), cpu_indices=[])

        def zeus() -> float:
            monitor.begin_window("step", sync_execution=False)
            return float(monitor.end_window("step", sync_execution=False).total_energy)

        answer["zeus_us"] = _median_us(zeus, task["repeats"])
    node.clear_faults()
    return answer


def _median_us(function: Any, repeats: int) -> float:
    samples = []
    for _ in range(repeats):
        started = time.perf_counter_ns()
        function()
        samples.append(time.perf_counter_ns() - started)
    return statistics.median(samples) / 1e3


def apart(task: dict[str, Any]) -> dict[str, Any]:
    """Median cost of windows that are apart, whose code and data have left the caches."""
    from joulery.metering import Meter
    from joulery.testing.emulator import EmulatedNode

    boards = len(EmulatedNode.attached().specs)
    bare, full = [], []
    with Meter(["gpu"]) as meter:
        time.sleep(1.5)
        for _ in range(task["repeats"]):
            started = time.perf_counter_ns()
            window = meter.begin("step")
            opened = time.perf_counter_ns()
            time.sleep(task["seconds"])
            closing = time.perf_counter_ns()
            meter.end(window)
            closed = time.perf_counter_ns()
            _ = window.joules
            bare.append(opened - started + closed - closing)
            full.append(opened - started + time.perf_counter_ns() - closing)
    answer = {
        "boards": boards,
        "ours_bare_us": statistics.median(bare) / 1e3,
        "ours_us": statistics.median(full) / 1e3,
    }
    if have("zeus"):
        from zeus.monitor import ZeusMonitor

        monitor = ZeusMonitor(gpu_indices=list(range(boards)), cpu_indices=[])
        spent = []
        for _ in range(task["repeats"]):
            started = time.perf_counter_ns()
            monitor.begin_window("step", sync_execution=False)
            opened = time.perf_counter_ns()
            time.sleep(task["seconds"])
            closing = time.perf_counter_ns()
            monitor.end_window("step", sync_execution=False)
            spent.append(opened - started + time.perf_counter_ns() - closing)
        answer["zeus_us"] = statistics.median(spent) / 1e3
    return answer


def accuracy(task: dict[str, Any]) -> dict[str, Any]:
    """Energy error of busy windows after idle: ours, ours settled, and Zeus's, same windows."""
    from joulery.hardware import catalog
    from joulery.metering import Meter
    from joulery.testing.emulator import EmulatedNode, Phase

    node = EmulatedNode.attached()
    boards = range(len(node.specs))
    workload = catalog.workload("resnet50", node.specs[0].board)
    # Forward pass, backward pass, optimizer, input: power within a step is not flat.
    waving = [Phase(0.93, 0.05), Phase(1.08, 0.09), Phase(0.89, 0.02), Phase(0.83, 0.01)]
    phases = waving if task["waving"] else None
    monitor = None
    if have("zeus"):
        from zeus.monitor import ZeusMonitor

        monitor = ZeusMonitor(gpu_indices=list(boards), cpu_indices=[])
    chance = random.Random(task["seed"])  # noqa: S311 - a benchmark, not a secret
    rows = []
    with Meter(["gpu"]) as meter:
        time.sleep(1.2)
        for _ in range(task["windows"]):
            time.sleep(0.3 + 0.2 * chance.random())
            for board in boards:
                node.set_load(board, workload, phases)
            before = [node.true_joules(board) for board in boards]
            if monitor:
                monitor.begin_window("busy", sync_execution=False)
            with meter.window("busy") as window:
                time.sleep(task["seconds"])
            at_once = window.measurement
            after = [node.true_joules(board) for board in boards]
            peer = monitor.end_window("busy", sync_execution=False) if monitor else None
            for board in boards:
                node.set_load(board, None)
            settled = window.settle()
            for board in boards:
                true = after[board] - before[board]
                now, later = at_once.devices[board], settled.devices[board]
                rows.append(
                    {
                        "true": true,
                        "ours": now.joules,
                        "bar": 1.96 * (now.relative_error or 0.0) * now.joules,
                        "settled": later.joules,
                        "settled_bar": 1.96 * (later.relative_error or 0.0) * later.joules,
                        "zeus": float(peer.gpu_energy[board]) if peer else None,
                    }
                )
    return {"rows": rows}


def codecarbon(task: dict[str, Any]) -> dict[str, Any]:
    """CodeCarbon on the same kind of window: its error, and what starting it costs."""
    if not have("codecarbon"):
        return {"rows": []}
    from codecarbon import OfflineEmissionsTracker

    from joulery.hardware import catalog
    from joulery.testing.emulator import EmulatedNode

    node = EmulatedNode.attached()
    workload = catalog.workload("resnet50", node.specs[0].board)
    rows = []
    for _ in range(task["windows"]):
        tracker = OfflineEmissionsTracker(
            country_iso_code="FRA", measure_power_secs=1, save_to_file=False, log_level="error"
        )
        started = time.perf_counter()
        tracker.start()
        start_seconds = time.perf_counter() - started
        node.set_load(0, workload)
        before = node.true_joules(0)
        time.sleep(task["seconds"])
        tracker.stop()
        after = node.true_joules(0)
        node.set_load(0, None)
        measured = tracker._total_gpu_energy.kWh * CODECARBON_JOULES_PER_KWH  # noqa: SLF001 - no public figure
        rows.append(
            {"true": after - before, "codecarbon": measured, "start_seconds": start_seconds}
        )
        time.sleep(0.3)
    return {"rows": rows}


def memory(task: dict[str, Any]) -> dict[str, Any]:
    """Growth of resident memory over many windows."""
    from joulery.metering import Meter

    with Meter(["gpu"]) as meter:
        time.sleep(1.0)
        seen = []
        for part in range(5):
            for _ in range(task["windows"] // 5):
                with meter.window("step") as window:
                    pass
                _ = window.joules
            gc.collect()
            if part in (0, 4):
                seen.append(_resident_kib())
    return {"growth_kib": seen[1] - seen[0], "peak_kib": _peak_kib()}


def _resident_kib() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - a kernel file
        return int(file.read().split()[1]) * resource.getpagesize() // 1024


def _peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def sampler(task: dict[str, Any]) -> dict[str, Any]:
    """Processor time of the background sampler, as a fraction of one core."""
    from joulery.metering import Meter

    with Meter(["gpu"], sample_hertz=10.0) as meter, meter.window("idle"):
        time.sleep(2.0)
        started, used = time.perf_counter(), time.process_time()
        time.sleep(task["seconds"])
        fraction = (time.process_time() - used) / (time.perf_counter() - started)
    return {"fraction_of_core": fraction}


TASKS = {
    "overhead": overhead,
    "apart": apart,
    "accuracy": accuracy,
    "codecarbon": codecarbon,
    "memory": memory,
    "sampler": sampler,
}

if __name__ == "__main__":
    # Several tasks share a process: importing the peers takes longer than most of them.
    answers = [TASKS[task["task"]](task) for task in json.loads(sys.argv[1])]
    sys.stdout.write("\n" + json.dumps(answers) + "\n")
