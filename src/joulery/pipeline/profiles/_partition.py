"""Profiles of stages with other numbers of layers: partitions that were not profiled.

Layers are taken to be equal. One costs what it costs in the stage that needs the least per layer;
what another stage needs beyond that is its embedding or head, which stays with it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import InvalidValueError
from joulery.pipeline._instructions import BACKWARD, FORWARD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.frontier import OperatingPoint
    from joulery.pipeline.profiles._read import Profiles


def balanced_layers(profiles: Profiles, layers: Sequence[int]) -> tuple[int, ...]:
    """The numbers of layers that make the slowest stage as fast as possible at full clocks.

    Of stages that would take equally long the later one gets the layer: it holds fewer
    activations.

    Args:
        profiles: Stages as profiled.
        layers: Number of layers of each profiled stage.
    """
    _check(profiles, layers)
    reference = _reference(profiles, layers)
    layer = _seconds(profiles, reference) / layers[reference]
    fixed = [_seconds(profiles, stage) - count * layer for stage, count in enumerate(layers)]
    counts = [1] * len(layers)
    for _ in range(sum(layers) - len(layers)):
        after = [fixed[stage] + (count + 1) * layer for stage, count in enumerate(counts)]
        # Rounded, so that equal stages are equal.
        stage = min(range(len(counts)), key=lambda s: (round(after[s] / layer, 6), -s))
        counts[stage] += 1
    return tuple(counts)


def repartitioned(profiles: Profiles, layers: Sequence[int], wanted: Sequence[int]) -> Profiles:
    """The profiles of stages with ``wanted`` layers instead of ``layers``."""
    _check(profiles, layers)
    _check(profiles, wanted)
    if sum(layers) != sum(wanted):
        raise InvalidValueError(
            f"the profile has {sum(layers)} layers, the partition {sum(wanted)}",
            remedy="give every layer to one stage",
        )
    reference = _reference(profiles, layers)
    changed = {}
    for (stage, kind), found in profiles.instructions.items():
        one = profiles.instructions.get((reference, kind))
        more = wanted[stage] - layers[stage]
        points = found.points
        if more and one is not None:
            points = _with_layers(points, one.points, more / layers[reference])
        changed[stage, kind] = replace(found, points=points)
    sizes = tuple(new / old for new, old in zip(wanted, layers, strict=True))
    held = zip(profiles.activation_bytes, sizes, strict=False)
    return replace(
        profiles,
        instructions=changed,
        sizes=sizes,
        activation_bytes=tuple(size * share for size, share in held),
    )


def _check(profiles: Profiles, layers: Sequence[int]) -> None:
    if len(layers) != profiles.stages or min(layers) < 1:
        raise InvalidValueError(
            f"{len(layers)} numbers of layers for {profiles.stages} stages, or a stage without any",
            remedy="give one positive number per stage of the profile",
        )


def _seconds(profiles: Profiles, stage: int) -> float:
    """Time of forward and backward at the highest clock."""
    return sum(
        profiles.points(stage, kind, profiles.stages)[0].seconds for kind in (FORWARD, BACKWARD)
    )


def _reference(profiles: Profiles, layers: Sequence[int]) -> int:
    return min(range(len(layers)), key=lambda stage: _seconds(profiles, stage) / layers[stage])


def _with_layers(
    points: Sequence[OperatingPoint], reference: Sequence[OperatingPoint], share: float
) -> tuple[OperatingPoint, ...]:
    """The points with ``share`` of the reference's work more (or less), clock by clock."""
    clocks = [point.setting.clock_hertz or 0.0 for point in reversed(reference)]
    seconds = [point.seconds for point in reversed(reference)]
    joules = [point.joules for point in reversed(reference)]
    found = []
    for point in points:
        clock = point.setting.clock_hertz or 0.0
        time = point.seconds + share * float(np.interp(clock, clocks, seconds))
        energy = point.joules + share * float(np.interp(clock, clocks, joules))
        if time <= 0 or energy <= 0:
            raise InvalidValueError(
                "a stage would take no time without its layers",
                remedy="check the number of layers of each stage",
            )
        found.append(replace(point, seconds=time, joules=energy))
    return tuple(found)
