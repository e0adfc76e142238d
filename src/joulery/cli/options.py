"""Values of options, checked while they are read, and the files that options name."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from joulery import units
from joulery.errors import FileError, InvalidValueError, MissingExtraError, UsageError
from joulery.files import check_replaceable, write_atomic

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from joulery.cli.dispatch import Output
    from joulery.reports import Drawing

_T = TypeVar("_T")
OUT_REMEDY = "choose another folder with --out"
_LEAST_WATTS = 0.001  # by hand: a range in steps of zero would not end
# More limits than this are a typing error, not a sweep.
_MOST_LIMITS = 1000


def whole(least: int, highest: int, remedy: str = "") -> Callable[[str], int]:
    """Reader of a whole number from ``least`` to ``highest``."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= highest:
            raise InvalidValueError(
                f"{text!r} is not a whole number from {least} to {highest}",
                remedy=remedy or f"write it in digits, such as {least}",
            )
        return value

    return read


def number(least: float = -math.inf, highest: float = math.inf) -> Callable[[str], float]:
    """Reader of a finite number from ``least`` to ``highest``."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and least <= value <= highest):
            bounds = "" if least == -math.inf else f" of {least:g} or more"
            bounds = bounds if highest == math.inf else f" from {least:g} to {highest:g}"
            example = min(max(least, 0.0) + 0.5, highest)
            raise InvalidValueError(
                f"{text!r} is not a number{bounds}", remedy=f"write one, such as {example:g}"
            )
        return value

    return read


def listed(read: Callable[[str], _T]) -> Callable[[str], list[_T]]:
    """Reader of values separated by commas."""
    return lambda text: [read(word.strip()) for word in text.split(",")]


def names(text: str) -> list[str]:
    """Names separated by commas."""
    return [word for word in listed(str)(text) if word]


def quantity(unit: str, least: float = 0.0, highest: float = math.inf) -> Callable[[str], float]:
    """Reader of a quantity with a unit, such as ``3kW`` or ``14d``; a number alone is in ``unit``.

    Args:
        unit: Unit of a number alone, as ``joulery.units.quantity`` knows it.
        least: Smallest allowed value, in SI.
        highest: Largest allowed value, in SI.
    """

    def read(text: str) -> float:
        value = units.quantity(text, "value", unit)
        if not least <= value <= highest:
            bounds = (
                f"{least:g} or more" if highest == math.inf else f"from {least:g} to {highest:g}"
            )
            if unit == "1" and highest == 1.0:
                bounds = f"from {100 * least:g}% to 100%"
            raise InvalidValueError(f"{text!r} is out of range", remedy=f"give a value {bounds}")
        return value

    return read


count, duration, size, watts = quantity("#"), quantity("s"), quantity("B"), quantity("W")
share = quantity("1", 0.0, 1.0)


def address(text: str) -> tuple[str, int]:
    """Host and port from ``HOST:PORT``; an IPv6 host stands in brackets."""
    from joulery.governor import parse_address

    return parse_address(text)


def location(text: str) -> str:
    """A store or server; a password is refused, since all users of a machine see arguments."""
    from urllib.parse import urlsplit

    words(text)
    try:
        secret = urlsplit(text).password
    except ValueError:  # brackets that are not an address; whoever opens it explains
        secret = None
    if secret:
        raise InvalidValueError(
            "every user of this machine can read a password on the command line",
            remedy="put the location into JOULERY_STORE, or the password into a file that "
            "PGPASSFILE names",
        )
    return text


def words(text: str) -> str:
    """Any text but the empty one, which a shell variable that is not set gives."""
    if not text.strip():
        raise InvalidValueError("the value is empty", remedy="give one, or leave the option out")
    return text


def path(text: str) -> Path:
    """A path, not empty."""
    return Path(words(text))


def output_path(*endings: str) -> Callable[[str], Path]:
    """Reader of the path of a file to write, in a folder that exists.

    It takes the place only of a file of its kind.

    Args:
        *endings: Endings of such files, the usual one first.
    """

    def read(text: str) -> Path:
        to = path(text)
        if not to.parent.is_dir():
            raise InvalidValueError(f"no folder {to.parent}", remedy="make it, or choose another")
        if to.is_file() and to.suffix.lower() not in endings:
            raise InvalidValueError(
                f"{to} would be overwritten", remedy=f"name a file that ends in {endings[0]}"
            )
        return to

    return read


def limits(text: str) -> tuple[float, ...]:
    """Power limits in watts from ``100:300:25`` or ``100,150,250``, highest first.

    Examples:
        >>> limits("100:200:50")
        (200.0, 150.0, 100.0)
    """
    read, ends = quantity("W", _LEAST_WATTS), text.split(":")
    if len(ends) == 1:
        return tuple(sorted(set(listed(read)(text)), reverse=True))
    if len(ends) != 3:
        raise InvalidValueError(
            f"{text!r} is not a range of power limits",
            remedy="write low:high:step in watts, such as 100:260:40",
        )
    low, high, step = map(read, ends)
    if high < low:
        ordered = f"{high:g}:{low:g}:{step:g}"
        raise InvalidValueError(f"the range {text!r} is empty", remedy=f"write {ordered}")
    # The slack keeps an end that rounding left just short.
    steps = math.floor((high - low) / step + 1e-9) + 1
    if steps > _MOST_LIMITS:
        raise InvalidValueError(
            f"{text!r} asks for {steps} limits", remedy=f"ask for {_MOST_LIMITS} at most"
        )
    return tuple(low + index * step for index in reversed(range(steps)))


def given_command(arguments: argparse.Namespace) -> list[str]:
    """Program and arguments after ``--``.

    Raises:
        UsageError: An option comes where the command is expected.
    """
    command: list[str] = arguments.command
    if command[:1] == ["--"]:
        return command[1:]
    if command and command[0].startswith("--"):
        raise UsageError(
            f"{command[0]} comes too late", remedy="write options first, then the rest"
        )
    return command


def writable_folder(folder: Path) -> Path:
    """Make the folder, so that no work is done whose result cannot be written.

    Raises:
        FileError: It cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot make {folder}: {error.strerror}", remedy=OUT_REMEDY) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise FileError(f"cannot write to {folder}", remedy=OUT_REMEDY)
    return folder


def write_file(to: Path, text: str, name: str) -> None:
    """Write what the option ``name`` asks for, all of it or nothing.

    Raises:
        FileError: The file cannot be written.
    """
    try:
        check_replaceable(to)
        if to.exists() and not to.is_file():  # a pipe or /dev/stdout stays what it is
            to.write_text(text, encoding="utf-8")
        else:
            write_atomic(to.resolve(), text.encode())
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileError(f"cannot write {to}: {reason}", remedy=f"choose another {name}") from None


def write_results(
    folder: Path,
    texts: Mapping[str, str],
    pictures: Mapping[str, Sequence[Drawing]],
    columns: int = 1,
) -> tuple[list[Path], list[str]]:
    """Write texts and PNGs by file name; the files written, and why some are missing.

    Raises:
        FileError: The folder cannot be written to.
    """
    from joulery.reports import write_png

    try:
        for name, text in texts.items():
            write_atomic(folder / name, text.encode())
    except OSError as error:
        message = f"cannot write to {folder}: {error.strerror}"
        raise FileError(message, remedy=f"make room, or {OUT_REMEDY}") from None
    written = [folder / name for name in texts]
    try:
        for name, drawings in pictures.items():
            write_png(drawings, folder / name, columns)
    except MissingExtraError as missing:
        return written, [f"No {', '.join(pictures)}: {missing}"]
    return [*written, *(folder / name for name in pictures)], []


@dataclass(frozen=True, slots=True)
class Option:
    """An option of the command line.

    Attributes:
        flags: Its names.
        settings: Settings of ``ArgumentParser.add_argument``.
    """

    flags: tuple[str, ...]
    settings: dict[str, Any]


def option(
    flags: str,
    text: str,
    metavar: str | None = None,
    read: Callable[[str], Any] = words,
    **settings: Any,
) -> Option:
    """An option with a value.

    Args:
        flags: Its name, or several separated by blanks.
        text: Explanation for the help.
        metavar: Name of the value in the help.
        read: Reader of the value; text that is not empty unless given.
        **settings: More settings of ``ArgumentParser.add_argument``.
    """
    arguments = {
        "help": text,
        "metavar": metavar,
        "type": _named(flags.split(maxsplit=1)[0], read),
    } | settings
    return Option(
        tuple(flags.split()),
        {name: value for name, value in arguments.items() if value is not None},
    )


def _named(flag: str, read: Callable[[str], _T]) -> Callable[[str], _T]:
    """The reader, whose errors name the option."""

    def read_option(text: str) -> _T:
        try:
            return read(text)
        except InvalidValueError as error:
            raise UsageError(f"{flag}: {error.message}", remedy=error.remedy) from None

    return read_option


def flag(name: str, text: str, **settings: Any) -> Option:
    """An option without a value."""
    return Option((name,), {"action": "store_true", "help": text, **settings})


def file(flags: str, text: str, metavar: str = "FILE", **settings: Any) -> Option:
    """An option that names a file."""
    return option(flags, text, metavar, path, **settings)


def written(flags: str, text: str, *endings: str, **settings: Any) -> Option:
    """An option that names a file to write, with the endings of such files."""
    return option(flags, text, "FILE", output_path(*endings), **settings)


def page_option(text: str) -> Option:
    """The option for the page that a command writes."""
    return written("--html", text, ".html", ".htm")


GRID_OPTION = option(
    "--grid",
    "carbon intensity of the grid: gCO2/kWh, a region such as DE, a series as CSV or Parquet, "
    "or a provider such as electricitymaps:DE",
    "SOURCE",
)
TLS_OPTIONS = (file("--tls-cert", "certificate, PEM"), file("--tls-key", "its key, PEM"))


def listen_option(text: str, default: tuple[str, int] | None = None) -> Option:
    """The option for the address of a server, with its default in the help."""
    suffix = "" if default is None else f" ({default[0]}:{default[1]})"
    return option("--listen", text + suffix, "HOST:PORT", address, default=default)


COMMAND_OPTION = Option(("command",), {"nargs": "...", "help": "command to run, after `--`"})


@dataclass(frozen=True, slots=True)
class Action:
    """A command, or one of its actions.

    Attributes:
        run: Function that does it; None where one of ``actions`` must be given.
        options: Its options.
        summary: Purpose in a few words; that of a command stands in the list of commands.
        epilog: Text below the options in the help.
        usage: Usage in the help, where the parser's own would be wrong.
        actions: Actions by name.
        measures: Whether the figures of the command include the node meter, which must then exist.
    """

    run: Callable[[argparse.Namespace], Output | int] | None = None
    options: tuple[Option, ...] = ()
    summary: str = ""
    epilog: str = ""
    usage: str = ""
    actions: Mapping[str, Action] = field(default_factory=dict)
    measures: bool = False

    def define(self, parser: argparse.ArgumentParser) -> None:
        """Define options and actions; the parsed namespace holds function and parser."""
        parser.epilog = self.epilog
        parser.usage = self.usage or None
        parser.set_defaults(run=self.run or self._refuse, parser=parser)
        for item in self.options:
            parser.add_argument(*item.flags, **item.settings)
        if not self.actions:
            return
        parsers = parser.add_subparsers(dest="action", metavar="ACTION", title="actions")
        for name, action in self.actions.items():
            text = action.summary
            about = f"{text[0].upper()}{text[1:]}."
            action.define(parsers.add_parser(name, help=text, description=about))

    def _refuse(self, _: argparse.Namespace) -> Output:
        raise UsageError("no action given", remedy=f"give one of {', '.join(self.actions)}")
