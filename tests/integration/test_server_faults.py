"""Stopped, killed, starved: the server keeps what it acknowledged and says when to come again."""

import json
import signal
import socket
import sqlite3

import pytest

from support.persistent_clients import Clients, assert_nothing_lost_or_doubled, until
from support.postgresql import Cluster
from support.server_process import ServerProcess

pytestmark = pytest.mark.slow

_PATIENCE_SECONDS = 60.0


def test_a_stop_finishes_what_is_under_way(location):
    """A deployment would cost its users errors or reports."""
    with ServerProcess(location, ["--drain", "600ms"]) as server:
        job = server.define()
        with Clients(server, job) as clients:
            until(lambda: len(clients.acknowledged) > 5)
            server.signal(signal.SIGTERM)
            unready = until(lambda: not_ready(server))
            code = server.stop()
        assert unready == 503
        assert code == 0
        assert set(clients.statuses) == {200}
        server.start()
        assert_nothing_lost_or_doubled(server, job, clients.acknowledged)


def not_ready(server):
    """The status of /health/ready once it is no more 200."""
    status = server.ask("GET", "/health/ready", token="").status
    return status if status != 200 else None


def test_kills_lose_nothing(location):
    """A crash would lose acknowledged reports, or count them twice."""
    with ServerProcess(location) as server:
        job = server.define()
        with Clients(server, job) as clients:
            for round_ in range(1, 4):
                until(lambda least=8 * round_: len(clients.acknowledged) > least)
                server.kill()
                server.start()
            until(lambda: len(clients.acknowledged) > 40)
        assert_nothing_lost_or_doubled(server, job, clients.acknowledged)


@pytest.mark.usefixtures("_postgresql_installed")
def test_a_database_that_restarts_is_told_of(tmp_path):
    """Operators restart databases; clients must learn to come again, and lose nothing."""
    with Cluster() as cluster, ServerProcess(cluster.new_database()) as server:
        job = server.define()
        with Clients(server, job) as clients:
            for how in (signal.SIGQUIT, signal.SIGINT):
                before = len(clients.acknowledged)
                until(lambda least=before + 5: len(clients.acknowledged) > least)
                cluster.stop(how)
                unready = until(lambda: not_ready(server))
                assert unready == 503
                assert server.ask("GET", "/metrics", token="").status == 200
                # Not the database's words, nor its address.
                refused = server.ask("GET", "/v1/teams/vision/jobs")
                assert refused.status == 503
                assert b"joulery-pg" not in refused.body
                cluster.start()
                until(lambda: server.ask("GET", "/health/ready", token="").status == 200)
        assert_nothing_lost_or_doubled(server, job, clients.acknowledged)
        assert '"event":"failed"' not in server.log


def test_a_locked_store_is_told_of(tmp_path):
    """Another program that holds the file would stop the server with an error."""
    path = tmp_path / "store.sqlite"
    with ServerProcess(path) as server:
        job = server.define()
        decision = server.decide(job, "k")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        refused = server.report(decision, "k")
        assert refused.status == 503
        assert refused.headers["retry-after"] == "1"
        assert server.ask("GET", f"/v1/jobs/{job}/decisions").status == 200
        assert not_ready(server) == 503
        other.execute("ROLLBACK")
        other.close()
        assert server.report(decision, "k").status == 200
        assert not_ready(server) is None


def test_a_full_disk_is_told_of(tmp_path):
    """Reports would be acknowledged that are not kept, or the server would end."""
    path = tmp_path / "store.sqlite"
    with ServerProcess(path) as server:
        job = server.define()
        size = (path.with_name(path.name + "-wal")).stat().st_size
        limited = 200_000 + max(size, path.stat().st_size)
        # The log of the server must not grow beyond that, which it does not.
        import resource

        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (limited, resource.RLIM_INFINITY))
        acknowledged, refused = [], None
        for number in range(2000):
            path_ = f"/v1/jobs/{job}/decisions"
            answered = server.ask("POST", path_, {"key": f"{number}"})
            if answered.status != 200:
                refused = answered
                break
            acknowledged.append(answered.document["id"])
        assert refused is not None
        assert refused.status == 503
        assert refused.headers["retry-after"] == "1"
        assert b"disk" not in refused.body
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, unlimited)
        assert until(lambda: server.ask("POST", path_, {"key": "after"}).status == 200)
        page = server.ask("GET", f"/v1/jobs/{job}/decisions?limit=1000").document
        kept = [one["decision"]["id"] for one in page["decisions"]]
        assert set(acknowledged[:1000]) <= set(kept)


def test_slow_and_endless_senders_are_cut_off(tmp_path):
    """A few connections could lock all clients out, or fill the memory."""
    with ServerProcess(tmp_path / "store.sqlite") as server:
        endless = socket.create_connection(("127.0.0.1", server.port), timeout=_PATIENCE_SECONDS)
        endless.sendall(b"GET /health/live HTTP/1.1\r\n")
        answer = b""
        try:
            for _ in range(2000):
                endless.sendall(b"x: " + b"y" * 1000 + b"\r\n")
            answer = endless.recv(65536)
        except (BrokenPipeError, ConnectionResetError):
            answer = b"HTTP/1.1 400"
        assert answer.startswith(b"HTTP/1.1 400")
        endless.close()
        assert server.ask("GET", "/health/live", token="").status == 200


def test_guesses_are_slowed_down(tmp_path):
    """A client that guesses tokens would keep the store busy."""
    with ServerProcess(tmp_path / "store.sqlite") as server:
        server.define()
        connection = server.connect()
        guesses = (
            server.ask("GET", "/v1/teams/a/jobs", token=f"guess{n}", connection=connection).status
            for n in range(5000)
        )
        assert next(guesses) == 401
        assert 429 in guesses
        connection.close()
        # From the same address, and let in all the same.
        assert server.ask("GET", "/v1/teams/vision/jobs").status == 200


def test_silent_holders_are_released(tmp_path):
    """Decisions of workers that died would stay open for ever."""
    with ServerProcess(tmp_path / "store.sqlite") as server:
        job = server.define()
        decision = server.decide(job, "k")
        server.stop()
        with sqlite3.connect(tmp_path / "store.sqlite") as database:
            database.execute("UPDATE decisions SET deadline_wall_seconds = 1.0")
        database.close()
        server.start()
        assert server.decide(job, "next")["id"] != decision["id"]
        page = server.ask("GET", f"/v1/jobs/{job}/decisions").document
        assert [one["state"] for one in page["decisions"]] == ["expired", "open"]
        assert server.report(decision, "k").document["late"] is True


def test_the_log_is_json(tmp_path):
    """Nothing could collect the log."""
    with ServerProcess(tmp_path / "store.sqlite", ["--log-requests"]) as server:
        server.decide(server.define(), "k")
        server.stop()
        events = [json.loads(line) for line in server.log.splitlines()]
        assert events[0]["event"] == "ready"
        names = {event["operation"] for event in events if event["event"] == "request"}
        assert {"defineJob", "decide"} <= names
        assert events[-1]["event"] == "stopped"
