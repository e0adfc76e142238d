"""What each device of an attempt used, on all ranks."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.frontier import Provenance
    from joulery.metering.measurement import Measurement
    from joulery.training.environment import Ranks


class DeviceUse(NamedTuple):
    """What one device used.

    Attributes:
        id: Of the device.
        name: Its kind.
        seconds: How long.
        joules: How much.
        provenance: Where the figure comes from.
    """

    id: str
    name: str
    seconds: float
    joules: float
    provenance: Provenance


def used_by(measured: Measurement) -> tuple[DeviceUse, ...]:
    """What each device used, each joule once; those that used or tell nothing are left out."""
    return tuple(
        DeviceUse(one.info.id, one.info.name, measured.seconds, one.joules, one.provenance)
        for one in measured.counted
        if math.isfinite(one.joules) and one.joules > 0
    )


def used_together(mine: Sequence[DeviceUse], ranks: Ranks | None) -> tuple[DeviceUse, ...]:
    """What the devices of all ranks used, each under a name of its own. Every rank has to ask."""
    if ranks is None:
        return tuple(mine)
    each = ranks.gather(tuple(mine))
    often = Counter(one.id for uses in each for one in uses)
    # Other machines may count their devices alike.
    return tuple(
        one if often[one.id] == 1 else one._replace(id=f"{one.id} of rank {rank}")
        for rank, uses in enumerate(each)
        for one in uses
    )
