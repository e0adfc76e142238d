"""Run the benchmarks named on the pages and write what they print into the pages.

    python scripts/bench.py              # all of them in full
    python scripts/bench.py --quick      # those with a quick form, each within a minute or so
    python scripts/bench.py meter power  # commands that contain one of these words

A ``bash`` block after ``<!-- bench -->`` is run with or without ``--quick``, as asked; one after
``<!-- bench: as it stands -->`` has no other form and is left to full runs. The next ``text`` block
becomes what it prints, and the command on the page the one that printed it. A page is written after
every command, so that an interrupted run keeps what it has; the figures of a command that fails
stay as they were.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from run_pages import PART, ROOT

if TYPE_CHECKING:
    import re

MARKS = ("bench", "bench: as it stands")


def refresh(page: Path, words: list[str], *, quick: bool) -> list[str]:
    """Run the commands of a page and update it; the commands that failed."""
    failed = []
    for block, _ in _examples(page):
        command = block["body"]
        if (quick and block["note"] != "bench") or not _named(command, words):
            continue
        if block["note"] == "bench":
            command = command.replace(" --quick", "").rstrip() + " --quick" * quick + "\n"
        print(f"$ {command}", end="", flush=True)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        print(done.stdout, flush=True)
        if done.returncode:
            failed.append(command.strip())
        else:
            _write(page, block["body"], command, done.stdout)
    return failed


def _examples(page: Path) -> list[tuple[re.Match[str], re.Match[str]]]:
    """Each command to run with the block of what it prints."""
    parts = list(PART.finditer(page.read_text(encoding="utf-8")))
    pairs = [pair for pair in itertools.pairwise(parts) if pair[0]["note"] in MARKS]
    for command, shown in pairs:
        if shown["kind"] != "text":
            raise SystemExit(f"no text block shows what this prints: {command['body']}")
    return pairs


def _write(page: Path, old: str, new: str, printed: str) -> None:
    """Write a command and what it printed, into the page as it is by now."""
    for command, shown in _examples(page):
        if command["body"] == old:
            lines = "".join(f"{line.rstrip()}\n" for line in printed.strip("\n").splitlines())
            text = command.string
            page.write_text(
                text[: command.start("body")]
                + new
                + text[command.end("body") : shown.start("body")]
                + lines
                + text[shown.end("body") :],
                encoding="utf-8",
            )


def _named(command: str, words: list[str]) -> bool:
    return not words or any(word in command for word in words)


def main() -> int:
    """Refresh every page that has benchmarks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="quick forms only")
    parser.add_argument("--page", type=Path, help="one page instead of all")
    parser.add_argument("words", nargs="*", metavar="WORD", help="commands that contain one")
    arguments = parser.parse_args()
    pages = [arguments.page] if arguments.page else sorted((ROOT / "docs").rglob("*.md"))
    failed = [
        command
        for page in pages
        for command in refresh(page, arguments.words, quick=arguments.quick)
    ]
    for command in failed:
        print(f"failed: {command}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
