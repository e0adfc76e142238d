"""Profiles and energy of jobs, as JSON documents and back, and as they are stored."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from joulery.errors import FileError, InvalidValueError, UnknownRecordError
from joulery.frontier import Frontier, Origin
from joulery.jobs.models import decision_id, parse_decision_id
from joulery.jobs.wire_members import (
    checked,
    member,
    number,
    number_or_none,
    shown,
    text,
    text_or_none,
    whole,
)
from joulery.jobs.wire_specification import LARGEST_BATCH_SIZE
from joulery.storage.records import EnergyRecord, ProfileRecord

if TYPE_CHECKING:
    from joulery.jobs.wire_members import Document


@dataclass(frozen=True, slots=True)
class ProfileEntry:
    """The frontier of one batch size on one kind of device.

    Attributes:
        batch_size: That was measured.
        device: That it was measured on.
        frontier: For an epoch.
        wall_seconds: When it was kept; None before.
    """

    batch_size: int
    device: str
    frontier: Frontier
    wall_seconds: float | None = None

    @classmethod
    def of(cls, record: ProfileRecord) -> ProfileEntry:
        """A stored profile."""
        frontier = Frontier.from_dict(record.frontier)
        return cls(record.batch_size, record.device, frontier, record.wall_seconds)

    def record(self, job: int, wall_seconds: float) -> ProfileRecord:
        """As it is stored at that moment."""
        frontier = self.frontier.to_dict()
        return ProfileRecord(job, self.batch_size, self.device, frontier, wall_seconds)


def profile_document(profile: ProfileEntry) -> Document:
    """A profile to be kept, or one that was."""
    return {
        "batch_size": profile.batch_size,
        "device": profile.device,
        "frontier": profile.frontier.to_dict(),
        "wall_seconds": profile.wall_seconds,
    }


def profile_from(document: Any) -> ProfileEntry:
    """What :func:`profile_document` was given."""
    checked(document, "a profile", ("batch_size", "device", "frontier", "wall_seconds"))
    try:
        frontier = Frontier.from_dict(member(document, "frontier"))
    except FileError as error:
        raise InvalidValueError(error.message, remedy=error.remedy) from None
    return ProfileEntry(
        whole(document, "batch_size", 1, LARGEST_BATCH_SIZE),
        text(document, "device"),
        frontier,
        number_or_none(document, "wall_seconds"),
    )


@dataclass(frozen=True, slots=True)
class EnergyEntry:
    """Energy that a job used.

    Attributes:
        decision: That it was used under, if any.
        device: That used it.
        seconds: How long.
        joules: How much.
        origin: How the figure came about, as :class:`joulery.frontier.Origin` names it.
        source: Of the figure, in words.
        wall_seconds: When it was kept; None before.
    """

    decision: str | None
    device: str
    seconds: float
    joules: float
    origin: str = "assumed"
    source: str = ""
    wall_seconds: float | None = None

    @classmethod
    def of(cls, record: EnergyRecord) -> EnergyEntry:
        """Stored energy."""
        number = record.decision
        return cls(
            None if number is None else decision_id(record.job, number),
            record.device,
            record.seconds,
            record.joules,
            record.provenance.get("origin", "assumed"),
            record.provenance.get("source", ""),
            record.wall_seconds,
        )

    def record(self, job: int, wall_seconds: float) -> EnergyRecord:
        """As it is stored at that moment.

        Raises:
            UnknownRecordError: It names a decision of another job.
        """
        decision = None
        if self.decision is not None:
            owner, decision = parse_decision_id(self.decision)
            if owner != job:
                raise UnknownRecordError(
                    f"no decision {self.decision[:40]} of this job",
                    remedy="give the id that came with the decision",
                )
        provenance = {"origin": str(self.origin), "source": self.source}
        return EnergyRecord(
            job, decision, self.device, self.seconds, self.joules, provenance, wall_seconds
        )


def energy_document(used: EnergyEntry) -> Document:
    """Energy to be noted, or that was."""
    return asdict(used)


def energy_from(document: Any) -> EnergyEntry:
    """What :func:`energy_document` was given."""
    checked(document, "an energy record", [field.name for field in fields(EnergyEntry)])
    origin = text(document, "origin", "assumed")
    if origin not in set(Origin):
        raise InvalidValueError(
            f"no figure comes about as {shown(origin)}", remedy=f"give one of {', '.join(Origin)}"
        )
    return EnergyEntry(
        decision=text_or_none(document, "decision"),
        device=text(document, "device"),
        seconds=number(document, "seconds"),
        joules=number(document, "joules"),
        origin=origin,
        source=text(document, "source", ""),
        wall_seconds=number_or_none(document, "wall_seconds"),
    )


def checked_energy(used: EnergyEntry) -> EnergyEntry:
    """The same, refused here if a server would refuse it.

    Raises:
        InvalidValueError: It makes no sense.
    """
    return energy_from(energy_document(used))


def checked_profile(profile: ProfileEntry) -> ProfileEntry:
    """The same, refused here if a server would refuse it.

    Raises:
        InvalidValueError: It makes no sense.
    """
    return profile_from(profile_document(profile))
