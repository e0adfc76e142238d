"""What keeps tests away from the machine they run on."""

import pytest
from hypothesis import settings

# On a busy machine the time that one example takes says nothing; pytest-timeout bounds the whole.
settings.register_profile("joulery", deadline=None)
settings.load_profile("joulery")


@pytest.fixture(scope="session", autouse=True)
def _own_governor(tmp_path_factory):
    """Leases taken in tests must not meet a daemon or a journal of the machine's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOULERY_GOVERNOR", "")
        patch.setenv("JOULERY_GOVERNOR_STATE", str(tmp_path_factory.mktemp("governor-state")))
        yield
