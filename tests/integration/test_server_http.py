"""A real server over HTTP, on every database."""

import http.client
import os
import resource
import shutil
import ssl
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from joulery.jobs import Decision, DecisionEntry, JobEntry, Receipt
from support.forked import ForkedCommand
from support.server_process import JOB, OUTCOME, ServerProcess

pytestmark = pytest.mark.slow


@pytest.fixture
def server(location):
    """Just started for the first time."""
    with ServerProcess(location) as server:
        yield server
        assert '"event":"failed"' not in server.log


def test_a_recurrence_from_definition_to_report(server):
    """The server would be of no use."""
    defined = server.ask(
        "POST",
        "/v1/teams/vision/jobs",
        {"job": JOB | {"name": "a/b ü"}, "device": "A40", "policy": "zeus"},
    )
    assert defined.status == 200
    job = JobEntry.from_document(defined.document)
    assert (job.name, job.device, job.version, job.paused) == ("a/b ü", "A40", 1, False)
    assert job.definition.job.to_document() == JOB | {"name": "a/b ü"}
    decision = Decision.from_document(server.decide(job.id, "first"))
    assert decision.batch_size == 128
    assert Decision.from_document(server.decide(job.id, "first")) == decision
    beat = server.ask("POST", f"/v1/decisions/{decision.id}/heartbeat", {}, decision.token)
    assert beat.document["held"] is True
    document = {"id": decision.id, "token": decision.token}
    reported = server.report(document, "first")
    receipt = Receipt.from_document(reported.document)
    assert (receipt.decision, receipt.late) == (decision.id, False)
    assert server.report(document, "first").document == reported.document
    again = {"key": "first", "outcome": OUTCOME | {"joules": 301.0}}
    path = f"/v1/decisions/{decision.id}/outcome"
    assert server.ask("PUT", path, again, decision.token).status == 409
    page = server.ask("GET", f"/v1/jobs/{job.id}/decisions").document
    assert page["next"] is None
    (entry,) = map(DecisionEntry.from_document, page["decisions"])
    assert (entry.state, entry.key, entry.outcome.joules) == ("reported", "first", 300.0)
    assert entry.decision.token == ""
    shown = server.ask("GET", "/v1/teams/vision/jobs/a%2Fb%20%C3%BC?device=A40")
    assert shown.document["recurrences"] == 1


def test_managing_jobs(server):
    """Jobs could not be stopped or cleaned up."""
    first, second = server.define(name="one"), server.define(name="two")
    page = server.ask("GET", "/v1/teams/vision/jobs?limit=1").document
    assert [job["id"] for job in page["jobs"]] == [first]
    assert page["next"] == first
    rest = server.ask("GET", f"/v1/teams/vision/jobs?after={first}").document
    assert [job["id"] for job in rest["jobs"]] == [second]
    assert rest["next"] is None
    assert server.ask("PATCH", f"/v1/jobs/{first}", {"paused": True}).status == 200
    refused = server.ask("POST", f"/v1/jobs/{first}/decisions", {"key": "k"})
    assert refused.status == 409
    assert "paused" in refused.document["detail"]
    assert server.ask("PATCH", f"/v1/jobs/{first}", {"paused": False}).status == 200
    decision = server.decide(first, "k")
    assert server.ask("DELETE", f"/v1/jobs/{first}").status == 204
    assert server.ask("POST", f"/v1/jobs/{first}/decisions", {"key": "k"}).status == 404
    assert server.report(decision, "k").status == 404
    assert server.ask("GET", "/v1/teams/vision/jobs/one").status == 404
    for what in ("decisions", "profiles", "energy"):
        assert server.ask("GET", f"/v1/jobs/{first}/{what}").status == 404


def test_measurements_are_kept(server):
    """Profiles and energy would be lost."""
    job = server.define()
    decision = server.decide(job, "k")
    point = {"seconds": 10.0, "joules": 2500.5, "setting": {"power_limit_watts": 200.0}}
    profile = {"batch_size": 64, "device": "A40", "frontier": {"points": [point]}}
    assert server.ask("PUT", f"/v1/jobs/{job}/profiles", profile).status == 204
    (kept,) = server.ask("GET", f"/v1/jobs/{job}/profiles").document["profiles"]
    assert kept["frontier"]["points"][0]["joules"] == 2500.5
    for number in range(3):
        used = {"device": f"{number}", "seconds": 1.0, "joules": number}
        used["decision"] = decision["id"]
        for _ in range(2):
            assert server.ask("POST", f"/v1/jobs/{job}/energy", used).status == 204
    assert server.ask("POST", f"/v1/jobs/{job}/energy", used | {"joules": 9.0}).status == 409
    page = server.ask("GET", f"/v1/jobs/{job}/energy?limit=2").document
    assert [one["joules"] for one in page["energy"]] == [0.0, 1.0]
    rest = server.ask("GET", f"/v1/jobs/{job}/energy?after={page['next']}").document
    assert [one["decision"] for one in rest["energy"]] == [decision["id"]]
    assert rest["next"] is None


def test_revoked_tokens_are_refused(server):
    """Owners could not take access back, or tokens would be found in the log."""
    number, token = server.token("vision", "read")
    assert server.ask("GET", "/v1/teams/vision/jobs", token=token).status == 200
    server.revoke(number)
    assert server.ask("GET", "/v1/teams/vision/jobs", token=token).status == 401
    assert token not in server.log
    assert server.admin_token not in server.log


def test_health_metrics_and_description(server):
    """Nothing could watch the server."""
    job = server.define()
    server.decide(job, "k")
    assert server.ask("GET", "/health/live", token="").document == {"status": "live"}
    assert server.ask("GET", "/health/ready", token="").document == {"status": "ready"}
    metrics = server.ask("GET", "/metrics", token="")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert b'joulery_requests_total{operation="decide",status="200"} 1.0\n' in metrics.body
    assert b"joulery_open_decisions 1.0\n" in metrics.body
    described = server.ask("GET", "/openapi.json", token="")
    assert described.document["openapi"].startswith("3.1")


def operations(job, decision):
    """Every operation on something that belongs to a team."""
    definition = {"job": JOB, "policy": "zeus"}
    profile = {
        "batch_size": 64,
        "device": "a",
        "frontier": {"points": [{"seconds": 1, "joules": 1}]},
    }
    return [
        ("POST", "/v1/teams/vision/jobs", definition),
        ("GET", "/v1/teams/vision/jobs", None),
        ("GET", "/v1/teams/vision/jobs/nightly", None),
        ("POST", f"/v1/jobs/{job}/decisions", {"key": "other"}),
        ("POST", f"/v1/jobs/{job}/decisions", {"key": "other", "after": decision}),
        ("GET", f"/v1/jobs/{job}/decisions", None),
        ("PATCH", f"/v1/jobs/{job}", {"paused": True}),
        ("DELETE", f"/v1/jobs/{job}", None),
        ("GET", f"/v1/jobs/{job}/profiles", None),
        ("PUT", f"/v1/jobs/{job}/profiles", profile),
        ("GET", f"/v1/jobs/{job}/energy", None),
        ("POST", f"/v1/jobs/{job}/energy", {"device": "a", "seconds": 1, "joules": 1}),
    ]


def decision_operations(decision):
    """Every operation on a decision."""
    return [
        ("POST", f"/v1/decisions/{decision}/heartbeat", {"progress": None}),
        ("PUT", f"/v1/decisions/{decision}/outcome", {"key": "other", "outcome": OUTCOME}),
    ]


def test_every_operation_is_denied_to_others(server):
    """Teams could see, change or find out about one another's jobs."""
    job = server.define()
    own, foreign_job = server.decide(job, "k"), server.define("speech")
    foreign = server.decide(foreign_job, "k")
    _, speech = server.token("speech", "manage")
    revoked_id, revoked = server.token("vision", "manage")
    server.revoke(revoked_id)
    _, expired = server.token("vision", "manage", days=1e-8)
    before = server.ask("GET", f"/v1/jobs/{job}/decisions").body
    missing = operations(job + 1000, f"{job + 1000}.1")
    for (method, path, document), (_, nowhere, other) in zip(
        operations(job, own["id"]), missing, strict=True
    ):
        denied = server.ask(method, path, document, speech)
        assert denied.status == 404, (method, path, denied.body)
        if "/jobs/nightly" not in path and "/teams/" not in path:
            # What is not there looks the same as what is another's.
            assert server.ask(method, nowhere, other, speech).body == denied.body
        for token in ("", "x", revoked, expired, own["token"], foreign["token"]):
            assert server.ask(method, path, document, token).status == 401, (method, path, token)
    for method, path, document in decision_operations(own["id"]):
        for token in ("", "x", server.admin_token, speech, foreign["token"]):
            denied = server.ask(method, path, document, token)
            assert denied.status == 401, (method, path, token)
            nowhere = path.replace(own["id"], f"{job + 1000}.1")
            assert server.ask(method, nowhere, document, token).body == denied.body
    mixed = {"key": "other", "after": own["id"]}
    assert server.ask("POST", f"/v1/jobs/{foreign_job}/decisions", mixed, speech).status == 404
    assert server.ask("GET", f"/v1/jobs/{job}/decisions").body == before


RIGHTS = ("read", "work", "manage")
NEEDED = ("work", "read", "read", "work", "work", "read", "manage", "manage", "read", "work")


def test_every_operation_needs_its_right(server):
    """A token to read with could delete jobs."""
    tokens = {right: server.token("vision", right)[1] for right in RIGHTS}
    job = server.define()
    decision = server.decide(job, "k")["id"]
    needed = (*NEEDED, "read", "work")
    for (method, path, document), right in zip(operations(job, decision), needed, strict=True):
        for held in RIGHTS[: RIGHTS.index(right)]:
            denied = server.ask(method, path, document, tokens[held])
            assert denied.status == 403, (method, path, held)
            assert denied.document["type"] == "/problems/missing-rights-error"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b'{"key":NaN}', 400),
        (b'{"key":1e400}', 422),
        (b'{"key":%d}' % 2**70, 422),
        (b'{"key":"a\\u0000"}', 400),
        (b'{"key":"\\ud800"}', 400),
        (b"[" * 100_000, 422),
        (b'{"key":"\xff"}', 400),
        (b'{"key":1}', 422),
        (b'{"key":""}', 422),
        (b'{"key":"a","colour":1}', 422),
        (b'{"key":"a","after":"1.99999"}', 404),
        (b'{"key":"' + b"a" * 1_000_000 + b'"}', 413),
    ],
    ids=range(14),
)
def test_nasty_bodies_are_refused(shared_server, body, status):
    """Wrong requests would be carried out, or end in internal errors."""
    server, job = shared_server
    answered = server.ask("POST", f"/v1/jobs/{job}/decisions", body)
    assert answered.status == status
    assert answered.headers["content-type"] == "application/problem+json"
    assert set(answered.document) == {"type", "title", "status", "detail", "remedy"}
    assert answered.document["status"] == status


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory):
    """One for tests that leave nothing behind, with a job."""
    with ServerProcess(tmp_path_factory.mktemp("server") / "store.sqlite") as server:
        yield server, server.define()


def test_large_bodies_are_not_read(shared_server):
    """A hundred megabytes would be kept in memory."""
    server, job = shared_server
    before = resident_bytes(server.pid)
    body = b'{"key":"' + b"a" * 50_000_000 + b'"}'
    assert server.ask("POST", f"/v1/jobs/{job}/decisions", body).status == 413
    assert resident_bytes(server.pid) - before < 20e6


def resident_bytes(pid):
    """Memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def test_other_media_and_methods(shared_server):
    """Callers would not learn what to send."""
    server, job = shared_server
    connection = server.connect()
    headers = {"Authorization": f"Bearer {server.admin_token}", "Content-Type": "text/plain"}
    connection.request("POST", f"/v1/jobs/{job}/decisions", b"{}", headers)
    assert connection.getresponse().status == 415
    connection.close()
    wrong = server.ask("PATCH", f"/v1/jobs/{job}/energy", {})
    assert (wrong.status, wrong.headers["allow"]) == (405, "GET")
    assert server.ask("GET", "/nowhere").status == 404
    assert server.ask("HEAD", "/health/live").body == b""


def test_many_clients_share_one_job(location):
    """Concurrent clients would get the same event, or errors."""
    with ServerProcess(location) as server:
        job = server.define()

        def work(number):
            decision = server.decide(job, f"{number}")
            assert server.report(decision, f"{number}").status == 200
            return decision["id"]

        with ThreadPoolExecutor(16) as threads:
            ids = list(threads.map(work, range(64)))
        assert len(set(ids)) == 64
        page = server.ask("GET", f"/v1/jobs/{job}/decisions?limit=1000").document
        assert [one["state"] for one in page["decisions"]] == ["reported"] * 64
        metrics = server.ask("GET", "/metrics").body
        assert b'joulery_requests_total{operation="report",status="200"} 64.0\n' in metrics
        assert b"joulery_events 128.0\n" in metrics


def test_the_first_start_tells_a_token_once(tmp_path):
    """The owner would have no access, or every user of the machine would."""
    with ServerProcess(tmp_path / "store.sqlite") as server:
        first, local = server.admin_token, server.user_token
        assert first
        assert server.new_store == str(tmp_path / "store.sqlite"), "a missing disk goes unnoticed"
        assert server.ask("GET", "/v1/teams/default/jobs", token=local).status == 200
        file = Path(server._folder.name) / "joulery" / "tokens.json"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert not stat.S_IMODE((tmp_path / "store.sqlite").stat().st_mode) & 0o007
        assert first.encode() not in (tmp_path / "store.sqlite").read_bytes()
        assert server.stop() == 0
        server.admin_token = ""
        server.start()
        assert server.admin_token == ""
        assert server.new_store is None
        assert server.user_token == local
        assert server.ask("GET", "/v1/teams/default/jobs", token=first).status == 200


def test_it_starts_fast(tmp_path):
    """A restart would be an outage."""
    times = []
    with ServerProcess(tmp_path / "store.sqlite", forked=False) as server:
        server.stop()
        for _ in range(2):
            begun = resource.getrusage(resource.RUSAGE_CHILDREN)
            server.start()
            assert server.ask("GET", "/health/ready", token="").status == 200
            server.stop()
            ended = resource.getrusage(resource.RUSAGE_CHILDREN)
            times.append(ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime)
    # Of the processor, 1.5 s: tests share their machine.
    assert 0.1 < min(times) < 4.0


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate for this machine, and its key."""
    if shutil.which("openssl") is None and os.environ.get("CI") != "true":
        pytest.skip("no openssl")
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "cert.pem", folder / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run(
        [*command, "-out", files[0], "-keyout", files[1]], check=True, capture_output=True
    )
    return files


def test_tls(tmp_path, certificate):
    """Tokens could not be kept secret on a network."""
    cert, key = map(str, certificate)
    options = ["--tls-cert", cert, "--tls-key", key, "--listen", "0.0.0.0:0"]
    with ServerProcess(tmp_path / "store.sqlite", options) as server:
        assert server.address.startswith("https://127.0.0.1:")
        connection = http.client.HTTPSConnection(
            "127.0.0.1", server.port, context=ssl.create_default_context(cafile=cert)
        )
        answered = server.ask("GET", "/v1/teams/a/jobs", connection=connection)
        connection.close()
        assert answered.status == 200


def test_tls_files_that_do_not_fit_are_told(tmp_path, certificate):
    """A server would start and then fail every connection."""
    cert, key = certificate
    for files in ((key, cert), (cert, tmp_path / "missing"), (cert, cert)):
        options = ["--tls-cert", files[0], "--tls-key", files[1], "--listen", "127.0.0.1:0"]
        errors = tmp_path / "errors"
        command = ForkedCommand(
            ["serve", "--store", f"{tmp_path}/s", *map(str, options)], os.environ, errors
        )
        assert command.wait(60) == 2
        command.stdout.close()
        assert "cannot use" in errors.read_text()
        errors.unlink()
