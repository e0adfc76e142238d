"""What a transaction looks up costs the same however long a job's history is."""

import pytest
from sqlalchemy import event

from joulery.storage import OutcomeRecord, Store, Subject


@pytest.fixture
def store(tmp_path):
    """An empty store."""
    with Store.open(tmp_path / "store.sqlite") as store:
        yield store


def plans_of(store, work):
    """How SQLite executes the statements of some work."""
    plans = []

    def explain(connection, cursor, statement, parameters, *_):
        if statement.startswith("SELECT"):
            cursor.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            plans.append(" ".join(row[-1] for row in cursor.fetchall()))

    with store.reading() as transaction:
        event.listen(store._engine, "before_cursor_execute", explain)
        work(transaction)
    event.remove(store._engine, "before_cursor_execute", explain)
    return plans


@pytest.mark.parametrize("many", [1, 40])
def test_lookups_of_a_group_use_the_whole_index(store, many):
    """A decision would cost more the longer its job has run."""
    subjects = [Subject(1, number, f"{number}") for number in range(many)]
    plans = plans_of(store, lambda transaction: transaction.prepare(subjects))
    assert len(plans) == 3
    for column, plan in zip(("sequence", "key"), plans[1:], strict=True):
        assert f"(job=? AND {column}=?)" in plan
    (plan,) = plans_of(store, lambda one: one.find(OutcomeRecord, 1, decision=1))
    assert "(job=? AND decision=?)" in plan


def test_only_open_decisions_are_searched_for_ended_leases(store):
    """A decision would cost more the longer its job has run."""
    (one,) = plans_of(store, lambda transaction: transaction.overdue(1, 5.0))
    assert "ix_decisions_open (job=? AND" in one
    (some,) = plans_of(store, lambda transaction: transaction.jobs_with_overdue(5.0))
    assert "ix_decisions_open" in some
