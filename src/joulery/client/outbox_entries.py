"""What waits in a journal: reports, heartbeats, and runs that nobody could be asked about."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulery.errors import ConflictError, InvalidValueError, UnknownRecordError
from joulery.jobs.specification import job_from
from joulery.jobs.wire import (
    decision_document,
    decision_from,
    definition_document,
    definition_from,
    outcome_document,
    outcome_from,
    request_document,
    request_from,
)

if TYPE_CHECKING:
    from joulery.client.backend import DecisionBackend
    from joulery.jobs.models import Decision, Outcome
    from joulery.jobs.requests import Definition, Request


@dataclass(frozen=True, slots=True)
class Undelivered:
    """A report, or a heartbeat.

    Attributes:
        decision: That it is about, with its token.
        outcome: How it ended, or what there was to tell so far.
        key: Of the report; None for a heartbeat.
    """

    decision: Decision
    outcome: Outcome
    key: str | None

    def to_line(self) -> bytes:
        """As one line."""
        return _line(
            {
                "decision": decision_document(self.decision),
                "outcome": outcome_document(self.outcome),
                "key": self.key,
            }
        )

    def tell(self, clerk: DecisionBackend) -> None:
        """Have it delivered."""
        if self.key is None:
            clerk.heartbeat(self.decision, self.outcome)
        else:
            clerk.report(self.decision, self.outcome, self.key)


@dataclass(frozen=True, slots=True)
class Unasked:
    """How a run went that nobody could be asked about, to be asked for and told afterwards.

    Attributes:
        team: Whose job it is.
        definition: The job as it was then.
        request: For a decision to run what was run, under a key chosen then.
        outcome: How it ended.
        key: Of the report.
    """

    team: str
    definition: Definition
    request: Request
    outcome: Outcome
    key: str

    def to_line(self) -> bytes:
        """As one line."""
        return _line(
            {
                "team": self.team,
                "definition": definition_document(self.definition),
                "request": request_document(self.request),
                "outcome": outcome_document(self.outcome),
                "key": self.key,
            }
        )

    def tell(self, clerk: DecisionBackend) -> None:
        """Have it decided and delivered; however often that is done, it counts once.

        Raises:
            ConflictError: The job is another by now, which this tells nothing about.
        """
        decision = clerk.decide(self._job(clerk), self.request)
        clerk.report(decision, self.outcome, self.key)

    def _job(self, clerk: DecisionBackend) -> int:
        """The number of the job; it is not changed back to what it was then."""
        wanted = self.definition
        try:
            entry = clerk.job(wanted.job.name, wanted.device)
        except UnknownRecordError:
            return clerk.define(wanted).job
        found = job_from(entry.name, entry.specification), entry.policy, entry.parameters
        if found != (wanted.job, wanted.policy, wanted.parameters):
            raise ConflictError(
                f"job {wanted.job.name!r} has been changed since", remedy="run it again"
            )
        return entry.id


Entry = Undelivered | Unasked


def entry_from(line: bytes) -> Entry | None:
    """What :meth:`Undelivered.to_line` or :meth:`Unasked.to_line` gave; None for anything else."""
    try:
        document: Any = json.loads(line)
        key, outcome = document["key"], outcome_from(document["outcome"])
        if key is not None and not isinstance(key, str):
            return None
        if "request" not in document:
            return Undelivered(decision_from(document["decision"]), outcome, key)
        team = document["team"]
        if key is None or not isinstance(team, str):
            return None
        definition = definition_from(document["definition"])
        return Unasked(team, definition, request_from(document["request"]), outcome, key)
    except (ValueError, KeyError, TypeError, InvalidValueError, RecursionError):
        return None


def _line(document: dict[str, Any]) -> bytes:
    return json.dumps(document, allow_nan=False).encode("ascii") + b"\n"
