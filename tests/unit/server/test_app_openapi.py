"""The OpenAPI description of the server."""

import asyncio
import json

import pytest
from fastapi.routing import APIRoute

from joulery.documents import JsonModel
from joulery.jobs.policies import RunEnd
from joulery.server._app import create_app
from joulery.server._config import LIMITS
from joulery.storage import Store
from support.caller import Caller
from support.server_fuzz import bodies

APP = create_app()
DOCUMENT = APP.openapi()
OPERATIONS = [
    (method.upper(), path, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
]


def test_every_route_is_described():
    """Generated clients would lack operations."""
    routes = {
        (method, route.path_format)
        for router in APP.routes
        for route in getattr(router, "effective_candidates", lambda router=router: [router])()
        if isinstance(route, APIRoute)
        for method in route.methods
    }
    assert {(method, path) for method, path, _ in OPERATIONS} >= routes
    names = [operation["operationId"] for _, _, operation in OPERATIONS]
    assert len(set(names)) == len(names)
    assert {"decide", "report", "heartbeat", "defineJob", "deleteJob", "ready"} <= set(names)


def test_tags_are_given():
    """Generated clients would put all operations in one class, or rename classes with our files."""
    tags = {tag for _, _, operation in OPERATIONS for tag in operation["tags"]}
    assert tags == {"decisions", "jobs", "measurements", "health"}


@pytest.mark.parametrize("name", sorted(DOCUMENT["components"]["schemas"]))
def test_every_member_is_described(name):
    """Users would have to guess what a figure means, and in which unit."""
    schema = DOCUMENT["components"]["schemas"][name]
    assert schema["description"]
    assert schema["additionalProperties"] is False
    for member in schema["properties"].values():
        assert len(member["description"]) > 5


def test_errors_are_problem_documents_everywhere():
    """Generated clients would not understand errors."""
    for _, _, operation in OPERATIONS:
        for status, response in operation["responses"].items():
            if int(status) >= 400:
                assert list(response["content"]) == ["application/problem+json"]


def test_security_is_described():
    """Generated clients would not send tokens."""
    decide = DOCUMENT["paths"]["/v1/jobs/{job}/decisions"]["post"]
    report = DOCUMENT["paths"]["/v1/decisions/{decision}/outcome"]["put"]
    assert decide["security"] == [{"teamToken": []}]
    assert report["security"] == [{"decisionToken": []}]
    assert set(DOCUMENT["components"]["securitySchemes"]) == {"teamToken", "decisionToken"}


def test_it_is_json():
    """Generators of clients could not read it."""
    assert json.loads(json.dumps(DOCUMENT))["openapi"].startswith("3.1")


def test_ends_probes_and_leases_are_described():
    """Clients would have to guess what to report, and how often."""
    schemas = DOCUMENT["components"]["schemas"]
    end = schemas["Outcome"]["properties"]["end"]
    assert end["enum"] == [each.name.lower() for each in RunEnd]
    assert all(f"`{name}`" in end["description"] for name in end["enum"])
    kind = schemas["Decision"]["properties"]["kind"]
    assert all(f"`{name}`" in kind["description"] for name in kind["enum"])
    assert "600 seconds" in schemas["Decision"]["properties"]["expires_wall_seconds"]["description"]
    assert "600 seconds" in DOCUMENT["info"]["description"]
    for _, _, operation in OPERATIONS:
        assert all(each["description"] for each in operation.get("parameters", ()))


# One after the other, on a new server: what a reader of the description would try.
LIFE = (
    *("live", "ready", "metrics", "defineJob", "listJobs", "showJob", "decide", "heartbeat"),
    *("putProfile", "listProfiles", "addEnergy", "listEnergy", "report", "listDecisions"),
    *("putRun", "listRuns", "showRun", "pauseJob", "deleteJob"),
)


def test_examples_work_on_a_new_server(tmp_path):
    """The first thing that a user copies would fail."""
    by_name = {operation["operationId"]: each for each in OPERATIONS for operation in each[2:]}
    assert by_name.keys() == set(LIFE)

    async def work():
        with Store.open(tmp_path / "store.sqlite") as store:
            caller, answers = Caller(store, LIMITS), {}
            for name in LIFE:
                method, path, operation = by_name[name]
                for each in operation.get("parameters", ()):
                    if each["in"] == "path":
                        shown = str(each["schema"]["examples"][0])
                        path = path.replace("{" + each["name"] + "}", shown)
                content = operation.get("requestBody", {}).get("content", {})
                document = content["application/json"]["example"] if content else None
                held = "{decision}" in by_name[name][1]
                token = answers["decide"]["token"] if held else None
                status, _, answers[name] = await caller.ask(method, path, document, token)
                assert status == int(next(iter(operation["responses"]))), (name, answers[name])
            return answers

    answers = asyncio.run(work())
    assert answers["decide"]["id"] == "1.1"
    assert not answers["report"]["quarantined"]
    assert answers["listDecisions"]["decisions"][0]["outcome"]["end"] == "reached"


def test_bodies_are_the_classes_of_the_schema():
    """The description would tell of documents that are not read."""
    kinds = {kind.__name__: kind for kind in JsonModel.__subclasses__()}
    for path, (method, sent) in bodies(7, "7.12", "k").items():
        template = path.replace("vision", "{team}").replace("7.12", "{decision}")
        operation = DOCUMENT["paths"][template.replace("/7", "/{job}")][method.lower()]
        content = operation["requestBody"]["content"]["application/json"]["schema"]
        kind = kinds[content["$ref"].rpartition("/")[2]]
        assert kind.from_document(sent)
        schema = DOCUMENT["components"]["schemas"][kind.__name__]
        assert schema["properties"].keys() == kind.from_document(sent).to_document().keys()
