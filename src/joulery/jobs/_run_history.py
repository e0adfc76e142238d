"""One run of a job as its server and its store know it: decision, heartbeats and energy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.errors import UnknownRecordError
from joulery.jobs._documents import decision_energy, decision_page, job_entry
from joulery.jobs._models import Outcome
from joulery.storage import DecisionRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.jobs._models import DecisionEntry, EnergyEntry, JobEntry, LiveState
    from joulery.storage import Transaction


@dataclass(frozen=True, slots=True)
class RunProgress:
    """Progress of a run at some moment, as a heartbeat reports it.

    Attributes:
        seconds: Time that it had taken.
        joules: Energy that it had used.
        epochs: Epochs that it had trained.
        wall_seconds: Unix time at which it was reported.
        live: State of its devices; None where it was not reported.
    """

    seconds: float
    joules: float
    epochs: float
    wall_seconds: float = 0.0
    live: LiveState | None = None


def total_watts(state: LiveState) -> float | None:
    """Power of all devices; None where that of one is unknown."""
    watts = [device.watts for device in state.devices]
    return sum(power or 0.0 for power in watts) if watts and None not in watts else None


@dataclass(frozen=True, slots=True)
class RunHistory:
    """A run of a job.

    Attributes:
        job: Version of the job.
        entry: Decision that the run carries out, with its outcome.
        heartbeats: Heartbeats in order, of which the store keeps only the latest.
        energy: Energy by device.
    """

    job: JobEntry
    entry: DecisionEntry
    heartbeats: tuple[RunProgress, ...]
    energy: tuple[EnergyEntry, ...]


def run_history(
    transaction: Transaction, job: int, number: int, heartbeats: Sequence[RunProgress] = ()
) -> RunHistory:
    """A run, by the number of its decision.

    Args:
        transaction: Transaction to read with.
        job: Number of the job.
        number: Number of the event that issued the decision: what follows the dot of its id.
        heartbeats: Heartbeats that a server remembers.

    Raises:
        UnknownRecordError: There is no such job or decision.
    """
    entries, _ = decision_page(transaction, job, max(0, number - 1), 1)
    if not entries or entries[0].number != number:
        raise UnknownRecordError("no such run", remedy="see `joulery jobs list`")
    entry = entries[0]
    record = transaction.find(DecisionRecord, job, sequence=number)
    progress = None if record is None else record.progress
    last = entry.outcome or (Outcome.from_document(progress) if progress else None)
    beats = tuple(heartbeats)
    if last is not None and (not beats or beats[-1].seconds < last.seconds):
        moment = entry.heartbeat_wall_seconds or entry.decision.issued_wall_seconds
        beats = (*beats, RunProgress(last.seconds, last.joules, last.epochs, moment))
    energy = decision_energy(transaction, job, number)
    return RunHistory(job_entry(transaction.job(job)), entry, beats, energy)
