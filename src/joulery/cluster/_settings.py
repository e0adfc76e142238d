"""Settings of the cluster's agent, and the administrator's file that holds them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from joulery.cluster._allocate import check_policy
from joulery.cluster._budget import Budget, read_budget
from joulery.cluster._jobs import PowerCurve, read_jobs
from joulery.errors import FileError, InvalidValueError, JouleryError
from joulery.grid import Signal, read_signal
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_PATHS = (
    "state", "token_file", "ca_file", "frontiers", "tree", "budget_series",
    "slurmrestd_token_file",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Settings of the agent.

    Attributes:
        budget_watts: Most IT power of the cluster.
        nodes: Address of each node's service, as ``host:port``.
        state: Folder for the status and announced events.
        policy: Name of the allocation policy.
        overhead_watts: Power of hosts and network, which is not capped.
        tick_seconds: Time between two decisions.
        ttl_seconds: Time after which nodes lower their caps when the agent is silent.
        lead_seconds: Time before an announced event at which the caps fall.
        ramp_up_watts_per_second: Most increase of the sum of caps.
        budget_series: Budget over time; where it is lower than ``budget_watts`` it counts.
        tree: Caps on parts of the cluster, whose leaves are named like the nodes.
        frontiers: Curves by name of a job or of a preference ``frontier=``.
        slurmrestd: Address of a slurmrestd to ask instead of Slurm's commands.
        slurmrestd_user: Name of the user that the token for it is for.
        slurmrestd_token_file: File with what ``scontrol token`` printed.
        token_file: File with the secret of the nodes' services.
        ca_file: Authority that signed the nodes' certificates; None only on loopback.
        store: Store or server of recurring jobs, whose profiles give frontiers by job name.
        overshoot_risk: Largest probability that the power exceeds the budget at any one time,
            for handing out more watts than the budget while jobs draw less than their caps; 0
            for never. Not used while a grid event asks for less.
        most_weight: Largest weight that users may ask for in their jobs' comments.
        most_floor: Largest floor, of a tier or by itself, that users may ask for.
        checkpoint_seconds: Time between the signal to save a checkpoint and a pause, for jobs
            whose comment asks for one (``checkpoint=USR1``).
    """

    budget_watts: float
    nodes: Mapping[str, str]
    state: Path
    policy: str = "fair"
    overhead_watts: float = 0.0
    tick_seconds: float = 1.0
    ttl_seconds: float = 10.0
    lead_seconds: float = 3.0
    ramp_up_watts_per_second: float = float("inf")
    budget_series: Signal | None = None
    tree: Budget | None = None
    frontiers: Mapping[str, PowerCurve] = field(default_factory=dict)
    slurmrestd: str | None = None
    slurmrestd_user: str = "root"
    slurmrestd_token_file: Path | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    store: str | None = None
    overshoot_risk: float = 0.0
    most_weight: float = 1.0
    most_floor: float = 1.0
    checkpoint_seconds: float = 30.0

    def __post_init__(self) -> None:
        finite(self.budget_watts, "budget in watts", minimum=0.0)
        for name in ("overhead_watts", "lead_seconds", "checkpoint_seconds", "most_weight"):
            finite(getattr(self, name), name, minimum=0.0)
        if not 0.0 < finite(self.tick_seconds, "tick_seconds") <= self.ttl_seconds / 2:
            raise InvalidValueError(
                f"ticks of {self.tick_seconds:g} s and a ttl of {self.ttl_seconds:g} s",
                remedy="caps must live at least two ticks",
            )
        if not self.ramp_up_watts_per_second > 0 or not 0.0 <= self.most_floor <= 1.0:
            flaw = f"ramp {self.ramp_up_watts_per_second:g} W/s, most_floor {self.most_floor:g}"
            raise InvalidValueError(flaw, remedy="give a positive ramp, and a floor up to 1")
        if not 0.0 <= finite(self.overshoot_risk, "overshoot_risk") < 1.0:
            flaw = f"overshoot_risk {self.overshoot_risk:g}"
            raise InvalidValueError(flaw, remedy="give a probability such as 1e-4, or 0")
        check_policy(self.policy)
        if not self.nodes or not all(isinstance(address, str) for address in self.nodes.values()):
            remedy = 'write [nodes] and n1 = "n1.example:7001"'
            raise InvalidValueError("no addresses of nodes", remedy=remedy)


def read_agent_settings(path: Path) -> AgentSettings:
    """Read an agent's settings from TOML; paths in it are relative to the file."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        for name in _PATHS:
            if name in document:
                document[name] = path.parent / document[name]
        if "frontiers" in document:
            jobs = read_jobs(document["frontiers"])
            document["frontiers"] = {job.id: job.curve for job in jobs}
        if "tree" in document:
            document["tree"] = read_budget(document["tree"])
        if "budget_series" in document:
            document["budget_series"] = read_signal(document["budget_series"])
        return AgentSettings(**document)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        if isinstance(error, JouleryError):
            raise
        raise FileError(
            f"cannot read settings {path}: {error}",
            remedy="see docs/how-to/share-a-power-budget.md for an example",
        ) from None
