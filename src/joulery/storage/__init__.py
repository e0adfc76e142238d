"""Durable storage of jobs, decisions, outcomes, profiles, energy and tokens in SQL databases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.storage._backup import backup, export, restore
    from joulery.storage._queries import (
        JobHead,
        add_energy,
        energy_origins,
        job_heads,
        put_profile,
        records,
        run_groups,
        totals,
    )
    from joulery.storage._records import (
        DecisionRecord,
        DecisionState,
        Document,
        EnergyRecord,
        Event,
        EventKind,
        JobRecord,
        OutcomeRecord,
        ProfileRecord,
        Snapshot,
        Subject,
        to_json,
    )
    from joulery.storage._store import Store, default_path
    from joulery.storage._tokens import (
        EVERY_TEAM,
        Permission,
        TokenRecord,
        add_token,
        decision_secret,
        digest_of,
        find_token,
        list_tokens,
        revoke_token,
        right_named,
    )
    from joulery.storage._transaction import Transaction

__all__ = [
    "EVERY_TEAM",
    "DecisionRecord",
    "DecisionState",
    "Document",
    "EnergyRecord",
    "Event",
    "EventKind",
    "JobHead",
    "JobRecord",
    "OutcomeRecord",
    "Permission",
    "ProfileRecord",
    "Snapshot",
    "Store",
    "Subject",
    "TokenRecord",
    "Transaction",
    "add_energy",
    "add_token",
    "backup",
    "decision_secret",
    "default_path",
    "digest_of",
    "energy_origins",
    "export",
    "find_token",
    "job_heads",
    "list_tokens",
    "put_profile",
    "records",
    "restore",
    "revoke_token",
    "right_named",
    "run_groups",
    "to_json",
    "totals",
]

__getattr__ = lazy(__name__)
