"""Every benchmark and stress script runs on the code of today, on any folder of data."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.scripts import run_script

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
NAMES = (
    "calibrate", "cluster", "everyday", "meter", "physics", "pipeline",
    "pipeline_stragglers", "power",
    "power_bounds", "power_phases", "power_ranks", "predict", "recurring",
    "server", "serving", "serving_boards",
)  # fmt: skip
STRESSES = ("cluster", "governor", "jobs", "server", "service")


# These start processes with their own source: they have to be the main program.
STARTERS = {"cluster", "everyday", "meter", "pipeline", "server", "service"}


def smoke(script, folder, *options):
    """Run the short form of a script; what it prints."""
    options = ("--smoke", *map(str, options))
    if script.stem.removeprefix("stress_") in STARTERS:
        return _started(script, options)
    log = folder / "log"
    code = run_script(script, options, log)
    assert code == 0, log.read_text()[-4000:]
    return log.read_text()


def _started(script, options):
    done = subprocess.run(
        [sys.executable, str(script), *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-1000:]
    return done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_runs(name, tmp_path):
    """Figures on the pages are those of older code, because the benchmark crashes on today's."""
    smoke(BENCHMARKS / f"{name}.py", tmp_path, "--json", tmp_path / "figures.json")
    written = tmp_path / "figures.json"
    if written.exists():  # not where there was nothing to measure
        document = json.loads(written.read_text())
        assert {"benchmark", "figures", "details"} <= set(document)
        assert all(isinstance(figure, int | float) for figure in document["figures"].values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["cluster", "physics", "pipeline", "predict", "recurring", "serving", "serving_boards"]
)
def test_a_benchmark_skips_what_is_not_there(name, tmp_path):
    """A benchmark crashes on another folder of data."""
    printed = smoke(BENCHMARKS / f"{name}.py", tmp_path, "--data", tmp_path)
    assert "skipped" in printed or name == "pipeline"  # which also plans made-up pipelines


@pytest.mark.slow
@pytest.mark.parametrize("name", STRESSES)
def test_a_stress_script_runs(name, tmp_path):
    """A promise is checked by a script that no longer starts."""
    smoke(ROOT / "scripts" / f"stress_{name}.py", tmp_path)


def private_names(path):
    """Modules and names of Joulery that a file imports and that no room exports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            words = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            words = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for word in words:
            parts = word.split(".")
            if parts[0] == "joulery" and any(part.startswith("_") for part in parts):
                yield word


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.py")), ids=lambda path: path.stem)
def test_benchmarks_import_only_what_rooms_export(path):
    """A benchmark scores code that no user can reach."""
    assert not list(private_names(path))
