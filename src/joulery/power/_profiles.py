"""Profiles that later runs of the same job start from: one JSON file each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from joulery.errors import FileError, InvalidValueError
from joulery.files import data_folder, write_atomic
from joulery.power._state_machine import TuningChoice
from joulery.power._step_profiler import Estimate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SCHEMA = "joulery.profile/1"


@dataclass(frozen=True, slots=True)
class PowerProfile:
    """The choice of an earlier run: a ``TuningChoice`` by knob value instead of position."""

    value: float
    regret: float
    chosen: Estimate
    measured: dict[float, Estimate]

    def choice_on(self, values: Sequence[float]) -> TuningChoice | None:
        """The choice on today's values of a knob; None if it or the reference is not among them."""
        positions = {round(value, 3): position for position, value in enumerate(values)}
        position = positions.get(round(self.value, 3))
        measured = {
            positions[round(value, 3)]: estimate
            for value, estimate in self.measured.items()
            if round(value, 3) in positions
        }
        # What is in force today, the last value, must have been when the profile was made.
        if position is None or len(values) - 1 not in measured:
            return None
        return TuningChoice(position, self.regret, self.chosen, measured)

    def to_document(self) -> dict[str, Any]:
        """The profile as a JSON document."""
        return {
            "schema": SCHEMA,
            "value": self.value,
            "regret": self.regret,
            "chosen": asdict(self.chosen),
            "measured": [{"value": v, **asdict(estimate)} for v, estimate in self.measured.items()],
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> PowerProfile:
        """The profile of a JSON document.

        Raises:
            FileError: It is none.
        """
        if not isinstance(document, Mapping):
            raise FileError(f"no profile: {document!r}", remedy="delete it")
        if (schema := document.get("schema")) != SCHEMA:
            raise FileError(f"unknown format {schema!r}", remedy="delete it")
        try:
            rows = [dict(row) for row in document["measured"]]
            measured = {float(row.pop("value")): Estimate(**row) for row in rows}
            choice = Estimate(**document["chosen"])
            return cls(float(document["value"]), float(document["regret"]), choice, measured)
        except (ValueError, KeyError, TypeError) as broken:
            raise FileError(f"no profile: {broken!r}", remedy="delete it") from None

    @classmethod
    def of(cls, choice: TuningChoice, values: Sequence[float]) -> PowerProfile:
        """The profile of a choice among the values of a knob."""
        measured = {values[position]: estimate for position, estimate in choice.measured.items()}
        return cls(values[choice.position], choice.regret, choice.chosen, measured)


@dataclass(frozen=True, slots=True)
class ProfileFile:
    """The file of a job's profile in the user's data folder; equal runs share it.

    Attributes:
        job: Name of the job.
        batch_size: Samples per step over all devices.
        device: Type of accelerator.
        software: Versions of driver and framework, as text.
        objective: Objective, as text.
        devices: Number of accelerators.

    Raises:
        InvalidValueError: A value is neither text nor a number, as above.
    """

    job: str
    batch_size: int
    device: str
    software: str
    objective: str
    devices: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            value, kind = getattr(self, field.name), int if field.type == "int" else str
            if not isinstance(value, kind):
                noun = "text" if kind is str else "a whole number"
                raise InvalidValueError(
                    f"{field.name}={value!r} is not {noun}",
                    remedy="see joulery.power.ProfileFile for what each value is",
                )

    @property
    def path(self) -> Path:
        """The path of the file: its name is readable at the beginning, unique at the end."""
        text = json.dumps(asdict(self), sort_keys=True)
        words = "".join(c if c.isalnum() else "-" for c in f"{self.job}-{self.device}")[:60]
        name = f"{words}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
        return data_folder() / "profiles" / name

    def load(self) -> PowerProfile | None:
        """The profile of an earlier run; None when there is none.

        Raises:
            FileError: There is one, but it cannot be read.
        """
        try:
            return PowerProfile.from_document(json.loads(self.path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, FileError) as broken:
            raise FileError(
                f"the profile {self.path} cannot be used: {broken!r}", remedy="delete it"
            ) from None

    def save(self, profile: PowerProfile) -> None:
        """Write a profile in one piece, or not at all.

        Raises:
            FileError: The folder cannot be written.
        """
        path = self.path
        document = {"key": asdict(self), **profile.to_document()}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, json.dumps(document, indent=1, allow_nan=False).encode())
        except (OSError, ValueError) as broken:
            raise FileError(
                f"the profile {path} cannot be written: {broken}",
                remedy="set XDG_DATA_HOME to a folder that you may write",
            ) from None
