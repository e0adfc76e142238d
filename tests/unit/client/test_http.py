"""Requests end within their time, whatever the server does."""

import json
import socket
import threading
import time

import pytest

from joulery.client import ResilientClient
from joulery.client._http import HttpBackend
from joulery.errors import (
    ConflictError,
    InvalidValueError,
    JouleryError,
    MissingRightsError,
    StoreBusyError,
    StoreError,
    UnknownRecordError,
)
from joulery.jobs import Definition, Job, Request
from joulery.objectives import Cost

SECONDS = 0.3
SLACK_SECONDS = 30.0


@pytest.fixture
def backend():
    """Makes backends that are given little time, and closes them."""
    made = []

    def make(url, seconds=SECONDS):
        made.append(HttpBackend(url, "team", None, seconds))
        return made[-1]

    yield make
    for each in made:
        each.close()


class Large:
    """A body that no buffer of the system holds."""

    def to_json(self):
        """Five million characters."""
        return b"x" * 5_000_000


def timed(call):
    """The error that a call ends with, and how long it took."""
    began = time.monotonic()
    with pytest.raises(JouleryError) as caught:
        call()
    return caught.value, time.monotonic() - began


def drip(connection, _request):
    """One byte at a time, for ever."""
    while True:
        connection.sendall(b"H")
        time.sleep(0.02)


def drip_body(connection, _request):
    """A head at once, then one byte at a time."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        connection.sendall(b" ")
        time.sleep(0.02)


def hang(_connection, _request):
    """Nothing, for long."""
    time.sleep(60.0)


def reset(connection, _request):
    """Half an answer, then a reset."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    return False


def garbage(connection, _request):
    """No HTTP at all."""
    connection.sendall(bytes(range(256)) * 20)
    return False


@pytest.mark.parametrize("behave", [hang, reset, garbage])
def test_a_broken_server_costs_no_more_than_the_bound(stub, behave, backend):
    """If this fails, a sick server delays trainings."""
    stub.behave = behave
    error, took = timed(lambda: backend(stub.url).ask("GET", "/x"))
    assert isinstance(error, StoreError)
    assert took < SECONDS + SLACK_SECONDS


@pytest.mark.parametrize("behave", [drip, drip_body, hang, reset, garbage])
def test_a_broken_server_delays_no_training(stub, behave, backend):
    """If this fails, a sick server delays trainings."""
    stub.behave = behave
    job = Definition(Job("nightly", (64, 128), 128, Cost(0.5, 300.0)))
    client = ResilientClient(lambda: backend(stub.url), stub.url, SECONDS, job)
    began = time.monotonic()
    assert client.decide(Request("a")).batch_size == 128
    client.close()
    assert time.monotonic() - began < SECONDS + SLACK_SECONDS


def test_a_server_that_is_not_there_is_given_up(stub, backend):
    """If this fails, a dead server delays trainings."""
    stub.close()
    error, took = timed(lambda: backend(stub.url).ask("GET", "/x"))
    assert isinstance(error, StoreBusyError)
    assert "no answer" in error.message
    assert took < SECONDS + SLACK_SECONDS


def test_a_server_that_accepts_and_never_reads_is_given_up(backend):
    """If this fails, a full queue of connections delays trainings."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        _, took = timed(lambda: backend(url).ask("PUT", "/x", body=Large()))
    assert took < SECONDS + SLACK_SECONDS


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429])
def test_passing_failures_are_tried_again(stub, status, backend):
    """If this fails, one hiccup of a server costs a decision."""

    def behave(connection, _request):
        first = len(stub.requests) < 3
        connection.sendall(stub.answer(status) if first else stub.answer(200, b'{"a": 1}'))
        return True

    stub.behave = behave
    assert backend(stub.url, 60.0).ask("GET", "/x") == b'{"a": 1}'
    assert len(stub.requests) == 3


def test_a_wish_to_wait_is_respected_within_the_bound(stub, backend):
    """If this fails, clients hammer a server that asks for a pause."""
    moments = []

    def behave(connection, _request):
        moments.append(time.monotonic())
        if len(moments) == 1:
            connection.sendall(stub.answer(503, b"{}", ["Retry-After: 1"]))
        else:
            connection.sendall(stub.answer())
        return True

    stub.behave = behave
    backend(stub.url, 60.0).ask("GET", "/x")
    assert moments[1] - moments[0] >= 1.0


def test_a_wish_to_wait_beyond_the_bound_ends_the_request_at_once(stub, backend):
    """If this fails, a busy server delays trainings for nothing."""
    stub.behave = lambda connection, _: (
        connection.sendall(stub.answer(503, b"{}", ["Retry-After: 3600"])) or True
    )
    error, took = timed(lambda: backend(stub.url, 60.0).ask("GET", "/x"))
    assert isinstance(error, StoreBusyError)
    assert took < SLACK_SECONDS


def test_a_connection_is_kept_and_a_stale_one_replaced(stub, backend):
    """If this fails, every call pays for a new connection, or the first after a pause fails."""
    stub.behave = lambda connection, _: connection.sendall(stub.answer()) or True
    kept = backend(stub.url, 60.0)
    for _ in range(5):
        kept.ask("GET", "/x")
    assert stub.connections == 1
    stub._open[0].shutdown(socket.SHUT_RDWR)
    time.sleep(0.02)
    assert kept.ask("GET", "/x") == b"{}"
    assert stub.connections == 2


def test_threads_do_not_mix_their_answers(stub, backend):
    """If this fails, a heartbeat gets the answer of a decision."""

    def behave(connection, request):
        connection.sendall(stub.answer(200, request.split(b" ")[1]))
        return True

    stub.behave = behave
    shared = backend(stub.url, 60.0)
    wrong = []

    def ask(name):
        for number in range(40):
            path = f"/{name}/{number}"
            if shared.ask("GET", path) != path.encode():
                wrong.append(path)

    threads = [threading.Thread(target=ask, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_answer_that_ends_with_its_connection_is_read_whole(stub, backend):
    """If this fails, servers that close after each answer cannot be used."""
    body = json.dumps({"a": "b" * 200_000}).encode()

    def behave(connection, _request):
        connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body)
        return False

    stub.behave = behave
    assert backend(stub.url, 60.0).ask("GET", "/x") == body


def test_redirects_are_not_followed(stub, backend):
    """If this fails, a token may be sent to another server."""
    stub.behave = lambda connection, _: (
        connection.sendall(stub.answer(302, b"", ["Location: http://127.0.0.1:1/"])) or True
    )
    error, _ = timed(lambda: backend(stub.url, 60.0).ask("GET", "/x", token="x" * 9))
    assert "elsewhere" in error.message
    assert len(stub.requests) == 1


def test_proxies_of_the_environment_are_not_used(stub, monkeypatch, backend):
    """If this fails, tokens travel through whatever the environment names."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    stub.behave = lambda connection, _: connection.sendall(stub.answer()) or True
    assert backend(stub.url, 60.0).ask("GET", "/x") == b"{}"


@pytest.mark.parametrize(
    ("status", "kind", "wanted"),
    [
        (404, "unknown-record-error", UnknownRecordError),
        (409, "conflict-error", ConflictError),
        (422, "invalid-value-error", InvalidValueError),
        (401, "missing-rights-error", MissingRightsError),
        (404, "nonsense", UnknownRecordError),
        (409, "store-busy-error", ConflictError),
        (418, "nonsense", JouleryError),
    ],
)
def test_problems_come_back_as_the_errors_they_are(stub, status, kind, wanted, backend):
    """If this fails, local and remote stores fail in different ways."""
    problem = {"type": f"/problems/{kind}", "detail": "it is so\n", "remedy": "do\x1b this"}
    body = json.dumps(problem).encode()
    stub.behave = lambda connection, _: connection.sendall(stub.answer(status, body)) or True
    error, _ = timed(lambda: backend(stub.url, 60.0).ask("GET", "/x"))
    assert isinstance(error, wanted)
    assert error.message == "it is so"
    assert error.remedy == "do  this"


@pytest.mark.parametrize(
    "url",
    ["", "ftp://a", "http://", "http://a:b@c", "http://a:999999", "http://a/?x=1", "http://ä"],
)
def test_addresses_that_are_none_are_refused(url):
    """If this fails, a typo becomes a mysterious error, or a password gets into a log."""
    with pytest.raises(InvalidValueError):
        HttpBackend(url, "team", None)


def test_an_endless_answer_is_cut(stub, monkeypatch, backend):
    """If this fails, a broken server fills the memory of a training."""
    monkeypatch.setattr("joulery.client._http._LARGEST_ANSWER", 1000)
    stub.behave = lambda connection, _: connection.sendall(stub.answer(200, b"x" * 2000)) or True
    error, _ = timed(lambda: backend(stub.url, 60.0).ask("GET", "/x"))
    assert "more than" in error.message


def test_a_missing_authority_file_is_said_to_be():
    """If this fails, a wrong path looks like a network failure."""
    secured = HttpBackend("https://127.0.0.1:1", "team", None, SECONDS, "/nonexistent.pem")
    with pytest.raises(JouleryError):
        secured.ask("GET", "/x")
