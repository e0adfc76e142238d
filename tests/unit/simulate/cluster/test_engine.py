"""Replays of small traces, against a plain simulation of every job by itself."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from joulery.cluster import ClusterJob, PowerCurve, allocate
from joulery.errors import FileError, InfeasibleError, InvalidValueError
from joulery.grid import GridEvent, Signal
from joulery.simulate.cluster import (
    Site,
    Trace,
    budget_steps,
    read_trace,
    simulate,
    summarize,
)

COMPUTE = PowerCurve.from_points([(100, 25), (200, 60), (300, 85), (400, 100)])
MEMORY = PowerCurve.from_points([(100, 60), (160, 99), (250, 100)])
CURVES = {"compute": COMPUTE, "memory": MEMORY}


def trace_of(submit, work, gpus, curve=None, *, weight=1.0, floor=0.0, pool=None):
    """A trace from plain lists."""
    count = len(submit)
    return Trace(
        submit=np.array(submit, dtype=float),
        work_seconds=np.array(work, dtype=float),
        gpus=np.array(gpus),
        curve=np.array(curve or [0] * count),
        curves=(COMPUTE, MEMORY),
        weight=np.broadcast_to(np.array(weight, dtype=float), count),
        floor=np.broadcast_to(np.array(floor, dtype=float), count),
        pool=tuple(pool or [""] * count),
    )


def plain_ends(trace, gpus, budget, policy):
    """Ends of all jobs when every one is followed by itself, first come first served."""
    left, ends, running, waiting = list(trace.work_seconds), {}, [], []
    now, pending = 0.0, list(range(len(trace)))
    while len(ends) < len(trace):
        while pending and trace.submit[pending[0]] <= now + 1e-9:
            waiting.append(pending.pop(0))
        while waiting:
            job = waiting[0]
            used = sum(trace.gpus[j] for j in running)
            least = sum(
                trace.gpus[j] * trace.curves[trace.curve[j]].watts[0] for j in [*running, job]
            )
            if used + trace.gpus[job] > gpus or least > budget:
                break
            running.append(waiting.pop(0))
        speeds = {}
        if running:
            jobs = [
                ClusterJob(
                    str(j),
                    trace.curves[trace.curve[j]],
                    int(trace.gpus[j]),
                    float(trace.weight[j] * trace.gpus[j]),
                )
                for j in running
            ]
            shares = allocate(jobs, budget, policy)
            speeds = dict(zip(running, shares.performance.tolist(), strict=True))
        ahead = [left[j] / speeds[j] for j in running]
        if pending:
            ahead.append(trace.submit[pending[0]] - now)
        step = min(ahead)
        now += step
        for job in list(running):
            left[job] -= speeds[job] * step
            if left[job] <= 1e-7:
                ends[job] = now
                running.remove(job)
    return np.array([ends[j] for j in range(len(trace))])


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    policy=st.sampled_from(["fair", "max-min", "throughput", "equal-watts", "equal-fraction"]),
)
def test_class_clocks_give_what_following_every_job_gives(seed, policy):
    """Speeds of running jobs are wrong after some event."""
    rng = np.random.default_rng(seed)
    count = 12
    trace = trace_of(
        np.sort(rng.uniform(0, 500, count)),
        rng.uniform(20, 400, count),
        rng.integers(1, 4, count),
        rng.integers(0, 2, count).tolist(),
    )
    budget = float(rng.uniform(600, 2500))
    replay = simulate(trace, Site(8, [(0, budget)], policy))
    assert replay.end == pytest.approx(plain_ends(trace, 8, budget, policy), rel=1e-5)
    assert (replay.watts <= budget * (1 + 1e-9)).all()


def test_a_budget_event_slows_running_jobs_and_lets_them_go_on():
    """A change of the budget does not reach running jobs."""
    replay = simulate(
        trace_of([0], [100], [1]), Site(1, [(0, 400), (50, 200), (100, 400)], "max-min")
    )
    # 50 s at full speed, 50 s at 0.6, the last 20 s at full speed.
    assert replay.end[0] == pytest.approx(120)
    assert summarize(replay)["energy_kilowatt_hours"] * 3.6e6 == pytest.approx(
        50 * 400 + 50 * 200 + 20 * 400
    )


def test_grid_events_lower_the_budget_for_a_while():
    """An event is missed, or lasts for ever, or two do not add up to the lower one."""
    events = [
        GridEvent("a", 1100, 1300, reduction=0.5),
        GridEvent("b", 1200, 1400, target_watts=300),
    ]
    steps = budget_steps(400, events, origin=1000)
    assert steps == [(0, 400), (100, 200), (200, 200), (300, 300), (400, 400)]
    replay = simulate(trace_of([0], [500], [1]), Site(1, steps, "max-min"))
    # 200 s at 0.6 and 100 s at 0.85 lose 95 s of full speed.
    assert replay.end[0] == pytest.approx(595)


def test_jobs_pause_when_the_floors_do_not_fit():
    """A budget below the floors is exceeded instead of pausing a job."""
    replay = simulate(
        trace_of([0, 1], [100, 100], [1, 1]), Site(2, [(0, 800), (10, 150), (20, 800)])
    )
    assert replay.pauses == 1
    assert replay.watts.max() <= 800
    during = replay.watts[(replay.times >= 10) & (replay.times < 20)]
    assert during.max() <= 150
    assert np.isfinite(replay.end).all()


def test_paused_jobs_take_turns_when_they_rotate():
    """The same jobs stay paused through a long event while others never stop."""
    trace = trace_of([0, 0, 0, 0], [1000] * 4, [1] * 4)
    budget = [(0, 1600), (10, 200), (10_000, 1600)]  # room for two of four at least power
    still, rotating = (
        simulate(trace, Site(4, budget, rotation_seconds=seconds)) for seconds in (math.inf, 250)
    )
    for replay in (still, rotating):
        assert np.isfinite(replay.end).all()
        assert (replay.watts <= replay.budget_watts * (1 + 1e-9)).all()
    assert still.pauses == 2
    assert rotating.times[-1] == 10_000, "no turns are taken after the last job"
    assert np.ptp(still.end) > 2000
    assert rotating.pauses > 10
    assert np.ptp(rotating.end) < 600
    assert rotating.end.max() == pytest.approx(still.end.max(), rel=0.05)


def test_paused_jobs_get_their_share_back():
    """A job that an event stopped for hours ends that much later, though others could wait."""
    hour = 3600.0
    trace = trace_of([0] * 4, [8 * hour] * 4, [1] * 4)
    budget = [(0, 1000), (hour, 200), (3 * hour, 1000)]
    plain, fair = (
        simulate(trace, Site(4, budget, policy="max-min", recovery_seconds=seconds))
        for seconds in (math.inf, 600)
    )
    for replay in (plain, fair):
        assert np.isfinite(replay.end).all()
        assert (replay.watts <= replay.budget_watts * (1 + 1e-9)).all()
    assert np.ptp(fair.end) < 0.5 * np.ptp(plain.end)
    assert fair.pauses == plain.pauses == 2
    same = simulate(trace, Site(4, policy="max-min", recovery_seconds=600))
    assert same.end.tolist() == pytest.approx([8 * hour] * 4), "where no job is owed anything"


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_rotation_loses_no_work(seed):
    """A job that was paused several times ends early, or never."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 12))
    submit = np.sort(rng.uniform(0, 500, count))
    trace = trace_of(submit, rng.uniform(50, 2000, count), rng.integers(1, 4, count))
    budget = [(0, 2000), (300, float(rng.uniform(300, 900))), (4000, 2000)]
    queue = ("fifo", "backfill")[seed % 2]
    turns = dict.fromkeys(("rotation_seconds", "recovery_seconds"), float(rng.uniform(20, 500)))
    site = Site(8, budget, queue=queue, **turns)
    replay = simulate(trace, site)
    assert np.isfinite(replay.end).all()
    assert (replay.end - replay.start >= trace.work_seconds * (1 - 1e-9)).all()
    assert (replay.watts <= replay.budget_watts * (1 + 1e-9)).all()


def test_a_budget_below_the_idle_cluster_is_refused():
    """An impossible budget is accepted."""
    with pytest.raises(InfeasibleError, match="idle cluster"):
        simulate(trace_of([0], [100], [1]), Site(10, [(0, 800), (10, 150)], idle_watts=50))


def test_shortest_jobs_first_and_backfill_start_small_jobs_earlier():
    """A queue policy has no effect, or backfilling delays the first waiting job."""
    trace = trace_of([0, 1, 2, 3], [100, 500, 50, 10], [3, 4, 1, 4])
    starts = {
        queue: simulate(trace, Site(4, queue=queue)).start for queue in ("fifo", "backfill", "sjf")
    }
    assert starts["fifo"].tolist() == [0, 100, 600, 650]
    assert starts["backfill"].tolist() == [0, 100, 2, 600]
    assert starts["sjf"].tolist() == [0, 110, 2, 100]


def test_types_of_gpus_have_their_own_queues():
    """A job of one type waits for GPUs of another."""
    trace = trace_of([0, 0, 0], [10, 10, 10], [2, 2, 2], pool=["a", "a", "b"])
    replay = simulate(trace, Site({"a": 2, "b": 2}))
    assert replay.start.tolist() == [0, 10, 0]
    with pytest.raises(InvalidValueError, match="'c'"):
        simulate(trace_of([0], [1], [1], pool=["c"]), Site({"a": 2, "b": 2}))


def test_a_job_larger_than_the_cluster_is_counted_not_lost():
    """A job that can never start blocks the queue or vanishes."""
    replay = simulate(trace_of([0, 0], [10, 10], [8, 1]), Site(4))
    assert replay.refused == 1
    assert math.isnan(replay.start[0])
    assert summarize(replay)["ended"] == 1


def test_the_summary_charges_carbon_and_price_by_the_hour():
    """Energy is charged at the wrong hour's intensity."""
    replay = simulate(trace_of([0], [7200], [1]), Site(1))
    found = summarize(replay, Signal(1e9, 3600, (100.0, 300.0)), Signal(1e9, 3600, (0.1, 0.2)))
    assert found["carbon_kilograms"] == pytest.approx(0.4 * (100 + 300) / 1000)
    assert found["cost"] == pytest.approx(0.4 * 0.3)
    assert found["jain_index"] == pytest.approx(1)
    json.dumps(found)


@pytest.mark.parametrize(
    ("text", "work", "gpus"),
    [
        ("timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,2,132,a\n", 66, 2),
        ("arrival_time,length,cpus\n0.0,30.0,3\n68.0,40.0,1\n", 30, 3),
        ("arrival_time,length,cpus\n0.0,0.5,3\n1.5,0.5,1\n", 1800, 3),
        ("name,time,application,num_replicas,batch_size\nn-0,107,ncf,2,32768\n", 540, 2),
        ("submit_seconds,duration_seconds,gpus,workload\n5,7,4,memory\n", 7, 4),
    ],
)
def test_known_traces_are_read(tmp_path, text, work, gpus):
    """A published format is read in the wrong unit."""
    file = tmp_path / "trace.csv"
    file.write_text(text)
    trace = read_trace(file, CURVES)
    assert (trace.submit[0], trace.work_seconds[0], trace.gpus[0]) == (0, pytest.approx(work), gpus)


def test_a_workload_has_its_own_curve_on_each_type_of_gpu(tmp_path):
    """A job on one type of GPU runs with the frontier of another."""
    file = tmp_path / "trace.csv"
    file.write_text(
        "submit_seconds,duration_seconds,gpus,workload,gpu_type\n0,9,1,a,x\n1,9,1,a,y\n2,9,1,a,\n"
    )
    trace = read_trace(file, {"a": COMPUTE, "a@y": MEMORY})
    assert trace.curve.tolist() == [0, 1, 0]


def test_malformed_rows_are_counted_and_named(tmp_path):
    """A malformed row is dropped in silence, or ends the whole run."""
    file = tmp_path / "trace.csv"
    file.write_text(
        "submit_seconds,duration_seconds,gpus\n0,10,1\nx,10,1\n0,-1,1\n0,10,0\n0,nan,1\n0,10\n"
    )
    trace = read_trace(file, CURVES)
    assert len(trace) == 1
    assert sum(trace.skipped.values()) == 5
    assert trace.skipped["no duration"] == 1
    assert trace.skipped["submit_seconds is not a number"] == 1
    assert trace.skipped["gpus is missing"] == 1
    file.write_text("a,b\n1,2\n")
    with pytest.raises(FileError, match="submit_seconds"):
        read_trace(file, CURVES)
    file.write_text("submit_seconds,duration_seconds,gpus\nx,1,1\n")
    with pytest.raises(FileError, match="no usable row"):
        read_trace(file, CURVES)
