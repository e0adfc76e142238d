"""The tree of errors: complete, documented, with exit codes and remedies that survive pickling."""

import copy
import inspect
import json
import operator
import pickle
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from joulery import errors
from joulery.errors import (
    FileError,
    JouleryError,
    NotPossibleHereError,
    UnknownCommandError,
    UsageError,
    document_errors,
)

CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]


@dataclass
class _Point:
    x: float


def _depth(kind):
    return sum(issubclass(base, JouleryError) for base in kind.__mro__) - 1


def test_numbers_of_the_system_are_left_out():
    """`[Errno 2]` tells a reader nothing that the words behind it do not, nor a name said twice."""
    missing = FileNotFoundError(2, "No such file or directory", "jobs.json")
    error = FileError(f"cannot read jobs: {missing}", remedy="name another file")
    assert error.message == "cannot read jobs: No such file or directory: 'jobs.json'"
    assert error.args == (error.message,)
    named = FileError(f"cannot read jobs.json: {missing}", remedy="name another file")
    assert named.message == "cannot read jobs.json: No such file or directory"


def test_the_drawing_names_every_class_at_its_place():
    """The docstring is the map that people read; it must match the territory."""
    drawn, stack = {}, []
    for line in errors.__doc__.splitlines():
        if match := re.match(r"^([│├└─ ]*)(\w+Error)\b", line):
            depth = len(match[1]) // 4
            stack[depth:] = [match[2]]
            drawn[match[2]] = stack[depth - 1] if depth else "Exception"
    parents = {
        kind.__name__: next(base.__name__ for base in kind.__bases__ if issubclass(base, Exception))
        for kind in CLASSES
    }
    assert drawn == parents


def test_the_drawing_states_the_exit_codes():
    """Scripts branch on the codes that the drawing promises."""
    stated = dict(re.findall(r"(\w+Error) +exit (\d)", errors.__doc__))
    assert len(stated) == 5
    assert {name: str(getattr(errors, name).exit_code) for name in stated} == stated


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_has_a_remedy_and_a_code(kind):
    """An error without a way out is half an error."""
    with pytest.raises(TypeError, match="remedy"):
        kind("broken")
    error = kind("broken", remedy="mend it")
    assert isinstance(error, JouleryError)
    assert str(error) == "broken (mend it)"
    code = 2 if issubclass(kind, UsageError) else 3 if issubclass(kind, NotPossibleHereError) else 1
    assert error.exit_code == (127 if kind is UnknownCommandError else code)
    assert inspect.getdoc(kind)
    assert _depth(kind) <= 2


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_errors_cross_processes_whole(kind, protocol):
    """Workers send errors home; a remedy lost on the way helps nobody."""
    error = kind("broken: µ", remedy="mend it")
    for twin in (
        pickle.loads(pickle.dumps(error, protocol)),  # noqa: S301 - our own bytes
        copy.copy(error),
        copy.deepcopy(error),
    ):
        assert type(twin) is kind
        assert (twin.message, twin.remedy, str(twin)) == (error.message, error.remedy, str(error))


def test_invalid_values_are_value_errors():
    """Callers that know nothing of Joulery catch ValueError."""
    assert issubclass(errors.InvalidValueError, ValueError)


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (lambda: operator.getitem(1, "id"), "a number stands where it cannot"),
        (lambda: operator.attrgetter("items")("text"), "text stands where it cannot"),
        (lambda: [].get("id"), "a list stands where it cannot"),
        (lambda: float("{x}"), "'{x}' is not a number"),
        (lambda: float([]), "a list stands where it cannot"),
        (lambda: {}["id"], "'id' is missing"),
        (lambda: int("x"), "'x' is not a whole number"),
        (lambda: json.loads("9" * 5000), "a number has too many digits"),
        (lambda: json.loads("[" * 100_000), "nested too deeply"),
        (lambda: _Point(x=1, z=2), "unknown member 'z'"),
        (_Point, "'x' is missing"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_python_says_of_a_document_is_put_in_words(read, words):
    """Somebody who wrote a JSON file is told what is not subscriptable."""
    with (
        pytest.raises(FileError) as refused,
        document_errors("file.json holds no jobs", remedy="mend it"),
    ):
        read()
    assert refused.value.message == f"file.json holds no jobs: {words}"


def test_errors_of_ours_pass_a_document_unchanged():
    """The remedy of the part that is wrong would give way to that of the whole file."""
    with (
        pytest.raises(UsageError, match="no such tier") as refused,
        document_errors("file.json holds no jobs", remedy="mend it"),
    ):
        raise UsageError("no such tier", remedy="choose another")
    assert refused.value.remedy == "choose another"


def test_no_remedy_only_points_at_the_help():
    """A remedy says what to write; somebody who reads the help needs no remedy."""
    sources = Path(errors.__file__).parent.rglob("*.py")
    pointers = re.compile(r'remedy=f?"see `?[^"]*--help`?"')
    assert [path for path in sources if pointers.search(path.read_text("utf-8"))] == []
