"""A real Slurm on this machine's loopback, with emulated GPUs on virtual nodes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from joulery.clock import REAL_CLOCK
from joulery.errors import NotPossibleHereError
from support.governor.emulated import EmulatedGovernor, EmulatedGpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_NULL_DEVICE = os.makedev(1, 3)
_START_SECONDS = 30.0


def slurm_obstacle() -> str:
    """What keeps Slurm from running here; empty when nothing does."""
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    missing = [name for name in ("slurmctld", "slurmd", "munged") if not shutil.which(name)]
    return f"not installed: {', '.join(missing)}" if missing else ""


class SlurmCluster:
    """slurmctld, one slurmd for every virtual node, and a munged of their own.

    Args:
        nodes: Number of virtual nodes, named n1, n2 and so on.
        gpus: Number of emulated GPUs on each.
        prolog: Script that runs before a job; None for none.
    """

    def __init__(self, nodes: int = 8, gpus: int = 4, prolog: Path | None = None) -> None:
        self.nodes, self.gpus = nodes, gpus
        self._prolog = prolog
        self._rest: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if obstacle := slurm_obstacle():
            raise NotPossibleHereError(obstacle, remedy="apt-get install slurm-wlm munge")
        # Of its own, since munged asks that everybody may enter all folders above its socket.
        self.folder = Path(tempfile.mkdtemp(prefix="joulery-slurm-"))
        self.environment = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}
        for name in ("state", "spool", "log", "run", "dev"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        for number in range(self.gpus):
            os.mknod(self.folder / "dev" / f"gpu{number}", 0o666 | stat.S_IFCHR, _NULL_DEVICE)
        key = self.folder / "munge.key"
        for secret in (key, self.folder / "jwt.key"):
            secret.write_bytes(os.urandom(1024))
            secret.chmod(0o400)
        self._write_configuration(_free_ports(self.nodes + 1))
        run = self.folder / "run"
        self._start(
            "munged",
            f"--key-file={key}",
            f"--socket={run / 'munge.sock'}",
            f"--pid-file={run / 'munged.pid'}",
            f"--seed-file={self.folder / 'state' / 'munge.seed'}",
            f"--log-file={self.folder / 'log' / 'munged.log'}",
        )
        self._start("slurmctld", "-i")
        for number in range(1, self.nodes + 1):
            self.start_node(f"n{number}")
        self._wait_until_idle()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._rest is not None:
            self._rest.kill()
            self._rest.wait()
        with suppress(NotPossibleHereError):
            self.cancel_everything()
        for file in sorted((self.folder / "run").glob("*.pid"), reverse=True):
            _kill(file)
        _kill_left_over(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start_rest(self) -> tuple[str, Path]:
        """Start slurmrestd; its address, and a file with a token of root."""
        (port,) = _free_ports(1)
        token = self.folder / "token"
        token.touch(mode=0o600)
        token.write_text(self.call("scontrol", "token", "username=root"), encoding="utf-8")
        # It refuses to run as root, and its plugin for accounts to run without slurmdbd.
        plugins = ["-s", "openapi/v0.0.38", "-a", "rest_auth/jwt"]
        with (self.folder / "log" / "slurmrestd.log").open("wb") as log:
            self._rest = subprocess.Popen(
                ["slurmrestd", "-u", "nobody", *plugins, f"127.0.0.1:{port}"],
                env={**self.environment, "SLURM_JWT": "daemon"},
                stdout=log,
                stderr=log,
            )
        return f"http://127.0.0.1:{port}", token

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Keep slurmctld from answering."""
        number = int((self.folder / "run" / "slurmctld.pid").read_text(encoding="utf-8"))
        os.kill(number, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(number, signal.SIGCONT)

    def start_node(self, name: str) -> None:
        """Start a node's daemon."""
        self._start("slurmd", "-N", name)

    def stop_node(self, name: str) -> None:
        """Kill a node's daemon at once."""
        _kill(self.folder / "run" / f"slurmd.{name}.pid")

    def call(self, *command: str) -> str:
        """Run a command of Slurm and return what it printed."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise NotPossibleHereError(f"{command}: {done.stderr}", remedy="see the logs")
        return done.stdout

    def submit(self, name: str, gpus: int, nodes: int = 1, comment: str = "") -> str:
        """Submit a job that sleeps; its number."""
        options = ["--parsable", f"--job-name={name}", f"--gres=gpu:{gpus}", f"--nodes={nodes}"]
        options += [f"--comment={comment}", "--output=/dev/null", "--requeue", "--mem=1"]
        return self.call("sbatch", *options, "--wrap", "sleep 3600").strip()

    def cancel_everything(self, patience_seconds: float = 10.0) -> None:
        """Cancel all jobs and wait until none is left."""
        deadline = REAL_CLOCK.now() + patience_seconds
        while (jobs := self.call("squeue", "-h", "-o", "%i").split()) and (
            REAL_CLOCK.now() < deadline
        ):
            self.call("scancel", "--signal=KILL", "--full", *jobs)
            self.call("scancel", *jobs)
            REAL_CLOCK.sleep(0.2)

    def _start(self, *command: str) -> None:
        self.call(*command)

    def _wait_until_idle(self) -> None:
        deadline = REAL_CLOCK.now() + _START_SECONDS
        while REAL_CLOCK.now() < deadline:
            with suppress(NotPossibleHereError):
                idle = self.call("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split()
                if len(set(idle)) == self.nodes:
                    return
            REAL_CLOCK.sleep(0.1)
        raise NotPossibleHereError("nodes do not come up", remedy=f"see {self.folder / 'log'}")

    def _write_configuration(self, ports: list[int]) -> None:
        folder, host = self.folder, socket.gethostname()
        hook = f"Prolog={self._prolog}\n" if self._prolog else ""
        nodes = "".join(
            f"NodeName=n{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
            f"CPUs=64 RealMemory=1000 Gres=gpu:a100:{self.gpus}\n"
            for number, port in enumerate(ports[1:], 1)
        )
        text = f"""\
ClusterName=emulated
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/run/munge.sock
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={folder}/jwt.key
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2,sched_min_interval=0
GresTypes=gpu
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout=5
KillWait=1
PrologFlags=Alloc
{hook}{nodes}PartitionName=train Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
        (folder / "slurm.conf").write_text(text, encoding="utf-8")
        names = ",".join(f"n{number}" for number in range(1, self.nodes + 1))
        devices = f"{folder}/dev/gpu[0-{self.gpus - 1}]"
        gres = "\n".join(
            f"NodeName={name} Name=gpu Type=a100 File={devices}" for name in names.split(",")
        )
        (folder / "gres.conf").write_text(gres + "\n", encoding="utf-8")


def _free_ports(count: int) -> list[int]:
    """Ports that nothing listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for endpoint in sockets:
        endpoint.bind(("127.0.0.1", 0))
    ports = [int(endpoint.getsockname()[1]) for endpoint in sockets]
    for endpoint in sockets:
        endpoint.close()
    return ports


def _kill(file: Path) -> None:
    """Kill the process that a file names."""
    with suppress(OSError, ValueError):
        os.kill(int(file.read_text(encoding="utf-8")), signal.SIGKILL)
        file.unlink()


def _kill_left_over(folder: Path) -> None:
    """Kill the batch scripts of jobs that outlived their cluster, with parent and children."""
    family: dict[int, int] = {}
    scripts = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            family[int(process.name)] = parent
            if str(folder / "spool").encode() in (process / "cmdline").read_bytes():
                scripts.append(int(process.name))
    for script in scripts:
        children = [child for child, parent in family.items() if parent == script]
        for number in (family[script], script, *children):
            with suppress(OSError):
                if number > 1:
                    os.kill(number, signal.SIGKILL)


_TOKEN = "guards emulated GPUs only"  # noqa: S105 - as it says
_RECORD_SECONDS = 0.02


class PoweredCluster:
    """A Slurm cluster whose emulated GPUs draw power under an agent's caps.

    Args:
        folder: Empty folder.
        budget_watts: Most power of all GPUs.
        frontiers: Points of (watts, throughput) by name of a job.
        nodes: Number of nodes with 4 GPUs each.
        ttl_seconds: Time after which nodes lower their caps when the agent is silent.
        prolog: Script that runs before a job; None for none.
        settings: Further lines of the agent's settings: keys, and tables.
        fallback_watts: Cap of a GPU while the agent is silent; 90 % of its share unless given.
    """

    def __init__(
        self,
        folder: Path,
        budget_watts: float,
        frontiers: Mapping[str, Sequence[tuple[float, float]]],
        nodes: int = 8,
        ttl_seconds: float = 5.0,
        prolog: Path | None = None,
        *,
        settings: tuple[str, str] = ("", ""),
        fallback_watts: float | None = None,
    ) -> None:
        self.folder, self.budget_watts, self._settings = folder, budget_watts, settings
        self._frontiers, self._ttl = frontiers, ttl_seconds
        self.slurm = SlurmCluster(nodes, prolog=prolog)
        boards = self.slurm.nodes * self.slurm.gpus
        self._fallback = fallback_watts or 0.9 * budget_watts / boards
        self.state = folder / "state"
        self.record: list[tuple[float, float]] = []
        self.gpus: list[EmulatedGpu] = []
        self._governors: dict[str, EmulatedGovernor] = {}
        self._over = threading.Event()
        self._agent: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.slurm.__enter__()
        token = self.folder / "token"
        token.touch(mode=0o600)
        token.write_text(_TOKEN, encoding="utf-8")
        for number in range(1, self.slurm.nodes + 1):
            name = f"n{number}"
            gpus = [EmulatedGpu(f"{name}-gpu{index}") for index in range(self.slurm.gpus)]
            self.gpus += gpus
            self._governors[name] = EmulatedGovernor(gpus, token, self._fallback)
            self.restore_node(name)
        self._write_settings()
        threading.Thread(target=self._keep_record, daemon=True).start()
        self.start_agent()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self.kill_agent()
        for governor in self._governors.values():
            governor.stop()
        self.slurm.__exit__(*exc_info)

    def power(self) -> float:
        """Power of all GPUs now."""
        return sum(gpu.read_power() for gpu in self.gpus)

    def start_agent(self) -> None:
        """Start the agent and wait for its first decision."""
        (self.state / "status.json").unlink(missing_ok=True)
        command = [sys.executable, "-m", "joulery", "cluster", "agent", "--settings"]
        with (self.folder / "agent.log").open("ab") as log:
            self._agent = subprocess.Popen(
                [*command, str(self.folder / "agent.toml")],
                env=self.slurm.environment,
                stdout=log,
                stderr=log,
            )
        self.wait_for((self.state / "status.json").exists, "the agent to decide")

    def kill_agent(self) -> None:
        """Kill the agent at once."""
        if self._agent is not None:
            self._agent.kill()
            self._agent.wait()
            self._agent = None

    def status(self) -> dict[str, Any]:
        """What the agent decided last."""
        status: dict[str, Any] = json.loads((self.state / "status.json").read_text("utf-8"))
        return status

    def cut_node(self, name: str) -> None:
        """Make a node's governor unreachable; it goes on working."""
        self._governors[name].cut()

    def restore_node(self, name: str) -> None:
        """Make a node's governor reachable, at the same address as before."""
        self._governors[name].serve()

    def wait_for(
        self, condition: Callable[[], bool], what: str, patience_seconds: float = 60.0
    ) -> float:
        """Wait until something holds; the seconds that it took."""
        begin = REAL_CLOCK.now()
        while not condition():
            if REAL_CLOCK.now() - begin > patience_seconds:
                log = (self.folder / "agent.log").read_text("utf-8")[-2000:]
                raise NotPossibleHereError(f"waited in vain for {what}", remedy=log)
            REAL_CLOCK.sleep(_RECORD_SECONDS)
        return REAL_CLOCK.now() - begin

    def recorded(self, start: float, end: float) -> list[float]:
        """Power between two times of the wall clock."""
        return [watts for time, watts in list(self.record) if start <= time <= end]

    def _keep_record(self) -> None:
        while not self._over.wait(_RECORD_SECONDS):
            self.record.append((REAL_CLOCK.wall(), self.power()))

    def _write_settings(self) -> None:
        self.state.mkdir()
        jobs = [{"id": name, "points": list(points)} for name, points in self._frontiers.items()]
        (self.folder / "frontiers.json").write_text(json.dumps({"jobs": jobs}), encoding="utf-8")
        nodes = "\n".join(
            f'{name} = "127.0.0.1:{governor.port}"' for name, governor in self._governors.items()
        )
        text = f"""\
budget_watts = {self.budget_watts}
state = "state"
token_file = "token"
frontiers = "frontiers.json"
tick_seconds = 0.5
ttl_seconds = {self._ttl}
lead_seconds = 1.5
{self._settings[0]}
[nodes]
{nodes}
{self._settings[1]}
"""
        (self.folder / "agent.toml").write_text(text, encoding="utf-8")
