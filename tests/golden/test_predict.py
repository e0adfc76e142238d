"""Prediction errors on what was left out, against measurements by others."""

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("JOULERY_DATA", ROOT.parent / "shared" / "data"))

pytestmark = [
    pytest.mark.data,
    pytest.mark.slow,
    pytest.mark.skipif(
        not (DATA / "devices").is_dir(), reason=f"no measurements under {DATA}; set JOULERY_DATA"
    ),
]


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    """Figures of the benchmark's quick run."""
    pytest.importorskip("pyarrow")
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        found = importlib.util.spec_from_file_location(
            "benchmark_predict", ROOT / "benchmarks" / "predict.py"
        )
        benchmark = importlib.util.module_from_spec(found)
        found.loader.exec_module(benchmark)
        file = tmp_path_factory.mktemp("predict") / "figures.json"
        benchmark.main(["--data", str(DATA), "--quick", "--json", str(file)])
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    return json.loads(file.read_text())["figures"]


# Mean absolute percentage errors that must not get worse; room for the draw of a quick run.
BARS = {
    "bf16 GEMM time, specs, ours": 14.0,
    "bf16 GEMM time, 30 probes, ours": 10.5,
    "fp8 GEMM time, 30 probes, ours": 24.0,
    "GEMM power, specs, ours": 10.0,
    "GEMM power, 30 probes, ours": 8.5,
    "power-limit curve, time, 2 limits, ours": 6.0,
    "power-limit curve, power, 3 limits, ours": 3.0,
    "Zeus surface, time, elsewhere, ours": 28.0,
    "Zeus surface, power, 1 probe, ours": 9.0,
    "training step, time, 1 probe, ours": 13.0,
    "plans on one node, 20 probes, ours": 9.0,
    "plans on a new system, elsewhere, ours": 16.0,
    "plans on a new model, elsewhere, ours": 16.0,
    "energy regret of the setting chosen, 3 limits, ours": 3.0,
    "locked clocks, time, 1 clock, ours": 3.0,
    "memory allocated, specs, ours": 1.5,
    "node energy against nodes, 1 probe, ours": 8.0,
    "samples to converge, other batches, ours": 9.0,
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", BARS)
def test_errors_stay_within_their_bars(figures, name):
    """A change of the model made predictions for something unseen worse."""
    assert figures[name] <= BARS[name]


@pytest.mark.timeout(300)
def test_intervals_cover_what_they_claim(figures):
    """A deadline kept with 90 % confidence on paper would be missed more often."""
    covered = [value for name, value in figures.items() if name.endswith("ours, covered")]
    assert len(covered) > 20
    assert 85.0 <= sum(covered) / len(covered) <= 96.0


@pytest.mark.timeout(300)
def test_simple_rules_are_beaten(figures):
    """A model that loses to a one-line rule has no place here."""
    rivals = {
        "bf16 GEMM time, specs": ("peak ratio", "roofline", "nearest ratio", "wave scaling"),
        "training step, time, specs": ("FLOPS ratio",),
        "Zeus surface, time, elsewhere": ("FLOPS ratio",),
        "plans on a new system, elsewhere": ("constant efficiency",),
        "samples to converge, other batches": ("constant",),
    }
    for task, names in rivals.items():
        for name in names:
            assert figures[f"{task}, ours"] < figures[f"{task}, {name}"], (task, name)
