"""``joulery simulate cluster`` on traces small enough to wait for."""

import itertools
import json
import subprocess
import sys

import pytest

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


def _joulery(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "joulery", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )


def test_a_cluster_is_replayed_from_groups(tmp_path):
    """Groups of one's own could not be tried."""
    traces = _traces(tmp_path / "traces")
    groups = tmp_path / "groups.csv"
    rows = [f"{g},{100 * n},{50 * (1 + 9 * (g % 2))}" for g in range(4) for n in range(12)]
    groups.write_text("group,submit_seconds,duration_seconds\n" + "\n".join(rows) + "\n")
    done = _joulery(
        *("simulate", "cluster", "--traces", traces, "--groups", groups, "--policy", "zeus"),
        "--json",
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["jobs"] == 48
    assert {row["policy"] for row in document["results"]} == {"default", "zeus"}
    everything = [row for row in document["results"] if row["workload"] == "all jobs"]
    assert everything[0]["eta_vs_default"] == pytest.approx(1.0)
    assert everything[1]["eta_vs_default"] < 1.0
