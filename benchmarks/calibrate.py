"""Errors of gains that ``joulery calibrate`` learns, on simulated nodes with known sensors.

Run: python benchmarks/calibrate.py [--nodes 20]
"""

from __future__ import annotations

import argparse
import math
import random

import numpy as np
from peers import write_results

from joulery.clock import VirtualClock
from joulery.metering import CalibrationTrace, NodePower, learn_calibrations
from joulery.reports import table_text

STEP, HOLD = 0.05, 12.0
# Refresh period, steps of watts, longest averaging time and delay, noise.
METERS = {
    "wattmeter": (0.1, 0.01, 0.1, 0.1, 0.3),
    "controller": (1.0, 5.0, 3.0, 2.5, 2.0),
    "slow controller": (5.0, 8.0, 6.0, 3.0, 3.0),
}


def boards_power(rng: np.random.Generator, boards: int, times: np.ndarray) -> np.ndarray:
    """True watts of boards whose limits are stepped, with the ripple of training steps."""
    order = random.Random(int(rng.integers(1 << 30)))  # noqa: S311 - a schedule
    drawn = []
    for _ in range(boards):
        high = rng.uniform(200, 400)
        low = rng.uniform(0.35, 0.6) * high
        level, state = [], [False, False]
        for _ in range(int(times[-1] / HOLD) + 1):
            state.append(not state[-1] if state[-1] == state[-2] else order.random() < 0.5)
            level.append(low if state[-1] else high)
        watts = np.array(level)[(times / HOLD).astype(int)]
        ripple = 0.05 * high * np.sin(2 * math.pi * times / rng.uniform(0.3, 0.9))
        drawn.append(watts + ripple)
    return np.array(drawn)


def node_readings(
    rng: np.random.Generator, meter: str, times: np.ndarray, watts: np.ndarray
) -> list[tuple[float, float]]:
    """Readings of a node meter that is late, averages, and rounds."""
    period, most_step, most_average, most_delay, noise = METERS[meter]
    average, delay = (rng.uniform(0.3, 1.0) * most for most in (most_average, most_delay))
    rounding = most_step if meter != "controller" else float(rng.integers(1, most_step + 1))
    joules = np.concatenate([[0.0], np.cumsum(watts) * STEP])
    ends = np.append(times, times[-1] + STEP)
    shown = {}
    readings = []
    for now in np.arange(10.0, times[-1], max(period / 2, 0.1)):
        refresh = math.floor(now / period) * period - delay
        if refresh not in shown:
            mean = np.interp(refresh, ends, joules) - np.interp(refresh - average, ends, joules)
            seen = mean / average + noise * rng.standard_normal()
            shown[refresh] = rounding * round(seen / rounding)
        readings.append((float(now), float(shown[refresh])))
    return readings


def errors(meter: str, boards: int, seed: int) -> list[tuple[float, float]]:
    """Relative error of each board's gain, and the same in standard errors."""
    rng = np.random.default_rng(seed)
    times = np.arange(0.0, max(240.0, 60.0 * boards), STEP)
    gains, offsets = rng.uniform(0.87, 1.15, boards), rng.uniform(-22, 16, boards)
    efficiency = rng.uniform(0.9, 0.97)
    true = boards_power(rng, boards, times)
    fans = 10 * np.sin(2 * math.pi * times / 170 + rng.uniform(0, 6))
    node = node_readings(rng, meter, times, 400 + fans + (100 + true.sum(axis=0)) / efficiency)
    read = gains[:, None] * true + offsets[:, None]
    counters = np.cumsum(read, axis=1) * STEP
    trace = CalibrationTrace(
        node,
        {str(at): list(zip(times[::2], row[::2], strict=True)) for at, row in enumerate(counters)},
        {"cpu": [(at, 100.0 * at) for at in times[::2]]},
    )
    learned = learn_calibrations(trace, meter, NodePower(efficiency, 0.0), VirtualClock())
    found = {int(one.device_id): one for one in learned.calibrations}
    return [
        (one.gain / gains[at] - 1.0, (one.gain - gains[at]) / one.gain_error)
        for at, one in found.items()
    ]


def main() -> None:
    """Print a table of errors by meter and number of boards."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--data", metavar="DIR", help="not needed: boards come from the catalog")
    parser.add_argument("--smoke", action="store_true", help="seconds, to see that it runs")
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    options = parser.parse_args()
    nodes = 1 if options.smoke else options.nodes
    rows, figures = [], {}
    for meter in list(METERS)[: 1 if options.smoke else None]:
        for boards in (1,) if options.smoke else (1, 2, 8):
            found = np.array([one for seed in range(nodes) for one in errors(meter, boards, seed)])
            relative, scaled = 100 * np.abs(found[:, 0]), np.abs(found[:, 1])
            figures[f"median_error_{meter}_{boards}"] = float(np.median(relative)) / 100
            rows.append(
                [
                    meter,
                    str(boards),
                    f"{np.median(relative):.2f} %",
                    f"{np.quantile(relative, 0.95):.2f} %",
                    f"{100 * np.mean(scaled <= 1.96):.0f} %",
                ]
            )
    heads = ["node meter", "boards", "median error of gain", "95 % below", "within 1.96 ± of truth"]
    print(table_text(heads, rows, "lrrrr"))
    write_results(options.json, "calibrate", figures, rows)


if __name__ == "__main__":
    main()
