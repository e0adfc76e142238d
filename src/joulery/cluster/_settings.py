"""Settings of the cluster's agent, and the administrator's file that holds them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING

from joulery.cluster._allocate import check_policy
from joulery.cluster._budget import Budget, Cap, read_budget
from joulery.cluster._jobs import PowerCurve, read_jobs
from joulery.documents import read_text
from joulery.errors import FileError, InvalidValueError, document_errors
from joulery.grid import Signal, read_signal
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_PATHS = (
    "state", "token_file", "ca_file", "frontiers", "tree", "budget_series",
    "slurmrestd_token_file",
)  # fmt: skip
_AMOUNTS = (
    "overhead_watts", "lead_seconds", "checkpoint_seconds", "most_weight", "meter_seconds",
    "alarm_seconds", "baseline_seconds", "least_running_seconds", "least_stopped_seconds",
    "rotation_seconds",
)  # fmt: skip
WHOLE = "cluster"


@dataclass(frozen=True, slots=True)
class AccountShare:
    """What jobs of an account get; comments of users may ask for less, never for more.

    Attributes:
        weight: Weight of each GPU.
        floor: Least performance.
        most_weight: Largest weight that a comment may ask for; ``weight`` unless given.
        most_floor: Largest floor that a comment may ask for; ``floor`` unless given.
    """

    weight: float = 1.0
    floor: float = 0.0
    most_weight: float = -1.0
    most_floor: float = -1.0

    def __post_init__(self) -> None:
        for name, default in (("most_weight", self.weight), ("most_floor", self.floor)):
            if getattr(self, name) < 0:
                object.__setattr__(self, name, default)
        finite(self.weight, "weight of an account", minimum=0.0)
        if not 0.0 <= finite(self.floor, "floor of an account") <= self.most_floor <= 1.0:
            flaw = f"floor {self.floor:g} and most_floor {self.most_floor:g} of an account"
            raise InvalidValueError(flaw, remedy="give floors from 0 to 1, the most not below")


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
        ramp_up_watts_per_second: Most increase of the power.
        ramp_down_watts_per_second: Most decrease of the budget, which begins so much earlier
            where an event is announced in time.
        budget_series: Budget over time; where it is lower than ``budget_watts`` it counts.
        tree: Caps on parts of the cluster, whose leaves are named like the nodes.
        frontiers: Curves by name of a job or of a preference ``frontier=``.
        slurmrestd: Address of a slurmrestd to ask instead of Slurm's commands.
        slurmrestd_user: Name of the user that the token for it is for.
        slurmrestd_token_file: File with what ``scontrol token`` printed.
        token_file: File with the secret of the nodes' services.
        ca_file: Authority that signed the nodes' certificates; None only on loopback.
        store: Store or server of recurring jobs, whose profiles give frontiers by job name.
        meters: Meter of any part of the cluster, as ``open_feeder_meter`` takes it; the part is
            named as in the tree, or ``cluster`` for the whole.
        meter_seconds: Age at which a meter's reading is too old, as is one that never changes.
        node_watts: Most power of the GPUs of a node that never answered; the largest known
            node's unless given.
        most_trim: Largest share by which boards and parts are taken to draw less than their
            caps say; 0 to never hand out more than the budget.
        alarm_seconds: Time above the budget after which there is an alarm.
        baseline_seconds: Time before an event whose mean power a reduction in per cent is of.
        floor_slack: Largest share of their floors that all jobs give up alike before some get
            less than theirs.
        least_running_seconds: Time that a job should run before it is stopped again.
        least_stopped_seconds: Time that a stopped job stays so at least.
        rotation_seconds: Time after which a stopped job takes the place of another.
        most_weight: Largest weight that users may ask for in their jobs' comments.
        most_floor: Largest floor, of a tier or by itself, that users may ask for.
        accounts: Weights and floors by account of the workload manager; other accounts have
            ``most_weight`` and ``most_floor`` of the settings.
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
    ramp_down_watts_per_second: float = float("inf")
    budget_series: Signal | None = None
    tree: Budget | None = None
    frontiers: Mapping[str, PowerCurve] = field(default_factory=dict)
    slurmrestd: str | None = None
    slurmrestd_user: str = "root"
    slurmrestd_token_file: Path | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    store: str | None = None
    meters: Mapping[str, str] = field(default_factory=dict)
    meter_seconds: float = 60.0
    node_watts: float | None = None
    most_trim: float = 0.1
    alarm_seconds: float = 30.0
    baseline_seconds: float = 900.0
    floor_slack: float = 0.1
    least_running_seconds: float = 600.0
    least_stopped_seconds: float = 600.0
    rotation_seconds: float = 3600.0
    most_weight: float = 1.0
    most_floor: float = 1.0
    accounts: Mapping[str, AccountShare] = field(default_factory=dict)
    checkpoint_seconds: float = 30.0

    def __post_init__(self) -> None:
        finite(self.budget_watts, "budget in watts", minimum=0.0)
        for name in _AMOUNTS:
            finite(getattr(self, name), name, minimum=0.0)
        if self.node_watts is not None:
            finite(self.node_watts, "node_watts", minimum=0.0)
        if not 0.0 < finite(self.tick_seconds, "tick_seconds") <= self.ttl_seconds / 2:
            raise InvalidValueError(
                f"ticks of {self.tick_seconds:g} s and a ttl of {self.ttl_seconds:g} s",
                remedy="caps must live at least two ticks",
            )
        ramps = self.ramp_up_watts_per_second, self.ramp_down_watts_per_second
        if not min(ramps) > 0 or not 0.0 <= self.most_floor <= 1.0:
            flaw = f"ramps {ramps[0]:g} and {ramps[1]:g} W/s, most_floor {self.most_floor:g}"
            raise InvalidValueError(flaw, remedy="give positive ramps, and a floor up to 1")
        for name in ("most_trim", "floor_slack"):
            if not 0.0 <= finite(getattr(self, name), name) <= 0.5:
                flaw = f"{name} is {getattr(self, name):g}"
                raise InvalidValueError(flaw, remedy="give a share such as 0.1")
        self._check_parts()
        check_policy(self.policy)
        if not self.nodes or not all(isinstance(address, str) for address in self.nodes.values()):
            remedy = 'write [nodes] and n1 = "n1.example:7001"'
            raise InvalidValueError("no addresses of nodes", remedy=remedy)

    def account(self, name: str) -> AccountShare:
        """What jobs of an account get."""
        everyone = AccountShare(min(1.0, self.most_weight), 0.0, self.most_weight, self.most_floor)
        return self.accounts.get(name, everyone)

    @property
    def root(self) -> str:
        """Name of the whole cluster."""
        return WHOLE if self.tree is None else self.tree.names[0]

    def part_watts(self, node_watts: Mapping[str, float]) -> dict[str, float]:
        """Power of every part with its overhead, from that of the nodes' GPUs."""
        caps = (Cap(WHOLE),) if self.tree is None else self.tree.caps
        above = {cap.name: cap.parent for cap in caps}
        totals = {cap.name: cap.overhead_watts for cap in caps}
        totals[self.root] += self.overhead_watts
        for node, watts in node_watts.items():
            totals[node if node in totals else self.root] += watts
        for cap in reversed(caps):  # every part comes after the one that contains it
            parent = above[cap.name]
            if parent is not None:
                totals[parent] += totals[cap.name]
        return totals

    def _check_parts(self) -> None:
        """Refuse parts without nodes, meters of no part, a budget that contradicts the tree."""
        parts = {self.root} if self.tree is None else set(self.tree.names)
        if unknown := sorted(set(self.meters) - parts):
            remedy = f"name {', '.join(sorted(parts)[:5])}, or a tree with that part"
            raise InvalidValueError(f"no part {unknown[0]!r} for a meter", remedy=remedy)
        if self.tree is None:
            return
        parents = {cap.parent for cap in self.tree.caps}
        if unknown := sorted(parts - parents - set(self.nodes) - {self.root}):
            raise InvalidValueError(
                f"the tree's {unknown[0]!r} is not one of the nodes",
                remedy="name the tree's leaves as in [nodes]; their caps would hold nothing",
            )
        if self.tree.caps[0].watts < self.budget_watts:
            raise InvalidValueError(
                f"budget_watts {self.budget_watts:g} is above the tree's "
                f"{self.tree.caps[0].watts:g} W for {self.root}",
                remedy="give both the same watts, or leave those of the tree out",
            )


def read_agent_settings(path: Path) -> AgentSettings:
    """Read an agent's settings from TOML; paths in it are relative to the file."""
    text = read_text(path, "settings")
    remedy = "see docs/how-to/share-a-power-budget.md for an example"
    with document_errors(f"{path} holds no settings", remedy=remedy):
        document = tomllib.loads(text)
        _check_names(path, document, AgentSettings)
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
        if "accounts" in document:
            for entry in document["accounts"].values():
                _check_names(path, entry, AccountShare)
            document["accounts"] = {
                name: AccountShare(**entry) for name, entry in document["accounts"].items()
            }
        return AgentSettings(**document)


def _check_names(path: Path, document: Mapping[str, object], kind: type) -> None:
    """Refuse a setting that there is not, naming the nearest ones."""
    names = [entry.name for entry in fields(kind)]
    for name in document.keys() - set(names):
        near = get_close_matches(name, names) or names
        raise FileError(f"unknown setting {name!r} in {path}", remedy=f"use {', '.join(near)}")
