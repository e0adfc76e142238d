"""Journey: a job that alternates between generation and updates has a clock for each."""

import pytest

import joulery
from joulery.hardware import Workload, catalog, settle

BOUND = 0.05


def test_phases_keep_their_energy_and_a_clock_each(world):
    """Generation would run at the clock of updates, or energy would count for the wrong phase."""
    gpu, draw = world.virtual_board(), world.draw
    memory = Workload("decode", draw.uniform(0.2, 0.4), 1.0, 0.05, activity=0.4)
    kinds = {"rollout": memory, "update": catalog.workload("compute-bound", gpu.board)}
    highest = gpu.board.default_limit_watts
    work = {
        name: kind.scaled(draw.uniform(2.0, 6.0) / settle(gpu.board, kind, highest).seconds)
        for name, kind in kinds.items()
    }
    used = dict.fromkeys(work, 0.0)
    with joulery.Run("grpo", objective=joulery.LeastEnergy(BOUND), devices=[gpu]) as run:
        for _ in range(160):
            for name, kind in work.items():
                before = gpu.true_joules()
                with run.phase(name):
                    gpu.run(kind.scaled(draw.gauss(1.0, 0.01)))
                used[name] += gpu.true_joules() - before
        phases = run.phases
    assert {name: use.joules for name, use in phases.items()} == pytest.approx(used, rel=0.03)
    assert all(use.visits == 160 for use in phases.values())
    full = [settle(gpu.board, work[name], highest) for name in work]
    held = [
        settle(gpu.board, work[name], highest, phases[name].result.chosen.setting.clock_hertz)
        for name in work
    ]
    seconds = [sum(steady.seconds for steady in steadies) for steadies in (full, held)]
    joules = [sum(s.seconds * s.watts for s in steadies) for steadies in (full, held)]
    assert seconds[1] <= (1 + BOUND + 0.005) * seconds[0]
    assert joules[1] < 0.97 * joules[0]
    gpu.set_load(work["update"])
    assert gpu.steady().clock_hertz == full[1].clock_hertz, "no lock stays"
