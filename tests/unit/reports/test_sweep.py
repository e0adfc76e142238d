"""Sweeps as charts."""

from joulery.clock import VirtualClock
from joulery.hardware import SimulatedNode, preset
from joulery.hardware.simulated._physics import settle
from joulery.reports._sweep import sweep_charts
from joulery.sweep import FinishedRun, SweepTable


def test_charts_mark_the_best_and_leave_room():
    """A star would sit on the wrong limit, or outside of the frame."""
    node = SimulatedNode(preset("rtx6000x8"), VirtualClock())

    def seconds(gpus, watts):
        return settle(node.gpus[0].board, node.preset.work_on(gpus), watts).seconds

    runs = [
        FinishedRun(n, gpus, watts, 0, seconds(gpus, watts) + n, 50 * watts + n)
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
