"""Which operation an address means."""

import pytest

from joulery.server.catalogue import OPERATIONS, TABLE
from joulery.server.metrics import MOST_OPERATIONS
from joulery.server.operations import BY_DECISION, OPEN_TO_ALL
from joulery.server.problems import ProblemError
from joulery.storage.tokens import Permission


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_every_operation_is_found(operation):
    """An operation could not be asked for."""
    found, parameters = TABLE.find(operation.method, operation.path.encode())
    assert found is operation
    assert all(value == f"{{{name}}}" for name, value in parameters.items())


@pytest.mark.parametrize(
    ("segment", "name"),
    [(b"a%2Fb", "a/b"), (b"%2e%2e", ".."), (b"..", ".."), (b"%F0%9F%98%80", "😀"), (b"a+b", "a+b")],
)
def test_names_stay_in_their_segment(segment, name):
    """A job named a/b could not be reached, or would be taken for another address."""
    _, parameters = TABLE.find("GET", b"/v1/teams/vision/jobs/" + segment)
    assert parameters == {"team": "vision", "name": name}


@pytest.mark.parametrize(
    "path",
    [
        *(b"", b"/", b"//", b"/v1", b"/v1/", b"/v1/jobs", b"/v1/jobs/1/", b"/v1/jobs//decisions"),
        *(b"/v1/teams//jobs", b"/v1/teams/a/jobs/%ff", b"/v1/teams/a/jobs/b/c", b"/v1/{}/1"),
        *(b"v1/jobs/1", b"/health/../health/live", b"/%76%31/jobs/1", b"/V1/jobs/1"),
    ],
)
def test_other_addresses_are_nothing(path):
    """A strange address would reach an operation around its checks."""
    with pytest.raises(ProblemError) as refused:
        TABLE.find("GET", path)
    assert refused.value.problem.status == 404


def test_a_wrong_method_is_told_the_right_ones():
    """Callers would not learn what an address takes."""
    with pytest.raises(ProblemError) as refused:
        TABLE.find("PATCH", b"/v1/jobs/1/decisions")
    assert refused.value.problem.status == 405
    assert dict(refused.value.problem.headers)[b"allow"] == b"GET, POST"


def test_only_health_and_descriptions_are_open():
    """An operation on jobs would be open to everybody."""
    open_ones = {one.name for one in OPERATIONS if one.access is OPEN_TO_ALL}
    assert open_ones == {"live", "ready", "metrics", "openapi"}
    assert {one.name for one in OPERATIONS if one.access is BY_DECISION} == {"report", "heartbeat"}
    assert all(one.access is Permission.ADMIN for one in OPERATIONS if "/tokens" in one.path)


def test_metrics_have_room_for_all():
    """Requests would be counted for another operation."""
    assert len(OPERATIONS) < MOST_OPERATIONS
