"""What keeps tests away from the machine they run on."""

import gc
import os
import signal

import pytest
from hypothesis import HealthCheck, settings

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
_LONGEST, _UNITS = "/tests/integration/test_pages.py", "/tests/unit/"


def pytest_collection_modifyitems(config, items):
    """Files with long tests first and unit tests last: workers take file after file.

    So a module's fixtures and caches are made once, and the short files fill up the end.
    """
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: (_UNITS in str(item.path), _LONGEST not in str(item.path)))


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


@pytest.fixture
def default_signals():
    """Signals as a terminal leaves them: `nohup` and a shell's background jobs ignore some.

    What is ignored is inherited by every process that a test starts, whose own traps then fail.
    """
    handlers = dict.fromkeys((signal.SIGHUP, signal.SIGQUIT), signal.SIG_DFL)
    handlers[signal.SIGINT] = signal.default_int_handler
    inherited = {number: signal.signal(number, handlers[number]) for number in handlers}
    yield
    for number, handler in inherited.items():
        signal.signal(number, handler)


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
