"""Journey: boards of one model differ, and no rank of a job draws power to wait for another."""

from dataclasses import replace
from statistics import mode

import pytest

import joulery
from joulery.clock import VirtualClock
from joulery.hardware import SimulatedGpu, catalog, settle
from support.thread_ranks import ThreadRanks, together

BOUND, STEPS, RANKS = 0.05, 1600, 3


def test_ranks_with_better_boards_get_lower_limits(world, monkeypatch):
    """The job would run at the pace of its worst board with the power of its best."""
    for name in ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    board, draw = catalog.board("A100"), world.draw
    power = [1.08, draw.uniform(0.98, 1.02), 0.92]
    boards = [
        replace(board, clock_watts=board.clock_watts * by, dynamic_watts=board.dynamic_watts * by)
        for by in power
    ]
    kind = catalog.workload("compute-bound", board)
    work = kind.scaled(0.1 / settle(boards[0], kind, board.default_limit_watts).seconds)
    noises = [draw.gauss(1.0, 0.004) for _ in range(STEPS)]
    ranks, held, results = ThreadRanks(RANKS), {}, {}

    def train(rank):
        gpu = SimulatedGpu(boards[rank], VirtualClock(), index=rank, seed=rank)
        gpu.set_load(work)
        group, steps = ranks.of(rank), ranks.of(rank)
        run = joulery.Run(
            devices=[gpu],
            process_group=group,
            objective=joulery.LeastEnergy(BOUND),
            knob="limit",
        )
        limits = []
        with run:
            for noise in noises:
                slowest = max(steps.all_gather(gpu.steady().seconds))
                gpu.clock.sleep(slowest * noise)
                run.step()
                limits.append(gpu.power_limits().current_watts)
            results[rank] = run.result
        held[rank] = mode(limits[-STEPS // 3 :])  # the original one is measured from time to time
        assert gpu.power_limits().current_watts == board.default_limit_watts

    together(train, RANKS)
    assert held[0] > held[2] * 1.05, held
    full = [settle(boards[rank], work, board.default_limit_watts) for rank in range(RANKS)]
    tuned = [settle(boards[rank], work, held[rank]) for rank in range(RANKS)]
    seconds = [max(point.seconds for point in points) for points in (full, tuned)]
    assert seconds[1] <= (1 + BOUND + 0.003) * seconds[0]
    # One limit for all that takes as long: that of the worst board.
    alike = [settle(boards[rank], work, max(held.values())) for rank in range(RANKS)]
    joules = [sum(point.watts for point in points) for points in (alike, tuned)]
    assert joules[1] < 0.98 * joules[0]
    assert len({result.shares for result in results.values()}) == 1
    assert min(results[0].shares) == pytest.approx(held[2] / held[0], rel=0.02)
    assert "by rank" in str(results[0])
