"""What keeps tests away from the machine they run on."""

import gc
import os
import signal

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from support.postgresql import Cluster, find_programs

# On a busy machine the time that one example takes says nothing; pytest-timeout bounds the whole.
# What is checked before a change is taken is the same every time; elsewhere new examples are tried.
settings.register_profile(
    "joulery",
    max_examples=50,
    deadline=None,
    derandomize=os.environ.get("CI") == "true",
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("joulery")
# Parallel test processes claim a terminal of 80 columns; output here goes to no terminal.
os.environ.pop("COLUMNS", None)
# Files whose tests import torch and what is built on it: one worker takes them all, since these
# imports take longer than most tests.
_FRAMEWORKS = (
    "integration/frameworks/",
    "integration/test_torch_",
    "integration/test_pipeline_runtime.py",
    "prediction/test_capture.py",
)
_PAGES = "integration/test_pages.py"  # longer than any other
_WAITING = ("/visual/", "/journeys/", "/benchmarks/", "/integration/")  # long files first


def pytest_configure():
    """Take signals as a terminal leaves them: `nohup` and background jobs of a shell ignore some.

    What is ignored is inherited by every process that a test starts, which then hears no Ctrl-C.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def _needs_frameworks(path):
    """Whether the tests of a file import torch in their own process."""
    return any(words in path for words in _FRAMEWORKS)


def _in_order(paths):
    """The longest first; then files that wait for processes beside files that compute.

    Those that wait are spread over the first half of the others, and unit tests fill up the end.
    """
    first = [path for path in paths if _needs_frameworks(path) or path.endswith(_PAGES)]
    rest = [path for path in paths if path not in first]
    waiting = [path for folder in _WAITING for path in rest if folder in path]
    computing = [path for path in rest if path not in waiting]
    at = {path: 0.5 * number / len(waiting) for number, path in enumerate(waiting)}
    at |= {path: number / len(computing) for number, path in enumerate(computing)}
    return [*first, *sorted(rest, key=at.get)]


def pytest_collection_modifyitems(config, items):
    """Workers take file after file in this order: a module's fixtures and caches are made once."""
    if hasattr(config, "workerinput"):
        order = _in_order(list(dict.fromkeys(str(item.path) for item in items)))
        numbers = {path: number for number, path in enumerate(order)}
        items.sort(key=lambda item: numbers[str(item.path)])


class _FilesAndFrameworks(LoadFileScheduling):
    """Hands out whole files, and those that import torch as if they were one."""

    def _split_scope(self, nodeid):
        return "frameworks" if _needs_frameworks(nodeid) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Hand out files to workers."""
    if config.getvalue("dist") == "loadfile":
        return _FilesAndFrameworks(config, log)
    return None


def pytest_collection_finish(session):
    """Have the garbage collector pass over what was imported: frameworks make a million objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _own_governor(tmp_path_factory):
    """Leases taken in tests must not meet a daemon or a journal of the machine's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOULERY_GOVERNOR", "")
        patch.setenv("JOULERY_GOVERNOR_STATE", str(tmp_path_factory.mktemp("governor-state")))
        yield


@pytest.fixture(scope="session")
def _postgresql_installed():
    """Skip where there is no PostgreSQL, unless it has to be there."""
    if find_programs() is None and os.environ.get("CI") != "true":
        pytest.skip("no PostgreSQL server is installed (scripts/install-components)")


@pytest.fixture(scope="session")
def postgresql(_postgresql_installed):
    """A PostgreSQL server of the tests' own."""
    with Cluster() as cluster:
        yield cluster


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request, tmp_path):
    """Where an empty store can be, on each kind of database."""
    if request.param == "sqlite":
        return str(tmp_path / "store.sqlite")
    return request.getfixturevalue("postgresql").new_database()
