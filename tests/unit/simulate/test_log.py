"""Logs, their summaries and their files."""

import csv

import numpy as np
import pytest

from joulery.errors import FileError
from joulery.jobs.policies import ZeusPolicy
from joulery.jobs.policies._default import DefaultPolicy
from joulery.simulate import SimulationConfig, simulate, summaries, write_actions
from joulery.simulate._log import CSV_COLUMNS
from joulery.testing.workloads import made_up_workload


@pytest.fixture
def log():
    """Two workloads of different length."""
    loads = [made_up_workload(), made_up_workload((32, 64), default=64)]
    return simulate(loads, ZeusPolicy(), None, range(4), SimulationConfig(keep_actions=True))


def test_regret_accumulates(log):
    """The last cumulative figure is the final one, padding included."""
    assert log.regret()[:, -1] == pytest.approx(log.final_regret())


def test_last_recurrences_are_each_jobs_own(log):
    """Shorter jobs end earlier; their last five are not the padding."""
    seconds, joules, cost = log.last(5)
    part = log.of_workload(1)
    assert seconds[4:] == pytest.approx(
        part.seconds[:, -5:].sum(axis=1) / part.default[0, :, -5:].sum(axis=1)
    )
    assert np.isfinite([seconds, joules, cost]).all()


def test_summary_of_no_change():
    """Against itself the default is one."""
    (found,) = summaries(simulate([made_up_workload(runs=1)], DefaultPolicy(), 30, range(3)))
    assert found.eta_last5_vs_default == pytest.approx(1)
    assert found.tta_last5_vs_default == pytest.approx(1)
    assert found.cost_total_vs_default == pytest.approx(1)
    assert (found.failed, found.attempts_mean, found.regret_sd) == (0, 1, pytest.approx(0))
    assert found.cost_last5_vs_optimal == pytest.approx(1 + found.regret_mean / 30)


def test_file_has_every_action(log, tmp_path):
    """What was done, what was allowed, and why."""
    path = tmp_path / "log.csv"
    write_actions(path, [log])
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert len(rows) == len(log.actions.job)
    assert {row["end"] for row in rows} <= {"reached", "stopped", "exhausted"}
    assert rows[0]["batch_size"] == "256"
    assert rows[0]["ceiling_joules"] == ""
    assert all(row["why"] for row in rows)
    total = sum(float(row["cost_joules"]) for row in rows)
    assert total == pytest.approx(np.nansum(log.cost), rel=1e-4)


def test_file_is_whole_or_not_at_all(log, tmp_path):
    """A log that cannot be written leaves nothing behind, and what was there untouched."""
    target = tmp_path / "folder"
    target.mkdir()
    with pytest.raises(FileError, match="cannot write"):
        write_actions(target, [log])
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
