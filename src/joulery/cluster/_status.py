"""The status that an agent writes to its state folder, read strictly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from joulery.errors import FileError
from joulery.grid import GridEvent  # noqa: TC001 - msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_MOST_WATTS = 1e12  # all power stations of the world
_MISSED_LIVES = 3.0  # by hand: caps fall after one
_LAST_SECONDS = 253e9  # the year 9999, where calendars end
_Watts = Annotated[float, msgspec.Meta(ge=0.0, le=_MOST_WATTS)]
_Share = Annotated[float, msgspec.Meta(ge=0.0, le=1e3)]


class AgentJob(msgspec.Struct, frozen=True):
    """A job under an agent.

    Attributes:
        id: Id of the job in the workload manager.
        watts: Power that it gets.
        performance: Share of its speed without a budget.
        name: Name of the job.
        follows: Whether it keeps to its share by settings of its own, so that no cap does.
    """

    id: str
    watts: _Watts
    performance: _Share
    name: str = ""
    follows: bool = False


class AgentStatus(msgspec.Struct, frozen=True):
    """A cluster as its agent sees it.

    Attributes:
        at: Unix time of the status.
        budget_watts: Power budget now.
        power_watts: Power that nodes report.
        caps_watts: Sum of the caps in force, or of what jobs promise below them, with the overhead.
        policy: Policy that divides the budget.
        events: Grid events that lower the budget now.
        is_short: Whether the budget does not cover every job's least power.
        jobs: Jobs and what they get.
        paused: Ids of jobs that the agent has stopped.
        messages: What an operator should know.
        weighted_performance: Speed of all jobs by weight; None where there is none.
        nodes: Number of nodes.
        lost_nodes: Names of nodes that do not answer.
        is_alarmed: Whether the power has been above the budget for too long.
        is_metered: Whether the power is that of a meter, not the sum of boards and hosts.
        correction: Share of the budget that is drawn beyond what boards and hosts say.
        epoch: Number of the agent, above those of all before it; 0 for one that only looks.
        ttl_seconds: Time that caps live without a word of the agent.
        loop_seconds: Time that the last decision took.
    """

    at: Annotated[float, msgspec.Meta(ge=0.0, le=_LAST_SECONDS)]
    budget_watts: _Watts
    power_watts: _Watts
    caps_watts: _Watts
    policy: str
    events: tuple[GridEvent, ...]
    is_short: bool
    jobs: tuple[AgentJob, ...]
    paused: tuple[str, ...]
    messages: tuple[str, ...]
    weighted_performance: _Share | None = None
    nodes: int = 0
    lost_nodes: tuple[str, ...] = ()
    is_alarmed: bool = False
    is_metered: bool = False
    correction: float = 0.0
    epoch: int = 0
    ttl_seconds: float = 10.0
    loop_seconds: float = 0.0

    def is_dead(self, now: float) -> bool:
        """Whether the agent has been silent for so long that caps have fallen."""
        return now - self.at > _MISSED_LIVES * self.ttl_seconds


def read_status(state: Path) -> AgentStatus:
    """The latest status of an agent.

    Args:
        state: State folder of the agent.

    Raises:
        FileError: There is no status, or it is not what an agent writes.
    """
    try:
        return msgspec.json.decode((state / "status.json").read_bytes(), type=AgentStatus)
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileError(
            f"no status of an agent in {state}: {reason}",
            remedy="start `joulery cluster agent` with this state folder",
        ) from None


def read_job_energy(state: Path, job: str) -> tuple[float, float]:
    """Joules and seconds of a job that an agent has counted.

    Raises:
        FileError: The agent does not know the job, or it shares its boards with others.
    """
    try:
        energy = msgspec.json.decode((state / "agent.json").read_bytes())["energy"]
        joules, seconds, _ = energy[job]
        return float(joules), float(seconds)
    except (OSError, msgspec.DecodeError, RecursionError, KeyError, TypeError, ValueError):
        raise FileError(
            f"the agent in {state} has no energy of job {job}",
            remedy="see whether the job had whole GPUs on nodes of the agent",
        ) from None


# Metrics by the field of a status; counts of lists, and flags as 0 and 1.
_METRICS = {
    "budget_watts": "Power budget now.",
    "power_watts": "Power, of a meter or as boards and hosts add up.",
    "caps_watts": "Sum of the caps in force, with the overhead.",
    "correction": "Share of the budget that is drawn beyond what boards and hosts say.",
    "paused": "Jobs that the agent has stopped.",
    "jobs": "Jobs that hold GPUs.",
    "lost_nodes": "Nodes that do not answer.",
    "events": "Grid events that lower the budget now.",
    "is_short": "Whether there are no watts for further jobs.",
    "is_alarmed": "Whether the power has been above the budget for too long.",
    "is_metered": "Whether the power is that of a meter.",
    "epoch": "Number of the agent, above those of all before it.",
    "loop_seconds": "Time that the last decision took.",
    "at": "Unix time of the last decision.",
}


def metrics_text(report: Mapping[str, Any]) -> str:
    """A report of the agent in the text format of Prometheus."""
    lines = []
    for field, text in _METRICS.items():
        value = len(report[field]) if isinstance(report[field], list) else float(report[field])
        name = f"joulery_cluster_{field}"
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge", f"{name} {value:.12g}"]
    headroom = report["budget_watts"] - report["power_watts"]
    lines += [
        "# HELP joulery_cluster_headroom_watts Budget that is not drawn.",
        "# TYPE joulery_cluster_headroom_watts gauge",
        f"joulery_cluster_headroom_watts {headroom:.12g}",
    ]
    return "\n".join(lines) + "\n"
