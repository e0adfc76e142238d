"""Answers to requests: the same for the same request, and an error for another under its key."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from joulery.errors import ConflictError
from joulery.jobs._models import Decision, Receipt, decision_id
from joulery.jobs.policies import ActionKind

if TYPE_CHECKING:
    from joulery.jobs._models import Outcome
    from joulery.storage import DecisionRecord, Document, OutcomeRecord


def answer(made: DecisionRecord) -> Decision:
    """A stored decision as its holder sees it, with the deadline that holds now."""
    action = made.action
    ceiling = action["ceiling"]
    return Decision(
        id=decision_id(made.job, made.sequence),
        recurrence=made.recurrence,
        kind=ActionKind(action["kind"]),
        batch_size=action["batch_size"],
        power_limit_watts=action["power_limit_watts"],
        probe_limits_watts=tuple(action["probe_limits_watts"]),
        cost_ceiling_joules=math.inf if ceiling is None else ceiling,
        reason=made.reason,
        expires_wall_seconds=made.deadline_wall_seconds,
    )


def receipt(stored: OutcomeRecord) -> Receipt:
    """What became of a stored report."""
    return Receipt(
        decision_id(stored.job, stored.decision), stored.event, stored.late, stored.quarantined
    )


def repeated_decision(made: DecisionRecord, asked: Document) -> Decision:
    """The decision that was made for the same request before."""
    if made.request != asked:
        raise ConflictError(
            f"key {made.key!r} was used for another request",
            remedy="choose a new key for a new decision",
        )
    return answer(made)


def repeated_report(stored: OutcomeRecord, sequence: int, outcome: Outcome) -> Receipt:
    """The receipt of a report that is made again."""
    if stored.decision != sequence or stored.body != outcome.to_document():
        raise ConflictError(
            f"another outcome of decision {decision_id(stored.job, stored.decision)} was reported",
            remedy="report each decision once; repeat a report unchanged, under its own key",
        )
    return receipt(stored)
