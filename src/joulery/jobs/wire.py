"""What clients and the server say to each other, as JSON documents: made and read here only.

Every function pair is lossless. Reading refuses unknown members by name, so that a misspelt one
is not taken for a missing one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError
from joulery.jobs.models import Decision, DecisionLease, Measured, Outcome, Receipt
from joulery.jobs.policies.base import ActionKind, RunEnd
from joulery.jobs.requests import Definition, Request
from joulery.jobs.specification import job_document
from joulery.jobs.wire_members import (
    LARGEST_ID,
    checked,
    items,
    member,
    number,
    number_or_none,
    shown,
    text,
    text_or_none,
    truth,
    whole,
)
from joulery.jobs.wire_specification import (
    LARGEST_BATCH_SIZE,
    MOST_LIMITS,
    parameters_from,
    specification_from,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulery.jobs.wire_members import Document

_DEFINITION = ("name", "device", "specification", "policy", "parameters")
_REQUEST = ("key", "after", "probing", "only", "ran_seconds")
_DECISION = (
    "id",
    "token",
    "job",
    "recurrence",
    "kind",
    "batch_size",
    "power_limit_watts",
    "probe_limits_watts",
    "cost_ceiling_joules",
    "reason",
    "expires_wall_seconds",
)
_OUTCOME = ("end", "epochs", "seconds", "joules", "limit_watts", "measured")
_MEASURED = ("limit_watts", "epoch_seconds", "epoch_joules", "relative_error")
_KINDS = {kind.name.lower(): kind for kind in ActionKind}
_KIND_NAMES = {kind: name for name, kind in _KINDS.items()}
_ENDS = {end.name.lower(): end for end in RunEnd}
_END_NAMES = {end: name for name, end in _ENDS.items()}


def definition_document(wanted: Definition) -> Document:
    """A job to be defined, to be sent to its team."""
    return {
        "name": wanted.job.name,
        "device": wanted.device,
        "specification": job_document(wanted.job),
        "policy": wanted.policy,
        "parameters": dict(wanted.parameters),
    }


def definition_from(document: Any) -> Definition:
    """What :func:`definition_document` was given."""
    checked(document, "a definition", _DEFINITION)
    name = text(document, "name")
    return Definition(
        job=specification_from(name, member(document, "specification")),
        device=text(document, "device", ""),
        policy=text(document, "policy", "joulery"),
        parameters=parameters_from(document.get("parameters", {})),
    )


def request_document(request: Request) -> Document:
    """A decision that is asked for."""
    document: Document = {
        "key": request.key,
        "after": request.after,
        "probing": request.probing,
    }
    # Only where they say something, so that servers which do not know them understand the rest.
    if request.only is not None:
        document["only"] = request.only
    if request.ran_seconds is not None:
        document["ran_seconds"] = request.ran_seconds
    return document


def request_from(document: Any) -> Request:
    """What :func:`request_document` was given; all but the key may be missing."""
    checked(document, "a request", _REQUEST)
    only = document.get("only")
    return Request(
        text(document, "key"),
        text_or_none(document, "after"),
        truth(document, "probing", default=False),
        None if only is None else whole(document, "only", 1, LARGEST_BATCH_SIZE),
        number_or_none(document, "ran_seconds"),
    )


def decision_document(decision: Decision) -> Document:
    """A decision as its holder gets it."""
    ceiling = decision.cost_ceiling_joules
    return {
        "id": decision.id,
        "token": decision.token,
        "job": int(decision.id.partition(".")[0]),
        "recurrence": decision.recurrence,
        "kind": _KIND_NAMES[decision.kind],
        "batch_size": decision.batch_size,
        "power_limit_watts": decision.power_limit_watts,
        "probe_limits_watts": list(decision.probe_limits_watts),
        "cost_ceiling_joules": None if math.isinf(ceiling) else ceiling,
        "reason": decision.reason,
        "expires_wall_seconds": decision.expires_wall_seconds,
    }


def decision_from(document: Any) -> Decision:
    """What :func:`decision_document` was given."""
    checked(document, "a decision", _DECISION)
    whole(document, "job")
    ceiling = number_or_none(document, "cost_ceiling_joules")
    limits = items(document, "probe_limits_watts", MOST_LIMITS)
    return Decision(
        id=text(document, "id"),
        recurrence=whole(document, "recurrence"),
        kind=_one_of(document, "kind", _KINDS),
        batch_size=whole(document, "batch_size", 1, LARGEST_BATCH_SIZE),
        power_limit_watts=number_or_none(document, "power_limit_watts"),
        probe_limits_watts=tuple(number({"limit": watts}, "limit") for watts in limits),
        cost_ceiling_joules=math.inf if ceiling is None else ceiling,
        reason=text(document, "reason"),
        expires_wall_seconds=number(document, "expires_wall_seconds"),
        token=text(document, "token", ""),
    )


def outcome_document(outcome: Outcome) -> Document:
    """How a decision ended, as its holder tells it."""
    return {
        "end": _END_NAMES[outcome.end],
        "epochs": float(outcome.epochs),
        "seconds": float(outcome.seconds),
        "joules": float(outcome.joules),
        "limit_watts": None if outcome.limit_watts is None else float(outcome.limit_watts),
        "measured": [_measured_document(one) for one in outcome.measured],
    }


def outcome_from(document: Any) -> Outcome:
    """What :func:`outcome_document` was given; limit and measurements may be missing."""
    checked(document, "an outcome", _OUTCOME)
    return Outcome(
        end=_one_of(document, "end", _ENDS),
        epochs=number(document, "epochs"),
        seconds=number(document, "seconds"),
        joules=number(document, "joules"),
        limit_watts=number_or_none(document, "limit_watts"),
        measured=tuple(map(_measured_from, items(document, "measured", MOST_LIMITS, ()))),
    )


def _measured_document(one: Measured) -> Document:
    return {
        "limit_watts": None if one.limit_watts is None else float(one.limit_watts),
        "epoch_seconds": float(one.epoch_seconds),
        "epoch_joules": float(one.epoch_joules),
        "relative_error": float(one.relative_error),
    }


def _measured_from(document: Any) -> Measured:
    checked(document, "a measurement", _MEASURED)
    return Measured(
        number_or_none(document, "limit_watts"),
        number(document, "epoch_seconds"),
        number(document, "epoch_joules"),
        number(document, "relative_error"),
    )


def heartbeat_document(progress: Outcome | None) -> Document:
    """A sign of life, with what there is to tell so far."""
    return {"progress": None if progress is None else outcome_document(progress)}


def heartbeat_from(document: Any) -> Outcome | None:
    """What :func:`heartbeat_document` was given."""
    progress = checked(document, "a heartbeat", ("progress",)).get("progress")
    return None if progress is None else outcome_from(progress)


def lease_document(lease: DecisionLease) -> Document:
    """What became of a heartbeat."""
    return {"held": lease.held, "expires_wall_seconds": lease.expires_wall_seconds}


def lease_from(document: Any) -> DecisionLease:
    """What :func:`lease_document` was given."""
    checked(document, "a lease", ("held", "expires_wall_seconds"))
    return DecisionLease(truth(document, "held"), number(document, "expires_wall_seconds"))


def report_document(outcome: Outcome, key: str) -> Document:
    """A report on a decision."""
    return {"key": key, "outcome": outcome_document(outcome)}


def report_from(document: Any) -> tuple[Outcome, str]:
    """What :func:`report_document` was given."""
    checked(document, "a report", ("key", "outcome"))
    return outcome_from(member(document, "outcome")), text(document, "key")


def receipt_document(receipt: Receipt) -> Document:
    """What became of a report."""
    return {"decision": receipt.decision, "event": receipt.event, "late": receipt.late}


def receipt_from(document: Any) -> Receipt:
    """What :func:`receipt_document` was given."""
    checked(document, "a receipt", ("decision", "event", "late"))
    return Receipt(
        text(document, "decision"), whole(document, "event", 1, LARGEST_ID), truth(document, "late")
    )


def pause_document(*, paused: bool) -> Document:
    """Whether decisions are refused from now on."""
    return {"paused": paused}


def pause_from(document: Any) -> bool:
    """What :func:`pause_document` was given."""
    return truth(checked(document, "a pause", ("paused",)), "paused")


def _one_of(document: Document, name: str, known: Mapping[str, Any]) -> Any:
    value = member(document, name)
    found = known.get(value) if isinstance(value, str) else None
    if found is None:
        raise InvalidValueError(
            f"{name} must be a word that is known, not {shown(value)}",
            remedy=f"give one of {', '.join(known)}",
        )
    return found
