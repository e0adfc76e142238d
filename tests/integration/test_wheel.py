"""The wheel: an index accepts it, and installed into an empty environment it runs."""

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_wheel_runs_in_an_empty_environment(tmp_path):
    """A file missing from the wheel, or a name that indexes refuse, is found only by users."""
    if importlib.util.find_spec("auditwheel") is None and os.environ.get("CI") != "true":
        pytest.skip("auditwheel is not installed")
    script = (ROOT / "scripts" / "build_wheels.py", "--out", tmp_path)
    options = ("--url", "https://example.org/joulery/", "--python", sys.executable)
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
