"""Slurm as the engine: which jobs hold which GPUs, and how to stop and continue them."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from joulery.errors import NotPossibleHereError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TIMEOUT_SECONDS = 20.0
_RANGES = re.compile(r"([^,\[\]]*)(?:\[([^\]]*)\])?([^,\[\]]*)(?:,|$)")
_INDICES = re.compile(r"\bgpu\b[^,]*?\(IDX:([\d,\-]*)\)")


class EngineError(NotPossibleHereError):
    """The workload manager does not answer, or not as it should."""


@dataclass(frozen=True, slots=True)
class EngineJob:
    """A job that holds GPUs.

    Attributes:
        id: Number of the job.
        name: Name of the job.
        comment: What the user wrote with ``--comment``.
        gpus: Indices of its GPUs on each node.
        is_suspended: Whether the job is stopped for now.
    """

    id: str
    name: str
    comment: str = ""
    gpus: dict[str, tuple[int, ...]] = field(default_factory=dict)
    is_suspended: bool = False

    @property
    def frontier_name(self) -> str:
        """Name of the job's frontier: ``frontier=`` in the comment, else the job's own."""
        return self.preferences.get("frontier", self.name)

    @property
    def preferences(self) -> dict[str, str]:
        """Pairs in the comment after the word ``joulery``, such as ``tier=flex-2``."""
        words = self.comment.replace(",", " ").split()
        if not words or words[0].rstrip(":").lower() != "joulery":
            return {}
        return dict(word.split("=", 1) for word in words[1:] if "=" in word)


class Slurm:
    """Slurm through its own commands, one call for the whole cluster.

    Args:
        run: Function that runs a command and returns what it printed.
    """

    def __init__(self, run: Callable[[list[str]], str] | None = None) -> None:
        self._run = run or _run

    def jobs(self) -> list[EngineJob]:
        """Jobs that hold GPUs, running or suspended.

        Raises:
            EngineError: Slurm does not answer.
        """
        try:
            return parse_squeue(json.loads(self._run(["squeue", "--json"])))
        except ValueError as error:
            raise EngineError(
                f"squeue --json prints something else: {error}",
                remedy="install Slurm 22.05 or later with its JSON serializer",
            ) from None

    def suspend(self, job: str) -> None:
        """Stop a job's processes; it keeps its GPUs."""
        self._run(["scontrol", "suspend", job])

    def resume(self, job: str) -> None:
        """Let a suspended job go on."""
        self._run(["scontrol", "resume", job])

    def signal(self, job: str, name: str) -> None:
        """Send a signal to a job's script and all its steps."""
        self._run(["scancel", "--full", f"--signal={name}", job])


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"{command[0]}: {error}", remedy="check that Slurm runs here") from None
    if done.returncode != 0:
        said = done.stderr.strip()[:300]
        raise EngineError(f"{' '.join(command)}: {said}", remedy="check slurmctld's log")
    return done.stdout


def parse_squeue(document: Any) -> list[EngineJob]:
    """Jobs in the output of ``squeue --json`` of any Slurm since 22.05.

    States became lists and comments became objects in later versions; whatever else changes in
    fields that are not used does not matter.
    """
    jobs = document.get("jobs") if isinstance(document, dict) else None
    if not isinstance(jobs, list):
        raise ValueError("no list of jobs")  # noqa: TRY004 - the text is wrong, not the call
    return [job for entry in jobs if (job := _job(entry)) is not None]


def _job(entry: dict[str, Any]) -> EngineJob | None:
    state = entry.get("job_state")
    states = {state} if isinstance(state, str) else set(state or ())
    if not states & {"RUNNING", "SUSPENDED"}:
        return None
    details = entry.get("gres_detail") or ()
    resources = entry.get("job_resources") or {}
    names = entry.get("nodes") or resources.get("nodes") or ""
    nodes = list(expand_hosts(names if isinstance(names, str) else names.get("list", "")))
    gpus = {
        node: indices
        for node, detail in zip(nodes, details, strict=False)
        if (indices := _gpu_indices(str(detail)))
    }
    if not gpus:
        return None
    return EngineJob(
        id=str(_number(entry.get("job_id"))),
        name=str(entry.get("name") or ""),
        comment=_comment(entry.get("comment")),
        gpus=gpus,
        is_suspended="SUSPENDED" in states,
    )


def _number(value: Any) -> Any:
    return value.get("number") if isinstance(value, dict) else value


def _comment(value: Any) -> str:
    return str(value.get("job") or "") if isinstance(value, dict) else str(value or "")


def _gpu_indices(detail: str) -> tuple[int, ...]:
    """``gpu:a100:3(IDX:0-1,3)`` holds the GPUs 0, 1 and 3."""
    found: list[int] = []
    for listed in _INDICES.findall(detail):
        for part in filter(None, listed.split(",")):
            first, _, last = part.partition("-")
            found += range(int(first), int(last or first) + 1)
    return tuple(found)


def expand_hosts(text: str) -> Iterator[str]:
    """Names in Slurm's short form: ``n[1-3,07],login`` is n1, n2, n3, n07, login."""
    for match in _RANGES.finditer(text):
        before, ranges, after = match.groups()
        if ranges is None:
            if before:
                yield before
            continue
        for part in ranges.split(","):
            first, _, last = part.partition("-")
            for number in range(int(first), int(last or first) + 1):
                yield f"{before}{number:0{len(first)}d}{after}"
