"""The examples in the documentation run as they stand, and print what the pages show."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TAKES_MINUTES = {"benchmarks.md"}  # each of its commands; `make bench` runs them


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "SKILL.md",
        *sorted(
            f"docs/{path.relative_to(ROOT / 'docs')}"
            for path in (ROOT / "docs").rglob("*.md")
            if path.name not in TAKES_MINUTES
        ),
    ],
)
def test_a_page_does_what_it_shows(page):
    """If this fails, a reader who copies an example gets an error or another output."""
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "run_pages.py", ROOT / page],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_differences_are_found(tmp_path):
    """If this fails, pages may show what no command prints."""
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(6 * 7)\n```\n\n```text\n41\n```\n")
    command = [sys.executable, ROOT / "scripts" / "run_pages.py", page]
    found = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert found.returncode == 1
    assert "+42" in found.stderr
    subprocess.run([*command, "--update"], stderr=subprocess.PIPE, check=False)
    assert "```text\n42\n```" in page.read_text()


def test_the_site_builds():
    """If this fails, a page links to nothing or a docstring cannot be shown."""
    done = subprocess.run(
        [Path(sys.executable).parent / "zensical", "build", "--strict"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
