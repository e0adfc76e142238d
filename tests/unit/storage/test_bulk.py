"""What is looked up in bulk costs the same however long a job's history is."""

import pytest

from joulery.storage import bulk, statements
from joulery.storage.store import Store


@pytest.fixture
def store(tmp_path):
    """An empty one."""
    with Store.open(tmp_path / "store.sqlite") as store:
        yield store


def plan_of(store, statement):
    """How SQLite would go about a statement."""
    compiled = statement.compile(store._engine, compile_kwargs={"render_postcompile": True})
    with store.reading() as ledger:
        rows = ledger._connection.exec_driver_sql(
            f"EXPLAIN QUERY PLAN {compiled}", tuple(1 for _ in compiled.positiontup)
        )
        return " ".join(row[-1] for row in rows)


@pytest.mark.parametrize(
    ("lookup", "name"),
    [
        (bulk.DECISIONS_AT, "sequence"),
        (bulk.DECISIONS_FOR, "key"),
        (bulk.OUTCOMES_AT, "decision"),
        (bulk.OUTCOMES_FOR, "key"),
    ],
)
def test_lookups_use_the_whole_index(store, lookup, name):
    """A decision would cost more the longer its job has run."""
    with store.reading() as ledger:
        rows = ledger._connection.exec_driver_sql(
            f"EXPLAIN QUERY PLAN {lookup.sqlite_text}", ("[]",)
        )
        assert f"(job_id=? AND {name}=?)" in " ".join(row[-1] for row in rows)


def test_only_what_is_open_is_searched_for_silence(store):
    """The same."""
    assert "ix_decisions_open (job_id=? AND" in plan_of(store, statements.OVERDUE)
    assert "ix_decisions_open" in plan_of(store, statements.JOBS_WITH_OVERDUE)
