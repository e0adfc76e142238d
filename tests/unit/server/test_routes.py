"""Which operation an address means, and for whom."""

import asyncio

import pytest

from joulery.server._app import create_app
from joulery.server._auth import ServerContext
from joulery.storage import Store

APP = create_app()
OPERATIONS = [
    (method.upper(), path, operation)
    for path, methods in APP.openapi()["paths"].items()
    for method, operation in methods.items()
]


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    """The application on an empty store."""
    with Store.open(tmp_path_factory.mktemp("routes") / "store.sqlite") as store:
        yield create_app(ServerContext(store, b"secret"))


def answer(app, method, path):
    """Status and headers of the answer to a request without a token."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode()}
    scope |= {"query_string": b"", "headers": [(b"content-type", b"application/json")]}
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], dict(sent[0]["headers"])


@pytest.mark.parametrize("name", ["a/b", "..", "😀", "a+b", "jobs"])
def test_names_of_any_kind_reach_the_job(app, name):
    """A job named a/b could not be reached, or would be taken for another address."""
    assert answer(app, "GET", f"/v1/teams/vision/jobs/{name}")[0] == 401


@pytest.mark.parametrize(
    "path",
    [
        *("", "//", "/v1", "/v1/", "/v1/jobs", "/v1/jobs/1/", "/v1/jobs//decisions"),
        *("/v1/teams//jobs", "/v1/{}/1", "v1/jobs/1", "/health/../health/live", "/V1/jobs/1"),
    ],
)
def test_other_addresses_are_nothing(app, path):
    """A strange address would reach an operation around its checks."""
    assert answer(app, "GET", path)[0] == 404


def test_a_wrong_method_is_told_a_right_one(app):
    """Callers would not learn what an address takes."""
    status, headers = answer(app, "POST", "/v1/decisions/1.1/outcome")
    assert (status, headers[b"allow"]) == (405, b"PUT")


def test_only_health_and_figures_are_open(app):
    """An operation on jobs would need no token."""
    for method, path, operation in OPERATIONS:
        place = path.replace("{job}", "1").replace("{run}", "1")
        status, _ = answer(app, method, place)
        assert (status == 401) == (operation["operationId"] not in {"live", "ready", "metrics"})


def test_decisions_are_opened_by_their_own_token_only():
    """A team's token would open the decisions of others, or a decision's those of its team."""
    by_decision = {
        operation["operationId"]
        for _, _, operation in OPERATIONS
        if operation.get("security") == [{"decisionToken": []}]
    }
    assert by_decision == {"report", "heartbeat"}
