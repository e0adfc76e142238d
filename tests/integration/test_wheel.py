"""The wheel: an index accepts it, and it runs in empty environments of every Python here."""

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import joulery

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_wheel_runs_in_empty_environments(tmp_path):
    """A file missing from the wheel, or a name that indexes refuse, is found only by users."""
    if importlib.util.find_spec("auditwheel") is None and os.environ.get("CI") != "true":
        pytest.skip("auditwheel is not installed")
    script = (ROOT / "scripts" / "build_wheels.py", "--out", tmp_path)
    options = ("--url", "https://example.org/joulery/")
    process = subprocess.run(
        [sys.executable, *script, *options], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    (wheel,) = tmp_path.glob("joulery-*-py3-none-*manylinux_2_*.whl")
    assert list(tmp_path.glob("joulery-*.tar.gz"))
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith("dist-info/METADATA"))
        text = archive.read(metadata).decode()
    assert not [name for name in names if name.startswith(("papers/", "tests/"))]
    assert "Project-URL: Homepage, https://example.org/joulery\n" in text
    assert "(https://example.org/joulery/raw/HEAD/docs/images/" in text
    assert "](docs/" not in text


@pytest.mark.slow
def test_a_wheel_built_without_a_compiler_is_pure_and_measures(tmp_path):
    """Somebody without gcc cannot install Joulery, or gets the library of another machine."""
    if importlib.util.find_spec("build") is None and os.environ.get("CI") != "true":
        pytest.skip("build is not installed")
    alone = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": ""}
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, ROOT]
    subprocess.run(build, env=alone, stdout=subprocess.DEVNULL, check=True)
    wheel = tmp_path / f"joulery-{joulery.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]
        archive.extractall(tmp_path / "wheel")
    measured = subprocess.run(
        [sys.executable, "-m", "joulery", "measure", "--json", "--", sys.executable, "-c", "pass"],
        env=alone | {"PYTHONPATH": str(tmp_path / "wheel")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(measured.stdout)["exit_code"] == 0
