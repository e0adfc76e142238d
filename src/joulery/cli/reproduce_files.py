"""Write what a reproduction made: all of it or nothing."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulery.cli.reproduce_view import Shown, draw, html_page
from joulery.errors import FileError, MissingExtraError
from joulery.simulate.reproduce_claims import claims

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from joulery.simulate.reproduce_claims import Claim
    from joulery.simulate.reproduce_rows import FigureData

SCHEMA = "joulery.reproduce/1"
PAGE, DOCUMENT = "index.html", "reproduce.json"


@dataclass(frozen=True, slots=True)
class Reproduction:
    """What is known before the figures are made.

    Attributes:
        seeds: Of each comparison.
        missing: What could not be made.
        remarks: On the traces.
    """

    seeds: int
    missing: tuple[str, ...]
    remarks: tuple[str, ...]


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder to write to, which takes the place of ``out`` when all went well.

    Raises:
        FileError: ``out`` holds something else, or cannot be written to.
    """
    if out.exists() and not (out.is_dir() and _ours_or_empty(out)):
        raise FileError(
            f"{out} exists and holds other things", remedy="choose another folder with --out"
        )
    fresh = out.parent / f".{out.name}.{os.getpid()}.new"
    old = out.parent / f".{out.name}.{os.getpid()}.old"
    try:
        fresh.mkdir(parents=True)
    except OSError as refused:
        raise FileError(
            f"cannot make {fresh}: {refused.strerror}", remedy="choose another folder with --out"
        ) from None
    try:
        yield fresh
        if out.exists():
            out.rename(old)
        fresh.rename(out)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _ours_or_empty(folder: Path) -> bool:
    return (folder / DOCUMENT).exists() or not any(folder.iterdir())


def write_reproduction(
    figures: Iterable[FigureData],
    made: Reproduction,
    folder: Path,
    show: Callable[[str], None],
) -> tuple[dict[str, Any], list[Claim]]:
    """Write tables, pictures and the page; the summary beside them, and what it claims.

    Raises:
        FileError: Something cannot be written.
    """
    shown: list[Shown] = []
    remarks = list(made.remarks)
    for data in figures:
        show(f"joulery: drawing {data.label}")
        try:
            drawings = draw(data, folder)
        except MissingExtraError as missing:
            drawings = []
            if str(missing) not in remarks:
                remarks.append(str(missing))
        tables = tuple(_written(folder / f"{t.name}.csv", t.csv_text()) for t in data.tables)
        shown.append(Shown(data, tuple(drawings), tables))
    found = claims({one.data.name: one.data for one in shown})
    document = {
        "schema": SCHEMA,
        "seeds": made.seeds,
        "claims": [claim.to_dict() for claim in found],
        "figures": [
            {
                "name": one.data.name,
                "numbers": one.data.numbers,
                "title": one.data.title,
                "files": [path.name for path, _ in one.drawings] + [p.name for p in one.tables],
            }
            for one in shown
        ],
        "missing": list(made.missing),
        "remarks": remarks,
    }
    _written(folder / DOCUMENT, json.dumps(document, allow_nan=False, indent=1) + "\n")
    _written(folder / PAGE, html_page(shown, found, made.missing, made.seeds))
    return document, found


def _written(path: Path, text: str) -> Path:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as refused:
        raise FileError(
            f"cannot write {path}: {refused.strerror}", remedy="make room, or choose another --out"
        ) from None
    return path
