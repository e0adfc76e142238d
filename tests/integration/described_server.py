"""Requests made from the description of the HTTP API; run by test_server_fuzz.py."""

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

from joulery.server._app import create_app
from support.server_fuzz import serve_target


@pytest.fixture(scope="module")
def target():
    """A server with jobs of every policy, and open decisions."""
    with serve_target() as (server, target):
        yield server, target


SCHEMA = schemathesis.openapi.from_dict(create_app().openapi())
CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)


@SCHEMA.parametrize()
@settings(
    max_examples=12,
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
