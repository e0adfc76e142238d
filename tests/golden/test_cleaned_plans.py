"""Plans on smoothed profiles hold on the truth that noise hides: better than plans on raw ones."""

import numpy as np
import pytest

from joulery.pipeline import (
    PipelineConfig,
    PipelinePlan,
    build_problem,
    make_schedule,
    profiles_from_rows,
)
from support.pipelines import replay

_CLOCKS = tuple(range(1410, 840, -15))
_AROUND = PipelineConfig(blocking_watts=80.0)
_STAGES = (1.0, 1.05, 0.95, 1.15)


def _rows(noise, seed):
    """Four unequal stages of a device with a voltage floor, measured with noise."""
    draw = np.random.default_rng(seed)
    rows = []
    for stage, size in enumerate(_STAGES):
        for kind, work in (("forward", 0.05), ("backward", 0.1)):
            for clock in _CLOCKS:
                seconds = size * work * (0.1 + 0.9 * 1410 / clock)
                volts = max(0.75, 0.75 + 0.3 * (clock - 1050) / 360)
                joules = seconds * (90 + 0.25 * clock * volts**2)
                time, energy = 1 + noise * draw.standard_normal(2)
                rows.append(
                    {
                        "stage": stage,
                        "instruction": kind,
                        "frequency": clock,
                        "time": seconds * time,
                        "energy": joules * energy,
                    }
                )
    return rows


def _order():
    return make_schedule("1f1b", len(_STAGES), 8)


@pytest.fixture(scope="module")
def truth():
    """The noise-free problem, its frontier, and each instruction's figures by clock."""
    profiles = profiles_from_rows(_rows(0.0, 0), smooth=False)
    problem = build_problem(_order(), profiles, _AROUND)
    by_clock = [
        {p.setting.clock_hertz: p for p in profiles.points(item.stage, item.kind, len(_STAGES))}
        for item in problem.instructions
    ]
    return problem, PipelinePlan(problem), by_clock


def _on_truth(truth, noise, seed, pace, *, smooth):
    """How far a plan on noisy profiles lies above the truth's bound for the time it takes."""
    problem, frontier, by_clock = truth
    believed = PipelinePlan(
        build_problem(_order(), profiles_from_rows(_rows(noise, seed), smooth=smooth), _AROUND)
    )
    clocks = believed.at(believed.fastest_seconds * pace).clocks_hertz.tolist()
    real = [points[clock] for points, clock in zip(by_clock, clocks, strict=True)]
    run = replay(problem, [p.seconds for p in real], [p.joules for p in real])
    return run.joules / frontier.bound_joules(run.seconds) - 1, run


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.01, 0.03])
@pytest.mark.parametrize("pace", [1.02, 1.08])
def test_the_gain_holds_without_the_noise(truth, noise, pace):
    """A planner would pick clocks that noise makes look good, and lose what it promised."""
    regret = {
        smooth: np.array(
            [_on_truth(truth, noise, seed, pace, smooth=smooth)[0] for seed in range(10)]
        )
        for smooth in (True, False)
    }
    assert np.all(regret[True] > -1e-9)
    assert regret[True].mean() < 0.6 * regret[False].mean()
    assert np.mean(regret[True] < regret[False]) >= 0.9
