"""A clerk behind a server: every question is a request over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from joulery.client.backend import Defined
from joulery.client.transport import Address, Transport
from joulery.errors import InvalidValueError, StoreError
from joulery.jobs import wire
from joulery.jobs.wire_entries import (
    DecisionEntry,
    JobEntry,
    decision_entry_from,
    job_entry_from,
    page_from,
)
from joulery.jobs.wire_measurements import (
    EnergyEntry,
    ProfileEntry,
    checked_energy,
    checked_profile,
    energy_document,
    energy_from,
    profile_document,
    profile_from,
)
from joulery.jobs.wire_text import from_bytes, to_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.jobs.models import Decision, DecisionLease, Outcome, Receipt
    from joulery.jobs.requests import Definition, Request

    Reader = Callable[[Any], Any]


class HttpBackend:
    """Asks a server; see :class:`joulery.client.backend.Clerk`.

    Args:
        transport: To the server; closed with the clerk.
        team: Whose jobs.
        token: That the server gave to the team.
    """

    def __init__(self, transport: Transport, team: str, token: str | None) -> None:
        self._transport = transport
        self._team = team
        self._token = token

    @classmethod
    def open(cls, url: str, team: str, token: str | None, **options: Any) -> HttpBackend:
        """A clerk at an address; ``options`` are of :class:`Transport`. Connects to nothing."""
        return cls(Transport(Address.of(url), **options), team, token)

    def define(self, definition: Definition) -> Defined:
        """The job of that name and device, made or changed if need be."""
        document = wire.definition_document(definition)
        entry: JobEntry = self._read(job_entry_from, "POST", self._jobs, document)
        return Defined(entry.id, entry.version, entry.inherits, entry.said)

    def decide(self, job: int, request: Request) -> Decision:
        """What to run next."""
        document = wire.request_document(request)
        decision: Decision = self._read(
            wire.decision_from, "POST", f"/v1/jobs/{job:d}/decisions", document
        )
        return decision

    def heartbeat(self, decision: Decision, progress: Outcome | None = None) -> DecisionLease:
        """Say that a decision is being worked on."""
        lease: DecisionLease = self._read(
            wire.lease_from,
            "POST",
            f"/v1/decisions/{quote(decision.id, safe='')}/heartbeat",
            wire.heartbeat_document(progress),
            of=decision,
        )
        return lease

    def report(self, decision: Decision, outcome: Outcome, key: str) -> Receipt:
        """Tell how a decision ended."""
        receipt: Receipt = self._read(
            wire.receipt_from,
            "PUT",
            f"/v1/decisions/{quote(decision.id, safe='')}/outcome",
            wire.report_document(outcome, key),
            of=decision,
        )
        return receipt

    def jobs(self, after: int = 0, limit: int = 100) -> tuple[list[JobEntry], int | None]:
        """Jobs by number."""
        query = urlencode({"after": after, "limit": limit})
        return self._page(f"{self._jobs}?{query}", "jobs", job_entry_from)

    def job(self, name: str, device: str | None = None) -> JobEntry:
        """The newest version of a job."""
        query = "" if device is None else "?" + urlencode({"device": device})
        path = f"{self._jobs}/{quote(name, safe='')}{query}"
        entry: JobEntry = self._read(job_entry_from, "GET", path)
        return entry

    def decisions(
        self, job: int, after: int = 0, limit: int = 100
    ) -> tuple[list[DecisionEntry], int | None]:
        """Decisions with how they ended, in order."""
        query = urlencode({"after": after, "limit": limit})
        path = f"/v1/jobs/{job:d}/decisions?{query}"
        return self._page(path, "decisions", decision_entry_from)

    def profiles(self, job: int) -> list[ProfileEntry]:
        """Time-energy frontiers of the batch sizes of a job."""
        return self._page(f"/v1/jobs/{job:d}/profiles", "profiles", profile_from)[0]

    def keep_profile(self, job: int, profile: ProfileEntry) -> None:
        """Keep a frontier, in place of an earlier one of the same batch size and device."""
        body = to_bytes(profile_document(checked_profile(profile)))
        self._transport.ask("PUT", f"/v1/jobs/{job:d}/profiles", self._token, body)

    def energy(
        self, job: int, after: int = 0, limit: int = 100
    ) -> tuple[list[EnergyEntry], int | None]:
        """Energy used, in the order in which it became known."""
        query = urlencode({"after": after, "limit": limit})
        return self._page(f"/v1/jobs/{job:d}/energy?{query}", "energy", energy_from)

    def note_energy(self, job: int, used: EnergyEntry) -> None:
        """Keep energy that was used; where a decision is named, once for each device."""
        body = to_bytes(energy_document(checked_energy(used)))
        self._transport.ask("POST", f"/v1/jobs/{job:d}/energy", self._token, body)

    def pause(self, job: int, *, paused: bool = True) -> None:
        """Refuse decisions, or make them again."""
        body = to_bytes(wire.pause_document(paused=paused))
        self._transport.ask("POST", f"/v1/jobs/{job:d}/pause", self._token, body)

    def forget(self, job: int) -> None:
        """Delete a job with all its history."""
        self._transport.ask("DELETE", f"/v1/jobs/{job:d}", self._token)

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    @property
    def _jobs(self) -> str:
        return f"/v1/teams/{quote(self._team, safe='')}/jobs"

    def _read(
        self,
        reader: Reader,
        method: str,
        path: str,
        document: Any = None,
        of: Decision | None = None,
    ) -> Any:
        body = None if document is None else to_bytes(document)
        # What is about a decision needs its token only, which its holder alone has.
        token = self._token if of is None else of.token
        answer = self._transport.ask(method, path, token, body)
        try:
            return reader(from_bytes(answer))
        except InvalidValueError as error:
            raise StoreError(
                f"{self._transport.address} answers what is not understood: {error.message}",
                remedy="check that a Joulery server of this version is there",
            ) from None

    def _page(self, path: str, name: str, reader: Reader) -> tuple[list[Any], int | None]:
        def read(document: Any) -> tuple[list[Any], int | None]:
            entries, following = page_from(document, name)
            return [reader(entry) for entry in entries], following

        page: tuple[list[Any], int | None] = self._read(read, "GET", path)
        return page
