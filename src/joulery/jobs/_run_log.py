"""Documents of runs of any kind, recurring or not: what ran where, on what, and what it used."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from joulery.documents import LARGEST, Count, JsonModel, Name, Quantity, Text
from joulery.frontier import Origin
from joulery.storage import RunRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.storage import Document

MOST_DEVICES = 64  # of a run (by hand: a process sees fewer)
MOST_POINTS = 240  # of a curve (by hand: more than a chart is wide)
MOST_CURVE_POINTS = 8000  # of all curves of a run (by hand: some 150 kB, below a body's limit)
_MOST_CURVES = 200  # by hand: three of each device
_MOST_TAGS = 50  # by hand

_INDEX = re.compile(r" \d+$")  # that tells devices of one model apart

_Origin = Literal["measured", "predicted", "simulated", "assumed"]


class RunDevice(JsonModel, frozen=True):
    """Energy of one device of a run.

    Attributes:
        name: Name of the device, unique within the run.
        joules: Joules that it used; null where unknown.
        peak_watts: Highest power; null where unknown.
        limit_watts: Power limit in force at the end; null for none.
        origin: Origin of the joules.
        relative_error: One sigma of the joules, relative; null where unknown.
    """

    name: Text
    joules: Quantity | None = None
    peak_watts: Quantity | None = None
    limit_watts: Quantity | None = None
    origin: _Origin = Origin.ASSUMED.value
    relative_error: Quantity | None = None


class RunCurve(JsonModel, frozen=True):
    """A figure over the time of a run.

    Attributes:
        quantity: Quantity: `watts`, `limit_watts`, `clock_hertz`, `steps_per_second` or `metric`.
        device: Device that it is of; empty for the whole run.
        points: Seconds since the start and the figure, in order.
    """

    quantity: Literal["watts", "limit_watts", "clock_hertz", "steps_per_second", "metric"]
    device: Text = ""
    points: Annotated[
        tuple[tuple[Quantity, Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]], ...],
        Meta(max_length=MOST_POINTS),
    ] = ()


class RunEntry(JsonModel, frozen=True):
    """A run of any kind, as its process last reported it.

    Attributes:
        key: Key chosen by the process, under which it reports again.
        name: Name for people.
        started_wall_seconds: Unix time of the start.
        seconds: Seconds until this report.
        joules: Joules of all devices until then; null where nothing measures them.
        ended: Whether the run has ended; it goes on until it says so.
        kind: Reporter: `run`, `measure`, `serving`, or `callback` of a framework.
        host: Machine that it ran on; of several, the first.
        origin: Origin of the joules.
        relative_error: One sigma of the joules, relative; null where unknown.
        steps: Number of training steps; 0 where there are none.
        setting: Setting that was held, in words, such as `165 W, batch size 128`.
        objective: Objective of the tuning, such as `least-energy:slowdown=5%`; empty for none.
        energy_saving: Share of the energy that tuning saves; null where unknown.
        slowdown: Extra time that the saving costs, as a share of the time; null where unknown.
        decision: Id of the decision of a recurring job that it ran; empty for none.
        part_of: Key of the run whose joules include those of this one; empty for none.
        devices: Devices of the run.
        tags: Texts by name, for people and for search.
        curves: Curves, thinned; empty in lists.
        id: Number of the run; ignored where it is sent.
        team: Team of the run; ignored where it is sent.
    """

    key: Name
    name: Text
    started_wall_seconds: Quantity
    seconds: Quantity
    joules: Quantity | None = None
    ended: bool = False
    kind: Text = "run"
    host: Text = ""
    origin: _Origin = Origin.ASSUMED.value
    relative_error: Quantity | None = None
    steps: Count = 0
    setting: Text = ""
    objective: Text = ""
    energy_saving: Annotated[float, Meta(ge=-LARGEST, le=1)] | None = None
    slowdown: Annotated[float, Meta(ge=-1, le=LARGEST)] | None = None
    decision: Text = ""
    part_of: Text = ""
    devices: Annotated[tuple[RunDevice, ...], Meta(max_length=MOST_DEVICES)] = ()
    tags: Annotated[dict[str, Text], Meta(max_length=_MOST_TAGS)] = field(default_factory=dict)
    curves: Annotated[tuple[RunCurve, ...], Meta(max_length=_MOST_CURVES)] = ()
    id: Count = 0
    team: Text = ""

    @property
    def mean_watts(self) -> float | None:
        """Mean power; None where the energy is unknown."""
        return self.joules / self.seconds if self.joules is not None and self.seconds else None

    @property
    def boards(self) -> str:
        """Boards in words, such as ``A100 × 4``."""
        return ", ".join(
            f"{name} × {count}" if count > 1 else name for name, count in self.device_counts.items()
        )

    @property
    def device_counts(self) -> dict[str, int]:
        """Number of devices by name of their model."""
        return dict(Counter(_INDEX.sub("", device.name) for device in self.devices))


# Fields that are columns of their own; all others are in the summary, whose values go before.
_COLUMNS = ("key", "name", "host", "kind", "started_wall_seconds", "seconds", "joules", "ended")


def run_record(run: RunEntry, team: str) -> RunRecord:
    """A run as it is stored, apart from its curves."""
    document = run.to_document()
    del document["curves"]
    columns = {name: document.pop(name) for name in _COLUMNS}
    del document["id"], document["team"]
    if run.part_of:  # sums add the column up, in which each joule is once
        document["joules"], columns["joules"] = run.joules, None
    tags = (f"{name}={value}" for name, value in run.tags.items())
    return RunRecord(
        team=team,
        searched="\n".join([run.name, run.host, run.boards, run.setting, *tags]),
        summary=document,
        decision_joules=run.joules if run.decision else None,
        **columns,
    )


def run_entry(record: RunRecord, curves: Sequence[Document] = ()) -> RunEntry:
    """A stored run as its team sees it."""
    columns: dict[str, Any] = {name: getattr(record, name) for name in _COLUMNS}
    document = columns | record.summary | {"id": record.id, "team": record.team}
    return RunEntry.from_document(document | {"curves": list(curves)})


def thinned(curves: Sequence[RunCurve]) -> tuple[RunCurve, ...]:
    """Curves with fewer points, evenly dropped, so that a run stays small."""
    most = max(2, min(MOST_POINTS, MOST_CURVE_POINTS // max(1, len(curves))))
    return tuple(
        msgspec.structs.replace(curve, points=_thinned(curve.points, most))
        for curve in curves[:_MOST_CURVES]
    )


def _thinned(points: tuple[tuple[float, float], ...], most: int) -> tuple[tuple[float, float], ...]:
    if len(points) <= most:
        return points
    last = len(points) - 1
    return tuple(points[round(last * number / (most - 1))] for number in range(most))
