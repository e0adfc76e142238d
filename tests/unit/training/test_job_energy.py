"""Energy of a job over its ranks: each device once, no wait for ranks that are gone."""

import json
import math
import sys
import threading
import time
from dataclasses import replace

import pytest

from joulery.clock import VirtualClock
from joulery.errors import InvalidValueError
from joulery.frontier import OperatingPoint, Origin, Provenance
from joulery.hardware import DeviceInfo, DeviceKind, SimulatedGpu, catalog
from joulery.integrations.files import FileSink
from joulery.metering import Measurement
from joulery.metering._measurement import DeviceMeasurement
from joulery.training import Run, _job_energy as job_energy
from joulery.training._job_energy import (
    RankFigures,
    RankStore,
    energy_saving,
    known_slowdown,
    merged,
)

SURE = Provenance(Origin.MEASURED, "a counter", 0.01)


def device(name, joules, kind=DeviceKind.GPU):
    """Energy of one device."""
    info = DeviceInfo(id=name, name=name, kind=kind, vendor="test", index=0)
    return DeviceMeasurement(info, joules, 0.01 * joules, 0.0, math.nan, SURE)


def figures(node, *devices, seconds=10.0, entry=math.inf, wall=0.0):
    """Figures of one rank."""
    return RankFigures(node, Measurement("run", seconds, devices), entry, wall)


class Store:
    """A key-value store in memory, as torch.distributed has one."""

    def __init__(self):
        self.values = {}

    def set(self, key, value):
        """Keep a value."""
        self.values[key] = value

    def get(self, key):
        """The value, which has to be there: torch would wait."""
        return self.values[key]

    def check(self, keys):
        """Whether all keys are there."""
        return all(key in self.values for key in keys)


def test_a_board_that_several_ranks_see_counts_once_and_one_that_a_single_rank_sees_counts():
    """If this fails, boards are counted by rank, twice or not at all."""
    cpu = device("cpu", 50.0, DeviceKind.CPU)
    total = merged(
        [
            figures("a", device("GPU-1", 300.0), device("GPU-2", 200.0), cpu),
            figures("a", device("GPU-2", 201.0), device("GPU-3", 100.0)),
            figures("b", device("GPU-1", 400.0), cpu, seconds=11.0),
        ]
    )
    assert total.joules == 300.0 + 200.0 + 100.0 + 400.0 + 2 * 50.0
    assert (total.boards, total.nodes, total.seconds) == (4, 2, 11.0)
    assert "4 GPUs and CPU on 2 nodes" in str(total)
    alone = [figures("a", device("GPU-1", 300.0), device("GPU-2", 200.0), cpu)]
    assert str(merged(alone)).endswith(", 2 GPUs and CPU")


def test_the_meter_of_a_node_stands_for_all_of_that_node_alone():
    """If this fails, one node with a meter hides the energy of the others, or counts twice."""
    meter = device("meter", 900.0, DeviceKind.NODE)
    total = merged(
        [
            figures("a", meter, device("GPU-1", 300.0)),
            figures("a", device("GPU-2", 200.0)),
            figures("b", device("GPU-1", 400.0)),
        ]
    )
    assert total.joules == 900.0 + 400.0


def test_a_rank_that_is_gone_is_waited_for_once_and_one_that_never_came_not_at_all():
    """If this fails, a rank that died slows every log entry of those that live."""
    store = Store()
    first, second = RankStore(store, 0, 3), RankStore(store, 1, 3)
    second.leave(figures("b", device("GPU-1", 100.0), entry=1, wall=100.0))
    own = figures("a", device("GPU-1", 300.0), entry=2, wall=101.0)
    waits = []
    for _ in range(3):
        began = time.monotonic()
        ranks = first.collect(own, wait_seconds=0.5)
        waits.append(time.monotonic() - began)
    assert waits[0] >= 0.5 > max(waits[1:])
    # A second later it would have used a tenth more, at its mean power.
    assert merged(ranks).joules == pytest.approx(300.0 + 110.0)
    second.leave(figures("b", device("GPU-1", 150.0)))
    assert merged(first.collect(own, wait_seconds=0.0)).joules == pytest.approx(450.0)


def test_a_rank_that_makes_no_log_entries_is_not_waited_for():
    """If this fails, the first log entry of accelerate takes a second longer."""
    store, own = Store(), figures("a", device("GPU-1", 300.0), wall=101.0)
    RankStore(store, 1, 2).leave(figures("b", device("GPU-1", 100.0), entry=sys.maxsize))
    began = time.monotonic()
    for entry in (1, 2):
        RankStore(store, 0, 2).collect(own._replace(entry=entry), wait_seconds=60.0)
    assert time.monotonic() - began < 30.0


def test_at_the_end_even_a_rank_that_never_logs_is_heard_again_within_a_moment():
    """If this fails, totals have what other nodes had used before the last log entry."""
    store, own = Store(), figures("a", device("GPU-1", 300.0), wall=101.0)
    first, second = RankStore(store, 0, 2), RankStore(store, 1, 2)
    second.leave(figures("b", device("GPU-1", 100.0), entry=0, wall=101.0))
    first.collect(own._replace(entry=1), wait_seconds=0.0)  # it is late from here on
    later = figures("b", device("GPU-1", 150.0), entry=0, wall=101.5)
    timer = threading.Timer(0.1, second.leave, [later])
    timer.start()
    began = time.monotonic()
    assert merged(first.collect(own, wait_seconds=60.0)).joules == pytest.approx(450.0)
    assert time.monotonic() - began < 30.0
    timer.join()


def test_other_ranks_take_over_the_total_of_rank_0():
    """If this fails, ranks show different totals of one job."""
    store = Store()
    assert RankStore(store, 1, 2).read_total(0.0) is None
    total = merged([figures("a", device("GPU-1", 300.0))])
    RankStore(store, 0, 2).leave_total(total, ended=True)
    assert RankStore(store, 1, 2).read_total(5.0).joules == 300.0


@pytest.mark.parametrize(
    ("steps", "origin", "error", "is_known"),
    [
        (40, Origin.MEASURED, 0.01, True),
        (0, Origin.MEASURED, 0.01, False),
        (40, Origin.PREDICTED, 0.01, False),
        (40, Origin.MEASURED, 0.3, False),
        (40, Origin.MEASURED, None, False),
    ],
)
def test_a_saving_is_shown_once_it_rests_on_fresh_measurements(steps, origin, error, is_known):
    """If this fails, a log starts with a saving that nobody has measured."""
    from joulery.power import TuningResult

    reference = OperatingPoint(1.0, 300.0, provenance=Provenance(Origin.MEASURED, "", 0.01))
    chosen = OperatingPoint(1.0, 240.0, provenance=Provenance(origin, "", error))
    flags = {"held": True, "ended": False, "regret": 0.0}
    extra = {"profiling_seconds": 1.0, "extra_seconds": 0.0, "extra_joules": 0.0}
    result = TuningResult((chosen,), chosen, reference, profiling_steps=steps, **flags, **extra)
    assert energy_saving(result) == pytest.approx(0.2 if is_known else math.nan, nan_ok=True)
    assert math.isnan(energy_saving(None))
    assert math.isnan(known_slowdown(None))


@pytest.mark.parametrize(
    ("seconds", "error", "is_known"), [(1.04, 0.02, True), (1.01, 0.02, False)]
)
def test_a_slowdown_within_its_error_is_not_known(seconds, error, is_known):
    """If this fails, the price of a saving is noise."""
    from joulery.power import TuningResult

    reference = OperatingPoint(1.0, 300.0, provenance=Provenance(Origin.MEASURED, "", 0.0))
    chosen = OperatingPoint(seconds, 240.0, provenance=Provenance(Origin.MEASURED, "", error))
    flags = {"held": True, "ended": False, "regret": 0.0, "profiling_steps": 40}
    extra = {"profiling_seconds": 1.0, "extra_seconds": 0.0, "extra_joules": 0.0}
    result = TuningResult((chosen,), chosen, reference, **flags, **extra)
    expected = seconds - 1 if is_known else math.nan
    assert known_slowdown(result) == pytest.approx(expected, nan_ok=True)


def test_a_run_knows_its_energy_prints_it_and_writes_it_to_sinks(tmp_path, monkeypatch):
    """If this fails, the energy of a run has to be measured beside it."""
    monkeypatch.setenv("JOULERY_GRID", "FR")
    clock = VirtualClock()
    gpu = SimulatedGpu(catalog.board("V100"), clock)
    work = catalog.workload("resnet50", gpu.board)
    log = tmp_path / "energy.jsonl"
    run = Run("shown", devices=[gpu], max_epochs=2, sinks=[FileSink(log)])
    assert math.isnan(run.joules)
    for _ in run.epochs():
        for _ in run.steps(range(200)):
            gpu.run(work)
    assert run.joules == pytest.approx(gpu.true_joules(), rel=0.02)
    assert run.seconds == pytest.approx(clock.now(), rel=0.02)
    assert run.kwh == pytest.approx(run.joules / 3.6e6)
    assert run.measurement.boards == 1
    assert "shown: " in str(run)
    assert "400 steps" in repr(run)
    assert "<table>" in run._repr_html_()
    assert json.loads(json.dumps(run.to_dict()))["steps"] == 400
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(entries) == 3
    assert entries[-1]["joulery/joules"] == pytest.approx(run.joules)
    assert entries[-1]["joulery/co2_grams"] > 0
    clock.sleep(1000.0)
    assert run.joules == pytest.approx(entries[-1]["joulery/joules"])


def test_a_grid_that_does_not_exist_costs_the_co2_alone(monkeypatch, caplog):
    """If this fails, a slip in a variable costs a training its log."""
    monkeypatch.setenv("JOULERY_GRID", "Atlantis")
    clock = VirtualClock()
    gpu = SimulatedGpu(catalog.board("V100"), clock)
    run = Run("shown", devices=[gpu])
    with run:
        clock.sleep(10.0)
        written = run.energy.figures(1, None)
    assert "joulery/co2_grams" not in written
    assert written["joulery/joules"] > 0
    assert "Atlantis" in caplog.text


def test_a_late_correction_makes_no_total_fall_and_no_power_of_a_moment(monkeypatch):
    """If this fails, the last entry of a log has -2000 W, and less energy than the one before."""
    clock = VirtualClock()
    with Run(devices=[SimulatedGpu(catalog.board("V100"), clock)]) as run:
        measured = [(5.0, 80.33), (5.001, 79.57), (5.002, 81.2), (10.0, 180.33)]
        entries = []
        for seconds, joules in measured:
            total = merged([figures("a", device("GPU-1", joules), seconds=seconds)])
            monkeypatch.setattr(run.energy, "total", lambda _wait, total=total: total)
            entries.append(run.energy.figures(int(seconds), None))
    assert [entry["joulery/joules"] for entry in entries] == [80.33, 80.33, 81.2, 180.33]
    assert [entry.get("joulery/watts") for entry in entries] == pytest.approx(
        [80.33 / 5, None, None, 20.0]
    )
    assert entries[-1]["joulery/joules_per_step"] == pytest.approx(20.0)
    assert "joulery/joules_per_step" not in entries[1]


@pytest.mark.parametrize(
    "options", [{"name": 5}, {"store": 5}, {"sinks": 5}, {"sinks": [5]}, {"store": b"x"}]
)
def test_wrong_arguments_are_refused_at_once(options):
    """If this fails, a slip shows only after a night of training."""
    with pytest.raises(InvalidValueError):
        Run(**options)


def test_a_store_that_fails_leaves_the_own_figures(monkeypatch):
    """If this fails, a broken store of ranks costs a log its figures."""

    class Broken(Store):
        def set(self, key, value):
            raise RuntimeError("connection reset by peer")

    monkeypatch.setattr(RankStore, "find", lambda: RankStore(Broken(), 0, 2))
    clock = VirtualClock()
    gpu = SimulatedGpu(catalog.board("V100"), clock)
    with Run(devices=[gpu]) as run:
        clock.sleep(10.0)
        assert run.joules > 0
    assert run.joules > 0


def test_figures_wait_for_ranks_that_keep_up(monkeypatch):
    """If this fails, rank 0 shows what other ranks used one entry before."""
    store, clock = Store(), VirtualClock()
    monkeypatch.setattr(RankStore, "find", lambda: RankStore(store, 0, 2))
    monkeypatch.setattr(job_energy, "_LOG_SECONDS", 60.0)
    gpu = SimulatedGpu(catalog.board("V100"), clock)
    other = RankStore(store, 1, 2)
    now = replace(figures("b", device("x", 1000.0)).measured, seconds=0.1)
    other.leave(RankFigures("b", now, 1, clock.wall()))
    with Run(devices=[gpu]) as run:
        clock.sleep(10.0)
        began = time.monotonic()
        assert run.energy.figures(1, None)["joulery/boards"] == 2
        assert time.monotonic() - began < 30.0
