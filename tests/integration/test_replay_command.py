"""``joulery jobs replay`` on traces small enough to wait for."""

import json
import subprocess
import sys

import pytest

from support.small_traces import write_traces


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
    traces = write_traces(tmp_path / "traces")
    groups = tmp_path / "groups.csv"
    rows = [f"{g},{100 * n},{50 * (1 + 9 * (g % 2))}" for g in range(4) for n in range(12)]
    groups.write_text("group,submit_seconds,duration_seconds\n" + "\n".join(rows) + "\n")
    done = _joulery(
        *("jobs", "replay", "--trace", traces, "--groups", groups, "--policy", "zeus"),
        "--json",
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["jobs"] == 48
    assert {row["policy"] for row in document["results"]} == {"default", "zeus"}
    everything = [row for row in document["results"] if row["workload"] == "all jobs"]
    assert everything[0]["eta_vs_default"] == pytest.approx(1.0)
    assert everything[1]["eta_vs_default"] < 1.0
