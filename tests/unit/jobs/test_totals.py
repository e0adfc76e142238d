"""Figures of many jobs agree with the summary of each."""

import pytest
from msgspec import structs

from joulery.clock import VirtualClock
from joulery.jobs import (
    Definition,
    EnergyEntry,
    JobService,
    JobSummary,
    Outcome,
    Request,
    decision_page,
    job_beliefs,
    job_entry,
    job_totals,
)
from joulery.jobs.policies import RunEnd
from joulery.storage import Store, job_heads
from joulery.testing.workloads import made_up_workload


@pytest.fixture
def store(location):
    """A store with a job of four runs, one lost and one in quarantine, and a new job."""
    with Store.open(location) as opened:
        clock = VirtualClock()
        service = JobService(opened, clock)
        job = structs.replace(made_up_workload().job(), name="nightly", default=256)
        number = service.for_team("vision").define(Definition(job, "A100"), seed=1).id
        for size, end, joules in (
            (256, RunEnd.REACHED, 1000.0),
            (256, RunEnd.REACHED, 1200.0),
            (128, RunEnd.REACHED, 500.0),
            (64, RunEnd.STOPPED, 300.0),
        ):
            key = f"{size} {joules}"
            decision = service.decide(number, Request(key, only=size))
            clock.sleep(100.0)
            service.report(decision, Outcome(end, 5.0, 50.0, joules), key)
            used = EnergyEntry(decision.id, "GPU-0", 50.0, joules, "measured")
            service.add_energy(number, used)
        service.decide(number, Request("lost"))
        clock.sleep(10_000.0)
        service.expire()
        service.decide(number, Request("under way"))
        service.for_team("speech").define(Definition(structs.replace(job, name="new")), seed=1)
        yield opened


def test_figures_agree_with_the_summary(store):
    """If this fails, the list of jobs and the page of a job contradict each other."""
    with store.reading() as transaction:
        found, new = job_totals(transaction, job_heads(transaction))
        decisions = decision_page(transaction, found.head.id, 0, 100)[0]
        entry = job_entry(transaction.job(found.head.id))
        summary = JobSummary(entry, decisions)
    assert summary.saved is not None
    assert found.saved is not None
    assert found.saved.share == pytest.approx(summary.saved.energy.share)
    assert found.saved.standard_error == pytest.approx(summary.saved.energy.standard_error)
    assert found.recurrences == summary.saved.recurrences == 4
    # Four recurrences against four runs of the default, which took 1100 J on average.
    assert found.saved_joules == pytest.approx(4 * 1100.0 - 3000.0)
    assert found.joules == 3000.0
    assert found.origins == {"measured": pytest.approx(3000.0)}
    assert (found.expired, found.open) == (1, 1)
    assert new.saved is None
    assert (new.joules, new.saved_joules, new.saved_error_joules) == (0.0, 0.0, None)


@pytest.mark.parametrize("policy", ["joulery", "zeus", "grid"])
def test_beliefs_of_each_policy(tmp_path, policy):
    """If this fails, the page of a job fails, or shows what its policy does not believe."""
    with Store.open(tmp_path / "store.sqlite") as opened:
        clock = VirtualClock()
        service = JobService(opened, clock)
        job = made_up_workload().job()
        number = service.for_team("vision").define(Definition(job, policy=policy), seed=1).id
        decision = service.decide(number, Request("first", only=job.default))
        clock.sleep(100.0)
        service.report(decision, Outcome(RunEnd.REACHED, 10.0, 50.0, 1000.0), "first")
        with opened.reading() as transaction:
            found = job_beliefs(transaction, transaction.job(number))
        assert not found.changed
        assert found.quarantine == {}
        if policy == "grid":
            assert found.costs == {}
        else:
            low, cost, high = found.costs[job.default]
            assert low <= cost <= high
            assert cost == pytest.approx(job.cost.of(50.0, 1000.0), rel=0.1)
            assert (64 in found.costs) is (policy == "joulery")
