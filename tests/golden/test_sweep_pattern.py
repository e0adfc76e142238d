"""The simulated node still shows what it was fitted to: the sweep of Koszczał et al.

These tests guard the fit; they are no evidence for the model beyond it.

G. Koszczał, J. Dobrosolski, M. Matuszek, P. Czarnul: Performance and Energy Aware Training of a
Deep Neural Network in a Multi-GPU Environment with Power Capping. Euro-Par 2023 workshops, Table 1,
Fig. 7 and §5.
"""

from dataclasses import replace

import pytest

from joulery.clock import VirtualClock
from joulery.hardware import SimulatedNode, preset
from joulery.sweep import (
    Metric,
    SimulatedWork,
    SweepEnvironment,
    SweepJournal,
    SweepPlan,
    SweepTable,
    run_sweep,
)

NAME = "rtx6000x8"
LIMITS = tuple(260.0 - 10 * n for n in range(17))
# Table 1: best limit by each metric with eight boards, and its gain over the default in per cent.
TABLE_1 = (
    (Metric.ENERGY, 160.0, 25.39),
    (Metric.DIFFERENCE, 170.0, 15.03),
    (Metric.EDP, 170.0, 17.32),
    (Metric.EDS_1_5, 200.0, 2.26),
    (Metric.EDS_2_0, 170.0, 7.52),
)
# Fig. 7. Its 477.0 s belong to 170 W: the text states speed-ups from one board to eight of 4.95 at
# 260 W (85.6 s) and 5.1 at 170 W (93.6 s), and 477.0 / 93.6 = 5.1.
FIGURE_7 = (
    (8, 260.0, 85.6),
    (8, 170.0, 93.6),
    (2, 260.0, 228.0),
    (2, 170.0, 256.0),
    (1, 170.0, 477.0),
)


def without_noise(chosen):
    """The preset with runs that all take the same time."""
    return replace(chosen, noise=0.0)


def swept(folder, node, counts, repeats):
    """The table of a sweep over the paper's limits."""
    boards = tuple(gpu.info.id for gpu in node.gpus)
    plan = SweepPlan(("job",), boards, LIMITS, counts, repeats, 260.0)
    bench = SweepEnvironment(node.gpus, (*node.gpus, node), node.clock, 0.01)
    with SweepJournal.open(folder, plan) as journal:
        run_sweep(plan, bench, SimulatedWork(node), journal)
        return SweepTable.of(journal.runs, 260.0, "RTX6000")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Every setting of the paper once, without noise."""
    node = SimulatedNode(without_noise(preset(NAME)), VirtualClock())
    return swept(tmp_path_factory.mktemp("sweep"), node, (1, 2, 4, 8), 1)


@pytest.mark.parametrize(("metric", "watts", "gain"), TABLE_1)
def test_table_1(table, metric, watts, gain):
    """The preset no longer stands for the published node."""
    ours = table.best_by(8, metric)
    assert ours.watts == watts
    assert ours.gain == pytest.approx(gain, abs=0.5)


def test_savings_grow_with_the_boards_in_use(table):
    """Idle boards and the host would not weigh on the node as they do.

    With 2 and 4 boards it saves 9 and 16 % where 5.5 and 11.5 % are published. The wide bounds
    there admit this known misfit; they only keep it from growing.
    """
    gains = [table.best_by(gpus, Metric.ENERGY).gain for gpus in (1, 2, 4, 8)]
    assert gains == sorted(gains)
    assert gains[0] == pytest.approx(3.0, abs=0.5)
    assert gains[1] == pytest.approx(5.5, abs=4.0)
    assert gains[2] == pytest.approx(11.5, abs=5.5)
    assert gains[3] == pytest.approx(25.39, abs=0.5)


@pytest.mark.parametrize(("gpus", "watts", "seconds"), FIGURE_7)
def test_figure_7(table, gpus, watts, seconds):
    """Times would not scale with boards and limits as published."""
    ours = next(s for s in table.of_count(gpus) if s.watts == watts)
    assert ours.point.seconds == pytest.approx(seconds, rel=0.02)


@pytest.mark.parametrize(("watts", "speed_up"), [(260.0, 4.95), (170.0, 5.1)])
def test_speed_up_from_one_board_to_eight(table, watts, speed_up):
    """The serial part or the communication would be off."""
    one, eight = (
        next(s for s in table.of_count(gpus) if s.watts == watts).point.seconds for gpus in (1, 8)
    )
    assert one / eight == pytest.approx(speed_up, rel=0.02)


def test_few_boards_gain_little_but_energy(table):
    """The paper finds no notable gain of EDP or EDS with 1 and 2 boards."""
    for gpus in (1, 2):
        for metric in (Metric.DIFFERENCE, Metric.EDP, Metric.EDS_1_5, Metric.EDS_2_0):
            assert table.best_by(gpus, metric).gain < 1.5


@pytest.mark.parametrize("seed", range(3))
def test_the_pattern_survives_noise(tmp_path, seed):
    """The best limits would be an accident of one seed."""
    node = SimulatedNode(preset(NAME), VirtualClock(), seed=seed)
    table = swept(tmp_path, node, (8,), 10)
    for metric, watts, gain in TABLE_1:
        # The paper finds EDS (k = 1.5) as good from 170 to 210 W, and so do we.
        slack = 10.0 if metric is Metric.EDS_1_5 else 0.0
        ours = table.best_by(8, metric)
        assert abs(ours.watts - watts) <= slack
        assert ours.gain == pytest.approx(gain, abs=0.5)
    assert all(0 < setting.seconds_sd < 0.005 * setting.point.seconds for setting in table.settings)
