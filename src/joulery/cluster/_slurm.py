"""Slurm as the engine: which jobs hold which GPUs, and how to stop and continue them."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError, NotPossibleHereError, flaw_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

# Longest wait for Slurm's commands and slurmrestd; by hand: busy controllers take seconds.
_TIMEOUT_SECONDS = 20.0
# Old versions name one of a job's states only, which hides that it runs.
_STATES = {"RESIZING", "RUNNING", "SIGNALING", "STOPPED", "SUSPENDED"}
_RANGES = re.compile(r"([^,\[\]]*)(?:\[([^\]]*)\])?([^,\[\]]*)(?:,|$)")
# Name, type and count of a resource, and its indices or its shares of every board.
_RESOURCE = re.compile(r"\b(gpu|shard|mps)\b([^,(]*)\((?:IDX:)?([^)]*)\)")
_SLICE = re.compile(r"\d+g\.\d+gb")
# Index of a job that holds a slice of a board (MIG): Slurm counts slices, not boards.
ALL_BOARDS = -1
_ENERGY = re.compile(r"\s*joulery-(joules|seconds)=([\d.]+)")


class EngineError(NotPossibleHereError):
    """The workload manager does not answer, or not as it should."""


@dataclass(frozen=True, slots=True)
class EngineJob:
    """A job that holds GPUs.

    Attributes:
        id: Number of the job.
        name: Name of the job.
        comment: Text that the user gave with ``--comment``.
        gpus: Indices of its GPUs on each node; ``ALL_BOARDS`` where it shares all of a node's.
        account: Account that the job is charged to.
        is_suspended: Whether the job is stopped for now.
    """

    id: str
    name: str
    comment: str = ""
    gpus: dict[str, tuple[int, ...]] = field(default_factory=dict)
    is_suspended: bool = False
    account: str = ""

    @property
    def gpu_count(self) -> int:
        """Number of its GPUs on all nodes."""
        return sum(map(len, self.gpus.values()))

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
        self._run = run or run_command

    def jobs(self) -> list[EngineJob]:
        """Jobs that hold GPUs, running or suspended.

        Raises:
            EngineError: Slurm does not answer.
        """
        # Versions before 23.02 ignore the filter, which spares later ones the pending jobs.
        states = ",".join(sorted(_STATES))
        return _jobs(self._run(["squeue", "--json", f"--states={states}"]), "squeue --json")

    def suspend(self, job: str) -> None:
        """Stop a job's processes; it keeps its GPUs."""
        self._run(["scontrol", "suspend", job])

    def resume(self, job: str) -> None:
        """Let a suspended job go on."""
        self._run(["scontrol", "resume", job])

    def signal(self, job: str, name: str) -> None:
        """Send a signal to a job's script and all its steps."""
        self._run(["scancel", "--full", f"--signal={name}", *job.split(",")])


@dataclass(frozen=True, slots=True)
class SlurmEnergy:
    """Energy of a job as Slurm keeps it in the job's comment.

    Attributes:
        id: Number of the job.
        name: Name of the job.
        account: Account that the job is charged to.
        joules: Measured energy of its GPUs.
        seconds: Time over which that was measured.
    """

    id: str
    name: str
    account: str
    joules: float
    seconds: float


def record_energy(run: Callable[[list[str]], str], job: str, joules: float, seconds: float) -> str:
    """Add a job's energy to its comment, in place of an earlier figure; the new comment.

    Args:
        run: Function that runs a command and returns what it printed.
        job: Number of the job.
        joules: Measured energy of its GPUs.
        seconds: Time over which that was measured.
    """
    _check_number(job)
    tasks = _show_jobs(run, job)
    # The number of an array stands for all its tasks, of which the last has it for its own.
    fields = next((task for task in tasks if task.get("JobId") == job), tasks[0])
    comment = _ENERGY.sub("", fields.get("Comment", "")).strip()
    text = f"{comment} joulery-joules={joules:.1f} joulery-seconds={seconds:.0f}".strip()
    run(["scontrol", "update", f"JobId={_task_id(fields, job)}", f"Comment={text}"])
    return text


def job_records(
    run: Callable[[list[str]], str],
    *,
    job: str | None = None,
    account: str | None = None,
    window: tuple[str, str] | None = None,
) -> list[SlurmEnergy]:
    """Energy that epilogs wrote, of a job or of an account in a time.

    Args:
        run: Function that runs a command and returns what it printed.
        job: Number of a job, also one that slurmctld still knows without accounting.
        account: Name of an account.
        window: First and last day, as ``YYYY-MM-DD``.
    """
    if job is not None:
        _check_number(job)
        try:
            rows = [
                [_task_id(task, job), *(task.get(k, "") for k in ("JobName", "Account", "Comment"))]
                for task in _show_jobs(run, job)
            ]
            if records := [record for row in rows for record in _record(row)]:
                return records
        except EngineError:
            pass  # slurmctld has forgotten it
    words = ["sacct", "-X", "-n", "-P", "-o", "JobID,JobName,Account,Comment"]
    words += [f"--jobs={job}"] if job is not None else ["-a", f"--accounts={account}"]
    if window is not None:
        words += [f"--starttime={window[0]}", f"--endtime={window[1]}"]
    return [r for line in run(words).splitlines() for r in _record(line.split("|", 3))]


def _record(row: list[str]) -> list[SlurmEnergy]:
    found = dict(_ENERGY.findall(row[-1])) if len(row) == 4 else {}
    if "joules" not in found:
        return []
    name, title, account, _ = row
    seconds = float(found.get("seconds", 0.0))
    return [SlurmEnergy(name, title, account, float(found["joules"]), seconds)]


def _show_jobs(run: Callable[[list[str]], str], job: str) -> list[dict[str, str]]:
    """Fields of a job, or of each task of an array; a comment may hold blanks and ends its line."""
    records = []
    for text in re.split(r"\n\s*\n", run(["scontrol", "show", "job", job]).strip()):
        fields = dict(re.findall(r"(\w+)=(\S*)", text))
        if comment := re.search(r"^\s*Comment=(.*)$", text, re.MULTILINE):
            fields["Comment"] = comment[1].strip()
        records.append(fields)
    return records


def _task_id(fields: Mapping[str, str], job: str) -> str:
    """Name of a job by which only it is meant, also where it is the task of an array."""
    task = fields.get("ArrayTaskId", "")
    return f"{fields['ArrayJobId']}_{task}" if task.isdecimal() else fields.get("JobId", job)


def _check_number(job: str) -> None:
    if not re.fullmatch(r"\d{1,12}(_\d{1,9})?", job):
        raise InvalidValueError(f"{job!r} is not a job of Slurm", remedy="give its number")


class SlurmRest:
    """Slurm through slurmrestd, for an agent that runs apart from slurmctld.

    slurmrestd cannot suspend jobs, so a paused job is stopped by a signal and keeps its CPUs.

    Args:
        url: Address, such as ``http://127.0.0.1:6820``.
        user: Name of the user that the token is for.
        token_file: File with what ``scontrol token`` printed, read anew for every request since
            tokens expire; None for none.
    """

    def __init__(self, url: str, user: str = "", token_file: Path | None = None) -> None:
        if not url.startswith(("https://", "http://")):
            raise InvalidValueError(f"not an address: {url}", remedy="give http://host:6820")
        self._url, self._user, self._token_file = url.rstrip("/"), user, token_file
        self._version = ""

    def jobs(self) -> list[EngineJob]:
        """Jobs that hold GPUs, running or stopped.

        Raises:
            EngineError: slurmrestd does not answer.
        """
        return _jobs(self._ask("jobs"), self._url)

    def suspend(self, job: str) -> None:
        """Stop a job's processes; it keeps its GPUs."""
        self.signal(job, "STOP")

    def resume(self, job: str) -> None:
        """Let a stopped job go on."""
        self.signal(job, "CONT")

    def signal(self, job: str, name: str) -> None:
        """Send a signal to a job's script and all its steps."""
        for number in job.split(","):
            query = f"signal=SIG{name.removeprefix('SIG')}&flags=FULL_JOB"
            self._ask(f"job/{number}?{query}", "DELETE")

    def _ask(self, path: str, method: str = "GET") -> str:
        if not self._version:
            description = self._call("/openapi/v3", "GET").replace("\\/", "/")
            versions = re.findall(r'"/slurm/(v0\.0\.\d+)/jobs/?"', description)
            if not versions:
                raise EngineError(f"{self._url} is no slurmrestd", remedy="check its address")
            self._version = max(versions, key=lambda version: int(version.rpartition(".")[2]))
        return self._call(f"/slurm/{self._version}/{path}", method)

    def _call(self, path: str, method: str) -> str:
        import urllib.error
        import urllib.request

        headers = {"Accept": "application/json"}
        try:
            if self._token_file is not None:
                token = self._token_file.read_text(encoding="utf-8").strip()
                headers["X-SLURM-USER-TOKEN"] = token.removeprefix("SLURM_JWT=")
                headers["X-SLURM-USER-NAME"] = self._user
            call = urllib.request.Request(  # noqa: S310 - checked above
                self._url + path, method=method, headers=headers
            )
            with urllib.request.urlopen(call, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            body = error.read().decode(errors="replace")
            message = (
                "; ".join(re.findall(r'"(?:description|error)": "([^"]+)"', body)) or body[:300]
            )
            remedy = "check the token, which expires, and slurmrestd's log"
            raise EngineError(f"{self._url}{path}: {error.code} {message}", remedy=remedy) from None
        except (OSError, ValueError) as error:
            remedy = "check that slurmrestd runs there"
            raise EngineError(f"{self._url}: {error}", remedy=remedy) from None


def run_command(command: list[str]) -> str:
    """What a command of Slurm prints."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"{command[0]}: {error}", remedy="check that Slurm runs here") from None
    if done.returncode != 0:
        message = (done.stderr.strip().splitlines() or ["no reason given"])[-1][:300]
        raise EngineError(f"{command[0]}: {message}", remedy="check slurmctld's log")
    return done.stdout


def _jobs(text: str, source: str) -> list[EngineJob]:
    """Jobs as ``squeue --json`` and slurmrestd of any Slurm since 22.05 list them.

    States became lists and comments became objects in later versions; whatever else changes in
    fields that are not used does not matter.
    """
    try:
        jobs = (_job(entry) for entry in json.loads(text)["jobs"])
        return join_shared([job for job in jobs if job is not None])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise EngineError(
            f"{source} sends an invalid answer: {flaw_text(error)}",
            remedy="install Slurm 22.05 or later with its JSON serializer",
        ) from None


def _job(entry: dict[str, Any]) -> EngineJob | None:
    state = entry.get("job_state")
    states = {state} if isinstance(state, str) else set(state or ())
    if not states & _STATES:
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
    # Parts of a heterogeneous job are stopped together, by the first one's number.
    leader = _number(entry.get("het_job_id")) or _number(entry.get("job_id"))
    return EngineJob(
        id=str(leader),
        name=str(entry.get("name") or ""),
        comment=_comment(entry.get("comment")),
        gpus=gpus,
        is_suspended=bool(states & {"STOPPED", "SUSPENDED"}),
        account=str(entry.get("account") or ""),
    )


def join_shared(jobs: list[EngineJob]) -> list[EngineJob]:
    """Jobs that hold a board together (shards, MPS, slices), or are parts of one, as one job.

    Its id lists all of them; its name and preferences are those of the first, or none if they
    differ, since a board has one cap.
    """
    sliced = {node for job in jobs for node, indices in job.gpus.items() if ALL_BOARDS in indices}
    groups: list[tuple[set[object], list[EngineJob]]] = []
    for job in jobs:
        keys: set[object] = {job.id}
        for node, indices in job.gpus.items():
            keys |= {node} if node in sliced else {(node, index) for index in indices}
        members = [job]
        for group in [group for group in groups if group[0] & keys]:
            groups.remove(group)
            keys, members = keys | group[0], group[1] + members
        groups.append((keys, members))
    return [_joined(members, sliced) for _, members in groups]


def _joined(jobs: list[EngineJob], sliced: set[str]) -> EngineJob:
    gpus: dict[str, tuple[int, ...]] = {}
    for job in jobs:
        for node, indices in job.gpus.items():
            together = {*gpus.get(node, ()), *indices}
            gpus[node] = (ALL_BOARDS,) if node in sliced else tuple(sorted(together))
    first = jobs[0]
    ids = ",".join(dict.fromkeys(job.id for job in jobs))
    same = {(job.name, job.comment) for job in jobs} == {(first.name, first.comment)}
    return EngineJob(
        ids,
        first.name if same else "shared",
        first.comment if same else "",
        gpus,
        is_suspended=all(job.is_suspended for job in jobs),
        account=first.account if len({job.account for job in jobs}) == 1 else "",
    )


def _number(value: Any) -> Any:
    return value.get("number") if isinstance(value, dict) else value


def _comment(value: Any) -> str:
    return str(value.get("job") or "") if isinstance(value, dict) else str(value or "")


def _gpu_indices(detail: str) -> tuple[int, ...]:
    """``gpu:a100:3(IDX:0-1,3)`` holds the GPUs 0, 1 and 3, ``shard:2(0/4,2/4)`` a part of 1."""
    indices: set[int] = set()
    for _, kind, listed in _RESOURCE.findall(detail):
        if _SLICE.search(kind):
            return (ALL_BOARDS,)
        for position, part in enumerate(filter(None, listed.split(","))):
            if "/" in part:
                indices |= {position} if int(part.partition("/")[0]) > 0 else set()
            elif part[:1].isdecimal():
                first, _, last = part.partition("-")
                indices |= set(range(int(first), int(last or first) + 1))
    return tuple(sorted(indices))


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
