"""Killed at any moment, the store has everything that it acknowledged, exactly once.

A child process decides and reports with several threads and prints what was acknowledged; it is
killed with SIGKILL at a random moment. ``JOULERY_KILLS`` sets how often (20 by default).
"""

import os
import random
import signal
import time
from collections import Counter

from joulery.jobs import Definition, JobService
from joulery.storage import EventKind, Store
from joulery.testing.policy_contract import assert_identical
from joulery.testing.workloads import made_up_workload
from support.forked import ForkedCommand

KILLS = int(os.environ.get("JOULERY_KILLS", "20"))
POLICIES = ("zeus", "joulery")

# Each line is written in one call, so that a kill leaves at most one that is torn.
CHILD = """
import os, sys, threading
from joulery.errors import StoreBusyError
from joulery.jobs._models import Request
from joulery.jobs._service import JobService
from joulery.jobs._models import Outcome
from joulery.jobs.policies._base import ActionKind, RunEnd
from joulery.storage._store import Store

location, life, *jobs = sys.argv[1:]
service = JobService(Store.open(location))

def tell(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def insist(operation, *arguments):
    # As the error says: on a busy machine another process may hold the store for long.
    while True:
        try:
            return operation(*arguments)
        except StoreBusyError:
            pass

def work(thread):
    number = 0
    while True:
        job = int(jobs[number % len(jobs)])
        key = f"{life}.{thread}.{number}"
        decision = insist(service.decide, job, Request(key, probing=True))
        tell("decided", decision.id, key)
        end = RunEnd.PROBED if decision.kind == ActionKind.PROBE else RunEnd.REACHED
        outcome = Outcome(end, 0 if end == RunEnd.PROBED else 9, 20.0 + number % 7, 2000.0)
        if number % 3:
            receipt = insist(service.report, decision, outcome, key)
            assert insist(service.report, decision, outcome, key) == receipt
            tell("reported", decision.id, key)
        number += 1

tell("ready")
for thread in range(4):
    threading.Thread(target=work, args=(thread,), daemon=True).start()
threading.Event().wait()
"""


def start(location, life, jobs):
    """A process at work."""
    return ForkedCommand([str(location), str(life), *map(str, jobs)], code=CHILD)


def acknowledged_until_killed(processes, least, seconds):
    """What they printed, whole lines only; each prints at least so many before."""
    for process in processes:
        assert process.stdout.readline() == b"ready\n"
    said = b"".join(process.stdout.readline() for process in processes for _ in range(least))
    time.sleep(seconds)
    for process in processes:
        process.send_signal(signal.SIGKILL)
    for process in processes:
        with process.stdout as output:
            text = output.read()
        assert process.wait(60) == -signal.SIGKILL
        said += text[: text.rfind(b"\n") + 1]
    return [tuple(line.split()) for line in said.decode().splitlines()]


def check(location, jobs, acknowledged):
    """Nothing lost, nothing doubled, and beliefs can be rebuilt."""
    with Store.open(location) as store:
        service = JobService(store)
        stored = Counter()
        for job in jobs:
            with store.reading() as transaction:
                events = list(transaction.events(job))
                decisions = transaction.decisions(job, limit=10**6)
                assert transaction.job(job).events == len(events)
            assert [event.sequence for event in events] == list(range(1, len(events) + 1))
            issued = [event.sequence for event in events if event.kind == EventKind.ISSUED]
            assert [decision.sequence for decision in decisions] == issued
            stored += Counter(("decided", f"{job}.{one.sequence}", one.key) for one in decisions)
            keys = {decision.sequence: decision.key for decision in decisions}
            stored += Counter(
                ("reported", f"{job}.{event.decision}", keys[event.decision])
                for event in events
                if event.kind in (EventKind.OUTCOME, EventKind.LATE)
            )
            running = store.write(
                lambda transaction, job=job: (
                    service._cache.current(transaction, transaction.lock(job)).beliefs
                ),
                job,
            )
            assert_identical(running, service.rebuild(job))
    assert set(acknowledged) <= set(stored)
    assert max(stored.values(), default=1) == 1


def test_no_kill_loses_or_doubles_what_was_acknowledged(location):
    """A server that crashes would lose reports that clients have deleted from their journals."""
    luck = random.Random(17)  # noqa: S311 - moments to kill at, no secrets
    load = made_up_workload()
    with Store.open(location) as store:
        jobs = [
            JobService(store)
            .for_team(policy)
            .define(Definition(load.job(), policy=policy), seed=1)
            .id
            for policy in POLICIES
        ]
    acknowledged = []
    for life in range(max(1, KILLS // 2)):  # two processes die each time
        processes = [start(location, f"{life}{name}", jobs) for name in "ab"]
        least = 5 * (life % 2)  # every second pair may die at once
        acknowledged += acknowledged_until_killed(processes, least, luck.uniform(0.0, 0.4))
    assert len(acknowledged) == len(set(acknowledged)) > KILLS
    check(location, jobs, acknowledged)
