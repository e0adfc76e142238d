"""Stress the server: malformed requests and kills at full counts."""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stress_text import experiment_text

from joulery.jobs.policies import policy_names

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from support.persistent_clients import Clients, assert_nothing_lost_or_doubled
from support.postgresql import Cluster
from support.server_fuzz import Findings, Grammar, Target, fuzz
from support.server_memory import resident_bytes
from support.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH = 2000
THREADS = 2
LARGE_BODY_BYTES = 100_000_000
GROWTH_BYTES = 100e6  # largest growth of a server, whatever it is sent


def main() -> int:
    """Run every experiment; 0 when all promises hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000, help="malformed requests")
    parser.add_argument("--kills", type=int, default=200, help="kill -9 of the server")
    parser.add_argument("--smoke", action="store_true", help="seconds, to see that it runs")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.requests, arguments.kills = 100, 1
    print(f"seed {arguments.seed}")
    report: dict[str, Any] = {"seed": arguments.seed, "database": arguments.database}
    for name, experiment, count in (
        ("fuzz", _fuzz, arguments.requests),
        ("kills", _kills, arguments.kills),
    ):
        if count:
            with _location(arguments.database) as location:
                report[name] = experiment(location, count, arguments.seed)
            holds = report[name]["holds"]
            print(experiment_text(name, report[name], holds=holds), flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(report, indent=1), encoding="utf-8")
    return int(any(not one["holds"] for one in report.values() if isinstance(one, dict)))


@contextlib.contextmanager
def _location(database: str) -> Iterator[str]:
    if database == "postgresql":
        with Cluster() as cluster:
            yield cluster.new_database()
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield f"{folder}/store.sqlite"


def _fuzz(location: str, count: int, seed: int) -> dict[str, Any]:
    with ServerProcess(location) as server:
        target = _target(server)
        total = Findings()
        started = time.monotonic()
        first = fuzz(Grammar(target, seed), server.port, min(BATCH, count))
        before = resident_bytes(server.pid)
        batches = range(1, max(1, count // BATCH))
        with ThreadPoolExecutor(THREADS) as threads:
            rest = threads.map(
                lambda number: fuzz(Grammar(target, seed + number), server.port, BATCH), batches
            )
            for findings in (first, *rest):
                total.statuses.update(findings.statuses)
                total.faults += findings.faults
        body = b'{"key":"' + b"a" * LARGE_BODY_BYTES + b'"}'
        large = server.ask("POST", "/v1/jobs/1/decisions", body).status
        grown = resident_bytes(server.pid) - before
        for request, answer in total.faults[:5]:
            print(f"FAULT {request[:1000]!r}\n  → {answer[:500]!r}")
        failed = server.log.count('"event":"failed"')
        return {
            "requests": total.statuses.total(),
            "statuses": dict(sorted(total.statuses.items())),
            "faults": len(total.faults),
            "internal_errors": failed,
            "large_body_status": large,
            "grown_megabytes": round(grown / 1e6, 1),
            "seconds": round(time.monotonic() - started, 1),
            "holds": not total.faults and not failed and large == 413 and grown < GROWTH_BYTES,
        }


def _target(server: ServerProcess) -> Target:
    decisions = []
    for policy in policy_names():
        job = server.define(name=policy, policy=policy)
        for number in range(5):
            decision = server.decide(job, f"first {number}")
            decisions.append((decision["id"], decision["token"]))
    return Target(server.port, server.admin_token, decisions)


def _kills(location: str, count: int, seed: int) -> dict[str, Any]:
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    with ServerProcess(location) as server:
        job = server.define()
        with Clients(server, job) as clients:
            for _ in range(count):
                time.sleep(rng.uniform(0.0, 0.3))
                server.kill()
                server.start()
            least = len(clients.acknowledged) + 20
            while len(clients.acknowledged) < least:
                time.sleep(0.05)
        lost: str | None = None
        try:
            assert_nothing_lost_or_doubled(server, job, clients.acknowledged)
        except AssertionError as error:
            lost = str(error)[:200] or "lost or doubled"
        return {
            "kills": count,
            "acknowledged": len(clients.acknowledged),
            "lost_or_doubled": lost,
            "holds": lost is None,
        }


if __name__ == "__main__":
    sys.exit(main())
