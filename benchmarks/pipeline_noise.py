"""Plans on noisy profiles, judged on the truth that the noise hides."""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.pipeline import PipelineConfig, plan_pipeline, profiles_from_rows

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from support.pipelines import replay

if TYPE_CHECKING:
    from joulery.frontier import OperatingPoint
    from joulery.pipeline import PipelinePlan, PipelineProblem, Profiles

CLOCKS = tuple(range(1410, 840, -15))
STAGES = (1.0, 1.05, 0.95, 1.15)
CONFIG = PipelineConfig(blocking_watts=80.0)
NOISES = (0.01, 0.03)
PACES = (1.0, 1.02, 1.08)
SEEDS, QUICK_SEEDS = 20, 4


@dataclass(frozen=True, slots=True)
class Truth:
    """The noise-free pipeline, and each instruction's figures by clock."""

    problem: PipelineProblem
    frontier: PipelinePlan
    by_clock: list[dict[float | None, OperatingPoint]]


def rows(noise: float, seed: int) -> list[dict[str, Any]]:
    """Four unequal stages of a device with a voltage floor, measured with noise."""
    draw = np.random.default_rng(seed)
    found = []
    for stage, size in enumerate(STAGES):
        for kind, work in (("forward", 0.05), ("backward", 0.1)):
            for clock in CLOCKS:
                seconds = size * work * (0.1 + 0.9 * 1410 / clock)
                volts = max(0.75, 0.75 + 0.3 * (clock - 1050) / 360)
                joules = seconds * (90 + 0.25 * clock * volts**2)
                time, energy = 1 + noise * draw.standard_normal(2)
                row = {"stage": stage, "instruction": kind, "frequency": clock}
                found.append(row | {"time": seconds * time, "energy": joules * energy})
    return found


def planned(profiles: Profiles) -> PipelinePlan:
    """1F1B with eight microbatches."""
    return plan_pipeline(profiles, microbatches=8, config=CONFIG)


def truth() -> Truth:
    """What the measurements would be without noise."""
    profiles = profiles_from_rows(rows(0.0, 0), smooth=False)
    frontier = planned(profiles)
    by_clock = [
        {p.setting.clock_hertz: p for p in profiles.points(item.stage, item.kind, len(STAGES))}
        for item in frontier.problem.instructions
    ]
    return Truth(frontier.problem, frontier, by_clock)


def excess(real: Truth, noise: float, seed: int, *, smooth: bool) -> list[float]:
    """How far plans on noisy profiles truly lie above the bound for the time they truly take."""
    profiles = profiles_from_rows(rows(noise, seed), smooth=smooth)
    believed = planned(profiles)
    found = []
    for pace in PACES:
        clocks = believed.at(believed.fastest_seconds * pace).clocks_hertz.tolist()
        points = [known[clock] for known, clock in zip(real.by_clock, clocks, strict=True)]
        run = replay(real.problem, [p.seconds for p in points], [p.joules for p in points])
        found.append(run.joules / real.frontier.bound_joules(run.seconds) - 1)
    return found


def noisy(*, quick: bool) -> list[dict[str, Any]]:
    """Smoothed and raw profiles side by side, for each noise."""
    real = truth()
    seeds = range(QUICK_SEEDS if quick else SEEDS)
    table = []
    for noise in NOISES:
        row: dict[str, Any] = {"case": f"{100 * noise:g} % noise", "noise": noise}
        for name, smooth in (("smoothed", True), ("raw", False)):
            found = [e for seed in seeds for e in excess(real, noise, seed, smooth=smooth)]
            row |= {f"{name}_mean": statistics.mean(found), f"{name}_worst": max(found)}
        table.append(row)
    return table
