"""A powercap tree in a folder, as the kernel shows RAPL, whose counters a test sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

RANGE_MICROJOULES = 262_143_328_850


@dataclass(frozen=True, slots=True)
class PowercapTree:
    """Writes zones into ``root``, which stands for ``/sys/class/powercap``."""

    root: Path

    def zone(
        self,
        folder: str,
        name: str,
        microjoules: int = 0,
        range_microjoules: int = RANGE_MICROJOULES,
    ) -> Path:
        """Add a zone such as ``intel-rapl:0`` named ``package-0``; returns its counter file."""
        path = self.root / folder
        path.mkdir(parents=True)
        (path / "name").write_text(f"{name}\n", encoding="utf-8")
        (path / "max_energy_range_uj").write_text(f"{range_microjoules}\n", encoding="utf-8")
        counter = path / "energy_uj"
        counter.write_text(f"{microjoules}\n", encoding="utf-8")
        return counter

    def count(self, folder: str, microjoules: int) -> None:
        """Set a zone's counter."""
        (self.root / folder / "energy_uj").write_text(f"{microjoules}\n", encoding="utf-8")
