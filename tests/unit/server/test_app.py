"""Every request through the application, without a network."""

import asyncio
import dataclasses
import json
import logging

import pytest

from joulery.clock import VirtualClock
from joulery.errors import StoreError
from joulery.server._config import Limits
from joulery.storage import Store
from support.caller import Caller
from support.one_group import one_group
from support.server_process import JOB, OUTCOME


@pytest.fixture
def run(tmp_path):
    """Run something with a caller."""

    def run(work, **limits):
        async def main():
            with Store.open(tmp_path / "store.sqlite") as store:
                return await work(Caller(store, Limits(**limits)))

        return asyncio.run(main())

    return run


def test_decide_and_report(run):
    """Nothing would work."""

    async def work(caller):
        job = await caller.job()
        _, headers, decision = await caller.ask("POST", f"/v1/jobs/{job}/decisions", {"key": "k"})
        assert headers[b"cache-control"] == b"no-store"
        report = {"key": "k", "outcome": OUTCOME}
        path = f"/v1/decisions/{decision['id']}/outcome"
        return await caller.ask("PUT", path, report, decision["token"])

    status, _, receipt = run(work)
    assert (status, receipt["late"]) == (200, False)


def test_internal_errors_are_logged_and_hidden_from_callers(run, caplog):
    """Callers would see our insides, or we would never hear of the error."""

    async def work(caller):
        job = await caller.job()

        def broken(*_, **__):
            raise ZeroDivisionError("at /secret/place")

        caller.context.jobs.decide_soon = broken
        return await caller.ask("POST", f"/v1/jobs/{job}/decisions", {"key": "k"})

    with caplog.at_level(logging.ERROR, "joulery.server"):
        status, _, problem = run(work)
    assert status == 500
    assert "secret" not in json.dumps(problem)
    assert problem["type"] == "/problems/joulery-error"
    assert [record.message for record in caplog.records] == ["failed"]
    assert "secret" in caplog.text


def test_a_connection_that_ends_is_no_failure(run, caplog):
    """The log would be full of errors that are none of the server's."""

    async def work(caller):
        async def broken(_):
            raise ConnectionResetError

        scope = {"type": "http", "method": "GET", "path": "/health/live", "headers": []}
        scope |= {"raw_path": b"/health/live", "query_string": b"", "client": None}
        await caller.application(scope, None, broken)

    with caplog.at_level(logging.ERROR, "joulery.server"):
        run(work)
    assert not caplog.records


def test_too_many_requests_at_once_are_told_to_come_again(run):
    """Memory would grow with the number of those who wait."""

    async def work(caller):
        job = await caller.job()
        asked = [
            caller.ask("POST", f"/v1/jobs/{job}/decisions", {"key": f"{number}"})
            for number in range(20)
        ]
        answers = await asyncio.gather(*asked)
        live = await caller.ask("GET", "/health/live")
        return answers, live

    answers, live = run(work, waiting_requests=5)
    statuses = [status for status, _, _ in answers]
    assert 200 in statuses
    assert statuses.count(503) >= 10
    assert all(headers[b"retry-after"] == b"1" for status, headers, _ in answers if status == 503)
    assert live[0] == 200


def test_calls_of_a_token_are_limited(run):
    """One team would take everything."""

    async def work(caller):
        path = "/v1/teams/vision/jobs"
        statuses = [(await caller.ask("GET", path))[0] for _ in range(5)]
        caller.clock.sleep(10.0)
        return statuses, (await caller.ask("GET", path))[0]

    statuses, later = run(work, calls_per_second=1.0, burst_calls=3.0)
    assert statuses == [200, 200, 200, 429, 429]
    assert later == 200


@pytest.mark.parametrize(
    ("parts", "headers", "status"),
    [
        ([b'{"key":', b'"a"}'], [], 200),
        ([b"x" * 600, b"x" * 600], [], 413),
        ([b"x" * 2000], [], 413),
        ([b""], [(b"content-length", b"1001")], 413),
        ([b'{"key":', None], [], 408),
    ],
)
def test_bodies_in_parts(run, parts, headers, status):
    """Large or slow bodies would be kept, or good ones refused."""

    async def work(caller):
        job = await caller.job()
        return await caller.ask(
            "POST", f"/v1/jobs/{job}/decisions", None, parts=parts, headers=headers
        )

    assert run(work, body_bytes=1000, body_seconds=0.2)[0] == status


def test_a_server_that_is_being_stopped_is_not_ready(run):
    """Load balancers would go on sending requests."""

    async def work(caller):
        before = await caller.ask("GET", "/health/ready")
        caller.context.draining = True
        return before, await caller.ask("GET", "/health/ready"), await caller.job()

    before, after, job = run(work)
    assert before[0] == 200
    assert after[0] == 503
    assert job


def test_a_store_that_takes_no_writes_is_not_ready_for_a_while(run):
    """Load balancers would send reports to where they are refused, or never again."""

    async def work(caller):
        store = caller.context.store
        moment = VirtualClock()
        store._writer._clock = moment

        def full(_):
            raise StoreError("full", remedy="none")

        with pytest.raises(StoreError):
            store.write(full)
        refused = await caller.ask("GET", "/health/ready")
        assert (await caller.ask("GET", "/health/live"))[0] == 200
        moment.sleep(60.0)
        return refused, await caller.ask("GET", "/health/ready")

    refused, later = run(work)
    assert refused[0] == 503
    assert "full" not in refused[2]["detail"]
    assert later[0] == 200


@pytest.mark.parametrize(
    "query",
    [
        "after=-1",
        "limit=0",
        "limit=1001",
        "limit=1e2",
        "x=1",
        "after=1&after=2",
        "after=%ff",
        "after",
    ],
)
def test_strange_queries_are_refused(run, query):
    """A misspelt query would be taken for another."""

    async def work(caller):
        return await caller.ask("GET", f"/v1/teams/vision/jobs?{query}")

    assert run(work)[0] == 422


def test_jobs_of_which_team_are_remembered_within_bounds(run):
    """Memory would grow with the number of jobs."""

    async def work(caller):
        job = await caller.job()
        for number in range(30):
            document = {"job": JOB | {"name": f"n{number}"}, "policy": "zeus"}
            _, _, found = await caller.ask("POST", "/v1/teams/vision/jobs", document)
            await caller.ask("GET", f"/v1/jobs/{found['id']}/decisions")
        assert (await caller.ask("GET", f"/v1/jobs/{job}/decisions"))[0] == 200
        return len(caller.context._teams)

    assert run(work, remembered=10) == 10


def test_a_token_opens_no_decision_of_a_restored_store(tmp_path):
    """After a restore, holders of lost decisions could report on those of other teams."""

    async def decided(store, seconds):
        caller = Caller(store, Limits())
        caller.clock.sleep(seconds)
        path = f"/v1/jobs/{await caller.job()}/decisions"
        return caller, (await caller.ask("POST", path, {"key": "k"}))[2]

    async def work():
        with (
            Store.open(tmp_path / "lost.sqlite") as lost,
            Store.open(tmp_path / "new.sqlite") as new,
        ):
            _, before = await decided(lost, 10.0)
            caller, after = await decided(new, 20.0)
            path = f"/v1/decisions/{after['id']}/"
            calls = ("PUT", "outcome", {"key": "r", "outcome": OUTCOME}), ("POST", "heartbeat", {})
            old, own = [], []
            for answers, one in ((old, before), (own, after)):
                for method, end, document in calls:
                    answer = await caller.ask(method, path + end, document, one["token"])
                    answers.append(answer[0])
            return before["id"] == after["id"], old, own

    assert asyncio.run(work()) == (True, [404, 404], [200, 200])


def test_names_with_slashes_are_reached(run):
    """A token for such a team would open nothing."""

    async def work(caller):
        path = "/v1/teams/vision%2Flarge/jobs"
        _, _, made = await caller.ask("POST", path, {"job": JOB | {"name": "a/b %2F"}})
        _, _, found = await caller.ask("GET", f"{path}/a%2Fb%20%252F")
        return made["team"], found["definition"]["job"]["name"], found["id"] == made["id"]

    assert run(work) == ("vision/large", "a/b %2F", True)


def test_bodies_of_unknown_callers_are_not_read(run):
    """Everybody on the network could fill the memory and keep the server busy."""

    async def work(caller):
        # The first part would take a minute to arrive.
        return await caller.ask("POST", "/v1/teams/vision/jobs", None, "guess", [None])

    assert run(work)[0] == 401


def test_a_team_sends_so_many_bytes_at_once(run):
    """One team with large bodies would keep all others waiting."""

    async def work(caller):
        large = b"[" + b"1," * 5000 + b"1]"
        length = [(b"content-length", b"10003")]
        path = "/v1/teams/vision/jobs"
        calls = [await caller.ask("POST", path, large, headers=length) for _ in range(3)]
        caller.clock.sleep(20.0)
        calls.append(await caller.ask("POST", path, large, headers=length))
        return [(status, headers.get(b"retry-after")) for status, headers, _ in calls]

    answers = run(work, burst_bytes=10_000.0, team_bytes_per_second=1000.0)
    assert [status for status, _ in answers] == [422, 429, 429, 422]
    assert int(answers[1][1]) >= 1


def test_a_team_has_so_many_requests_in_flight(run):
    """One team would use up what all have."""

    async def work(caller):
        caller.context.in_flight["*"] = 5
        first = await caller.ask("GET", "/v1/teams/vision/jobs")
        caller.context.left("*")
        second = await caller.ask("GET", "/v1/teams/vision/jobs")
        return first[0], second[0], caller.context.in_flight["*"]

    assert run(work, team_requests=5) == (429, 200, 4)


def test_a_store_that_hangs_is_said_to(run):
    """Callers would wait for ever for a database that is suspended."""

    async def work(caller):
        job, patient = await caller.job(), caller.context.limits
        caller.context.limits = dataclasses.replace(patient, answer_seconds=0.1)
        with one_group(caller.context.store):
            decided = await caller.ask("POST", f"/v1/jobs/{job}/decisions", {"key": "k"})
            paused = await caller.ask("PATCH", f"/v1/jobs/{job}", {"paused": False})
        caller.context.limits = patient
        # Neither was lost: the answers only came too late.
        again = await caller.ask("POST", f"/v1/jobs/{job}/decisions", {"key": "k"})
        return decided[0], decided[1][b"retry-after"], paused[0], again[0]

    assert run(work) == (503, b"1", 503, 200)


def test_metrics_are_made_once_a_second(run, monkeypatch):
    """Anybody could keep the server busy without a token."""
    made = []
    monkeypatch.setattr("joulery.server._routes.totals", lambda _: made.append(1))

    async def work(caller):
        for seconds in (0.0, 0.5, 0.4, 0.2):
            caller.clock.sleep(seconds)
            status, _, text = await caller.ask("GET", "/metrics")
            assert (status, b"joulery_requests_total" in text) == (200, True)

    run(work)
    assert len(made) == 2
