"""The service: decisions that are handed out once, leased, and reported on once."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec import structs

from joulery.clock import VirtualClock
from joulery.errors import ConflictError, InvalidValueError, UnknownRecordError
from joulery.jobs import (
    Definition,
    JobService,
    Measured,
    Outcome,
    Request,
    decision_page,
)
from joulery.jobs._models import decision_id
from joulery.jobs.policies import ActionKind, BayesianPolicy, RunEnd, policy_names
from joulery.objectives import LeastEnergy
from joulery.storage import DecisionRecord, DecisionState, EventKind, Store
from joulery.testing.policy_contract import assert_identical
from joulery.testing.workloads import made_up_workload

JOB = made_up_workload().job()
LEASE_SECONDS = 600.0


@pytest.fixture
def clock():
    """Time that tests turn."""
    return VirtualClock()


@pytest.fixture
def store(tmp_path):
    """An empty one."""
    with Store.open(tmp_path / "store.sqlite") as store:
        yield store


@pytest.fixture
def service(store, clock):
    """At work."""
    return JobService(store, clock, LEASE_SECONDS)


@pytest.fixture
def job(service):
    """One that recurs."""
    return service.define(Definition(JOB, policy="zeus"), seed=7).id


def outcome_of(decision, end=RunEnd.REACHED):
    """What a worker would tell after half an hour."""
    if decision.kind == ActionKind.PROBE:
        return Outcome(RunEnd.PROBED, 0, 5.0, 500.0)
    watts = decision.power_limit_watts or 200.0
    measured = (Measured(watts, 90.0, 9000.0, 0.005),)
    return Outcome(end, 20.0, 500.0, 50_000.0, watts, measured)


def beliefs_of(service, store, job):
    """What a service believes at this moment."""
    return store.write(lambda one: service._cache.current(one, one.lock(job)).beliefs, job)


def quarantined(service, job):
    """Ids of the latest decisions whose reports a service does not learn from."""
    found = service._store.write(
        lambda transaction: service._cache.current(
            transaction, transaction.lock(job)
        ).reports.quarantined(),
        job,
    )
    return tuple(decision_id(job, sequence) for sequence in found)


def kinds(store, job):
    """The kinds of a job's events."""
    with store.reading() as transaction:
        return [event.kind for event in transaction.events(job)]


def test_a_decision_says_all_that_a_worker_needs(service, clock, job):
    """A worker cannot ask again what was meant."""
    decision = service.decide(job, Request("a"))
    assert decision.batch_size == JOB.default
    assert decision.kind == ActionKind.TRAIN
    assert decision.power_limit_watts is None
    assert decision.probe_limits_watts == JOB.limits_watts
    assert decision.cost_ceiling_joules == math.inf
    assert decision.reason == "exploring from the default batch size"
    assert decision.expires_wall_seconds == clock.wall() + LEASE_SECONDS
    assert (decision.id, decision.recurrence) == (f"{job}.1", 0)


@pytest.mark.parametrize("policy", policy_names())
def test_running_beliefs_are_rebuilt_bit_for_bit(service, store, clock, policy):
    """A restart would decide otherwise than the process before."""
    job = service.define(Definition(JOB, policy=policy), seed=3).id
    for number in range(40):
        decision = service.decide(job, Request(f"{number}", probing=True))
        clock.sleep(500.0)
        if number % 5:
            service.report(decision, outcome_of(decision), f"{number}")
    assert_identical(beliefs_of(service, store, job), service.rebuild(job))


@pytest.mark.parametrize("policy", policy_names())
def test_what_was_asked_for_is_learned_and_rebuilt(service, store, clock, policy):
    """Runs that nobody chose would upset a policy, or a restart would forget them."""
    job = service.define(Definition(JOB, policy=policy), seed=3).id
    for number in range(30):
        only = JOB.batch_sizes[number % len(JOB.batch_sizes)] if number % 3 else None
        decision = service.decide(job, Request(f"{number}", only=only))
        assert only in (None, decision.batch_size)
        clock.sleep(500.0)
        if number % 5:
            service.report(decision, outcome_of(decision), f"{number}")
    assert_identical(beliefs_of(service, store, job), service.rebuild(job))


def test_runs_that_were_not_chosen_count_where_a_chosen_run_agrees(service, store, clock, job):
    """A client that selects what to report on could outvote all others where few have been."""

    def run(number, only=None):
        decision = service.decide(job, Request(f"{number}", only=only))
        clock.sleep(500.0)
        receipt = service.report(decision, outcome_of(decision), f"{number}")
        return decision, receipt

    chosen, _ = run(0)
    asked = [run(number, JOB.default) for number in range(1, 6)]
    other = next(size for size in JOB.batch_sizes if size != JOB.default)
    unknown, receipt = run(6, other)
    with store.reading() as transaction:
        marks = ["volunteered" in one.action for one in transaction.decisions(job)]
    assert marks == [False, *(one.reason != chosen.reason for one, _ in asked), True]
    assert not any(told.quarantined for _, told in asked)
    assert receipt.quarantined
    assert quarantined(service, job) == (unknown.id,)
    assert service.report(unknown, outcome_of(unknown), "6") == receipt


def test_time_before_the_decision_counts_only_as_far_as_it_was_told(service, clock, job):
    """Wrong reports could claim any time, or runs of an outage none."""
    decision = service.decide(job, Request("a", only=JOB.default, ran_seconds=400.0))
    clock.sleep(60.0)
    with pytest.raises(InvalidValueError, match="cannot have passed"):
        service.report(decision, structs.replace(outcome_of(decision), seconds=9e4), "r")
    with pytest.raises(InvalidValueError, match="boards can draw"):
        service.report(decision, structs.replace(outcome_of(decision), joules=1e9), "r")
    assert not service.report(decision, outcome_of(decision), "r").late


def test_the_same_key_gives_the_same_decision(service, store, job):
    """A client whose connection broke would hold two decisions."""
    first = service.decide(job, Request("a"))
    assert service.decide(job, Request("a")) == first
    assert service.decide(job, Request("b")) != first
    assert kinds(store, job) == [EventKind.ISSUED] * 2
    with pytest.raises(ConflictError, match="another request"):
        service.decide(job, Request("a", after=first.id))


def test_the_same_report_counts_once(service, store, clock, job):
    """Retries would make a lucky run twice as lucky."""
    decision = service.decide(job, Request("a"))
    clock.sleep(500.0)
    first = service.report(decision, outcome_of(decision), "r")
    once = service.rebuild(job)
    assert service.report(decision, outcome_of(decision), "r") == first
    assert service.report(decision, outcome_of(decision), "another key") == first
    assert (first.event, first.late) == (2, False)
    assert kinds(store, job) == [EventKind.ISSUED, EventKind.OUTCOME]
    assert_identical(beliefs_of(service, store, job), once)


def test_contradicting_reports_are_refused(service, store, clock, job):
    """The second of two different reports would be dropped in silence."""
    one, other = service.decide(job, Request("a")), service.decide(job, Request("b"))
    clock.sleep(500.0)
    told = outcome_of(one)
    service.report(one, told, "r")
    with pytest.raises(ConflictError):
        service.report(one, structs.replace(told, epochs=19.0), "r")
    with pytest.raises(ConflictError):
        service.report(one, structs.replace(told, epochs=19.0), "s")
    assert kinds(store, job).count(EventKind.OUTCOME) == 1
    # Clients choose keys without knowing of one another's.
    assert service.report(other, told, "r").decision == other.id


def test_runs_across_a_clock_that_was_set_back_are_kept(service, clock, job):
    """Honest reports would be refused for good after somebody corrected the time."""
    for number in range(3):
        decision = service.decide(job, Request(f"{number}", only=JOB.default))
        clock.sleep(500.0)
        service.report(decision, outcome_of(decision), "r")
    held = service.decide(job, Request("long"))
    clock.sleep(500.0)
    clock.step_wall(-450.0)
    receipt = service.report(held, outcome_of(held), "r")
    assert not receipt.late


def test_a_plain_first_client_is_believed(service, job):
    """Calls copied from the documentation, one right after the other, would end in quarantine."""
    decision = service.decide(job, Request("night 1"))
    receipt = service.report(decision, Outcome(RunEnd.REACHED, 20.0, 3600.0, 9e5), "night 1")
    assert not receipt.quarantined
    assert quarantined(service, job) == ()


def test_silence_releases_a_decision(service, store, clock, job):
    """A worker that died would keep its batch size from being tried ever again."""
    lost = service.decide(job, Request("a"))
    assert service.decide(job, Request("b")).reason == "the best known, while another explores"
    clock.sleep(LEASE_SECONDS + 1)
    assert service.expire() == 2
    assert service.expire() == 0
    again = service.decide(job, Request("c"))
    assert (again.reason, again.batch_size) == (lost.reason, lost.batch_size)
    assert_identical(beliefs_of(service, store, job), service.rebuild(job))


def test_deciding_releases_what_is_overdue(service, store, clock, job):
    """Without a server nobody else would."""
    service.decide(job, Request("a"))
    clock.sleep(LEASE_SECONDS + 1)
    assert service.decide(job, Request("b")).reason == "exploring from the default batch size"
    assert kinds(store, job) == [EventKind.ISSUED, EventKind.EXPIRED, EventKind.ISSUED]


def test_heartbeats_keep_a_decision(service, clock, job):
    """A long training would lose its place."""
    decision = service.decide(job, Request("a"))
    for _ in range(3):
        clock.sleep(LEASE_SECONDS - 1)
        lease = service.heartbeat(decision)
        assert lease.held
        assert lease.expires_wall_seconds == clock.wall() + LEASE_SECONDS
    assert service.expire() == 0
    clock.sleep(LEASE_SECONDS + 1)
    assert service.expire() == 1
    assert not service.heartbeat(decision).held


def test_what_heartbeats_told_counts_after_the_end(service, store, clock):
    """What a killed worker has measured would be measured again."""
    job = service.define(Definition(JOB, policy="joulery"), seed=1).id
    decision = service.decide(job, Request("a"))
    clock.sleep(500.0)
    progress = Outcome(
        RunEnd.ABANDONED, 3, 300.0, 30_000.0, 200.0, (Measured(200.0, 90.0, 9e3, 0.01),)
    )
    service.heartbeat(decision, progress)
    clock.sleep(1.0)
    service.heartbeat(decision)
    clock.sleep(LEASE_SECONDS + 1)
    service.expire()
    with store.reading() as transaction:
        body = list(transaction.events(job))[-1].body
    assert body["cost"] == JOB.cost.of(300.0, 30_000.0)
    beliefs = beliefs_of(service, store, job)
    arm = JOB.batch_sizes.index(decision.batch_size)
    assert beliefs.profiles.precision[0, arm].any()
    assert beliefs.under_way.sum() == 0


@pytest.mark.parametrize("policy", policy_names())
def test_a_late_report_counts_once(service, store, clock, policy):
    """What a worker found out while the network was down would be lost."""
    job = service.define(Definition(JOB, policy=policy), seed=1).id
    late, other = service.decide(job, Request("a")), service.decide(job, Request("b"))
    clock.sleep(LEASE_SECONDS + 1)
    service.expire()
    held = service.decide(job, Request("c"))
    receipt = service.report(late, outcome_of(late), "r")
    assert receipt.late
    assert service.report(late, outcome_of(late), "r") == receipt
    assert kinds(store, job)[2:] == [
        EventKind.EXPIRED,
        EventKind.EXPIRED,
        EventKind.ISSUED,
        EventKind.LATE,
    ]
    with store.reading() as transaction:
        states = [decision.state for decision in transaction.decisions(job)]
    assert states == [DecisionState.REPORTED, DecisionState.EXPIRED, DecisionState.OPEN]
    assert {other.id, held.id}.isdisjoint({late.id})
    assert_identical(beliefs_of(service, store, job), service.rebuild(job))


def test_a_late_report_takes_no_place_from_others(service, store, clock):
    """The policy would think that nobody runs what another holds."""
    job = service.define(Definition(JOB, policy="joulery"), seed=1).id
    late = service.decide(job, Request("a"))
    clock.sleep(LEASE_SECONDS + 1)
    service.expire()
    service.decide(job, Request("b"))
    service.report(late, outcome_of(late), "r")
    assert beliefs_of(service, store, job).under_way.sum() == 1


def test_a_late_exploration_does_not_block_the_next(service, store, clock, job):
    """A round that went on would wait for ever for a batch size that nobody runs."""
    late = service.decide(job, Request("a"))
    clock.sleep(LEASE_SECONDS + 1)
    again = service.decide(job, Request("b"))
    clock.sleep(500.0)
    service.report(again, outcome_of(again), "b")  # exploration goes on to the next batch size
    service.report(late, outcome_of(late), "a")
    following = service.decide(job, Request("c"))
    assert following.reason == "exploring from the default batch size"
    assert following.batch_size != late.batch_size


def test_a_recurrence_goes_on_after_a_decision(service, job):
    """The cost of stopped attempts would be charged to other recurrences."""
    first = service.decide(job, Request("a"))
    other = service.decide(job, Request("b"))
    on = service.decide(job, Request("c", after=first.id))
    assert (first.recurrence, other.recurrence, on.recurrence) == (0, 1, 0)
    foreign = service.define(Definition(structs.replace(JOB, name="other"), policy="zeus")).id
    for unknown in (f"{job}.99", f"{foreign}.1", "nonsense", f"{job}.{10**30}", "-1.1"):
        with pytest.raises((UnknownRecordError, InvalidValueError)):
            service.decide(job, Request(f"after {unknown}", after=unknown))


def test_every_decision_has_draws_of_its_own(service, store, clock, job):
    """Concurrent submissions would all sample the same batch size."""
    for number in range(40):  # through the exploration
        decision = service.decide(job, Request(f"{number}", probing=True))
        clock.sleep(500.0)
        told = structs.replace(outcome_of(decision), seconds=460.0 + 20 * (number % 3))
        service.report(decision, told, f"{number}")
    sampled = [service.decide(job, Request(f"s{number}")) for number in range(30)]
    assert {one.reason for one in sampled} == {"least cost in a draw from the beliefs"}
    assert len({one.batch_size for one in sampled}) > 1


def test_two_desks_decide_as_one(service, store, clock, tmp_path):
    """Workers of a server would each learn half of what is known."""
    job = service.define(Definition(JOB, policy="zeus"), seed=5).id
    alone = service.define(Definition(structs.replace(JOB, name="alone"), policy="zeus"), seed=5).id
    with Store.open(tmp_path / "store.sqlite") as second:
        services = [service, JobService(second, clock, LEASE_SECONDS)]
        for number in range(30):
            shared = services[number % 2].decide(job, Request(f"{number}", probing=True))
            single = service.decide(alone, Request(f"{number}", probing=True))
            assert (shared.batch_size, shared.reason) == (single.batch_size, single.reason)
            clock.sleep(500.0)
            services[(number // 2) % 2].report(shared, outcome_of(shared), f"{number}")
            service.report(single, outcome_of(single), f"{number}")
        assert_identical(beliefs_of(services[1], second, job), service.rebuild(job))


def test_many_threads_at_once(service, store, clock, job):
    """A server has hundreds of requests under way."""

    def client(number):
        decision = service.decide(job, Request(f"{number}", probing=True))
        outcome = Outcome(RunEnd.REACHED, 9, 50.0, 5e3, 200.0)
        return service.report(decision, outcome, f"{number}")

    with ThreadPoolExecutor(16) as threads:
        receipts = list(threads.map(client, range(80)))
    assert len({receipt.event for receipt in receipts}) == 80
    with store.reading() as transaction:
        assert transaction.job(job).events == 160
        recurrences = sorted(one.recurrence for one in transaction.decisions(job))
    assert recurrences == list(range(80))
    assert_identical(beliefs_of(service, store, job), service.rebuild(job))


def test_a_failed_operation_leaves_beliefs_as_they_were(service, store, clock, job):
    """Beliefs in memory would run ahead of the store, and differ from a rebuild."""
    decision = service.decide(job, Request("a"))
    clock.sleep(500.0)

    def failing(transaction):
        record = transaction.find(DecisionRecord, job, sequence=1)
        service._report(transaction, record, outcome_of(decision), "r")
        raise ConflictError("no", remedy="none")

    with pytest.raises(ConflictError):
        store.write(failing, job)
    assert kinds(store, job) == [EventKind.ISSUED]
    assert_identical(beliefs_of(service, store, job), service.rebuild(job))
    assert not service.report(decision, outcome_of(decision), "r").late


def test_a_cold_desk_starts_from_a_snapshot(service, store, clock, monkeypatch):
    """After a restart the first decision of every old job would take seconds."""
    monkeypatch.setattr("joulery.jobs._posterior._SNAPSHOT_EVENTS", 16)
    for policy in policy_names():
        job = service.define(
            Definition(structs.replace(JOB, name=policy), policy=policy), seed=1
        ).id
        for number in range(20):
            decision = service.decide(job, Request(f"{number}", probing=True))
            clock.sleep(500.0)
            service.report(decision, outcome_of(decision), f"{number}")
        cold = JobService(store, clock)
        with store.reading() as transaction:
            kept = transaction.snapshot(job)
        assert kept.sequence == 32
        folded = store.write(
            lambda transaction, cold=cold, job=job: cold._cache.current(
                transaction, transaction.lock(job)
            ),
            job,
        )
        assert (folded.snapshotted, folded.sequence) == (32, 40)
        assert_identical(folded.beliefs, service.rebuild(job))
        running = service._cache._jobs[job].reports
        assert folded.reports.to_list() == running.to_list()


def test_a_snapshot_of_other_code_is_not_used(service, store, clock, monkeypatch, job):
    """Beliefs of an older version would live on after an upgrade."""
    monkeypatch.setattr("joulery.jobs._posterior._SNAPSHOT_EVENTS", 1)
    service.decide(job, Request("a"))
    monkeypatch.setattr("joulery.jobs._posterior.fold_version", lambda policy: "newer")
    cold = JobService(store, clock)
    folded = store.write(lambda one: cold._cache.current(one, one.lock(job)), job)
    assert (folded.snapshotted, folded.sequence) == (0, 1)


def test_memory_is_bounded(store, clock):
    """A server of many teams would grow for ever."""
    service = JobService(store, clock, cached_jobs=3)
    jobs = [
        service.define(Definition(structs.replace(JOB, name=f"{n}"), policy="zeus")).id
        for n in range(6)
    ]
    for job in jobs:
        service.decide(job, Request("a"))
    assert len(service._cache) == 3
    for job in jobs:
        assert service.decide(job, Request("b")).reason == "the best known, while another explores"


def test_defining_again_changes_nothing(service):
    """Every run defines its job; a new version each time would forget everything."""
    first = service.define(Definition(JOB, policy="zeus", parameters={"beta": 3.0}))
    assert service.define(Definition(JOB, policy="zeus", parameters={"beta": 3.0})).id == first.id
    assert service.job(JOB.name).id == first.id
    assert (
        service.for_team("other team")
        .define(Definition(JOB, policy="zeus", parameters={"beta": 3.0}))
        .id
        != first.id
    )


def parameters_of(store, entry):
    """The stored parameters of a job's policy."""
    with store.reading() as transaction:
        return transaction.job(entry.id).parameters


def test_a_changed_job_inherits_with_doubt(service, store, clock):
    """A new version of a model would start from nothing, or trust the old one blindly."""
    first = service.define(Definition(JOB), seed=1)
    for number in range(6):
        decision = service.decide(first.id, Request(f"{number}", probing=True))
        clock.sleep(500.0)
        service.report(decision, outcome_of(decision), f"{number}")
    changed = structs.replace(JOB, batch_sizes=(32, 64, 128, 256, 512, 1024))
    second = service.define(Definition(changed), seed=1)
    assert (second.version, second.inherits) == (2, first.id)
    inherited = parameters_of(store, second)["inherited"]
    assert JOB.default in inherited["batch_sizes"]
    assert (inherited["shift_sd"], inherited["shape_sd"]) == (0.3, 0.1)
    assert service.define(Definition(changed), seed=9).id == second.id
    assert service.rebuild(second.id).warm_started.all()
    assert service.decide(second.id, Request("a")).batch_size in changed.batch_sizes
    third = service.define(Definition(changed, policy="zeus"))
    assert parameters_of(store, third) == {}


def trained(service, clock, job, times=6):
    """A job that has been run."""
    for number in range(times):
        decision = service.decide(job, Request(f"{number}", probing=True))
        clock.sleep(500.0)
        service.report(decision, outcome_of(decision), f"{number}")


def test_another_device_inherits_without_doubt(service, store, clock):
    """Epochs do not hang on the GPU; each new type would pay for all the tries again."""
    idle = service.define(Definition(JOB, "T4"), seed=1)
    first = service.define(Definition(JOB, "V100"), seed=1)
    assert first.inherits is None
    trained(service, clock, first.id)
    second = service.define(Definition(JOB, "A100"), seed=1)
    assert (second.version, second.device, second.inherits) == (1, "A100", first.id)
    inherited = parameters_of(store, second)["inherited"]
    assert (inherited["shift_sd"], inherited["shape_sd"]) == (0.0, 0.0)
    assert service.decide(second.id, Request("a")).reason.endswith("warm start")
    assert [service.job(JOB.name, one).id for one in ("T4", "V100", None)] == [
        idle.id,
        first.id,
        second.id,
    ]
    assert service.define(Definition(JOB, "A100")).id == second.id
    with pytest.raises(UnknownRecordError):
        service.job(JOB.name, "")
    with pytest.raises(InvalidValueError, match="device"):
        service.define(Definition(JOB, "\0"))


def test_what_was_inherited_is_handed_on(service, store, clock):
    """A version that was never run would cut the line."""
    first = service.define(Definition(JOB), seed=1)
    trained(service, clock, first.id)
    second = service.define(Definition(structs.replace(JOB, max_epochs=90)), seed=1)
    third = service.define(Definition(structs.replace(JOB, max_epochs=80)), seed=1)
    before, after = (parameters_of(store, entry)["inherited"] for entry in (second, third))
    assert before["log_epochs"] == after["log_epochs"]
    assert after["log_sds"][0] > before["log_sds"][0] > 0


def test_inheritance_is_told_in_words(service, clock):
    """People would wonder why a new job does not start from its default."""
    first = service.define(Definition(JOB, "V100"), seed=1)
    assert first.warm_start == ""
    trained(service, clock, first.id, times=1)
    on_other = service.define(Definition(JOB, "A100"), seed=1)
    assert on_other.warm_start == (
        "epochs of batch size 256 carry over from V100; what an epoch costs here is measured anew"
    )
    changed = service.define(Definition(structs.replace(JOB, max_epochs=90), "V100"))
    assert changed.warm_start == (
        "the job has changed: epochs of batch size 256 carry over from version 1, within 30% "
        "until runs show more"
    )


def test_inheriting_folds_no_long_history(service, store, clock, monkeypatch):
    """A changed job with years behind it would stop the service for half a minute."""
    monkeypatch.setattr("joulery.jobs._posterior._SNAPSHOT_EVENTS", 8)
    first = service.define(Definition(JOB), seed=1)
    trained(service, clock, first.id, times=10)
    folded = []
    monkeypatch.setattr(BayesianPolicy, "begin", lambda *given: folded.append(given[-1]))
    for number, one in enumerate((service, JobService(store, clock))):
        one.define(Definition(JOB, f"{number}"), seed=1)
        assert len(folded) == 2 * number


def test_those_who_cannot_probe_train_instead(service, clock):
    """A worker that only trains would be handed what it cannot do."""
    job = service.define(Definition(JOB, policy="joulery"), seed=1).id
    for number in range(30):
        probed = service.decide(job, Request(f"{number}", probing=True))
        if probed.kind == ActionKind.PROBE:
            break
        clock.sleep(500.0)
        service.report(probed, outcome_of(probed), f"{number}")
    assert probed.kind == ActionKind.PROBE
    clock.sleep(5.0)
    service.report(probed, Outcome(RunEnd.ABANDONED, 0, 1.0, 50.0), "lost")
    decision = service.decide(job, Request("no probes", after=probed.id))
    assert (decision.kind, decision.batch_size) == (ActionKind.TRAIN, probed.batch_size)
    assert (decision.power_limit_watts,) == probed.probe_limits_watts
    assert decision.cost_ceiling_joules == 2 * JOB.cost.of(500.0, 50_000.0)
    assert "probes are not made" in decision.reason
    assert service.decide(job, Request("no probes", after=probed.id)) == decision
    with pytest.raises(ConflictError):
        service.decide(job, Request("no probes", after=probed.id, probing=True))
    assert_identical(beliefs_of(service, service._store, job), service.rebuild(job))


@pytest.mark.parametrize("policy", policy_names())
def test_holders_that_only_send_heartbeats_do_not_stop_the_learning(service, clock, policy):
    """A few stuck workers would keep a job from ever trying another batch size."""
    job = service.define(Definition(JOB, policy=policy), seed=3).id
    stuck, sizes = [], []
    for number in range(60):
        decision = service.decide(job, Request(f"{number}"))
        if 0 < number <= 8:
            stuck.append(decision)
            continue
        clock.sleep(500.0)
        beats = [service.heartbeat_soon(one.id) for one in stuck]
        assert all(beat.result(60).held for beat in beats)
        service.report(decision, outcome_of(decision), f"{number}")
        sizes.append(decision.batch_size)
    if policy != "default":
        assert len(set(sizes)) >= 3
    late = service.report(stuck[0], outcome_of(stuck[0]), "late")
    assert not late.late
    assert_identical(beliefs_of(service, service._store, job), service.rebuild(job))


def test_any_number_of_silent_holders_is_released(service, store, clock, monkeypatch):
    """A server that was down over night would release some and forget the rest."""
    monkeypatch.setattr("joulery.jobs._service._STEP", 4)
    jobs = [
        service.define(Definition(structs.replace(JOB, name=f"{n}"), policy="zeus")).id
        for n in range(5)
    ]
    for number in range(45):
        service.decide(jobs[number % 5], Request(f"{number}", probing=True))
    clock.sleep(LEASE_SECONDS + 1)
    assert service.expire() == 45
    assert service.expire() == 0


def test_an_objective_is_kept(service, store):
    """A team that asked for least energy would get least cost after a restart."""
    wanted = structs.replace(JOB, objective=LeastEnergy(max_slowdown=0.1))
    job = service.define(Definition(wanted)).id
    folded = store.write(lambda one: service._cache.current(one, one.lock(job)), job)
    assert folded.job == wanted
    assert folded.policy.objective == wanted.objective


def test_wrong_definitions_are_refused(service):
    """A job that can never be decided would be stored."""
    with pytest.raises(InvalidValueError, match="no policy"):
        service.define(Definition(JOB, policy="magic"))
    with pytest.raises(InvalidValueError, match="beta"):
        service.define(Definition(JOB, policy="zeus", parameters={"beta": 0.5}))
    for name in ("", "x" * 201, "a\0b", "\ud800"):
        with pytest.raises(InvalidValueError, match="printable"):
            service.for_team(name).define(Definition(JOB))
    with pytest.raises(UnknownRecordError):
        service.job(JOB.name)


def test_a_paused_job_takes_reports_only(service, clock, job):
    """An owner could not stop a job, or stopping it would lose what runs."""
    decision = service.decide(job, Request("a"))
    service.pause(job)
    with pytest.raises(ConflictError, match="paused"):
        service.decide(job, Request("b"))
    assert service.decide(job, Request("a")) == decision
    clock.sleep(500.0)
    service.report(decision, outcome_of(decision), "r")
    service.pause(job, paused=False)
    service.decide(job, Request("b"))


def test_a_forgotten_job_is_gone(service, job):
    """Deleted data would still answer."""
    decision = service.decide(job, Request("a"))
    service.delete(job)
    with pytest.raises(UnknownRecordError):
        service.decide(job, Request("b"))
    with pytest.raises(UnknownRecordError):
        service.report(decision, outcome_of(decision), "r")
    again = service.define(Definition(JOB, policy="zeus"), seed=7)
    assert again.id != job
    assert again.version == 1


def test_unknown_names_are_refused(service, job):
    """A client with a wrong id would be told that all is well."""
    with pytest.raises(UnknownRecordError):
        service.decide(job + 1, Request("a"))
    for name in (f"{job}.7", "", "1", "1.", "x.1", "1.1.1", f"{'9' * 30}.1", "\u0661.\u0661"):
        with pytest.raises(UnknownRecordError):
            service.heartbeat_soon(name).result()
        with pytest.raises(UnknownRecordError):
            service.report_soon(name, Outcome(RunEnd.REACHED, 1, 1.0, 1.0), "k").result()
    with pytest.raises(InvalidValueError, match="key"):
        service.decide(job, Request("\n"))


def test_an_implausible_report_changes_nothing(service, store, clock, job):
    """One wrong report would ruin a job for all."""
    decision = service.decide(job, Request("a"))
    clock.sleep(500.0)
    for lie in (
        Outcome(RunEnd.REACHED, 20.0, math.nan, 1.0),
        Outcome(RunEnd.REACHED, 20.0, 500.0, -1.0),
        Outcome(RunEnd.REACHED, 20.0, 500.0, 1e9),
        Outcome(RunEnd.REACHED, 20.0, 5e6, 5e6),
        Outcome(RunEnd.PROBED, 0, 5.0, 50.0),
    ):
        with pytest.raises(InvalidValueError):
            service.report(decision, lie, "r")
        with pytest.raises(InvalidValueError):
            service.heartbeat(decision, structs.replace(lie, seconds=math.inf))
    assert kinds(store, job) == [EventKind.ISSUED]
    service.report(decision, outcome_of(decision), "r")


@pytest.mark.parametrize("policy", policy_names())
def test_a_report_that_all_others_contradict_is_quarantined(service, store, clock, policy):
    """One wrong report that keeps within what is possible would ruin a job."""
    job = service.define(Definition(JOB, policy=policy), seed=3).id
    for number in range(12):
        decision = service.decide(job, Request(f"{number}", probing=True))
        clock.sleep(500.0)
        told = outcome_of(decision)
        if number == 8:
            liar, told = decision, Outcome(RunEnd.REACHED, 1.0, 1.0, 100.0, 200.0)
            told = told if decision.kind == ActionKind.TRAIN else outcome_of(decision)
        receipt = service.report(decision, told, f"{number}")
        if number == 8:
            assert receipt.quarantined == (decision.kind == ActionKind.TRAIN)
    if liar.kind == ActionKind.TRAIN:
        assert liar.id in quarantined(service, job)
    assert_identical(beliefs_of(service, store, job), service.rebuild(job))


def test_a_wall_clock_set_back_only_prolongs(service, clock, job):
    """An administrator who sets the clock would free every decision, or refuse every report."""
    decision = service.decide(job, Request("a"))
    clock.sleep(500.0)
    clock.step_wall(-3600.0)
    assert service.expire() == 0
    service.report(decision, outcome_of(decision), "r")


@pytest.mark.parametrize("limits", [(), (100.0, 200.0)])
def test_reports_of_whole_runs_teach_the_policy(service, clock, limits):
    """Clients that report as the manual shows would run the default for ever."""
    plain = structs.replace(JOB, name="plain", limits_watts=limits)
    job = service.define(Definition(plain), seed=1).id
    best = plain.batch_sizes[1]
    assert best != plain.default
    chosen = []
    for number in range(25):
        after, end = None, None
        while end != RunEnd.REACHED:
            decision = service.decide(job, Request(f"{number} {after}", after))
            chosen.append(decision.batch_size)
            epochs = 12.0 * 2 ** abs(math.log2(decision.batch_size / best))
            whole = plain.cost.of(20 * epochs, 2000 * epochs)
            share = min(1.0, decision.cost_ceiling_joules / whole)
            end = RunEnd.REACHED if share == 1.0 else RunEnd.STOPPED
            done = share * epochs
            clock.sleep(20 * done)
            told = Outcome(end, math.floor(done), 20 * done, 2000 * done)
            assert not service.report(decision, told, "r").quarantined
            after = decision.id
    assert chosen[0] == plain.default
    assert set(chosen[-5:]) == {best}


def test_verdicts_are_listed_as_they_change(service, store, clock, job):
    """An owner would not see which reports the policy ignores, or see old verdicts."""
    told, listed = [], []
    for epochs in (1.0, 20.0, 20.0, 20.0):
        decision = service.decide(job, Request(f"{len(told)}"))
        clock.sleep(500.0)
        outcome = structs.replace(outcome_of(decision), epochs=epochs)
        told.append(service.report(decision, outcome, "r").quarantined)
        with store.reading() as transaction:
            entries, _ = decision_page(transaction, job, 0, 100)
        listed.append([entry.quarantined for entry in entries])
        ids = tuple(entry.decision.id for entry in entries if entry.quarantined)
        assert ids == quarantined(service, job)
    assert not told[0]
    assert listed[-1][0]
    # The answer to the same report stays the same.
    first = entries[0]
    assert not service.report(first.decision, first.outcome, "r").quarantined
