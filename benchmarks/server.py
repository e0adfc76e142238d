"""Durable decisions and reports per second over HTTP, beside Zeus's batch-size server.

Every operation is a decision or a report, answered after its commit has reached the disk. Servers,
databases and clients share this machine. Every client makes its next request as soon as the last
one is answered.

usage: python benchmarks/server.py [--quick] [--json FILE] [--data DIR]
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peers import ROOT, say, write_results
from server_load import BATCH_SIZES, MAX_WATTS

from joulery.reports import table_text as table

sys.path.append(str(ROOT / "tests"))
from support.postgresql import Cluster, find_programs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HERE = Path(__file__).parent
PEER_SERVER_PYTHON = ROOT / ".venv-peer-server" / "bin" / "python"
READY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Scene:
    """The load on a server.

    Attributes:
        clients: Number of clients that are connected at the same time.
        jobs: Number of jobs that they share.
    """

    clients: int
    jobs: int

    def __str__(self) -> str:
        return f"{self.clients} clients, {self.jobs} jobs"


SCENES = (Scene(16, 16), Scene(200, 100), Scene(1000, 100))
QUICK = (Scene(16, 16), Scene(200, 100))


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs.

    Attributes:
        dialect: Whose API it has: ``joulery`` or ``zeus``.
        port: Port that it listens on.
        pid: Number of its process.
        ready_seconds: Time from its start until it answered.
        token: Token for requests.
    """

    dialect: str
    port: int
    pid: int
    ready_seconds: float
    token: str = ""

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """One request outside any measurement."""
        channel = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        heads = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}
        channel.request(method, path, None if body is None else json.dumps(body), heads)
        answer = channel.getresponse()
        content = answer.read()
        channel.close()
        if answer.status >= 300:
            raise SystemExit(f"{method} {path}: {answer.status} {content[:500]!r}")
        return json.loads(content)

    def define(self, name: str, policy: str) -> Any:
        """A job; what it is called in requests."""
        if self.dialect == "zeus":
            return self.ask("POST", "/jobs", _their_job(name))["job_id"]
        return self.ask("POST", "/v1/teams/bench/jobs", _our_job(name, policy))["id"]


def _our_job(name: str, policy: str) -> dict[str, Any]:
    from joulery.jobs import Definition, Job
    from joulery.objectives import Cost

    job = Job(name, BATCH_SIZES, 128, Cost(0.5, max_watts=MAX_WATTS))
    return Definition(job, policy=policy).to_document()


def _their_job(name: str) -> dict[str, Any]:
    return {
        "job_id": name,
        "job_id_prefix": name,
        "batch_sizes": list(BATCH_SIZES),
        "default_batch_size": 128,
        "eta_knob": 0.5,
        "beta_knob": 2.0,
        "target_metric": 0.5,
        "max_epochs": 100,
        "max_power": MAX_WATTS,
        "number_of_gpus": 1,
        "gpu_model": "any",
    }


@contextmanager
def running(command: list[str], dialect: str, port: int, token: str = "") -> Iterator[Server]:
    """A server process, until the block ends."""
    begin = time.monotonic()
    path = "/docs" if dialect == "zeus" else "/health/ready"
    with tempfile.TemporaryFile() as log, subprocess.Popen(command, stdout=log, stderr=log) as it:
        try:
            while not _answers(port, path):
                if it.poll() is not None or time.monotonic() - begin > READY_SECONDS:
                    log.seek(0)
                    raise SystemExit(f"{command} did not start:\n{log.read().decode()[-3000:]}")
                time.sleep(0.02)
            yield Server(dialect, port, it.pid, time.monotonic() - begin, token)
        finally:
            it.terminate()


def _answers(port: int, path: str) -> bool:
    channel = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        channel.request("GET", path)
        return channel.getresponse().status == 200
    except OSError:
        return False
    finally:
        channel.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def joulery(location: str) -> Iterator[Server]:
    """Our server on a store."""
    port = _free_port()
    serve = [sys.executable, "-m", "joulery", "serve"]
    token = [*serve, "token", "create", "--team", "bench", "--rights", "manage", "--json"]
    made = subprocess.run([*token, "--store", location], capture_output=True, check=True)
    command = [*serve, "--store", location, "--listen", f"127.0.0.1:{port}"]
    with running(command, "joulery", port, json.loads(made.stdout)["token"]) as server:
        yield server


def measured(server: Server, scene: Scene, policy: str, seconds: float) -> dict[str, Any]:
    """One scene on one server."""
    run = f"{scene.clients}-{scene.jobs}-{policy}"
    jobs = [server.define(f"{run}-{number}", policy) for number in range(scene.jobs)]
    task = {
        "dialect": server.dialect,
        "jobs": jobs,
        "port": server.port,
        "token": server.token,
        "clients": scene.clients,
        "run": run,
        "warm_seconds": 2.0 if scene.clients < 1000 else 4.0,
        "seconds": seconds,
    }
    before = _cpu_seconds(server.pid)
    finished = subprocess.run(
        [sys.executable, str(HERE / "server_load.py"), json.dumps(task)],
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode != 0:
        raise SystemExit(f"the load of {scene} failed:\n{finished.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(finished.stdout)
    found["server_cpu_seconds"] = _cpu_seconds(server.pid) - before
    found["rss_megabytes"] = _megabytes(server.pid)
    return found | {"scene": str(scene), "policy": policy}


def _cpu_seconds(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _megabytes(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def ours(
    location: str, database: str, seconds: float, scenes: Sequence[Any], policies: Sequence[str]
) -> list[dict[str, Any]]:
    """Every scene on our server."""
    rows = []
    with joulery(location) as server:
        say(f"joulery serve on {database}: ready after {server.ready_seconds:.2f} s")
        for policy in policies:
            for scene in scenes:
                found = measured(server, scene, policy, seconds)
                rows.append(found | {"database": database, "ready_seconds": server.ready_seconds})
                _progress(rows[-1])
    return rows


def theirs(folder: str, seconds: float, *, quick: bool) -> list[dict[str, Any]]:
    """The same scenes on Zeus's server."""
    if not PEER_SERVER_PYTHON.exists():
        say("Zeus's server is not installed (`make bench` does that): its rows are missing")
        return []
    rows = []
    port = _free_port()
    script = str(HERE / "server_peer.py")
    command = [str(PEER_SERVER_PYTHON), script, f"{folder}/zeus.sqlite", str(port)]
    with running(command, "zeus", port) as server:
        for scene in QUICK if quick else SCENES:
            found = measured(server, scene, "zeus", seconds)
            rows.append(found | {"database": "SQLite", "server": "Zeus"})
            _progress(rows[-1])
    return rows


def _progress(row: dict[str, Any]) -> None:
    who = row.get("server", "joulery")
    say(f"{who}, {row['policy']}, {row['database']}, {row['scene']}: {row['per_second']:.0f}/s")


def figures_of(rows: list[dict[str, Any]], peer: list[dict[str, Any]]) -> dict[str, float]:
    """The figures of all runs by name."""
    found: dict[str, float] = {}
    for row in rows:
        name = f"{row['policy']}, {row['database']}, {row['scene']}"
        found[f"per_second: {name}"] = row["per_second"]
        found[f"p99_seconds: {name}"] = row["p99_seconds"]
        for other in peer:
            if other["scene"] == row["scene"]:
                found[f"times_zeus: {name}"] = row["per_second"] / other["per_second"]
    found["server_errors"] = sum(_errors(row) for row in rows)
    found["server_errors_zeus"] = sum(_errors(row) for row in peer)
    found["ready_seconds"] = max(row["ready_seconds"] for row in rows)
    return found


def _errors(row: dict[str, Any]) -> int:
    return sum(count for status, count in row["statuses"].items() if int(status) >= 500)


def show(rows: list[dict[str, Any]], peer: list[dict[str, Any]]) -> None:
    """Print all runs as a table."""
    headers = ("server", "policy", "database", "clients", "ops/s", "× Zeus", "p50 ms", "p99 ms")
    headers = (*headers, "5xx", "server ms/op", "MB")
    base = {row["scene"]: row["per_second"] for row in peer}
    cells = [
        (
            row.get("server", "joulery"),
            row["policy"],
            row["database"],
            row["scene"],
            f"{row['per_second']:.0f}",
            f"{row['per_second'] / base[row['scene']]:.1f}" if row["scene"] in base else "",
            f"{1000 * row['p50_seconds']:.0f}",
            f"{1000 * row['p99_seconds']:.0f}",
            str(_errors(row)),
            f"{1000 * row['server_cpu_seconds'] / row['all_operations']:.2f}",
            f"{row['rss_megabytes']:.0f}",
        )
        for row in (*rows, *peer)
    ]
    print(table(headers, cells, "llllrrrrrrr"))


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", help="not used: nothing is read")
    parser.add_argument("--quick", action="store_true", help="shorter, within 50 seconds")
    parser.add_argument("--json", help="write the figures here")
    parser.add_argument("--smoke", action="store_true", help="seconds, to see that it runs")
    arguments = parser.parse_args()
    seconds = 2.0 if arguments.quick else 10.0
    if arguments.smoke:
        with tempfile.TemporaryDirectory() as folder:
            rows = ours(f"{folder}/store.sqlite", "SQLite", 1.0, QUICK[:1], ("joulery",))
        write_results(arguments.json, "server", figures_of(rows, []), rows)
        return
    scenes = QUICK if arguments.quick else SCENES
    policies = ("joulery",) if arguments.quick else ("joulery", "zeus")
    rows = []
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        rows += ours(f"{folder}/store.sqlite", "SQLite", seconds, scenes, policies)
        if find_programs() is None:
            say("PostgreSQL is not installed: its rows are missing")
        else:
            location = stack.enter_context(Cluster()).new_database()
            rows += ours(location, "PostgreSQL", seconds, scenes, policies)
        peer = theirs(folder, seconds, quick=arguments.quick)
    show(rows, peer)
    figures = figures_of(rows, peer)
    for name, value in figures.items():
        print(f"{name}: {value:.4g}")
    write_results(arguments.json, "server", figures, [*rows, *peer])


if __name__ == "__main__":
    main()
