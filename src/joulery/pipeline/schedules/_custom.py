"""Custom schedules: from lists of short words, or from a JSON or CSV file of them.

An instruction is written as torch.distributed.pipelining prints it: the stage, a letter and the
microbatch, such as ``0F3``. F is a forward, B a backward, I and W its halves (gradient of the
inputs, of the weights), R a recomputation, ``0G`` the reduction of gradients and ``0O`` the
optimizer step at the end. Sends, receives and torch's reductions are skipped: communication follows
from the data dependencies.
"""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulery.documents import read_text
from joulery.errors import FileError
from joulery.pipeline._files import parse_json
from joulery.pipeline._instructions import LETTERS, Instruction
from joulery.pipeline.schedules._check import dependencies
from joulery.pipeline.schedules._schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

_WORD = re.compile(r"(\d{1,9})([FBIWR])(\d{1,9})|(\d{1,9})([GO])")
_NO_COMPUTATION = re.compile(r"\d+(UNSHARD|RESHARD|REDUCE_GRAD|(SEND|RECV)_[FB])\d*")
_OVERLAPPED = re.compile(r"\(([^()]*)\)OVERLAP_F_B")
_REMEDY = 'write one list per rank, such as [["0F0", "0B0"], ["1F0", "1B0"]]'


def custom_schedule(name: str, ranks: Sequence[Sequence[str]]) -> Schedule:
    """A schedule from lists of words, one list per rank; checked for completeness and cycles.

    Examples:
        >>> custom_schedule("mine", [["0F0", "0B0"], ["1F0", "1B0"]]).microbatches
        1
    """
    order = tuple(
        tuple(item for word in words for item in _parse(word, rank))
        for rank, words in enumerate(ranks)
    )
    schedule = Schedule(name, order)
    dependencies(schedule)
    return schedule


def read_schedule(path: Path | str) -> Schedule:
    """A schedule from a file: JSON (a list of lists) or CSV (one row per rank)."""
    path = Path(path)
    text = read_text(path, "order")
    try:
        json_rows = text.lstrip()[:1] in ("[", "{")
        rows = parse_json(text, "order", _REMEDY) if json_rows else [*csv.reader(io.StringIO(text))]
    except csv.Error as error:
        raise FileError(f"the order is not valid CSV: {error}", remedy=_REMEDY) from None
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise FileError("the order is not a list per rank", remedy=_REMEDY)
    return custom_schedule(path.stem, rows)


def _parse(word: Any, rank: int) -> list[Instruction]:
    text = word.strip() if isinstance(word, str) else word
    if text is None or text == "" or (isinstance(text, str) and _NO_COMPUTATION.fullmatch(text)):
        return []
    overlapped = _OVERLAPPED.fullmatch(text) if isinstance(text, str) else None
    if overlapped:
        return [item for part in overlapped[1].split(";") for item in _parse(part, rank)]
    match = _WORD.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise FileError(
            f"{word!r} in the order of rank {rank} is no instruction",
            remedy=f"write stage, one of {' '.join(LETTERS)}, and microbatch, such as 0F3",
        )
    if match[5]:
        return [Instruction(int(match[4]), rank, LETTERS[match[5]], -1)]
    return [Instruction(int(match[1]), rank, LETTERS[match[2]], int(match[3]))]
