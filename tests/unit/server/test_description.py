"""The description of the server."""

import json

from joulery.jobs import wire
from joulery.jobs.models import Decision, Measured, Outcome
from joulery.jobs.policies.base import ActionKind, RunEnd
from joulery.server import models
from joulery.server.catalogue import OPERATIONS
from joulery.server.description import described, document
from joulery.testing.server_fuzz import bodies

DOCUMENT = document()


def test_every_operation_is_described():
    """Generated clients would lack operations."""
    described_ones = {
        (method.upper(), path): operation
        for path, methods in DOCUMENT["paths"].items()
        for method, operation in methods.items()
    }
    assert set(described_ones) == {(one.method, one.path) for one in OPERATIONS}
    for one in OPERATIONS:
        told = described_ones[one.method, one.path]
        assert told["operationId"] == one.name
        assert str(one.status) in told["responses"]
        assert told["summary"]
        parameters = {parameter["name"] for parameter in told.get("parameters", [])}
        assert parameters == {
            *(part[1:-1] for part in one.path.split("/") if part.startswith("{")),
            *one.queries,
        }
        assert ("requestBody" in told) == bool(one.takes)


def test_errors_are_problem_documents_everywhere():
    """Generated clients would not understand errors."""
    for methods in DOCUMENT["paths"].values():
        for operation in methods.values():
            for status, response in operation["responses"].items():
                if int(status) >= 400:
                    assert list(response["content"]) == ["application/problem+json"]


def test_security_is_told():
    """Generated clients would not send tokens."""
    decide = DOCUMENT["paths"]["/v1/jobs/{job}/decisions"]["post"]
    report = DOCUMENT["paths"]["/v1/decisions/{decision}/outcome"]["put"]
    assert decide["security"] == [{"teamToken": []}]
    assert report["security"] == [{"decisionToken": []}]
    assert set(DOCUMENT["components"]["securitySchemes"]) == {"teamToken", "decisionToken"}


def test_it_is_json():
    """Nobody could read it."""
    assert json.loads(described())["info"]["title"] == "Joulery"


def test_models_agree_with_what_is_sent():
    """The description would tell of documents that are not."""
    outcome = Outcome(
        RunEnd.REACHED, 3, 40.0, 9000.5, 250.0, (Measured(250.0, 13.0, 3000.0, 0.01),)
    )
    models.Outcome.model_validate(wire.outcome_document(outcome))
    decision = Decision("7.12", 3, ActionKind.PROBE, 64, None, (100.0,), 5.0, "why", 1.8e9, "t")
    models.Decision.model_validate(wire.decision_document(decision))
    takes = {one.path: one.takes for one in OPERATIONS if one.takes}
    for path, (_, sent) in bodies(7, "7.12", "k").items():
        named = (
            path.replace("vision", "{team}").replace("7.12", "{decision}").replace("/7", "/{job}")
        )
        getattr(models, takes[named]).model_validate(sent)
