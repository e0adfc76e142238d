"""Problem documents."""

import json

import pytest

from joulery.documents import NotJsonError
from joulery.errors import (
    ConflictError,
    DeviceError,
    InfeasibleError,
    InvalidValueError,
    StoreBusyError,
    StoreError,
    UnknownRecordError,
    UnsupportedError,
)
from joulery.server._problems import ProblemError, no_token, problem_of


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (NotJsonError("m", remedy="r"), 400, "invalid-value-error"),
        (InvalidValueError("m", remedy="r"), 422, "invalid-value-error"),
        (InfeasibleError("m", remedy="r"), 422, "infeasible-error"),
        (UnknownRecordError("m", remedy="r"), 404, "unknown-record-error"),
        (ConflictError("m", remedy="r"), 409, "conflict-error"),
        (StoreError("m", remedy="r"), 503, "store-busy-error"),
        (StoreBusyError("m", remedy="r"), 503, "store-busy-error"),
        (UnsupportedError("m", remedy="r"), 501, "unsupported-error"),
        (DeviceError("m", remedy="r"), 500, "joulery-error"),
    ],
)
def test_every_error_has_its_status(error, status, kind):
    """Clients would take an error for another, and repeat or give up wrongly."""
    problem = problem_of(error)
    document = json.loads(problem.response().body)
    assert (problem.status_code, document["status"]) == (status, status)
    assert document["type"] == f"/problems/{kind}"
    assert set(document) == {"type", "title", "status", "detail", "remedy"}


def test_the_databases_words_are_kept_inside():
    """Paths, addresses and statements would leak to clients."""
    problem = problem_of(StoreError("the store failed: /srv/db: disk full", remedy="see /srv/db"))
    assert b"/srv" not in problem.response().body
    assert problem.headers["Retry-After"] == "1"


def test_foreign_and_missing_look_the_same():
    """Others' jobs could be found out by asking for them."""
    one = problem_of(UnknownRecordError("no job number 7", remedy="r"))
    other = problem_of(UnknownRecordError("decision 7.1 is of another job", remedy="r"))
    assert one.response().body == other.response().body
    assert "7" not in one.detail


def test_who_has_no_valid_token_learns_where_to_put_one():
    """People at a terminal would be told to send a header."""
    assert "$JOULERY_TOKEN" in no_token().problem.remedy
    assert "came with the decision" in no_token("decision").problem.remedy


def test_long_details_are_cut():
    """An answer could be as long as what was sent."""
    problem = ProblemError(422, InvalidValueError, "x" * 10_000, "y" * 10_000)
    assert len(problem.response().body) < 2000
