"""No request ends in an internal error or reveals internals."""

import json

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from joulery.jobs.policies import policy_names
from joulery.server._app import create_app
from support.server_fuzz import Grammar, Target, fuzz
from support.server_process import ServerProcess

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A server with jobs of every policy, and open decisions."""
    with ServerProcess(tmp_path_factory.mktemp("fuzz") / "store.sqlite") as server:
        decisions = []
        for policy in policy_names():
            job = server.define(name=policy, policy=policy)
            for number in range(3):
                decision = server.decide(job, f"first {number}")
                decisions.append((decision["id"], decision["token"]))
        yield server, Target(server.port, server.admin_token, decisions)
        assert '"event":"failed"' not in server.log


@pytest.mark.parametrize("seed", [1, 2])
def test_the_grammar_of_nasty_requests(target, seed):
    """One strange request would show a stack trace, or stop the server."""
    server, given = target
    findings = fuzz(Grammar(given, seed), server.port, 1500)
    assert findings.faults == []
    assert findings.statuses[200] > 30
    assert findings.statuses[400] > 100
    assert findings.statuses[422] > 100


SCHEMA = schemathesis.openapi.from_dict(create_app().openapi())
CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)


@SCHEMA.parametrize()
@settings(
    max_examples=25,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_the_server_does_as_it_is_described(target, case):
    """Generated clients would meet answers that they do not know."""
    server, given = target
    if case.operation.definition.raw["operationId"] == "revokeToken":
        case.path_parameters = {"token": 10**17}  # ours must go on
    token = given.token
    if "decision" in (case.path_parameters or {}):
        identity, token = given.decisions[0]
        case.path_parameters = {"decision": identity}
    response = case.call(
        base_url=f"http://127.0.0.1:{server.port}", headers={"Authorization": f"Bearer {token}"}
    )
    case.validate_response(response, checks=list(CHECKS))
    if response.status_code >= 400 and case.method.upper() != "HEAD":
        assert set(json.loads(response.content)) == {"type", "title", "status", "detail", "remedy"}
