"""Actions and outcomes as stored documents, and as the arrays that policies take.

A running posterior is changed by the same functions from the same documents as a rebuilt one, so
both are the same bit for bit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from joulery.jobs.policies import ActionKind, Actions, Outcomes, RunEnd

if TYPE_CHECKING:
    from joulery.jobs._models import Job, Outcome
    from joulery.storage import Document

ROW = np.zeros(1, dtype=np.int64)  # the position of a job in a batch of one
_SAME_LIMIT_WATTS = 0.5  # drivers take whole watts
# No meter is better than this, so a report that claims to be counts no more than others.
_LEAST_ERROR = 0.005
# Time and energy of a whole run include its start and validation.
_MEAN_ERROR = 0.03


def action_document(actions: Actions, job: Job, attempt: int = 1) -> Document:
    """The only action of ``actions`` as JSON; ``attempt`` is its position in the recurrence."""
    kind, arm, limit = int(actions.kind[0]), int(actions.arm[0]), int(actions.limit[0])
    ceiling, limits_watts = float(actions.ceiling[0]), job.limits_watts
    if actions.probe_limits is None:
        mask = None
        measured = list(limits_watts) if kind == ActionKind.PROBE or limit == -1 else []
    else:
        mask = actions.probe_limits[0].tolist()
        measured = [watts for watts, want in zip(limits_watts, mask, strict=False) if want]
    return {
        "kind": kind,
        "arm": arm,
        "limit": limit,
        "ceiling": ceiling if math.isfinite(ceiling) else None,
        "why": int(actions.reason[0]),
        "attempt": attempt,
        "probe_limits": mask,
        # The same in figures, for readers that do not know the job.
        "batch_size": job.batch_sizes[arm],
        "power_limit_watts": limits_watts[limit] if 0 <= limit < len(limits_watts) else None,
        "probe_limits_watts": measured,
    }


def actions_from(document: Document) -> Actions:
    """The action that ``action_document`` described."""
    ceiling, mask = document["ceiling"], document["probe_limits"]
    return Actions(
        kind=np.array([document["kind"]], dtype=np.int64),
        arm=np.array([document["arm"]], dtype=np.int64),
        limit=np.array([document["limit"]], dtype=np.int64),
        ceiling=np.array([math.inf if ceiling is None else ceiling], dtype=np.float64),
        reason=np.array([document["why"]], dtype=np.int64),
        probe_limits=None if mask is None else np.array([mask], dtype=np.bool_),
    )


def outcome_document(
    outcome: Outcome | None, job: Job, action: Document, recurrence: int
) -> Document:
    """All that a policy learns of how an action ended; None if nothing is known of it."""
    limits = max(1, len(job.limits_watts))
    body: Document = {"action": action, "recurrence": recurrence, "limits": limits}
    if outcome is None:
        return body | {"end": int(RunEnd.ABANDONED), "limit": -1, "measured": []}
    training = action["kind"] == ActionKind.TRAIN
    measured = [
        [
            limit,
            float(measurement.epoch_seconds),
            float(measurement.epoch_joules),
            float(measurement.relative_error),
        ]
        for measurement in outcome.measured
        for limit in (_limit_of(job, measurement.limit_watts),)
        if limit >= 0
    ]
    return body | {
        "end": int(outcome.end),
        "limit": _limit_of(job, outcome.limit_watts) if training else -1,
        "epochs": float(outcome.epochs),
        "seconds": float(outcome.seconds),
        "joules": float(outcome.joules),
        "cost": job.cost.of(outcome.seconds, outcome.joules),
        "measured": measured or _mean_epoch(job, outcome, action),
    }


def _mean_epoch(job: Job, outcome: Outcome, action: Document) -> list[list[float]]:
    """Mean time and energy of an epoch, for clients that report whole runs only.

    A client that says nothing of the power limit held the one that was decided; or, if none was,
    left the board alone, which then runs at its highest.
    """
    limit = _limit_of(job, outcome.limit_watts)
    if outcome.limit_watts is None and job.limits_watts:
        limit = action["limit"] if action["limit"] >= 0 else len(job.limits_watts) - 1
    whole = outcome.end != RunEnd.ABANDONED and outcome.epochs >= 1
    if limit < 0 or not (whole and outcome.seconds > 0 and outcome.joules > 0):
        return []
    # A run that was stopped ended within an epoch, which is not counted.
    cut = 0.5 / outcome.epochs if outcome.end == RunEnd.STOPPED else 0.0
    seconds, joules = outcome.seconds / outcome.epochs, outcome.joules / outcome.epochs
    return [[limit, float(seconds), float(joules), _MEAN_ERROR + cut]]


def _limit_of(job: Job, watts: float | None) -> int:
    """The position of a power limit in the job's list; 0 without limits; -1 if not in it."""
    if not job.limits_watts:
        return 0
    if watts is None:
        return -1
    nearest = min(range(len(job.limits_watts)), key=lambda at: abs(job.limits_watts[at] - watts))
    return nearest if abs(job.limits_watts[nearest] - watts) <= _SAME_LIMIT_WATTS else -1


def outcomes_from(body: Document) -> Outcomes:
    """The outcome that ``outcome_document`` described."""
    action = body["action"]
    epoch = np.full((3, 1, body["limits"]), np.nan)
    for limit, *figures in body["measured"]:
        epoch[:, 0, limit] = figures
    totals = np.array(
        [[body.get(name, math.nan)] for name in ("epochs", "seconds", "joules", "cost")]
    )
    return Outcomes(
        job=ROW,
        recurrence=np.array([body["recurrence"]], dtype=np.int64),
        kind=np.array([action["kind"]], dtype=np.int64),
        arm=np.array([action["arm"]], dtype=np.int64),
        limit=np.array([body["limit"]], dtype=np.int64),
        end=np.array([body["end"]], dtype=np.int64),
        epochs=totals[0],
        seconds=totals[1],
        joules=totals[2],
        cost=totals[3],
        epoch_seconds=epoch[0],
        epoch_joules=epoch[1],
        relative_error=np.maximum(_LEAST_ERROR, epoch[2]),
    )
