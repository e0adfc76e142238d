"""The status that an agent writes to its state folder, read strictly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from joulery.errors import FileError
from joulery.grid import GridEvent  # noqa: TC001 - msgspec reads the annotations

if TYPE_CHECKING:
    from pathlib import Path

_MOST_WATTS = 1e12  # all power stations of the world
_LAST_SECONDS = 253e9  # the year 9999, where calendars end
_Watts = Annotated[float, msgspec.Meta(ge=0.0, le=_MOST_WATTS)]
_Share = Annotated[float, msgspec.Meta(ge=0.0, le=1e3)]


class AgentJob(msgspec.Struct, frozen=True):
    """A job under an agent.

    Attributes:
        id: Id of the job in the workload manager.
        watts: Power that it gets.
        performance: Share of its speed without a budget.
    """

    id: str
    watts: _Watts
    performance: _Share


class AgentStatus(msgspec.Struct, frozen=True):
    """A cluster as its agent sees it.

    Attributes:
        at: Unix time of the status.
        budget_watts: Power budget now.
        power_watts: Power that nodes report.
        caps_watts: Sum of the caps in force, with the overhead.
        policy: Policy that divides the budget.
        events: Grid events that lower the budget now.
        is_short: Whether the budget does not cover every job's least power.
        jobs: Jobs and what they get.
        paused: Ids of jobs that the agent has stopped.
        messages: What an operator should know.
        weighted_performance: Speed of all jobs by weight; None where there is none.
        nodes: Number of nodes.
        lost_nodes: Names of nodes that do not answer.
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
