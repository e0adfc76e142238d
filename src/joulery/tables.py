"""Objects that people hold show themselves: a line as text, a table in notebooks, a data frame."""

from __future__ import annotations

import importlib
from html import escape
from typing import TYPE_CHECKING, Any

from joulery.errors import MissingExtraError
from joulery.units import human, human_dollars, human_duration, per_cent

if TYPE_CHECKING:
    from collections.abc import Callable


# Columns of the knobs that a column "setting" shows as one text, which is enough for people.
KNOBS = ("power_limit_watts", "clock_hertz", "batch_size", "device", "devices", "parallel")


class Tabular:
    """An object with rows: it prints as its text, and notebooks show its rows as a table.

    Examples:
        >>> class Pair(Tabular):
        ...     def rows(self):
        ...         return [{"seconds": 1.0, "joules": 300.0}]
        ...     def __str__(self):
        ...         return "one point"
        >>> Pair()
        <Pair: one point>
    """

    __slots__ = ()

    def rows(self) -> list[dict[str, Any]]:
        """Rows of the table, all with the same columns."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self}>"

    def _repr_html_(self) -> str:
        """The text and the table, for notebooks."""
        return html_table(str(self), self.rows())

    def to_pandas(self) -> Any:
        """The rows as a ``pandas.DataFrame``.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        try:
            pandas: Any = importlib.import_module("pandas")
        except ImportError:
            raise MissingExtraError(
                "data frames need pandas", remedy="pip install pandas, or use rows()"
            ) from None
        return pandas.DataFrame(self.rows())


def html_table(title: str, rows: list[dict[str, Any]]) -> str:
    """A title above a table, as HTML that fits light and dark notebooks."""
    first = rows[0] if rows else {}
    names = [name for name in first if "setting" not in first or name not in KNOBS]
    head = "".join(f"<th>{escape(_head(name))}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_text(name, row[name]))}</td>" for name in names) + "</tr>"
        for row in rows
    )
    return f"<div><p>{escape(title)}</p><table><tr>{head}</tr>{body}</table></div>"


# Readers of figures by the last word of their column's name.
_READERS: dict[str, Callable[[float], str]] = {
    "joules": lambda value: human(value, "J") if value < 3.6e6 else human(value / 3600, "Wh"),
    "dollars": human_dollars,
    "watts": lambda value: human(value, "W"),
    "hertz": lambda value: human(value, "Hz"),
    "seconds": human_duration,
    "error": per_cent,
    "saved": per_cent,
}


# What a column is of; its cells have their units.
_HEADS = {"joules": "energy", "watts": "power", "seconds": "time", "dollars": "money"}


def _head(name: str) -> str:
    words = name.split("_")
    if len(words) > 1 and words[-1] in _READERS.keys() - {"error"}:
        words.pop()
    return _HEADS.get(name, " ".join(words))


def _text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    return _READERS.get(name.rpartition("_")[2], "{:.6g}".format)(value)
