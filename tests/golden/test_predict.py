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


# Parts of the benchmark that take seconds; `make bench` runs all of them.
PARTS = ("operators", "node", "published", "whole", "memory", "clocks", "convergence")


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
        figures = {}
        for part in PARTS:
            benchmark.main(["--data", str(DATA), "--quick", "--only", part, "--json", str(file)])
            figures |= json.loads(file.read_text())["figures"]
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    return figures


# Mean absolute percentage errors that must not get worse; room for the draw of a quick run.
BARS = {
    "bf16 GEMM time, specs, ours": 15.0,
    "GEMM power, specs, ours": 8.5,
    "prefill attention time, specs, ours": 28.0,
    "plans on one node, time, 20 random probes, ours": 8.5,
    "plans on more devices, time, 1 advised probe, ours": 12.0,
    "published trainings, time, specs, ours": 15.0,
    "whole trainings, time, specs, ours": 32.0,
    "memory allocated, specs, ours": 1.5,
    "memory reserved, specs, ours": 2.5,
    "locked clocks, time, 1 clock, ours": 3.0,
    "samples to converge, other batches, ours": 9.0,
}


@pytest.mark.parametrize("name", BARS)
def test_errors_stay_within_their_bars(figures, name):
    """A change of the model made predictions for something unseen worse."""
    assert figures[name] <= BARS[name]


def test_intervals_cover_what_they_claim(figures):
    """A deadline kept with 90 % confidence on paper would be missed more often."""
    for name in ("GEMM power", "published trainings, time", "whole trainings, time"):
        assert 84.0 <= figures[f"{name}, specs, ours, covered"] <= 97.0, name


def test_simple_rules_are_beaten(figures):
    """A model that loses to a one-line rule has no place here."""
    rivals = {
        "locked clocks, time, 1 clock": ("proportional",),
        "samples to converge, other batches": ("constant",),
    }
    for task, names in rivals.items():
        for name in names:
            assert figures[f"{task}, ours"] < figures[f"{task}, {name}"], (task, name)
