"""The same answer to the same request, and none to another under its key."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from joulery.errors import ConflictError
from joulery.jobs.models import Decision, Receipt, decision_id
from joulery.jobs.policies.base import ActionKind

if TYPE_CHECKING:
    from joulery.jobs.models import Outcome
    from joulery.storage.records import DecisionRecord, Document, OutcomeRecord


def answered(made: DecisionRecord, request: Document) -> Decision:
    """The decision that was made for the same request before."""
    if made.request != request:
        raise ConflictError(
            f"key {made.key!r} was used for another request",
            remedy="choose a new key for a new decision",
        )
    return answer(made)


def answer(made: DecisionRecord) -> Decision:
    """A stored decision as its holder sees it; its deadline is the one that holds now."""
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


def told_again(told: OutcomeRecord, sequence: int, outcome: Outcome) -> Receipt:
    """The receipt of a report that is made again."""
    if told.decision != sequence or told.body != outcome.to_document():
        raise ConflictError(
            f"another outcome of decision {decision_id(told.job, told.decision)} was reported",
            remedy="report each decision once; repeat a report unchanged, under its own key",
        )
    return Receipt(decision_id(told.job, told.decision), told.event, told.late)
