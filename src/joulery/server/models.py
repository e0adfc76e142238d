"""The documents of the server as models, for its description only.

Requests are read by :mod:`joulery.jobs.wire`, which these describe.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from joulery.jobs.validation import LONGEST_BEFORE_SECONDS
from joulery.jobs.wire_members import LARGEST, LARGEST_ID
from joulery.jobs.wire_specification import (
    LARGEST_BATCH_SIZE,
    MOST_BATCH_SIZES,
    MOST_EPOCHS,
    MOST_LIMITS,
)

Text = Annotated[str, Field(max_length=200, description="printable characters")]
Name = Annotated[str, Field(min_length=1, max_length=200, description="printable characters")]
Quantity = Annotated[float, Field(ge=0, le=LARGEST)]
Signed = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Number = Annotated[int, Field(ge=0, le=LARGEST_ID)]
BatchSize = Annotated[int, Field(ge=1, le=LARGEST_BATCH_SIZE, examples=[128])]
DecisionId = Annotated[str, Field(pattern=r"^[0-9]{1,18}\.[0-9]{1,18}$", examples=["7.12"])]
Moment = Annotated[float, Field(description="seconds since 1970")]


_SPECIFICATION = {
    "batch_sizes": [64, 128, 256],
    "default": 128,
    "cost": "cost:eta=0.5,max_watts=300.0",
    "limits_watts": [150.0, 200.0, 250.0, 300.0],
}
_OUTCOME = {"end": "reached", "epochs": 20, "seconds": 3600.0, "joules": 900000.0}


def _like(**example: Any) -> ConfigDict:
    """A document without any other members, such as ``example``."""
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [example]})


class Strict(BaseModel):
    """A document without any other members."""

    model_config = ConfigDict(extra="forbid")


class Problem(Strict):
    """What is wrong, and what to do about it (RFC 9457)."""

    type: str = Field(description="names the kind of problem", examples=["/problems/usage-error"])
    title: str = Field(description="the status in words")
    status: int
    detail: str = Field(description="what is wrong, one line")
    remedy: str = Field(description="what to do about it, one line")


class Specification(Strict):
    """What may be chosen for a job, and what is wanted."""

    batch_sizes: list[BatchSize] = Field(
        min_length=1,
        max_length=MOST_BATCH_SIZES,
        description="ascending, without repeats",
        examples=[[64, 128, 256]],
    )
    default: BatchSize = Field(description="what the owner would run; one of batch_sizes")
    cost: str = Field(
        description="cost that early stopping bounds, as text",
        examples=["cost:eta=0.5,max_watts=300"],
    )
    objective: str | None = Field(
        None,
        description="objective as text; null for the cost",
        examples=["least-energy:slowdown=5%"],
    )
    max_epochs: int = Field(100, ge=1, le=MOST_EPOCHS)
    limits_watts: list[Quantity] = Field(
        [], max_length=MOST_LIMITS, description="power limits, ascending; empty leaves it alone"
    )


class Definition(Strict):
    """A job to be defined."""

    model_config = _like(
        name="resnet-nightly", device="A40", specification=_SPECIFICATION, policy="joulery"
    )

    name: Name = Field(examples=["resnet-nightly"])
    device: Text = Field("", description="kind of device; empty for any", examples=["A40"])
    specification: Specification
    policy: Text = Field("joulery", examples=["joulery", "zeus"])
    parameters: dict[str, Quantity] = Field({}, description="of the policy")


class Job(Strict):
    """A version of a job."""

    id: Number
    team: Name
    name: Name
    device: Text
    version: Number = Field(description="counts from 1")
    inherits: Number | None = Field(description="the job that it started from")
    said: str = Field(description="in words what it inherited")
    paused: bool
    policy: Text
    parameters: dict[str, float]
    specification: Specification
    created_wall_seconds: Moment
    events: Number
    recurrences: Number


class JobPage(Strict):
    """Jobs by number."""

    jobs: list[Job]
    next: Number | None = Field(description="what the next page begins after; null at the end")


class DecisionRequest(Strict):
    """A decision that is asked for."""

    model_config = _like(key="night 1", after=None, probing=False)

    key: Name = Field(description="chosen by you; the same key gives the same decision")
    after: DecisionId | None = Field(
        None, description="an earlier decision of the same recurrence, to go on after"
    )
    probing: bool = Field(default=False, description="whether you can make probes")
    only: BatchSize | None = Field(
        None, description="the batch size that you run, whatever would be chosen"
    )
    ran_seconds: Annotated[float, Field(ge=0, le=LONGEST_BEFORE_SECONDS)] | None = Field(
        None, description="how long you have run `only` already, where nobody could be asked before"
    )


class Decision(Strict):
    """What to run next."""

    id: DecisionId
    token: str = Field(description="for calls on this decision")
    job: Number
    recurrence: Number
    kind: Literal["train", "probe"]
    batch_size: BatchSize
    power_limit_watts: float | None = Field(description="to hold; null leaves it to profiling")
    probe_limits_watts: list[float] = Field(description="to measure on the way")
    cost_ceiling_joules: float | None = Field(description="what the run may cost; null for any")
    reason: str
    expires_wall_seconds: Moment


class Measured(Strict):
    """An epoch under one power limit."""

    limit_watts: Quantity | None = None
    epoch_seconds: float = Field(gt=0, le=LARGEST)
    epoch_joules: float = Field(gt=0, le=LARGEST)
    relative_error: float = Field(ge=0, le=10, description="one sigma")


class Outcome(Strict):
    """How a decision ended."""

    end: Literal["reached", "stopped", "exhausted", "abandoned", "probed"]
    epochs: Quantity
    seconds: Quantity
    joules: Quantity
    limit_watts: Quantity | None = Field(None, description="that was held")
    measured: list[Measured] = Field([], max_length=MOST_LIMITS)


class Heartbeat(Strict):
    """A sign of life."""

    model_config = _like(progress=_OUTCOME | {"end": "abandoned"})

    progress: Outcome | None = Field(None, description="what there is to tell so far")


class Lease(Strict):
    """What became of a heartbeat."""

    held: bool = Field(description="whether the decision is still yours; reports count anyway")
    expires_wall_seconds: Moment


class Report(Strict):
    """How a decision ended, told once."""

    model_config = _like(key="night 1", outcome=_OUTCOME)

    key: Name = Field(description="chosen by you; the same report under it counts once")
    outcome: Outcome


class Receipt(Strict):
    """What became of a report; the same whenever it is repeated."""

    decision: DecisionId
    event: Number
    late: bool = Field(description="whether the decision had been given up before")


class DecisionEntry(Strict):
    """A decision with how it ended; its token is left out."""

    decision: Decision
    number: Number
    key: Name
    state: Literal["open", "reported", "expired"]
    issued_wall_seconds: Moment
    heartbeat_wall_seconds: Moment | None
    outcome: Outcome | None
    late: bool
    reported_wall_seconds: Moment | None


class DecisionPage(Strict):
    """Decisions in order."""

    decisions: list[DecisionEntry]
    next: Number | None


class Pause(Strict):
    """Whether decisions are refused."""

    paused: bool


class NewProfile(Strict):
    """The frontier of one batch size on one kind of device."""

    batch_size: BatchSize
    device: Text
    frontier: dict[str, Any] = Field(
        description="as `joulery.Frontier` writes it: schema, work, points",
        examples=[{"points": [{"seconds": 10.0, "joules": 2500.0}]}],
    )
    wall_seconds: Quantity | None = Field(None, description="left out: it is when it is kept")


class Profile(Strict):
    """The same, kept."""

    batch_size: BatchSize
    device: Text
    frontier: dict[str, Any]
    wall_seconds: Moment | None


class ProfilePage(Strict):
    """Profiles by batch size."""

    profiles: list[Profile]
    next: None


class NewEnergy(Strict):
    """Energy that was used."""

    model_config = _like(device="A40", seconds=3600.0, joules=900000.0, origin="measured")

    decision: DecisionId | None = None
    device: Text
    seconds: Quantity
    joules: Quantity
    origin: Literal["measured", "predicted", "simulated", "assumed"] = "assumed"
    source: Text = ""
    wall_seconds: Quantity | None = Field(None, description="left out: it is when it is kept")


class Energy(Strict):
    """The same, kept."""

    decision: DecisionId | None
    device: Text
    seconds: Quantity
    joules: Quantity
    origin: str
    source: Text
    wall_seconds: Moment | None


class EnergyPage(Strict):
    """Energy in the order in which it became known."""

    energy: list[Energy]
    next: Number | None


Rights = Literal["read", "work", "manage", "admin"]


class NewToken(Strict):
    """A token to be made."""

    model_config = _like(team="vision", rights="work", label="training cluster", days=90)

    team: Name = Field(description="that it is for; * for every team", examples=["vision"])
    rights: Rights = Field("work", description="each includes those before it")
    label: Text = Field("", description="for people")
    days: Quantity = Field(90.0, description="until it expires")


class Token(Strict):
    """A token, without itself."""

    id: Number
    team: Name
    rights: Rights
    label: Text
    created_wall_seconds: Moment
    expires_wall_seconds: Moment | None
    revoked_wall_seconds: Moment | None


class CreatedToken(Token):
    """A token, shown this once."""

    token: str


class TokenPage(Strict):
    """Tokens by number."""

    tokens: list[Token]
    next: Number | None


class Health(Strict):
    """How the server is."""

    status: Literal["live", "ready"]
