"""What a transaction looks up costs the same however long a job's history is."""

import pytest
from sqlalchemy import event

from joulery.storage import (
    OutcomeRecord,
    RunQuery,
    RunRecord,
    Store,
    Subject,
    _queries,
    count_runs,
    list_runs,
    put_run,
)


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


@pytest.mark.parametrize("team", [None, "vision"])
def test_a_search_reads_the_latest_runs_in_the_order_of_an_index(store, team):
    """A search would pass over every run that a store has ever had."""
    query = RunQuery(team, "text", sort="energy")
    for work in (list_runs, count_runs):
        arguments = (50,) if work is list_runs else ()
        (plan,) = plans_of(store, lambda one, work=work, more=arguments: work(one, query, *more))
        read, _, sorting = plan.removeprefix("CO-ROUTINE latest ").partition(" SCAN latest")
        assert read.count("runs USING INDEX ix_runs") == 1, plan
        assert "TEMP" not in read, plan
        assert ("TEMP" in sorting) == (work is list_runs)


def test_a_search_ends_after_the_latest_runs(store, monkeypatch):
    """A page would say that no run fits, or search for seconds, without a bound that it states."""
    monkeypatch.setattr(_queries, "MOST_SEARCHED", 3)
    for number in range(5):
        texts = "vision" if number else "speech", f"{number}", "run", "", "", f"run {number % 2}"
        run = RunRecord(*texts, float(number), 1.0, 1.0, True, {})  # noqa: FBT003
        store.write(lambda transaction, run=run: put_run(transaction, run, []))
    with store.reading() as transaction:
        for text, keys in {"RUN 0": "42", "run": "432", "run 2": ""}.items():
            query = RunQuery(None, text)
            assert "".join(run.key for run in list_runs(transaction, query, 9)) == keys
            assert count_runs(transaction, query) == len(keys)
        assert count_runs(transaction, RunQuery("speech", "run")) == 1  # of that team
        page = list_runs(transaction, RunQuery(None, "run", below=4, sort="number"), 9)
        assert [run.key for run in page] == ["2"]
