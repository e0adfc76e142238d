"""The page of a run: how it stands, its devices over time, and its energy."""

import dataclasses
import math

import pytest
from msgspec import structs

from joulery.jobs import (
    Decision,
    DecisionEntry,
    Definition,
    EnergyEntry,
    JobEntry,
    LiveDevice,
    LiveState,
    Measured,
    Outcome,
    RunHistory,
    RunProgress,
)
from joulery.jobs.policies import ActionKind, RunEnd
from joulery.objectives import Cost
from joulery.reports import run_report as report_of
from joulery.testing.workloads import made_up_workload

PAUSED = False
SPECIFICATION = structs.replace(made_up_workload().job(), cost=Cost(0.5, 300.0))
JOB = JobEntry(1, "vision", 1, None, "", PAUSED, Definition(SPECIFICATION, "A100"), 0.0, 9, 9)
DECISION = Decision("1.1", 0, ActionKind.TRAIN, 64, 250.0, (), math.inf, "it is best", 0.0)
OUTCOME = Outcome(RunEnd.REACHED, 10.0, 80.0, 1500.0, 250.0, (Measured(250.0, 5.0, 100.0, 0.01),))
ENDED = DecisionEntry(DECISION, 1, "key", "reported", None, OUTCOME)
OPEN = structs.replace(ENDED, outcome=None, state="open", heartbeat_wall_seconds=990.0)


def live(count=1, phases=("profiling 200 W", "profiling 200 W", "holding 160 W"), processes=1):
    """Heartbeats twelve seconds apart."""
    beats = []
    for number, phase in enumerate(phases, 1):
        devices = tuple(
            LiveDevice(f"gpu {at}", 150.0 + at, 1.2e9 + 1e7 * number, 160.0) for at in range(count)
        )
        state = LiveState(12.0 * number, phase, 2.5 * number, devices, processes)
        beats.append(RunProgress(12.0 * number, 1800.0 * number, 0.0, 990.0 + number, state))
    return beats


def run_report(entry, beats, energy=()):
    """The report of a run at a fixed time."""
    return report_of(RunHistory(JOB, entry, tuple(beats), tuple(energy)), 1000.0)


def charts(report):
    """Charts by title, each with its series by name."""
    return {chart.title: {one.name: one for one in chart.series} for chart in report.charts}


def test_a_run_shows_its_power_and_how_near_its_ceiling_is():
    """If this fails, a run under way cannot be followed."""
    decision = structs.replace(DECISION, cost_ceiling_joules=1e5)
    entry = structs.replace(OPEN, decision=decision)
    beats = [RunProgress(60.0, 6000.0, 1.0), RunProgress(120.0, 15_000.0, 2.0)]
    report = run_report(entry, beats, ())
    text = report.body()
    assert "last heartbeat 10 s ago" in text
    assert "mean power 125 W" in text
    assert "26 % of 100 kJ" in text
    assert charts(report)["Power of all devices"][""].points == ((30.0, 100.0), (90.0, 150.0))
    assert "at most a minute apart" in text


def test_a_run_in_quarantine_says_why_and_shows_the_limit_that_it_held():
    """If this fails, the page of a run contradicts the list of runs."""
    decision = structs.replace(DECISION, power_limit_watts=175.0)
    why = "ten times the energy of its like"
    entry = structs.replace(ENDED, decision=decision, quarantined=True, quarantine_reason=why)
    text = run_report(entry, ()).body()
    assert "power limit 250 W, advised 175 W" in text
    assert f"nothing is learned from it: {why}." in text
    assert "advised" not in run_report(ENDED, ()).body()


def test_energy_by_device_has_its_error_and_origin():
    """If this fails, a figure looks surer than it is."""
    energy = (EnergyEntry("1.1", "GPU-0", 80.0, 1500.0, "measured", "NVML", 0.05),)
    text = run_report(ENDED, (), energy).body()
    assert "measured (NVML)" in text
    assert "1.50 ± 0.07 kJ" in text
    assert "Limits measured on the way" in text


def test_devices_are_drawn_with_limits_clocks_and_steps():
    """If this fails, people cannot see what tuning does to a run."""
    report = run_report(OPEN, live(2), ())
    drawn = charts(report)
    assert set(drawn["Power by device"]) == {"gpu 0", "gpu 1", "power limit"}
    assert drawn["Power by device"]["power limit"].line == "dashed"
    assert drawn["Core clock by device"]["gpu 1"].points[-1] == (36.0, 1.23e9)
    assert drawn["Training steps"][""].points[-1] == (36.0, 7.5)
    assert "Power of all devices" not in drawn
    text = report.body()
    assert "last heartbeat 7 s ago" in text
    assert "301 W" in text
    assert "holding 160 W, 7.5 steps a second" in text
    assert "rank 0" not in text


def test_phases_have_their_time_and_means():
    """If this fails, nobody learns what profiling cost."""
    report = run_report(OPEN, live(), ())
    (table,) = [block for block in report.blocks if getattr(block, "headers", [""])[0] == "phase"]
    assert table.rows == [
        ["holding 160 W", "24.0 s", "12.0 s", "150 W", "7.5"],
        ["profiling 200 W", "0 s", "24.0 s", "150 W", "3.75"],
    ]


def test_many_devices_become_a_band():
    """If this fails, a page of a whole machine is a tangle of lines."""
    drawn = charts(run_report(OPEN, live(16), ()))["Power by device"]
    assert set(drawn) == {"highest of 16", "mean of 16", "lowest of 16", "power limit"}
    assert drawn["highest of 16"].points[0][1] == 165.0


def test_different_limits_have_a_line_each():
    """If this fails, a board that was capped by others does not show."""
    beats = live(2)
    for at, beat in enumerate(beats):
        first, second = beat.live.devices
        capped = (first, structs.replace(second, limit_watts=120.0))
        beats[at] = dataclasses.replace(beat, live=structs.replace(beat.live, devices=capped))
    report = run_report(OPEN, beats, ())
    dashed = [one for one in report.charts[0].series if one.line == "dashed"]
    assert [(one.name, one.points[0][1]) for one in dashed] == [
        ("power limits", 160.0),
        ("", 120.0),
    ]


def test_of_several_processes_the_page_says_whose_view_it_is():
    """If this fails, the power of one process passes for that of all."""
    report = run_report(OPEN, live(processes=4), ())
    assert "4 processes train together" in report.body()
    assert "Power of all devices" in charts(report)


@pytest.mark.parametrize("phases", [(), ("",)])
def test_little_is_known_at_the_beginning(phases):
    """If this fails, the page of a run that has just begun is an error."""
    text = run_report(OPEN, live(phases=phases), ()).body()
    assert "under way" in text
    unknown = [
        RunProgress(0.0, 0.0, 0.0, 990.0, LiveState(0.0, "x", None, (LiveDevice("gpu"),)))
    ] * 3
    assert "–" in run_report(OPEN, unknown, ()).body()


def test_what_was_live_stays_after_the_end():
    """If this fails, a run that has ended loses its curves."""
    report = run_report(ENDED, live(), ())
    assert "Core clock by device" in charts(report)
    assert "Devices now" not in report.body()
