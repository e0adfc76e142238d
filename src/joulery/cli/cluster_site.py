"""Actions of ``joulery cluster`` at a site: the agent, its status, events, Slurm, installation."""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

from joulery import cluster, grid
from joulery.cli.dispatch import Output
from joulery.cli.options import (
    Action,
    duration,
    file,
    flag,
    listen_option,
    option,
    share,
    watts,
    whole,
)
from joulery.clock import REAL_CLOCK
from joulery.errors import (
    FileError,
    InvalidValueError,
    NotPossibleHereError,
    UnknownRecordError,
    cannot_listen,
)
from joulery.reports import agent_report
from joulery.units import human

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from pathlib import Path

# Samples in the chart of `status --watch`, one a second.
_WATCHED = 600
_EPILOG = """\
#!/bin/sh
# EpilogSlurmctld: slurmctld runs this after a job; its measured joules go into its comment.
"{python}" -P -m joulery cluster record --state "{state}" --slurm "$SLURM_JOB_ID"
exit 0
"""
_PROLOG = """\
#!/bin/sh
# Slurm runs this as root before a job starts on a node. Without watts the job goes back.
if [ -e "{state}/no-watts" ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit 0
"""


def moment(text: str) -> float:
    """A time as seconds since 1970 UTC."""
    try:
        if text.startswith("+"):
            return REAL_CLOCK.wall() + duration(text[1:])
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidValueError(
            f"{text!r} is not a time", remedy="give +30min or an ISO time"
        ) from None
    if time.tzinfo is None:
        raise InvalidValueError(f"{text!r} has no time zone", remedy="add Z or +02:00")
    return time.timestamp()


def _secret(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        remedy = "write a secret there"
        raise FileError(f"cannot read token {path}: {error}", remedy=remedy) from None


def _agent(arguments: argparse.Namespace) -> int:
    import ssl

    from joulery.governor import parse_address

    settings = cluster.read_agent_settings(arguments.settings)
    if settings.token_file is None:
        raise InvalidValueError("no token_file in the settings", remedy="name the nodes' token")
    secret = _secret(settings.token_file)
    try:
        tls = ssl.create_default_context(cafile=settings.ca_file) if settings.ca_file else None
    except OSError as error:
        remedy = "name the authority that signed the nodes' certificates"
        raise FileError(f"cannot read {settings.ca_file}: {error}", remedy=remedy) from None
    nodes = {
        name: cluster.NodeClient.at(parse_address(address), secret, tls)
        for name, address in settings.nodes.items()
    }
    engine: cluster.Slurm | cluster.SlurmRest = cluster.Slurm()
    if settings.slurmrestd:
        engine = cluster.SlurmRest(
            settings.slurmrestd, settings.slurmrestd_user, settings.slurmrestd_token_file
        )
    printed: set[str] = set()
    latest: dict[str, Any] = {}

    def show(report: dict[str, Any]) -> None:
        """Print a report as JSON, and each message when it is new."""
        latest.update(report)
        if arguments.json:
            Output(report, "").announce(as_json=True)
        messages = report["messages"]
        sys.stderr.writelines(f"joulery: {text}\n" for text in messages if text not in printed)
        printed.clear()
        printed.update(messages)

    with ExitStack() as stack:
        find = _profiles(settings.store, stack) if settings.store else lambda _: None
        meters = {part: cluster.open_feeder_meter(m) for part, m in settings.meters.items()}
        if arguments.listen:
            stack.enter_context(_serving_metrics(arguments.listen, latest))
        agent = cluster.Agent(
            settings, engine, nodes, find=find, meters=meters, is_shadow=arguments.shadow
        )
        agent.run(arguments.ticks, show, is_standby=arguments.standby)
        if arguments.ticks:
            agent.check_contact()
    return 0


@contextmanager
def _serving_metrics(address: tuple[str, int], latest: dict[str, Any]) -> Iterator[None]:
    """Serve the latest report to Prometheus, from a thread."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Answer with the figures; before the first decision there are none."""
            body = cluster.metrics_text(latest).encode() if latest else b""
            self.send_response(200 if self.path.partition("?")[0] == "/metrics" else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Keep the agent's own messages apart."""

    try:
        server = ThreadingHTTPServer(address, Handler)
    except OSError as error:
        raise cannot_listen("{}:{}".format(*address), error) from None
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


def _profiles(location: str, stack: ExitStack) -> Callable[[str], cluster.PowerCurve | None]:
    """Function that finds a job's curve in a store, or on a server, by the job's name."""
    from joulery.client import open_backend

    backend = stack.enter_context(closing(open_backend(location)))

    def find(name: str) -> cluster.PowerCurve | None:
        try:
            profiles = backend.profiles(backend.job(name).id)
        except UnknownRecordError:
            return None
        if not profiles:
            return None
        newest = max(profiles, key=lambda profile: profile.wall_seconds or 0.0)
        return cluster.PowerCurve.from_frontier(newest.frontier)

    return find


def _status(arguments: argparse.Namespace) -> Output:
    history: list[tuple[float, float, float]] = []
    while True:
        output = _status_output(arguments.state, history)
        if not arguments.watch:
            return output
        if not arguments.json:
            sys.stdout.write("\x1b[2J\x1b[H")
        output.announce(as_json=arguments.json)
        REAL_CLOCK.sleep(1.0)


def _status_output(state: Path, history: list[tuple[float, float, float]]) -> Output:
    """The status with its age, and a report with the power seen so far."""
    now = REAL_CLOCK.wall()
    status = cluster.read_status(state)
    history.append((status.at, status.power_watts, status.budget_watts))
    del history[:-_WATCHED]
    is_dead = status.is_dead(now)
    document = msgspec.to_builtins(status) | {"age_seconds": now - status.at, "is_dead": is_dead}
    return Output(document, agent_report(status, history, now), code=int(is_dead))


def _event(arguments: argparse.Namespace) -> Output:
    if arguments.cancel:
        cluster.withdraw(arguments.state, arguments.id)
        return Output({"cancelled": arguments.id}, f"event {arguments.id} is cancelled")
    if arguments.duration is None:
        raise InvalidValueError("an event without an end", remedy="give --duration 1h")
    if (arguments.budget is None) == (arguments.reduce is None):
        raise InvalidValueError(
            "an event asks for a power or for a share less", remedy="give --budget or --reduce"
        )
    if arguments.baseline is not None and arguments.reduce is None:
        raise InvalidValueError(
            "a baseline without a share of it", remedy="give --reduce 25%, or leave --baseline out"
        )
    now = REAL_CLOCK.wall()
    start = now if arguments.start is None else arguments.start
    end = start + arguments.duration
    event = grid.GridEvent(
        arguments.id, start, end, arguments.budget, arguments.reduce, now, arguments.baseline
    )
    cluster.announce(arguments.state, event)
    return Output(event.to_dict(), f"event {event.id} is announced")


def _listen(arguments: argparse.Namespace) -> int:
    client = grid.OpenAdr(
        arguments.openadr,
        arguments.client,
        _secret(arguments.secret),
        ven_name=arguments.ven,
        targets=tuple(arguments.target or ()),
    )
    mirrored: dict[str, grid.GridEvent] = {}
    for calls in count(1):
        try:
            events, announced = client.events(arguments.program), dict(mirrored)
            for event in cluster.mirror_events(arguments.state, events, mirrored, REAL_CLOCK):
                Output(event.to_dict(), _event_text(event)).announce(as_json=arguments.json)
            cancelled = announced.keys() - mirrored.keys()
            for name in sorted(n for n in cancelled if announced[n].end > REAL_CLOCK.wall()):
                text = f"event {name} is cancelled"
                Output({"cancelled": name}, text).announce(as_json=arguments.json)
            if arguments.report:
                _report_power(client, arguments.state, arguments.program)
        except (NotPossibleHereError, FileError) as error:  # what was announced stays in force
            if calls == arguments.times:
                raise
            sys.stderr.write(f"joulery: {error.message}\n  → {error.remedy}\n")
        for message in client.malformed:
            sys.stderr.write(f"joulery: {message}\n")
        if calls == arguments.times:
            break
        REAL_CLOCK.sleep(arguments.every)
    return 0


def _event_text(event: grid.GridEvent) -> str:
    wish = f"{event.reduction or 0:.0%} less"
    if event.target_watts is not None:
        wish = f"at most {human(event.target_watts, 'W')}"
    start, end = (datetime.fromtimestamp(t, UTC).isoformat() for t in (event.start, event.end))
    return f"event {event.id}: {wish} from {start} to {end}"


def _report_power(client: grid.OpenAdr, state: Path, program: str | None) -> None:
    """Report the power now for every event that is on."""
    status = cluster.read_status(state)
    running = {event.id.rpartition("#")[0] for event in status.events}
    for raw in client.raw_events(program):
        if isinstance(raw, dict) and str(raw.get("id")) in running and "programID" in raw:
            client.report(raw, [(status.at, status.power_watts)])


def _prolog(arguments: argparse.Namespace) -> Output:
    script = _PROLOG.format(state=arguments.state.resolve())
    return Output({"prolog": script}, script)


def _epilog(arguments: argparse.Namespace) -> Output:
    script = _EPILOG.format(python=sys.executable, state=arguments.state.resolve())
    return Output({"epilog": script}, script)


def _record(arguments: argparse.Namespace) -> Output:
    joules, seconds = cluster.read_job_energy(arguments.state, arguments.slurm)
    comment = cluster.record_energy(cluster.run_command, arguments.slurm, joules, seconds)
    document = {"job": arguments.slurm, "joules": joules, "seconds": seconds, "comment": comment}
    return Output(document, f"job {arguments.slurm}: {human(joules, 'J')}")


_AGENT_UNIT = """\
[Unit]
Description=Joulery agent: keeps the cluster under its power budget
After=network-online.target slurmctld.service
Wants=network-online.target

[Service]
# Figures for a Prometheus on another machine, without a token; only for one here: 127.0.0.1.
ExecStart={python} -P -m joulery cluster agent --settings {settings} --listen 0.0.0.0:9105
Restart=always
RestartSec=1
NoNewPrivileges=yes

[Install]
WantedBy=multi-user.target
"""


def _hosts(text: str) -> tuple[str, ...]:
    """Names of nodes from Slurm's short form."""
    nodes: tuple[str, ...] = ()
    if text.count("[") == text.count("]"):
        with suppress(ValueError):
            nodes = tuple(cluster.expand_hosts(text))
    if not nodes:
        raise InvalidValueError(
            f"--nodes: {text!r} does not name nodes", remedy="write n[1-3,7], or a list n1,n2"
        )
    return nodes


def _init(arguments: argparse.Namespace) -> Output:
    from joulery.cli.governor import unit_text

    plan = cluster.SitePlan(
        _hosts(arguments.nodes),
        arguments.boards,
        arguments.budget,
        arguments.overhead,
        arguments.fallback,
        arguments.limits,
        arguments.port,
    )
    folder = arguments.out.resolve()
    etc = "/etc/joulery"
    units = {
        "joulery-governor.service": unit_text(
            ("0.0.0.0", plan.port),  # noqa: S104 - with TLS and a token
            {"--tls-cert": f"{etc}/node.pem", "--tls-key": f"{etc}/node.key"},
        ),
        "joulery-agent.service": _AGENT_UNIT.format(
            python=sys.executable, settings=folder / "agent.toml"
        ),
    }
    paths = [str(path.relative_to(folder)) for path in cluster.write_site(folder, plan, units)]
    first = plan.nodes[0]
    steps = f"""\
{len(paths)} files in {folder}
A silent agent leaves {plan.silent_watts:g} W of the budget of {plan.budget_watts:g} W.
on each node:  install -D -m 600 -t {etc} {first}/{{governor.toml,agent.token,node.pem,node.key}}
               install -m 644 {first}/joulery-governor.service /etc/systemd/system/
               systemctl enable --now joulery-governor
here:          joulery cluster agent --settings {folder}/agent.toml --shadow --ticks 3
               install -m 644 joulery-agent.service /etc/systemd/system/
               systemctl enable --now joulery-agent
monitoring:    alerts.yml for Prometheus, grafana.json for Grafana to import"""
    if kept := [path.removesuffix(".new") for path in paths if path.endswith(".new")]:
        steps += (
            f"\nas they were:  {', '.join(kept)}; what this run would write is beside, in *.new"
        )
    return Output({"folder": str(folder), "files": paths, "silent_watts": plan.silent_watts}, steps)


def _cap_range(text: str) -> tuple[float, float]:
    low, _, high = text.partition(",")
    return watts(low), watts(high)


_STATE = file("--state", "of the agent", "DIR", required=True)
_INIT = (
    file("--out", "folder for the files, which a second run renews", "DIR", required=True),
    option("--nodes", "names of the nodes, such as n[1-3]", "HOSTS", required=True),
    option("--boards", "GPUs of each node", "N", whole(1, 1024), required=True),
    option("--budget", "IT power of the cluster, such as 20kW", "W", watts, required=True),
    option("--overhead", "hosts, network", "W", watts, default=0.0),
    option("--fallback", "cap of a GPU while the agent is silent", "W", watts, required=True),
    option(
        "--limits", "least and most cap of a GPU, such as 100,400", "W,W", _cap_range, required=True
    ),
    option("--port", "of the governors (7001)", "N", whole(1, 65535), default=7001),
)
_AGENT = (
    file("--settings", "as TOML", required=True),
    option("--ticks", "stop after N decisions", "N", whole(0, 10**12)),
    flag("--shadow", "decide and report only, into the folder shadow of the state"),
    flag("--standby", "wait while another agent leads, and take its place when it is silent"),
    listen_option("serve figures to Prometheus under /metrics"),
)
_EVENT = (
    _STATE,
    option("--id", "name of the event", required=True),
    option("--reduce", "such as 25%%, of the mean power before", "SHARE", share),
    option("--baseline", "power that the share is of, where a contract states it", "W", watts),
    option("--budget", "highest IT power, instead of a share", "W", watts),
    option("--start", "+30min, or ISO with zone; now unless given", "TIME", moment),
    option("--duration", "such as 1h", "TIME", duration),
    flag("--cancel", "cancel the event of that name"),
)
_LISTEN = (
    _STATE,
    option("--openadr", "server of OpenADR 3", "URL", required=True),
    option("--client", "name of the account", "ID", required=True),
    file("--secret", "its secret", required=True),
    option("--program", "only events of one program", "ID"),
    option("--ven", "name of this cluster at the server (joulery)", "NAME", default="joulery"),
    option("--target", "further name that events may be meant for", "NAME", action="append"),
    flag("--report", "report the power during events"),
    option("--every", "time between calls (30s)", "TIME", duration, default=30.0),
    option("--times", "stop after N calls", "N", whole(1, 10**12)),
)
_WATCH = (_STATE, flag("--watch", "show it anew every second"))
_RECORD = (_STATE, option("--slurm", "number of the job", "JOB", required=True))
SITE_ACTIONS = {
    "init": Action(_init, _INIT, "certificates, tokens, settings and units of a new cluster"),
    "agent": Action(_agent, _AGENT, "keep a Slurm cluster under its budget"),
    "status": Action(_status, _WATCH, "power against budget; exit 1 if the agent is dead"),
    "event": Action(_event, _EVENT, "announce a demand-response event to the agent"),
    "listen": Action(_listen, _LISTEN, "announce the events of an OpenADR 3 server"),
    "prolog": Action(_prolog, (_STATE,), "print the script that Slurm runs before a job"),
    "epilog": Action(_epilog, (_STATE,), "print the script that slurmctld runs after a job"),
    "record": Action(_record, _RECORD, "write a job's measured joules into its comment"),
}
