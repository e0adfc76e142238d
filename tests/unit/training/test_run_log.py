"""A run in the store, and one that another run measures too."""

import math

import pytest

from joulery.clock import VirtualClock
from joulery.hardware import SimulatedGpu, catalog
from joulery.jobs import JobService
from joulery.metering import Meter
from joulery.storage import Store, run_totals
from joulery.training import DecisionService, RunLog
from joulery.training._run_log import STORE_VARIABLE


class Board:
    """A board whose use is measured, as the meter of a run."""

    def __init__(self, index=0):
        self.clock = VirtualClock()
        board = catalog.board("V100")
        self._gpu = SimulatedGpu(board, self.clock, index=index)
        self._work = catalog.workload("resnet50", board)
        self._meter = Meter([self._gpu], clock=self.clock)
        self.window = self._meter.begin("run")
        self.devices = self._meter.devices

    def measure_here(self):
        """The measurement until now."""
        return self.window.measurement

    def work(self):
        """Use energy, and end."""
        for _ in range(50):
            self._gpu.run(self._work)
        self._meter.end(self.window)
        self._meter.close()
        return self.window.measurement


@pytest.fixture
def store(tmp_path):
    """The path of the store that both runs report to."""
    return str(tmp_path / "store.sqlite")


def log(board, store, environ=(), **service):
    """The log of a run, begun."""
    environ = {STORE_VARIABLE: store, **dict(environ)}
    service = {"location": store, **service}
    run_log = RunLog("train", "run", DecisionService(**service), board, environ=environ)
    run_log.start()
    return run_log


def stored(store):
    """Runs of the store, the first one first, and the sum of their joules."""
    with Store.open(store) as opened:
        runs, _ = JobService(opened, team="default").runs()
        with opened.reading() as transaction:
            return runs[::-1], run_totals(transaction, "default", 0.0, math.inf)[1]


def test_a_run_within_another_is_counted_once(store):
    """Joules of a training under `joulery measure` would be in the sums of a team twice."""
    board = Board()
    outer = log(board, store)
    inner = log(board, store, outer.environment)
    inner_most = log(board, store, inner.environment)
    measured = board.work()
    for run_log in (inner_most, inner, outer):
        run_log.end(measured)
    runs, joules = stored(store)
    assert joules == pytest.approx(measured.joules)
    assert [run.joules for run in runs] == [pytest.approx(measured.joules)] * 3
    assert [run.part_of for run in runs] == [runs[1].key, runs[2].key, ""]


def test_what_the_outer_run_lacks_is_counted(store, tmp_path):
    """Energy that nothing else measures, or that is in another store, would be in no sum."""
    board, other = Board(), Board(1)
    outer = log(board, store)
    elsewhere = str(tmp_path / "elsewhere.sqlite")
    for run_log in (
        log(other, store, outer.environment),
        log(board, elsewhere, outer.environment | {STORE_VARIABLE: store}),
    ):
        run_log.end(board.window.measurement)
    outer.end(board.work())
    assert [run.part_of for run in (*stored(store)[0], *stored(elsewhere)[0])] == ["", "", ""]
