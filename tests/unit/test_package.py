"""The top of the package: its names, found on first use, and its version."""

import importlib
from importlib import metadata

import pytest

import joulery


@pytest.mark.parametrize("name", joulery.__all__)
def test_every_name_is_found_where_it_lives(name):
    """A name that is listed but not there breaks the first line people write."""
    home = importlib.import_module(f"joulery.{joulery._HOMES[name]}")
    assert getattr(joulery, name) is getattr(home, name)


def test_the_lists_of_names_agree():
    """What `dir` shows, `import *` brings and the lazy table knows must be the same."""
    assert sorted(joulery._HOMES) == sorted(joulery.__all__)
    assert set(dir(joulery)) == {*joulery.__all__, "__version__"}
    assert len(joulery.__all__) <= 12


def test_unknown_names_are_attribute_errors():
    """`hasattr` and typos must meet what Python promises."""
    assert not hasattr(joulery, "Metre")
    with pytest.raises(ImportError, match="Metre"):
        from joulery import Metre  # noqa: F401


def test_the_version_is_the_installed_one():
    """The literal is there for speed; it must not drift from the package's metadata."""
    assert joulery.__version__ == metadata.version("joulery")
