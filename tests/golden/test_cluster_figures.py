"""Published power-capping tables, an event and a trace under our policies; figures of the docs."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("JOULERY_DATA", ROOT / ".." / "shared" / "data")).resolve()

pytestmark = [
    pytest.mark.slow,
    pytest.mark.data,
    pytest.mark.skipif(
        not (DATA / "emerald").is_dir(), reason=f"no measurements in {DATA}: set JOULERY_DATA"
    ),
]


@pytest.fixture(scope="module")
def benchmark():
    """The benchmark's own parts, so that both tell the same figures."""
    import sys

    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        spec = importlib.util.spec_from_file_location("bench", ROOT / "benchmarks" / "cluster.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules["bench"] = module
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.pop(0)


@pytest.fixture(scope="module")
def curves(benchmark):
    """All frontiers in the data folder."""
    return benchmark.read_curves(DATA)


def test_a_cut_of_a_quarter_is_spread_fairly(benchmark, curves, capsys):
    """A quarter less power costs more speed than it must, on average or for the slowest job."""
    results = benchmark.Results()
    benchmark.bench_cut(results, list(curves.values()))
    found = results.figures
    assert found["cut25_fair_weighted"] >= 0.93
    assert found["cut25_fair_worst"] >= 0.85
    assert found["cut25_max-min_worst"] >= 0.89
    assert found["cut25_equal-watts_worst"] < 0.5


def test_the_event_of_may_2025(benchmark, curves, capsys):
    """The model of the published event is worse than the documented figures."""
    results = benchmark.Results()
    benchmark.bench_emerald(results, DATA, curves)
    found = results.figures
    assert found["emerald_published_weighted"] == pytest.approx(0.908, abs=5e-4)
    assert found["emerald_throughput_weighted"] >= 0.93
    assert found["emerald_throughput_worst"] >= 0.88
    assert found["emerald_fair_worst"] >= 0.88
    assert found["emerald_fair_over_delivery"] <= 0.01


def test_work_moves_to_green_hours(benchmark, curves, capsys):
    """Shaping and pausing saves less carbon than documented, or forecasts lose most of it."""
    results = benchmark.Results()
    benchmark.bench_carbon(results, DATA, list(curves.values()), 1)
    assert results.figures["carbon_saved_oracle"] >= 0.36
    assert results.figures["carbon_kept_with_forecasts"] >= 0.90


def test_a_hall_of_fixed_power_and_two_levels(benchmark, curves, capsys):
    """More GPUs at less power do not pay, or sites lose what a flat solution reaches."""
    results = benchmark.Results()
    benchmark.bench_hall(results, list(curves.values()))
    benchmark.bench_sites(results, list(curves.values()), 20)
    assert results.figures["hall_gain_host_0.25"] >= 1.13
    assert results.figures["two_levels_loss"] <= 0.005
