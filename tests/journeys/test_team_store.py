"""Journey: a team's store is restored, replaced and upgraded without a wrong decision or a loss."""

import json
import sqlite3
import subprocess
import sys

import pytest

from support.server_process import OUTCOME, ServerProcess

pytestmark = pytest.mark.slow


def command(*arguments):
    """Exit code and document of a command."""
    process = subprocess.run(
        [sys.executable, "-m", "joulery", *map(str, arguments), "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return process.returncode, json.loads(process.stdout or "{}"), process.stderr


def test_an_import_under_a_running_server_is_noticed(tmp_path):
    """A team's next decision rests on what another team's job had learned under the same number."""
    with ServerProcess(tmp_path / "other.sqlite") as server:
        server.define("speech", "newcomer")
    assert (
        command("store", "export", tmp_path / "other.jsonl", "--store", tmp_path / "other.sqlite")[
            0
        ]
        == 0
    )
    store = tmp_path / "store.sqlite"
    with ServerProcess(store) as server:
        job = server.define("vision")
        for night in range(3):
            server.report(server.decide(job, f"night {night}"), f"night {night}")
        code, document, errors = command(
            "store", "import", tmp_path / "other.jsonl", "--replace", "--store", store
        )
        assert code == 0, errors
        answer = server.ask("POST", f"/v1/jobs/{job}/decisions", {"key": "night 3"})
        assert (answer.status, "restart the server" in answer.document["remedy"]) == (503, True)
        for path in ("/health/ready", "/health/live"):
            assert server.ask("GET", path, token="").status == 503  # so that supervisors restart it
        server.stop()
        token = server.token("speech", "work")[1]
        server.start()
        listed = server.ask("GET", "/v1/teams/speech/jobs", token=token).document["jobs"]
        assert [entry["definition"]["job"]["name"] for entry in listed] == ["newcomer"]
        assert listed[0]["events"] == 0
    kept = document["replaced"]
    with ServerProcess(kept) as server:  # what was replaced still serves
        token = server.token("vision", "work")[1]
        (entry,) = server.ask("GET", "/v1/teams/vision/jobs", token=token).document["jobs"]
        assert entry["recurrences"] == 3


def test_a_file_of_another_program_replaces_nothing(tmp_path):
    """A slip of the hand exchanges a store and its tokens for a browser's bookmarks."""
    foreign, store = tmp_path / "places.sqlite", tmp_path / "store.sqlite"
    with sqlite3.connect(foreign) as database:
        database.execute("CREATE TABLE bookmarks (url TEXT)")
    database.close()
    with ServerProcess(store) as server:
        server.define()
    code, _, errors = command("store", "restore", foreign, "--replace", "--store", store)
    assert (code, "not a store of Joulery" in errors) == (2, True)
    code, document, _ = command("store", "check", "--store", store)
    assert (code, document["rows"]["jobs"]) == (0, 1)
    code, _, errors = command("serve", "token", "list", "--store", foreign)
    assert (code, "another program" in errors) == (1, True)


def test_a_plain_client_is_believed_and_a_strange_report_says_what_would_release_it(tmp_path):
    """Whoever begins with curl is ignored by the policy, and nobody learns why."""
    with ServerProcess(tmp_path / "store.sqlite") as server:
        job = server.define(policy="joulery")
        for night in range(4):  # as fast as the calls of the manual are pasted
            receipt = server.report(server.decide(job, f"night {night}"), f"night {night}").document
            assert (receipt["quarantined"], receipt["reason"]) == (False, "")
        decision = server.decide(job, "strange")
        path = f"/v1/decisions/{decision['id']}/outcome"
        outcome = OUTCOME | {"epochs": 2, "seconds": 60.0, "joules": 9000.0}
        strange = {"key": "strange", "outcome": outcome}
        receipt = server.ask("PUT", path, strange, decision["token"]).document
        assert receipt["quarantined"]
        assert "release" in receipt["reason"]
        assert server.ask("PUT", path, strange, decision["token"]).document == receipt
        (entry,) = [
            entry
            for entry in server.ask("GET", f"/v1/jobs/{job}/decisions").document["decisions"]
            if entry["quarantined"]
        ]
        assert entry["quarantine_reason"] == receipt["reason"]
    process = subprocess.run(
        [
            *(sys.executable, "-m", "joulery", "jobs", "show", "nightly", "--team", "vision"),
            *("--store", str(tmp_path / "store.sqlite")),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    words = " ".join(process.stdout.split())
    assert "In quarantine" in words
    assert "release" in words
