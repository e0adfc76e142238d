"""Files for a new cluster: certificates, tokens, settings, policies, units, a dashboard.

A second run keeps the authority, the token and all that was edited, and renews the nodes'
certificates. Certificates are made by OpenSSL's command, which every cluster has.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import secrets
import subprocess
from dataclasses import dataclass
from pathlib import Path

from joulery.errors import InvalidValueError, NotPossibleHereError
from joulery.files import write_atomic
from joulery.units import finite

# By hand: browsers and agents take certificates of up to 825 days; authorities last longer.
_NODE_DAYS, _AUTHORITY_DAYS = 825, 3650
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
# Names that hosts may have, also as a folder's name.
_HOST = re.compile(r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?", re.ASCII)
# Alert rules for Prometheus and a dashboard for Grafana to import.
_MONITORING = ("alerts.yml", "grafana.json")
_REMEDY = "install openssl, or make the certificates with your own authority"


@dataclass(frozen=True, slots=True)
class SitePlan:
    """A cluster to be set up.

    Attributes:
        nodes: Host names of the nodes, as Slurm and certificates have them.
        boards: GPUs of each node.
        budget_watts: Most IT power of the cluster.
        overhead_watts: Power of hosts and network.
        fallback_watts: Cap of every GPU while the agent is silent.
        limits_watts: Least and most cap of a GPU.
        port: Port of the governors.
    """

    nodes: tuple[str, ...]
    boards: int
    budget_watts: float
    overhead_watts: float = 0.0
    fallback_watts: float = 150.0
    limits_watts: tuple[float, float] = (100.0, 400.0)
    port: int = 7001

    def __post_init__(self) -> None:
        low, high = self.limits_watts
        if not self.nodes or len(set(self.nodes)) < len(self.nodes) or self.boards < 1:
            raise InvalidValueError(
                f"{len(self.nodes)} nodes of {self.boards} GPUs",
                remedy="name every node once, with at least one GPU",
            )
        for node in self.nodes:
            if not _HOST.fullmatch(node):
                raise InvalidValueError(
                    f"{node!r} is not the name of a node", remedy="give names such as n[1-3]"
                )
        if not 0 < low < high:
            raise InvalidValueError(
                f"caps from {low:g} to {high:g} W", remedy="give the least first, such as 100,400"
            )
        if not low <= self.fallback_watts <= high:
            raise InvalidValueError(
                f"a fallback of {self.fallback_watts:g} W outside {low:g} to {high:g} W",
                remedy="give the range of caps that the GPUs take, and a fallback in it",
            )
        finite(self.overhead_watts, "overhead in watts", minimum=0.0)
        if self.silent_watts > finite(self.budget_watts, "budget in watts"):
            count = len(self.nodes) * self.boards
            highest = (self.budget_watts - self.overhead_watts) / count
            least = self.overhead_watts + count * low
            raise InvalidValueError(
                f"a silent agent leaves {self.silent_watts:g} W, above the budget of "
                f"{self.budget_watts:g} W: {count} GPUs at {self.fallback_watts:g} W and hosts",
                remedy=f"give a fallback of at most {highest:.0f} W"
                if highest >= low
                else f"give a budget of at least {least:g} W, for hosts and GPUs at {low:g} W",
            )

    @property
    def silent_watts(self) -> float:
        """Power of the cluster while the agent is silent."""
        return self.overhead_watts + len(self.nodes) * self.boards * self.fallback_watts


def write_site(folder: Path, plan: SitePlan, units: dict[str, str]) -> list[Path]:
    """Write all files of a cluster; those to be installed on each node are in a folder each.

    A file that differs from what would be written stays, and has that beside it as ``NAME.new``.

    Args:
        folder: Folder for the files, for root alone.
        plan: The cluster.
        units: Text of the units of agent and governors, by file name.

    Raises:
        NotPossibleHereError: OpenSSL is not there, or refuses.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (folder / "ca.key").exists():
        subject = ["-subj", "/CN=Joulery cluster", "-days", str(_AUTHORITY_DAYS)]
        key = [*_NEW_KEY, "-keyout", str(folder / "ca.key")]
        _openssl("req", "-x509", *key, *subject, "-out", str(folder / "ca.pem"))
    if not (folder / "agent.token").exists():
        write_atomic(folder / "agent.token", f"{secrets.token_hex(32)}\n".encode(), private=True)
    token = (folder / "agent.token").read_bytes()
    for node in plan.nodes:
        place = folder / node
        place.mkdir(mode=0o700, exist_ok=True)
        _certify(folder, place, node)
        write_atomic(place / "agent.token", token, private=True)
        _write(place / "governor.toml", _policy(plan).encode())
        _write_unit(place, "joulery-governor.service", units)
    _write(folder / "agent.toml", _settings(plan).encode())
    for name in _MONITORING:
        _write(folder / name, (Path(__file__).parent / name).read_bytes())
    _write_unit(folder, "joulery-agent.service", units)
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _write_unit(folder: Path, name: str, units: dict[str, str]) -> None:
    if name in units:
        _write(folder / name, units[name].encode())


def _write(path: Path, content: bytes) -> None:
    """Write a file, beside the one that is there if that was edited."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    is_edited = path.exists() and path.read_bytes() != content
    write_atomic(new if is_edited else path, content)


def _certify(folder: Path, place: Path, node: str) -> None:
    """A key and a certificate for a node, by the cluster's authority."""
    key, request, extension = place / "node.key", place / "node.csr", place / "node.ext"
    _openssl(
        *("req", *_NEW_KEY, "-subj", f"/CN={node}"),
        *("-keyout", str(key), "-out", str(request)),
    )
    kind = "IP" if _is_address(node) else "DNS"
    write_atomic(extension, f"subjectAltName={kind}:{node}\n".encode())
    _openssl(
        *("x509", "-req", "-in", str(request), "-days", str(_NODE_DAYS)),
        *("-CA", str(folder / "ca.pem"), "-CAkey", str(folder / "ca.key"), "-CAcreateserial"),
        *("-extfile", str(extension), "-out", str(place / "node.pem")),
    )
    key.chmod(0o600)
    request.unlink()
    extension.unlink()


def _is_address(node: str) -> bool:
    try:
        ipaddress.ip_address(node)
    except ValueError:
        return False
    return True


def _openssl(*words: str) -> None:
    try:
        done = subprocess.run(
            ["openssl", *words],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except OSError as error:
        raise NotPossibleHereError(f"openssl: {error.strerror}", remedy=_REMEDY) from None
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise NotPossibleHereError(f"openssl {words[0]}: {reason}", remedy=_REMEDY)
    # On a full disk openssl leaves empty files and calls it done; the next run would keep them.
    written = [Path(words[n + 1]) for n, word in enumerate(words) if word in ("-keyout", "-out")]
    if any(path.stat().st_size == 0 for path in written):
        for path in written:
            path.unlink()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(written[0]))


def _policy(plan: SitePlan) -> str:
    low, high = plan.limits_watts
    return f"""\
# /etc/joulery/governor.toml: the cluster's agent may set these caps
[[allow]]
tokens = ["agent.token"]
devices = ["*"]
limits_watts = [{low:g}, {high:g}]
fallback_watts = {plan.fallback_watts:g}
"""


def _settings(plan: SitePlan) -> str:
    nodes = "\n".join(f'"{node}" = "{node}:{plan.port}"' for node in plan.nodes)
    return f"""\
# Settings of `joulery cluster agent`; paths are relative to this file.
budget_watts = {plan.budget_watts:g}
overhead_watts = {plan.overhead_watts:g}
node_watts = {plan.boards * plan.limits_watts[1]:g}
state = "state"
token_file = "agent.token"
ca_file = "ca.pem"
# 5 s above ttl_seconds, so that caps are down when an event begins even if the agent dies before
lead_seconds = 15

[nodes]
{nodes}
"""
