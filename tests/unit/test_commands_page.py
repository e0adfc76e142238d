"""The page of commands."""

import importlib
from pathlib import Path

from joulery.cli import COMMANDS

PAGE = Path(__file__).parents[2] / "docs/reference/commands.md"


def names(name, command):
    """A command and its actions, as they are typed."""
    yield name
    for action, part in command.actions.items():
        yield from names(f"{name} {action}", part)


def test_every_command_is_on_the_page():
    """A command that the page lacks can only be found by those who know it."""
    page = PAGE.read_text("utf-8")
    commands = [
        typed
        for name in COMMANDS
        for typed in names(name, importlib.import_module(f"joulery.cli.{name}").COMMAND)
    ]
    assert [typed for typed in commands if f"$ joulery {typed} --help" not in page] == []
