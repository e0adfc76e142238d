"""Pages of saved pipeline plans and recommendations, from a folder of files."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from fastapi import APIRouter, Request, Response
from markupsafe import Markup

from joulery.documents import decode_json
from joulery.errors import FileError, InvalidValueError, JouleryError
from joulery.pipeline import load_plan, plan_saving
from joulery.prediction import Recommendation
from joulery.reports import (
    PipelineView,
    Report,
    Table,
    date_text,
    pipeline_report,
    recommendation_report,
)
from joulery.server._auth import may_see_all
from joulery.server._pages import PageRoute, render, zone_of
from joulery.server._problems import no_permission, not_found
from joulery.units import human

if TYPE_CHECKING:
    from datetime import tzinfo
    from pathlib import Path

plan_pages = APIRouter(route_class=PageRoute, include_in_schema=False)
_MOST_FILES = 100  # by hand: more are not read through
_MOST_BYTES = 2**20  # a plan of six thousand instructions, which takes seconds to draw
_MORE_TIME = 1.005  # from here on an iteration time was chosen, and not found by rounding
# What reading or drawing raises where a value is of a wrong type, missing, or out of range.
_DAMAGE = (JouleryError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
_REMEDY = "save it with joulery plan pipeline --out, or joulery recommend --json"


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A file of the folder, as it is now.

    Attributes:
        path: Path of the file.
        changed: Time of its last change in nanoseconds.
        size: Number of bytes.
    """

    path: Path
    changed: int
    size: int

    def document(self) -> dict[str, Any]:
        """The content.

        Raises:
            FileError: It is too large, damaged, or something else.
        """
        try:
            with self.path.open("rb") as file:
                content = file.read(_MOST_BYTES + 1)
        except OSError as error:
            raise FileError(
                f"cannot be read: {error.strerror}", remedy="check its rights"
            ) from None
        if len(content) > _MOST_BYTES:
            most = human(_MOST_BYTES, "B")
            raise FileError(f"more than {most}", remedy="write its page with --html instead")
        try:
            document = decode_json(content)
        except InvalidValueError as error:
            raise FileError(error.message, remedy=_REMEDY) from None
        if not isinstance(document, dict) or not {"problem", "pareto"} & document.keys():
            raise FileError("no plan and no recommendation", remedy=_REMEDY)
        return document


def saved_files(folder: Path) -> list[SavedFile]:
    """Files of the folder, the latest first; what links point to elsewhere is left out.

    Raises:
        FileError: There is no such folder.
    """
    try:
        paths = [path for path in folder.iterdir() if path.suffix == ".json"]
    except OSError as error:
        raise FileError(
            f"cannot read {folder}: {error.strerror}", remedy="make the folder, or check its rights"
        ) from None
    home, files = folder.resolve(), []
    for path in paths:
        with suppress(OSError):  # it may be gone by now
            is_inside = path.name.isprintable() and path.resolve().is_relative_to(home)
            if is_inside and path.is_file():
                status = path.stat()
                files.append(SavedFile(path, status.st_mtime_ns, status.st_size))
    return sorted(files, key=lambda file: -file.changed)[:_MOST_FILES]


@lru_cache(maxsize=2 * _MOST_FILES)
def describe_file(file: SavedFile) -> str:
    """Content of a file, or the reason why it is not shown, in one line."""
    try:
        document = file.document()
        if "problem" not in document:
            recommendation = Recommendation.from_dict(document)
            return f"recommendation for {recommendation.work}: {recommendation.best}"
        problem, totals = document["problem"], document["frontier"]
        ends = [
            f"{human(total['joules'], 'J')} in {human(total['seconds'], 's')}"
            for total in (totals[0], totals[-1])
        ]
        about = f"{problem['source']}, {problem['schedule']}, {len(document['ranks'])} ranks"
        return f"pipeline plan of {about}: {ends[0]} to {ends[1]} per iteration"
    except FileError as error:
        return f"not shown: {error.message}"
    except _DAMAGE:
        return "not shown: it is damaged"


@lru_cache(maxsize=16)
def draw_file(file: SavedFile) -> tuple[str, Markup]:
    """Title and content of the page of a file; drawing takes up to some seconds, once.

    Raises:
        FileError: It holds no plan and no recommendation.
    """
    document = file.document()
    try:
        report = _report(file, document)
        return report.title, Markup(report.body())  # noqa: S704 - reports escape what they show
    except JouleryError as error:
        raise FileError(error.message, remedy=error.remedy) from None
    except _DAMAGE as error:
        raise FileError(f"a damaged file: {error!r}", remedy=_REMEDY) from error


def _report(file: SavedFile, document: dict[str, Any]) -> Report:
    if "problem" not in document:
        return recommendation_report(Recommendation.from_dict(document))
    plan = load_plan(file.path)
    savings = [plan_saving(plan)]
    seconds = float(document["ranks"][0]["seconds"])
    if seconds > _MORE_TIME * plan.full_clocks.seconds:
        savings.append(plan_saving(plan, seconds, name=f"saved for {human(seconds, 's')}"))
    return pipeline_report(PipelineView(plan, tuple(savings)))


def _folder(request: Request) -> Path:
    """The folder, for tokens of every team: its files belong to no team."""
    folder: Path | None = request.app.state.plans
    if folder is None:
        raise not_found()
    if not may_see_all(request.state.caller):
        raise no_permission()
    return folder


@plan_pages.get("/plans", operation_id="plansPage")
def plans(request: Request) -> Response:
    """All plans and recommendations of the folder."""
    try:
        files = saved_files(_folder(request))
    except FileError as missing:
        return render(request, "plans.html", "Plans", missing=missing)
    report = Report("", "", (_table(files, zone_of(request)),)) if files else None
    return render(request, "plans.html", "Plans", missing=None, report=report)


def _table(files: list[SavedFile], zone: tzinfo) -> Table:
    table = Table.of(
        files,
        {
            "file": lambda file: file.path.name,
            "about": describe_file,
            "saved": lambda file: date_text(file.changed / 1e9, zone),
        },
    )
    return replace(table, links=[f"/plans/{quote(file.path.name)}" for file in files])


@plan_pages.get("/plans/{name}", operation_id="planPage")
def plan(request: Request, name: str) -> Response:
    """One plan or recommendation."""
    name = unquote(name)
    # Looked for in the list, so that no name leads out of the folder.
    files = saved_files(_folder(request))
    file = next((file for file in files if file.path.name == name), None)
    if file is None:
        raise not_found()
    try:
        title, content = draw_file(file)
    except FileError as missing:
        return render(request, "plan.html", "Not shown", name=name, missing=missing)
    return render(request, "plan.html", title, name=name, missing=None, content=content)
