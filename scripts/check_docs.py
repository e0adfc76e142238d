"""Check that what the documentation points to is there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


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


def commands_left_out() -> list[str]:
    """Commands that no page mentions."""
    from joulery.cli import COMMANDS

    text = "".join(page.read_text(encoding="utf-8") for page in ROOT.glob("docs/**/*.md"))
    return [
        f"no page mentions `joulery {name}`" for name in COMMANDS if f"joulery {name}" not in text
    ]


if __name__ == "__main__":
    complaints = broken_links() + pages_left_out() + commands_left_out()
    print("\n".join(complaints), end="\n" if complaints else "")
    sys.exit(bool(complaints))
