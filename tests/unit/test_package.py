"""The top of the package: its names, found on first use, and its version."""

from importlib import metadata

import pytest

import joulery


@pytest.mark.parametrize("name", joulery.__all__)
def test_every_name_is_found(name):
    """A name that is listed but not there breaks the first line people write."""
    assert getattr(joulery, name).__module__.startswith("joulery.")


def test_the_lists_of_names_agree():
    """What `dir` shows and `import *` brings must be the same, and little."""
    assert dir(joulery) == joulery.__all__
    assert len(joulery.__all__) <= 25


def test_unknown_names_are_attribute_errors():
    """`hasattr` and typos must meet what Python promises."""
    assert not hasattr(joulery, "Metre")
    with pytest.raises(ImportError, match="Metre"):
        from joulery import Metre  # noqa: F401


def test_the_version_is_the_installed_one():
    """The literal is there for speed; it must not drift from the package's metadata."""
    assert joulery.__version__ == metadata.version("joulery")
