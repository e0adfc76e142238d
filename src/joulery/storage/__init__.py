"""Durable storage of jobs, decisions, outcomes, profiles, energy and tokens in SQL databases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.storage._backup import (
        Restoration as Restoration,
        backup as backup,
        export as export,
        restore as restore,
    )
    from joulery.storage._queries import (
        MOST_SEARCHED as MOST_SEARCHED,
        SORTS as SORTS,
        JobHead as JobHead,
        OtherEnergy as OtherEnergy,
        RunQuery as RunQuery,
        add_energy as add_energy,
        count_runs as count_runs,
        energy_origins as energy_origins,
        find_run as find_run,
        job_heads as job_heads,
        list_runs as list_runs,
        open_decisions as open_decisions,
        other_energy as other_energy,
        put_profile as put_profile,
        put_run as put_run,
        records as records,
        recurrence_sums as recurrence_sums,
        run_groups as run_groups,
        run_totals as run_totals,
        runs_mark as runs_mark,
        totals as totals,
    )
    from joulery.storage._records import (
        DecisionRecord as DecisionRecord,
        DecisionState as DecisionState,
        Document as Document,
        EnergyRecord as EnergyRecord,
        Event as Event,
        EventKind as EventKind,
        JobRecord as JobRecord,
        OutcomeRecord as OutcomeRecord,
        ProfileRecord as ProfileRecord,
        RunRecord as RunRecord,
        SessionRecord as SessionRecord,
        Snapshot as Snapshot,
        Subject as Subject,
        to_json as to_json,
    )
    from joulery.storage._store import Store as Store, default_path as default_path
    from joulery.storage._tokens import (
        EVERY_TEAM as EVERY_TEAM,
        LIFETIME_SECONDS as LIFETIME_SECONDS,
        Permission as Permission,
        Session as Session,
        TokenRecord as TokenRecord,
        add_token as add_token,
        begin_session as begin_session,
        decision_secret as decision_secret,
        digest_of as digest_of,
        end_session as end_session,
        find_session as find_session,
        find_token as find_token,
        list_tokens as list_tokens,
        revoke_token as revoke_token,
        right_named as right_named,
        touch_session as touch_session,
    )
    from joulery.storage._transaction import Transaction as Transaction


__getattr__, __dir__ = lazy(__name__)
