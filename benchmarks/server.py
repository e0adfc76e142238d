"""Durable decisions and reports per second over HTTP, beside Zeus's batch-size server.

Every operation is a decision or a report, answered after its commit has reached the disk. Servers,
databases and clients share this machine. Every client makes its next request as soon as the last
one is answered. Then the decisions of a team while another one keeps the server busy.

usage: python benchmarks/server.py [--quick] [--json FILE] [--data DIR]
"""

from __future__ import annotations

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
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peers import ROOT, benchmark_parser, print_figures, say, write_results
from server_load import BATCH_SIZES, MAX_WATTS

from joulery.frontier import Frontier, OperatingPoint, Setting
from joulery.reports import table_text as table

sys.path.append(str(ROOT / "tests"))
from support.postgresql import Cluster, find_programs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HERE = Path(__file__).parent
SERVE = [sys.executable, "-m", "joulery", "serve"]
PEER_SERVER_PYTHON = ROOT / ".venv-peer-server" / "bin" / "python"
READY_SECONDS = 60.0
# The busy team: jobs in its lists, points of a frontier of about 154 kB, connections; and how many
# times as long the decisions of others may take.
LISTED_JOBS, FRONTIER_POINTS, BUSY_CLIENTS, ALLOWED = 200, 965, 4, 5.0


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

    def define(self, name: str, policy: str, team: str = "bench") -> Any:
        """A job; what it is called in requests."""
        if self.dialect == "zeus":
            return self.ask("POST", "/jobs", _their_job(name))["job_id"]
        return self.ask("POST", f"/v1/teams/{team}/jobs", _our_job(name, policy))["id"]

    def log_in(self, token: str) -> str:
        """The cookie of a session."""
        channel = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        host = f"127.0.0.1:{self.port}"
        heads = {"Content-Type": "application/x-www-form-urlencoded", "Origin": f"http://{host}"}
        channel.request("POST", "/login", f"token={token}", heads)
        cookie = channel.getresponse().headers["Set-Cookie"].partition(";")[0]
        channel.close()
        return cookie


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
    command = [*SERVE, "--store", location, "--listen", f"127.0.0.1:{port}"]
    with running(command, "joulery", port, _token(location, "bench", "manage")) as server:
        yield server


def _token(location: str, team: str, rights: str) -> str:
    create = [*SERVE, "token", "create", "--team", team, "--rights", rights, "--json"]
    made = subprocess.run([*create, "--store", location], capture_output=True, check=True)
    token: str = json.loads(made.stdout)["token"]
    return token


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
        "warm_seconds": min(seconds, 2.0 if scene.clients < 1000 else 4.0),
        "seconds": seconds,
    }
    before = _cpu_seconds(server.pid)
    found = _result(_start_load(task))
    found["server_cpu_seconds"] = _cpu_seconds(server.pid) - before
    found["rss_megabytes"] = _megabytes(server.pid)
    return found | {"scene": str(scene), "policy": policy}


def _start_load(task: dict[str, Any]) -> subprocess.Popen[str]:
    """Clients in a process of their own, with the task on its standard input."""
    load = subprocess.Popen(
        [sys.executable, str(HERE / "server_load.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert load.stdin is not None
    load.stdin.write(json.dumps(task))
    load.stdin.close()
    load.stdin = None
    return load


def _result(load: subprocess.Popen[str]) -> dict[str, Any]:
    """What clients measured, once they have ended."""
    output, errors = load.communicate()
    if load.returncode != 0:
        raise SystemExit(f"the load failed:\n{errors[-3000:]}")
    measurements: dict[str, Any] = json.loads(output)
    return measurements


def neighbours(server: Server, location: str, seconds: float) -> Iterator[dict[str, Any]]:
    """Decisions of a team alone, then while another team makes heavy requests of each kind."""
    jobs = [server.define(f"quiet-{number}", "joulery") for number in range(2)]
    busy = replace(server, token=_token(location, "busy", "manage"))
    alone = _decide_beside(server, jobs, seconds, None)
    yield {"neighbour": "alone", "times_alone": 1.0} | alone
    for name, request in _heavy_requests(busy, location):
        say(f"decisions beside {name} of another team")
        row = _decide_beside(server, jobs, seconds, request)
        ratio = row["decide_p50_seconds"] / alone["decide_p50_seconds"]
        yield {"neighbour": name, "times_alone": ratio} | row


def _decide_beside(
    server: Server, jobs: list[int], seconds: float, request: dict[str, Any] | None
) -> dict[str, Any]:
    """Latency of decisions while others make a request again and again."""
    common: dict[str, Any] = {"dialect": "joulery", "port": server.port, "jobs": jobs}
    busy_seconds = seconds + 1.5  # from before the others begin until after they have ended
    busy = common | {"request": request, "clients": BUSY_CLIENTS, "seconds": busy_seconds}
    others = _start_load(busy | {"warm_seconds": 0.0}) if request else None
    quiet = common | {"token": server.token, "clients": 2, "seconds": seconds}
    run = f"quiet-{time.monotonic_ns()}"
    own = _result(_start_load(quiet | {"warm_seconds": 0.5, "run": run}))
    statuses = {} if others is None else _result(others)["statuses"]
    done = sum(count for status, count in statuses.items() if int(status) < 300)
    return {
        "decide_p50_seconds": own["decide_p50_seconds"],
        "statuses": own["statuses"],
        "busy_per_second": done / busy_seconds,
    }


def _heavy_requests(busy: Server, location: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Requests of a team, by kind."""
    blank = {"token": busy.token, "body": None}
    first = busy.define("busy", "joulery", "busy")
    points = [
        OperatingPoint(1.0 + number / 7e3, 900.0 - number / 7.0, Setting(300.0 - number / 1e2))
        for number in range(FRONTIER_POINTS)
    ]
    frontier = Frontier.from_points(points).to_dict()
    profile = {"batch_size": 128, "device": "A40", "frontier": frontier}
    name = f"frontiers of {len(json.dumps(profile)) / 1e3:.0f} kB"
    yield name, blank | {"method": "PUT", "path": f"/v1/jobs/{first}/profiles", "body": profile}
    history = {"dialect": "joulery", "jobs": [first], "port": busy.port, "token": busy.token}
    history |= {"clients": 4, "run": "busy", "warm_seconds": 0.0, "seconds": 1.0}
    _result(_start_load(history))
    cookie = busy.log_in(_token(location, "busy", "read"))
    yield (
        "job pages on a read token",
        blank | {"method": "GET", "path": f"/jobs/{first}", "cookie": cookie},
    )
    for number in range(LISTED_JOBS):
        busy.define(f"busy-{number}", "joulery", "busy")
    path = f"/v1/teams/busy/jobs?limit={LISTED_JOBS}"
    yield f"lists of {LISTED_JOBS} jobs", blank | {"method": "GET", "path": path}


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


def show_neighbours(rows: list[dict[str, Any]]) -> None:
    """Print what a busy team costs the others."""
    headers = ("the other team", "its requests/s", "decide p50 ms", "× alone", "5xx")
    cells = [
        (
            row["neighbour"],
            f"{row['busy_per_second']:.0f}",
            f"{1000 * row['decide_p50_seconds']:.1f}",
            f"{row['times_alone']:.1f}",
            str(_errors(row)),
        )
        for row in rows
    ]
    print(f"\nDecisions of a team beside a busy one; goal: at most × {ALLOWED:.0f}")
    print(table(headers, cells, "lrrrr"))


def main() -> None:
    """Measure, print, write."""
    arguments = benchmark_parser(__doc__, "shorter, within 50 seconds").parse_args()
    seconds = 2.0 if arguments.quick else 10.0
    if arguments.smoke:
        with tempfile.TemporaryDirectory() as folder:
            location = f"{folder}/store.sqlite"
            with joulery(location) as server:
                rows = [measured(server, QUICK[0], "joulery", 1.0)]
                rows[0] |= {"database": "SQLite", "ready_seconds": server.ready_seconds}
                show_neighbours(list(islice(neighbours(server, location, 0.2), 2)))
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
        with joulery(f"{folder}/neighbours.sqlite") as server:
            beside = list(neighbours(server, f"{folder}/neighbours.sqlite", seconds))
        peer = theirs(folder, seconds, quick=arguments.quick)
    show(rows, peer)
    show_neighbours(beside)
    figures = figures_of(rows, peer)
    figures |= {f"decide_times_alone: {row['neighbour']}": row["times_alone"] for row in beside[1:]}
    print_figures(figures)
    write_results(arguments.json, "server", figures, [*rows, *beside, *peer])


if __name__ == "__main__":
    main()
