"""A power budget: one number, or a tree of caps from the cluster down to single nodes."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulery.documents import read_text
from joulery.errors import FileError, InvalidValueError, document_errors
from joulery.units import finite

_MEMBERS = {"name", "watts", "overhead_watts", "children"}


@dataclass(frozen=True, slots=True)
class Cap:
    """A part of the cluster and the most power that it may draw.

    Attributes:
        name: Name of the cluster, row, rack or node; jobs refer to it.
        watts: Most IT power of the part; infinite where there is no cap.
        parent: Name of the part that contains it; None for the whole cluster.
        overhead_watts: Power of hosts, switches and idle GPUs directly in this part, which jobs
            do not get.
    """

    name: str
    watts: float = math.inf
    parent: str | None = None
    overhead_watts: float = 0.0


@dataclass(frozen=True, slots=True)
class Budget:
    """Nested caps on IT power; the whole cluster first, every part after its parent."""

    caps: tuple[Cap, ...]

    def __post_init__(self) -> None:
        names: set[str] = set()
        for position, cap in enumerate(self.caps):
            finite(cap.overhead_watts, f"overhead of {cap.name}", minimum=0.0)
            if not cap.watts >= 0:
                raise InvalidValueError(
                    f"cap of {cap.name} is {cap.watts}", remedy="give watts of 0 or more"
                )
            if cap.name in names or (cap.parent is None) != (position == 0):
                raise InvalidValueError(
                    f"{cap.name!r} is there twice or is a second root",
                    remedy="name every part once, and give all but the first a parent",
                )
            if cap.parent is not None and cap.parent not in names:
                raise InvalidValueError(
                    f"parent {cap.parent!r} of {cap.name!r} does not come before it",
                    remedy="list every part after the part that contains it",
                )
            names.add(cap.name)
        if not self.caps:
            raise InvalidValueError("a budget needs at least one cap", remedy="give its watts")

    @classmethod
    def flat(cls, watts: float, overhead_watts: float = 0.0) -> Budget:
        """One cap for the whole cluster."""
        return cls((Cap("cluster", finite(watts, "budget in watts"), None, overhead_watts),))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all parts, the whole cluster first."""
        return tuple(cap.name for cap in self.caps)

    @classmethod
    def from_dict(cls, document: Any) -> Budget:
        """The tree in ``{"name", "watts", "overhead_watts", "children": […]}``."""
        caps: list[Cap] = []
        pending: list[tuple[Any, str | None]] = [(document, None)]
        while pending:
            entry, parent = pending.pop(0)
            remedy = 'write {"name": "rack-1", "watts": 20000, "children": […]}'
            with document_errors("not a part of a budget", remedy=remedy):
                if unknown := sorted(entry.keys() - _MEMBERS):
                    raise FileError(
                        f"a part of a budget has an unknown member {unknown[0]!r}",
                        remedy=f"use {', '.join(sorted(_MEMBERS))}",
                    )
                watts = math.inf if entry.get("watts") is None else float(entry["watts"])
                cap = Cap(str(entry["name"]), watts, parent, entry.get("overhead_watts", 0.0))
                pending += [(child, cap.name) for child in entry.get("children", ())]
            caps.append(cap)
        return cls(tuple(caps))


def read_budget(path: Path | str) -> Budget:
    """Read a budget tree from a JSON file."""
    text = read_text(Path(path), "budget")
    with document_errors(f"{path} holds no budget", remedy="give a JSON file"):
        document = json.loads(text)
    return Budget.from_dict(document)
