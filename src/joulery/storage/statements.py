"""The SQL of the ledger, built once."""

from __future__ import annotations

from sqlalchemy import (
    BindParameter,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    select,
    update,
)

from joulery.storage.tables import decisions, energy, events, jobs, outcomes, profiles, snapshots

_OF: BindParameter[int] = bindparam("of")
_AFTER: BindParameter[int] = bindparam("after")
_MOST: BindParameter[int] = bindparam("most")
_NUMBER: BindParameter[int] = bindparam("number")
_UNDER: BindParameter[str] = bindparam("under")
_NOW: BindParameter[float] = bindparam("now")
# Literally, or the index of what is open may not be used.
_OPEN = decisions.c.state == literal_column("0")

JOB = select(jobs).where(jobs.c.id == _OF)
# SQLite knows no row locks and ignores this; there, the transaction locks all.
LOCK = JOB.with_for_update(key_share=True)
_NAMED = (jobs.c.team == bindparam("of_team"), jobs.c.name == bindparam("of_name"))
NEWEST = (
    select(jobs)
    .where(*_NAMED, jobs.c.device == bindparam("of_device"))
    .order_by(jobs.c.version.desc())
    .limit(1)
)
NEWEST_OF_ANY = select(jobs).where(*_NAMED).order_by(jobs.c.id.desc()).limit(1)
_other = jobs.alias("other")
# The newest version on every device, those that were run most first.
SIBLINGS = (
    select(jobs)
    .where(
        *_NAMED,
        jobs.c.version
        == select(func.max(_other.c.version))
        .where(
            _other.c.team == jobs.c.team,
            _other.c.name == jobs.c.name,
            _other.c.device == jobs.c.device,
        )
        .scalar_subquery(),
    )
    .order_by(jobs.c.recurrences.desc(), jobs.c.id)
    .limit(_MOST)
)
JOBS = (
    select(jobs)
    .where(jobs.c.team == bindparam("of_team"), jobs.c.id > _AFTER)
    .order_by(jobs.c.id)
    .limit(_MOST)
)
ADD_JOB = insert(jobs).values(paused=False, events=0, recurrences=0).returning(jobs.c.id)
PAUSE = update(jobs).where(jobs.c.id == _OF).values(paused=bindparam("to"))
FORGET = delete(jobs).where(jobs.c.id == _OF)
COUNT = (
    update(jobs)
    .where(jobs.c.id == _OF)
    .values(events=bindparam("to_events"), recurrences=bindparam("to_recurrences"))
)

EVENTS = (
    select(events)
    .where(events.c.job_id == _OF, events.c.sequence > _AFTER)
    .order_by(events.c.sequence)
    .limit(_MOST)
)
ADD_EVENT = insert(events)

_DECISION_NUMBER = (decisions.c.job_id == _OF, decisions.c.sequence == _NUMBER)
DECISION = select(decisions).where(*_DECISION_NUMBER)
DECISION_FOR = select(decisions).where(decisions.c.job_id == _OF, decisions.c.key == _UNDER)
DECISIONS = (
    select(decisions)
    .where(decisions.c.job_id == _OF, decisions.c.sequence > _AFTER)
    .order_by(decisions.c.sequence)
    .limit(_MOST)
)
ADD_DECISION = insert(decisions)
CLOSE = update(decisions).where(*_DECISION_NUMBER).values(state=bindparam("to"))
PROLONG = (
    update(decisions)
    .where(*_DECISION_NUMBER)
    .values(
        heartbeat_wall_seconds=bindparam("to_heartbeat_wall_seconds"),
        deadline_wall_seconds=bindparam("to_deadline_wall_seconds"),
        progress=bindparam("to_progress"),
    )
)
OVERDUE = (
    select(decisions)
    .where(_OPEN, decisions.c.job_id == _OF, decisions.c.deadline_wall_seconds < _NOW)
    .order_by(decisions.c.sequence)
    .limit(_MOST)
)
JOBS_WITH_OVERDUE = (
    select(decisions.c.job_id)
    .where(_OPEN, decisions.c.job_id > _AFTER, decisions.c.deadline_wall_seconds < _NOW)
    .distinct()
    .order_by(decisions.c.job_id)
    .limit(_MOST)
)

_OUTCOME_NUMBER = (outcomes.c.job_id == _OF, outcomes.c.decision == _NUMBER)
OUTCOME = select(outcomes).where(*_OUTCOME_NUMBER)
OUTCOME_FOR = select(outcomes).where(outcomes.c.job_id == _OF, outcomes.c.key == _UNDER)
ADD_OUTCOME = insert(outcomes)

SNAPSHOT = select(snapshots).where(snapshots.c.job_id == _OF)
STALE = (
    select(snapshots.c.job_id)
    .where(snapshots.c.code != bindparam("of_code"), snapshots.c.job_id > _AFTER)
    .order_by(snapshots.c.job_id)
    .limit(_MOST)
)
DROP_SNAPSHOT = delete(snapshots).where(snapshots.c.job_id == _OF)
ADD_SNAPSHOT = insert(snapshots)

PROFILES = select(profiles).where(profiles.c.job_id == _OF).order_by(profiles.c.batch_size)
_PROFILE = (
    profiles.c.job_id == _OF,
    profiles.c.batch_size == bindparam("of_batch_size"),
    profiles.c.device == bindparam("of_device"),
)
DROP_PROFILE = delete(profiles).where(*_PROFILE)
ADD_PROFILE = insert(profiles)

ENERGY = select(energy).where(energy.c.job_id == _OF, energy.c.id > _AFTER).order_by(energy.c.id)
ENERGY_UNDER = (
    select(energy)
    .where(
        energy.c.job_id == _OF,
        energy.c.decision == _NUMBER,
        energy.c.device == bindparam("of_device"),
    )
    .order_by(energy.c.id)
    .limit(1)
)
ADD_ENERGY = insert(energy)
