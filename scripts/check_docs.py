"""Check that what the documentation points to is there."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
TEST = re.compile(r"(?<![\w/])(tests(?:/[a-z0-9_]+)+(?:\.py)?)(?!\w)(?:::(\w+))?")
# A variable of the environment; and names like one that are something else, or that are only set.
VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")
NO_VARIABLES = {"AF_UNIX", "PCI_BUS_ID", "SC_CLK_TCK"}
ONLY_SET = {"CUDA_DEVICE_ORDER", "LC_ALL", "LD_LIBRARY_PATH"}


def broken_links() -> list[str]:
    """Relative links that lead nowhere."""
    return [
        f"{page.relative_to(ROOT)}: {target} does not exist"
        for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
        for target in LINK.findall(page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]


def pages_left_out() -> list[str]:
    """Pages that the table of contents does not list."""
    contents = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return [
        f"mkdocs.yml does not list {page}"
        for page in (path.relative_to(ROOT / "docs") for path in ROOT.glob("docs/**/*.md"))
        if f": {page}\n" not in contents
    ]


def tests_that_are_gone() -> list[str]:
    """Tests that a page names and that do not exist."""
    return [
        f"{page.relative_to(ROOT)}: {path}{'::' * bool(name)}{name} does not exist"
        for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
        for path, name in TEST.findall(page.read_text(encoding="utf-8"))
        if not (ROOT / path).exists()
        or (name and f"def {name}(" not in (ROOT / path).read_text(encoding="utf-8"))
    ]


def commands_left_out() -> list[str]:
    """Commands that no page mentions."""
    from joulery.cli import COMMANDS

    text = "".join(page.read_text(encoding="utf-8") for page in ROOT.glob("docs/**/*.md"))
    return [
        f"no page mentions `joulery {name}`" for name in COMMANDS if f"joulery {name}" not in text
    ]


def variables_left_out() -> list[str]:
    """Environment variables that the source reads and their page lacks."""
    named = _variables_of_the_page() | NO_VARIABLES | ONLY_SET
    return [
        f"docs/reference/environment.md lacks `{name}` of {path.relative_to(ROOT)}"
        for path in sorted(ROOT.glob("src/**/*.py"))
        for name in sorted(_variables(path.read_text(encoding="utf-8")) - named)
    ]


def variables_that_are_gone() -> list[str]:
    """Environment variables on their page that nothing reads."""
    sources = [*ROOT.glob("src/**/*.py"), *ROOT.glob("benchmarks/*.py")]
    text = "".join(path.read_text(encoding="utf-8") for path in sources)
    return [
        f"docs/reference/environment.md names `{name}`, which nothing reads"
        for name in sorted(_variables_of_the_page())
        if VARIABLE.fullmatch(name) and name not in text
    ]


def _variables_of_the_page() -> set[str]:
    page = (ROOT / "docs/reference/environment.md").read_text(encoding="utf-8")
    return set(re.findall(r"`(\w+)`", page))


def _variables(source: str) -> set[str]:
    """Names of variables in a file that reads the environment: also those in its constants."""
    if "environ" not in source:
        return set()
    constants = (
        node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)
    )
    return {text for text in constants if isinstance(text, str) and VARIABLE.fullmatch(text)}


if __name__ == "__main__":
    complaints = [
        *broken_links(),
        *pages_left_out(),
        *tests_that_are_gone(),
        *commands_left_out(),
        *variables_left_out(),
        *variables_that_are_gone(),
    ]
    print("\n".join(complaints), end="\n" if complaints else "")
    sys.exit(bool(complaints))
