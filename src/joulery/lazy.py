"""Imports of a package's API on first use, so that importing the package costs next to nothing."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def lazy(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package whose API stands under ``if TYPE_CHECKING``.

    Type checkers and readers see plain imports; each is made when its name is first asked for.
    ``__all__`` is the same list.

    Args:
        package: Name of the package, which has been read from a file.
    """
    homes: dict[str, str] = {}

    def read_homes() -> dict[str, str]:
        if not homes:
            homes.update(_listed_imports(str(sys.modules[package].__file__)))
        return homes

    def get(name: str) -> object:
        from importlib import import_module

        if name == "__all__":
            return sorted(read_homes())
        if name not in read_homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted(read_homes())


def _listed_imports(source: str) -> dict[str, str]:
    """Module of every name that is imported under ``if TYPE_CHECKING``."""
    import ast
    from pathlib import Path

    return {
        alias.name: statement.module
        for block in ast.parse(Path(source).read_text(encoding="utf-8")).body
        if isinstance(block, ast.If)
        for statement in block.body
        if isinstance(statement, ast.ImportFrom) and statement.module
        for alias in statement.names
    }
