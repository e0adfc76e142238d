"""The command that reproduces figures, on traces small enough to wait for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.small_traces import write_traces

ROOT = Path(__file__).resolve().parents[2]


def _reproduce(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "papers.zeus", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )


def test_chosen_figures_come_with_tables_pictures_and_a_page(tmp_path):
    """The command would not do what its name says."""
    traces = write_traces(tmp_path / "traces", ("v100", "a40"))
    out = tmp_path / "out"
    done = _reproduce(
        *("--data", traces, "--out", out, "--figures", "1,12"),
        *("--seeds", "2", "--json"),
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [figure["numbers"] for figure in document["figures"]] == [[12], [1, 15]]
    names = {path.name for path in out.iterdir()}
    assert {"index.html", "reproduce.json", "fig12_beta_sweep.csv", "fig12_beta_sweep.png"} <= names
    assert any("rtx6000" in line for line in document["missing"])
    assert any("librispeech" in line for line in document["missing"])
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("prepare", "named"),
    [
        (lambda _folder: None, "summary_train.csv"),
        (
            lambda folder: (write_traces(folder), (folder / "summary_power_v100.csv").unlink()),
            "power",
        ),
    ],
)
def test_missing_traces_are_named_with_their_source(tmp_path, prepare, named):
    """The user would not know what to fetch from where."""
    prepare(tmp_path / "traces")
    done = _reproduce("--data", tmp_path / "traces", "--out", tmp_path / "o")
    assert done.returncode == 2
    assert named in done.stderr
    assert "ml-energy/zeus" in done.stderr
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("option", [("--figures", "99"), ("--figures", "x"), ("--seeds", "0")])
def test_wrong_options_write_nothing(tmp_path, option):
    """A typing error would leave half a folder."""
    traces = write_traces(tmp_path / "traces")
    done = _reproduce("--data", traces, "--out", tmp_path / "o", *option)
    assert done.returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["traces"]
