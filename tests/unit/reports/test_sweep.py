"""Sweeps as charts and tables."""

import re

from joulery.reports import sweep_report
from joulery.reports._sweep import sweep_charts
from joulery.sweep import FinishedRun, SweepTable


def test_charts_mark_the_best_and_leave_room():
    """A star would sit on the wrong limit, or outside of the frame."""
    runs = [
        FinishedRun(n, gpus, watts, 0, 800 / gpus * (260 / watts) ** 0.3 + n, 50 * watts + n)
        for gpus in (1, 8)
        for watts in (150.0, 200.0, 260.0)
        for n in (0, 1)
    ]
    drawn = sweep_charts(SweepTable.of(runs, 260.0, "RTX6000"))
    assert [len(chart.series) for chart in drawn] == [4, 2, 2, 4, 4, 2]
    energy, star = drawn[0].series[2:]
    assert energy.name == "8 GPUs"
    assert (star.symbol, star.points[0][0], star.labels) == ("star", 150.0, ("150 W",))
    assert all(error > 0 for error in energy.errors)
    assert drawn[-1].x_scale(9).ticks == (1.0, 8.0)
    for chart in drawn:
        for line in chart.series:
            assert all(0 < chart.x_scale(9).share(x) < 1 for x, _ in line.points)
            assert all(0 < chart.y_scale(6).share(y) < 1 for _, y in line.points)


def test_energies_have_the_digits_of_their_gains():
    """A reader who checks 8.02 % by the energies beside it gets another figure."""
    runs = [FinishedRun(0, 1, 300.0, 0, 10.3, 4872.4), FinishedRun(0, 1, 260.0, 0, 11.1, 4481.8)]
    text = sweep_report(SweepTable.of(runs, 300.0, "A40"), "a sweep").markdown()
    default, limited = (
        float(re.search(rf"{watts} W.*? ([0-9.]+) kJ", text)[1]) for watts in (300, 260)
    )
    assert f"{100 * (1 - limited / default):.2f} %" in text


def test_single_runs_are_said_to_have_no_spread():
    """An empty column reads as no error at all."""
    runs = [FinishedRun(n, 1, w, 0, 10.0 + n, 4e3 + n) for w in (260.0, 300.0) for n in (0, 1)]
    single = sweep_report(SweepTable.of(runs[::2], 300.0, "A40"), "a sweep").markdown()
    assert "--repeat 3" in single
    assert "sd" not in single
    several = sweep_report(SweepTable.of(runs, 300.0, "A40"), "a sweep").markdown()
    assert "--repeat" not in several
    assert "± sd" in several


def test_gains_have_no_more_digits_than_their_errors_bear():
    """Somebody takes the decimals of -129.27 % for known beside deviations of 20 %."""
    noise = (0.8, 1.0, 1.25)
    runs = [
        FinishedRun(n, 1, watts, 0, 10.0 * noise[n], 4e3 * noise[n] * 1.3 ** (watts < 300))
        for watts in (260.0, 300.0)
        for n in range(3)
    ]
    text = sweep_report(SweepTable.of(runs, 300.0, "A40"), "a sweep").markdown()
    assert "| -30 % |" in text
    assert "| 22 % |" in text
    assert not re.search(r"\d\.\d+ %", text)
