"""The board model against measurements by others."""

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("JOULERY_DATA", ROOT.parent / "shared" / "data"))
TARGET = 0.05

pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(
        not any(DATA.rglob("summary_power_*.csv")),
        reason=f"no power-limit sweeps under {DATA}; set JOULERY_DATA",
    ),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The benchmark's own report on every other sweep."""
    sys.path.insert(0, str(ROOT / "benchmarks"))  # it imports a module of its folder
    found = importlib.util.spec_from_file_location(
        "benchmark_physics", ROOT / "benchmarks" / "physics.py"
    )
    benchmark = importlib.util.module_from_spec(found)
    sys.modules[found.name] = benchmark
    found.loader.exec_module(benchmark)
    sys.path.remove(str(ROOT / "benchmarks"))
    file = tmp_path_factory.mktemp("physics") / "report.json"
    assert benchmark.main(["--data", str(DATA), "--quick", "--json", str(file)]) == 0
    return json.loads(file.read_text())


def test_fitted_boards_follow_every_workload_within_five_percent(report):
    """Simulated savings would not be those of the boards that were measured."""
    rows = [row for row in report["details"] if row["constants"] == "catalog"]
    assert {row["gpu"] for row in rows} >= {"V100", "A40", "A100"}
    for row in rows:
        assert row["seconds_error_median"] <= TARGET, row
        assert row["watts_error_median"] <= TARGET, row


def test_derived_boards_follow_unseen_boards_within_five_percent(report):
    """The rule for unmeasured boards would fail on boards that are like these."""
    rows = [
        row
        for row in report["details"]
        if row["constants"] == "derived" and row["workload"] == "all"
    ]
    assert {row["gpu"] for row in rows} >= {"V100", "A40", "A100"}
    for row in rows:
        assert row["seconds_error_median"] <= TARGET, row
        assert row["watts_error_median"] <= TARGET, row


def test_limits_that_a_fit_did_not_see_are_within_five_percent(report):
    """Four numbers per workload would be too many, and describe noise."""
    rows = [row for row in report["details"] if row["constants"] == "held out"]
    assert {row["gpu"] for row in rows} >= {"V100", "A40", "A100"}
    for row in rows:
        assert row["seconds_error_median"] <= TARGET, row
        assert row["watts_error_median"] <= TARGET, row


def test_report_has_the_shape_that_other_tools_read(report):
    """A reader of benchmark figures would find nothing."""
    assert report["benchmark"] == "physics"
    figures = report["figures"]
    assert figures["v100_seconds_error_median"] <= TARGET
    assert figures["workloads_within_target"] == figures["workloads"]
