"""Keep profiles for later runs of the same job: one JSON file each, written atomically."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulery.errors import FileError
from joulery.power.choice import Known
from joulery.power.slices import Estimate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulery.power.choice import TuningChoice

SCHEMA = "joulery.profile/1"


@dataclass(frozen=True, slots=True)
class ProfileKey:
    """What makes two runs the same job to the tuner.

    Attributes:
        job: Its name.
        batch_size: Samples per step over all devices.
        device: Type of accelerator.
        software: Versions of driver and framework, in words.
        objective: What was asked for.
        devices: Number of accelerators.
    """

    job: str
    batch_size: int
    device: str
    software: str
    objective: str
    devices: int = 1

    @property
    def file_name(self) -> str:
        """Readable in front, unique behind."""
        text = json.dumps(asdict(self), sort_keys=True)
        words = "".join(c if c.isalnum() else "-" for c in f"{self.job}-{self.device}")[:60]
        return f"{words}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


@dataclass(frozen=True, slots=True)
class PowerProfile:
    """What an earlier run found, by knob value rather than position.

    Attributes:
        value: Knob value that was chosen.
        regret: What it left to gain.
        chosen: What to expect there.
        measured: Estimates by knob value.
    """

    value: float
    regret: float
    chosen: Estimate
    measured: dict[float, Estimate]

    def known(self, values: Sequence[float]) -> Known | None:
        """The profile on today's values; None when they no longer match."""
        places = {round(value, 3): position for position, value in enumerate(values)}
        wanted = [round(value, 3) for value in (self.value, *self.measured)]
        if any(value not in places for value in wanted):
            return None
        measured = {places[round(value, 3)]: seen for value, seen in self.measured.items()}
        if len(values) - 1 not in measured:
            return None  # what is in force today was not when it was made
        return Known(places[round(self.value, 3)], self.regret, self.chosen, measured)

    def among(self, values: Sequence[float]) -> PowerProfile | None:
        """The part about some of its values; None when the choice is not among them."""
        mine = {round(value, 3) for value in values}
        if round(self.value, 3) not in mine:
            return None
        measured = {value: seen for value, seen in self.measured.items() if round(value, 3) in mine}
        return replace(self, measured=measured)

    @classmethod
    def of(cls, settled: TuningChoice, value_at: Callable[[int], float]) -> PowerProfile:
        """What to remember of a settled machine."""
        measured = {value_at(position): seen for position, seen in settled.measured.items()}
        return cls(value_at(settled.position), settled.regret, settled.chosen, measured)


def profile_directory() -> Path:
    """Where profiles are kept: under ``XDG_DATA_HOME``, or ``~/.local/share``."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "joulery" / "profiles"


class ProfileStore:
    """Profiles in a folder; several processes may use it at once.

    Args:
        folder: Where; :func:`profile_directory` by default.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    @property
    def folder(self) -> Path:
        """Where the profiles are."""
        return self._folder or profile_directory()

    def load(self, key: ProfileKey) -> PowerProfile | None:
        """The profile of an earlier run; None when there is none.

        Raises:
            FileError: There is one, but it cannot be read.
        """
        path = self.folder / key.file_name
        try:
            return _parsed(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as broken:
            raise FileError(
                f"the profile {path} cannot be used: {broken!r}", remedy="delete it"
            ) from None

    def save(self, key: ProfileKey, profile: PowerProfile) -> Path:
        """Write a profile in one piece, or not at all.

        Raises:
            FileError: The folder cannot be written.
        """
        path = self.folder / key.file_name
        document = {"schema": SCHEMA, "key": asdict(key), **_document(profile)}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=self.folder, suffix=".part", delete=False, encoding="utf-8"
            ) as file:
                json.dump(document, file, indent=1, allow_nan=False)
            Path(file.name).replace(path)
        except (OSError, ValueError) as broken:
            raise FileError(
                f"the profile {path} cannot be written: {broken}",
                remedy="set XDG_DATA_HOME to a folder that you may write",
            ) from None
        return path


def _document(profile: PowerProfile) -> dict[str, Any]:
    return {
        "value": profile.value,
        "regret": profile.regret,
        "chosen": asdict(profile.chosen),
        "measured": [{"value": v, **asdict(seen)} for v, seen in profile.measured.items()],
    }


def _parsed(document: dict[str, Any]) -> PowerProfile:
    if document["schema"] != SCHEMA:
        raise ValueError(f"unknown format {document['schema']!r}")
    measured = {}
    for row in document["measured"]:
        value = float(row.pop("value"))
        measured[value] = Estimate(**row)
    chosen = Estimate(**document["chosen"])
    return PowerProfile(float(document["value"]), float(document["regret"]), chosen, measured)
