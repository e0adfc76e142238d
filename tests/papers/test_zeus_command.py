"""The command that reproduces figures, on traces small enough to wait for."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EPOCHS = {256: (20, 22), 512: (18, 19), 1024: (30, 33)}


def _traces(folder, gpus=("v100",)):
    """Two workloads in the layout of the artifact."""
    folder.mkdir(parents=True)
    loads = (
        ("cifar100", "shufflenetv2", "adadelta", "0.6", 1.0),
        ("movielens-1m", "ncf", "adam", "0.41", 4.0),
    )
    lines = ["dataset,network,batch_size,optimizer,learning_rate,run,target_metric,target_epoch"]
    for (data, net, opt, target, _), (size, runs) in itertools.product(loads, EPOCHS.items()):
        lines += [f"{data},{net},{size},{opt},1,{n},{target},{e}" for n, e in enumerate(runs)]
    (folder / "summary_train.csv").write_text("\n".join(lines) + "\n")
    for gpu in gpus:
        lines = ["dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power"]
        for (data, net, opt, _, slow), size in itertools.product(loads, EPOCHS):
            for limit, factor in ((100, 1.6), (175, 1.1), (250, 1.0)):
                seconds = slow * factor * (4 + 4000 / size)
                lines.append(f"{data},{net},{size},{opt},{limit},{seconds},{0.8 * limit}")
        (folder / f"summary_power_{gpu}.csv").write_text("\n".join(lines) + "\n")
    return folder


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
    traces = _traces(tmp_path / "traces", ("v100", "a40"))
    out = tmp_path / "out"
    done = _reproduce(
        *("--traces", traces, "--out", out, "--figures", "1,12"),
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
        (lambda folder: (_traces(folder), (folder / "summary_power_v100.csv").unlink()), "power"),
    ],
)
def test_missing_traces_are_named_with_their_source(tmp_path, prepare, named):
    """The user would not know what to fetch from where."""
    prepare(tmp_path / "traces")
    done = _reproduce("--traces", tmp_path / "traces", "--out", tmp_path / "o")
    assert done.returncode == 2
    assert named in done.stderr
    assert "ml-energy/zeus" in done.stderr
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("option", [("--figures", "99"), ("--figures", "x"), ("--seeds", "0")])
def test_wrong_options_write_nothing(tmp_path, option):
    """A typing error would leave half a folder."""
    traces = _traces(tmp_path / "traces")
    done = _reproduce("--traces", traces, "--out", tmp_path / "o", *option)
    assert done.returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["traces"]
