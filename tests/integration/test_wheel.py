"""The wheel: installed into an empty environment, it runs."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _run(*command, cwd):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_wheel_runs_in_an_empty_environment(tmp_path):
    """A file missing from the wheel is found only by users."""
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    _run(*pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT), cwd=tmp_path)
    (wheel,) = tmp_path.glob("joulery-*.whl")
    _run(sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv"), cwd=tmp_path)
    programs = tmp_path / "venv" / "bin"
    install = ("--python", str(programs / "python"), "install", "--no-compile")
    _run(*pip, *install, str(wheel), cwd=tmp_path)
    told = _run(str(programs / "joulery"), "demo", "--epochs", "2", "--out", "out", cwd=tmp_path)
    assert "The second run saved" in told
    assert (tmp_path / "out" / "frontier.html").exists()
    assert "joulery" in _run(str(programs / "joulery"), "--help", cwd=tmp_path)
    opened = "from joulery.storage import Store; Store.open(':memory:')"
    _run(str(programs / "python"), "-c", opened, cwd=tmp_path)
    listed = _run(str(programs / "python"), "-m", "zipfile", "-l", str(wheel), cwd=tmp_path)
    assert "papers/" not in listed
    assert "tests/" not in listed
