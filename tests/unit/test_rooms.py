"""The house: rooms name their API, documents use nothing else, and a name means one thing."""

import ast
import pydoc
import re
from collections import Counter, defaultdict
from importlib import import_module
from pathlib import Path

import pytest

from joulery.metering import Meter

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "joulery"
PACKAGES = sorted(path.parent for path in SOURCE.rglob("__init__.py"))
# Folders whose files are each an entry of their own: commands, frameworks, a kit for tests.
OPEN = {"cli", "integrations", "testing"}
ROOMS = [
    path.name for path in PACKAGES if path.parent == SOURCE and path.name not in OPEN | {"joulery"}
]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_names_its_api(room):
    """A reader could not tell what is meant to be used from what may change tomorrow."""
    package = import_module(f"joulery.{room}")
    assert package.__all__
    for name in package.__all__:
        assert getattr(package, name) is not None
        assert not name.startswith("_")


@pytest.mark.parametrize("room", ROOMS)
def test_modules_of_a_room_are_private(room):
    """Code that imports a module by a public name will break when the room is changed."""
    public = [path for path in (SOURCE / room).glob("*.py") if not path.name.startswith("_")]
    assert public == []


def test_unit_tests_are_named_after_modules():
    """A reader of a module could not find its tests, or the tests outlive it."""
    folder, whole = (
        ROOT / "tests" / "unit",
        {
            "test_commands_page",
            "test_docstrings",
            "test_environment_page",
            "test_package",
            "test_rooms",
        },
    )
    lost = []
    for path in folder.rglob("test_*.py"):
        package = SOURCE / path.relative_to(folder).parent
        modules = {module.stem.lstrip("_") for module in package.glob("*.py")} | {
            name.name for name in (package, *package.glob("*/"))
        }
        name = path.stem.removeprefix("test_")
        if not any(name == module or name.startswith(f"{module}_") for module in modules):
            lost.append(str(path.relative_to(folder)))
    assert [name for name in lost if name.removesuffix(".py") not in whole] == []


def test_no_two_public_classes_share_a_name():
    """A name that stands for two things has to be explained every time."""
    homes = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        if "testing" in path.parts:
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].add(str(path.relative_to(SOURCE)))
    assert {name: sorted(found) for name, found in homes.items() if len(found) > 1} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_import_only_from_rooms(page):
    """An example that imports a private module teaches what will break."""
    inside = [
        module
        for module in re.findall(r"(?:from|import) (joulery[\w.]*)", page.read_text("utf-8"))
        if re.search(r"\._|^joulery\.(\w+)\.(?!policies\b)", module)
        and module.split(".")[1] not in OPEN
    ]
    assert inside == []


# Pronouns and participles that name no thing.
VAGUE = frozenset(
    (
        *("one", "each", "found", "wanted", "known", "kept", "shown", "told", "seen", "made"),
        *("given", "place", "most", "taken", "asked", "held", "left", "said", "meant", "right"),
        *("rest", "all_", "others", "such"),
    )
)
FOLDERS = [SOURCE, ROOT / "tests" / "support"]


def bound_names(path):
    """Names of variables and parameters that a file binds."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.arg) and node.arg not in ("self", "cls"):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id != "_":
            yield node.id


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_variables_are_named_by_nouns(folder):
    """A reader meets `one` and `found` where a transaction or a decision is meant."""
    names = [name for path in folder.rglob("*.py") for name in bound_names(path)]
    vague = [name for name in names if name in VAGUE]
    assert len(vague) <= 0.01 * len(names), Counter(vague).most_common(10)


@pytest.mark.parametrize("room", ["joulery", *(f"joulery.{room}" for room in ROOMS)])
def test_help_shows_neither_secrets_nor_addresses(room, monkeypatch):
    """Shift-Tab in a notebook shows tokens of the environment, or an address for a default."""
    monkeypatch.setenv("HF_TOKEN", "hf_SECRET")
    package = import_module(room)
    exports = {name: getattr(package, name) for name in package.__all__}
    pages = {name: pydoc.render_doc(value) for name, value in exports.items() if callable(value)}
    leaks = ("hf_SECRET", "environ({", " at 0x")
    assert [name for name, page in pages.items() if any(leak in page for leak in leaks)] == []


def test_completion_offers_what_users_need():
    """A tab in a notebook shows plumbing among the figures."""
    meter = Meter([])
    offered = {name for name in (*dir(meter), *dir(meter.window())) if not name.startswith("_")}
    methods = {"begin", "clock", "close", "devices", "end", "start", "watts", "window"}
    figures = {"joules", "mean_watts", "peak_watts", "provenance", "relative_error", "seconds"}
    states = {"closed", "flags", "measurement", "name", "settle", "settled"}
    assert offered == methods | figures | states
