"""Every request through the application, without a network."""

import asyncio
import json
import logging

import pytest

from joulery.clock import VirtualClock
from joulery.errors import StoreError
from joulery.server._app import create_app
from joulery.server._context import ServerContext
from joulery.server._limits import Limits
from joulery.storage import NewToken, Permission, Store, add_token
from support.server_process import JOB, OUTCOME


class Caller:
    """Asks an application as a server would.

    Args:
        store: Opened.
        limits: Of the server.
    """

    def __init__(self, store, limits):
        self.clock = VirtualClock()
        wanted = NewToken("*", Permission.ADMIN)
        self.token, _ = store.write(lambda transaction: add_token(transaction, wanted, 0.0))
        self.context = ServerContext(store, b"secret", limits, self.clock)
        self.application = create_app(self.context)

    async def ask(self, method, path, document=None, token=None, parts=None, headers=()):
        """Status, headers and document of the answer."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        parts = [body] if parts is None else list(parts)
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [
                (b"authorization", f"Bearer {token or self.token}".encode()),
                (b"content-type", b"application/json"),
                *headers,
            ],
            "client": ("10.0.0.1", 1),
        }
        sent = []

        async def receive():
            if not parts:
                return {"type": "http.disconnect"}
            part = parts.pop(0)
            if part is None:
                await asyncio.sleep(60)
            return {"type": "http.request", "body": part, "more_body": bool(parts)}

        async def send(message):
            sent.append(message)

        await self.application(scope, receive, send)
        start, end = sent
        found = json.loads(end["body"]) if end["body"] else None
        return start["status"], dict(start["headers"]), found

    async def job(self):
        """A job that was defined."""
        document = {"job": JOB, "policy": "zeus"}
        status, _, found = await self.ask("POST", "/v1/teams/vision/jobs", document)
        assert status == 200
        return found["id"]


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
