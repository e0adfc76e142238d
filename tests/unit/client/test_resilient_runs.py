"""Runs of any kind that are stored now, or with a later run."""

import pytest
from msgspec.structs import replace

from joulery.client import open_backend, put_run
from joulery.client._outbox import PendingReport, deliver_waiting, outboxes
from joulery.errors import InvalidValueError, StoreError
from joulery.jobs import Definition, Job, Outcome, Request, RunEntry
from joulery.jobs.policies import RunEnd
from joulery.objectives import Cost

RUN = RunEntry("k1", "fine-tune", 1.7e9, 60.0, 1e4, ended=True)
REPORT = PendingReport(
    "default",
    Definition(Job("nightly", (64, 128), 128, Cost(0.5, 300.0))),
    Request("a", only=128, ran_seconds=60.0),
    None,
    Outcome(RunEnd.REACHED, 20.0, 40.0, 7000.0),
    "a",
)


def test_a_run_that_no_store_takes_is_kept_until_one_does(tmp_path):
    """If this fails, what was trained during an outage is never listed."""
    address = "http://127.0.0.1:9"  # the port of discard, where nothing listens
    with pytest.raises(StoreError):
        put_run(RUN, address)
    with pytest.raises(StoreError):
        put_run(replace(RUN, key="k2", ended=False), address)  # its next report says more
    backend = open_backend(tmp_path / "store.sqlite")
    deliver_waiting(backend, f"{address}/", "speech")
    assert not backend.runs()[0]
    deliver_waiting(backend, f"{address}/", "default")
    assert [run.key for run in backend.runs()[0]] == ["k1"]
    backend.close()
    assert not outboxes(address)[1].waiting


def test_a_run_that_does_not_recur_delivers_reports_of_jobs(tmp_path, monkeypatch):
    """If this fails, reports wait until the same machine trains a recurring job again."""
    outboxes("")[0].append(REPORT)
    outboxes("")[0].append(replace(REPORT, team="speech"))
    monkeypatch.chdir(tmp_path)  # the same store, whatever folder a training runs in
    put_run(RUN)
    backend = open_backend()
    assert backend.job("nightly").recurrences == 1
    backend.close()
    (waiting,) = outboxes("")[0].entries()
    assert waiting.team == "speech"


def test_a_run_that_is_refused_is_not_kept(tmp_path):
    """If this fails, an outbox fills up with what no store will ever take."""
    with pytest.raises(InvalidValueError):
        put_run(replace(RUN, seconds=1e15), tmp_path / "store.sqlite")
    assert not outboxes(str(tmp_path / "store.sqlite"))[1].waiting
