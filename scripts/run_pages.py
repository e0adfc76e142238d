"""Run the examples in Markdown pages and compare what they print with what the page shows.

    python scripts/run_pages.py docs/how-to/measure.md …            # a diff where they differ
    python scripts/run_pages.py --update docs/how-to/measure.md …   # write it into the page

A page runs in a folder of its own that holds only a short ``train.py``, with two busy emulated V100
behind the real NVML binding. Its blocks run in their order:

- a block with a ``title`` is the content of the file of that name;
- ``python`` blocks share their names; a ``text`` block right after one is what it prints;
- ``ipython`` blocks are cells of a notebook, with the same names;
- ``bash`` blocks must succeed; a ``text`` block right after one is what it prints;
- ``console`` blocks hold commands after ``$`` and below each what it prints.

A comment right before a block changes that: ``<!-- not run: REASON -->``, ``<!-- bench -->`` (not
run here but by ``scripts/bench.py``, which writes what it prints), ``<!-- figures vary -->``
(numbers are not compared), ``<!-- output varies -->`` (nothing is), ``<!-- exit: 3 -->``,
``<!-- stays: TEXT -->`` (a command that goes on in the background once it has printed that). A
comment that begins with ``setup`` holds Python that readers need not see; ``data(NAME)`` there
links a file of measurements into the folder, and ends the page if there is none.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import os
import re
import subprocess
import sys
import tempfile
import threading
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from joulery.files import cache_folder
from joulery.hardware import catalog
from joulery.testing.emulator import EmulatedNode

PART = re.compile(
    r"^<!-- setup\n(?P<setup>.*?)^-->$"
    r"|^(?:<!-- (?P<note>[^\n]*?) -->\n)?"
    r"^(?P<fence>```+)(?P<kind>\w*)(?: title=\"(?P<title>[^\"\n]+)\")?\n(?P<body>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
COMMAND = re.compile(r"^\$ (.*(?:(?<=\\)\n.*)*)\n?", re.MULTILINE)
PROGRESS = re.compile(r"^joulery \w+: .*\n", re.MULTILINE)  # of what takes long on a busy machine
NUMBER = re.compile(r"[\d.,]*\d")
SECONDS = 100  # that one command may take
ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("JOULERY_DATA", ROOT.parent / "shared" / "data")).resolve()
CACHE = cache_folder()  # before a page gets a home of its own


@dataclass
class PageRun:
    """One page: what was run, what differs, and the page as it should be."""

    page: Path
    env: dict[str, str]
    names: dict[str, object] = field(default_factory=lambda: {"__name__": "page"})
    complaints: list[str] = field(default_factory=list)
    printed: str | None = None  # by the block before, if that may be shown
    text: str = ""
    background: list[subprocess.Popen[str]] = field(default_factory=list)

    def run(self) -> None:
        """Run all blocks in their order."""
        source = self.page.read_text(encoding="utf-8")
        self.names["data"] = _link_data
        end = 0
        try:
            for part in PART.finditer(source):
                between = source[end : part.start()]
                self.text += between
                if between.strip():
                    self.printed = None
                self.text += self._run_part(part)
                end = part.end()
        except NoDataError as error:
            print(f"{self.page.name}: the rest is not run: no {error}", file=sys.stderr)
        finally:
            for process in self.background:
                process.terminate()
                process.wait(SECONDS)
        self.text += source[end:]

    def _run_part(self, part: re.Match[str]) -> str:
        """What the page should have in place of a part of it."""
        whole, kind, body, note = part[0], part["kind"], part["body"], part["note"] or ""
        if part["setup"] is not None:
            self._python(part["setup"])
        elif part["title"]:
            Path(part["title"]).write_text(body, encoding="utf-8")
        elif note.startswith(("not run: ", "bench")):
            self.printed = None
        elif kind == "python":
            self.printed = self._python(body)
        elif kind == "ipython":
            self._cell(body)
        elif note.startswith("stays: "):
            self._start(body, note.removeprefix("stays: "))
        elif kind == "bash":
            self.printed = self._bash(body, note)
        elif kind == "console":
            start = part.start("body") - part.start()
            return whole[:start] + self._console(body, note) + part["fence"]
        elif kind == "text" and self.printed is not None:
            start = part.start("body") - part.start()
            return whole[:start] + self._compared(body, self.printed, note) + part["fence"]
        return whole

    def _python(self, code: str) -> str:
        output = io.StringIO()
        try:
            with contextlib.redirect_stdout(output):
                exec(compile(code, str(self.page), "exec"), self.names)  # noqa: S102 - our own pages
        except NoDataError:
            raise
        except Exception:  # noqa: BLE001 - whatever an example raises is shown
            self.complaints.append(f"{code}\n{traceback.format_exc()}")
        return output.getvalue()

    def _cell(self, code: str) -> None:
        """Run a cell of a notebook, magics included."""
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config

        settings = Config(HistoryManager={"enabled": False})
        shell = InteractiveShell.instance(user_ns=self.names, config=settings)
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            done = shell.run_cell(code)
        if not done.success:
            self.complaints.append(f"{code}\n{output.getvalue()}")

    def _bash(self, command: str, note: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        expected = int(note.removeprefix("exit: ")) if note.startswith("exit: ") else 0
        if done.returncode != expected:
            self.complaints.append(f"$ {command}\n{done.stdout}exit code {done.returncode}")
        return PROGRESS.sub("", done.stdout)

    def _start(self, command: str, awaited: str) -> None:
        """Start a command and leave it once it has printed a text."""
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.background.append(process)
        late = threading.Timer(SECONDS, process.kill)
        late.start()
        printed = ""
        for line in process.stdout or ():
            printed += line
            if awaited in line:
                late.cancel()
                return
        self.complaints.append(f"$ {command}\n{printed}ended")

    def _console(self, body: str, note: str) -> str:
        found = list(COMMAND.finditer(body))
        ends = [*(match.start() for match in found[1:]), len(body)]
        shown = ""
        for match, end in zip(found, ends, strict=True):
            printed = self._bash(match[1], note)
            shown += match[0] + self._compared(body[match.end() : end], printed, note)
        return shown

    def _compared(self, shown: str, printed: str, note: str) -> str:
        """What the page should show: what it does, unless that differs from what was printed."""
        printed = "".join(f"{line.rstrip()}\n" for line in printed.strip("\n").splitlines())
        printed = printed.replace(str(Path.cwd()), ".")
        if note == "output varies":
            return shown
        alike = _without_figures if note == "figures vary" else str.strip
        if alike(shown) == alike(printed):
            return shown
        lines = difflib.unified_diff(
            shown.splitlines(), printed.splitlines(), "page", "printed", lineterm="", n=1
        )
        self.complaints.append("\n".join(lines))
        return printed


class NoDataError(Exception):
    """There are no measurements by others on this machine."""


def _link_data(name: str) -> None:
    source = DATA / name
    if not source.exists():
        raise NoDataError(source)
    Path(source.name).symlink_to(source)


def _without_figures(text: str) -> list[str]:
    """The words of each line, without numbers, signs of width and drawings of plots."""
    lines = (re.sub(r"[─\s⠀-⣿]+", " ", NUMBER.sub("0", line)).strip() for line in text.splitlines())
    return [line for line in lines if line]


def _share_compiled(home: Path) -> None:
    """Let a new home use the libraries compiled before: that takes longer than most pages."""
    folder = home / ".cache" / "joulery"
    folder.mkdir(parents=True)
    for name in ("emulator", "pipeline"):
        (CACHE / name).mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(CACHE / name)


def run_page(page: Path) -> PageRun:
    """Run a page in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="joulery-page-") as folder, contextlib.chdir(folder):
        home = Path(folder, ".home")
        _share_compiled(home)
        Path("train.py").write_text("import time\n\ntime.sleep(0.2)\n", encoding="utf-8")
        os.environ |= {
            "COLUMNS": "88",
            "HOME": str(home),
            "JOULERY_GOVERNOR": "",
            "JOULERY_GOVERNOR_STATE": str(home / "governor"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
        }
        for kind in ("CACHE", "CONFIG", "DATA", "STATE"):
            os.environ.pop(f"XDG_{kind}_HOME", None)
        os.environ.pop("JOULERY_STORE", None)
        with EmulatedNode(["V100", "V100"]) as node:
            for index in range(2):
                node.set_load(index, catalog.workload("resnet50", node.specs[index].board))
            node.load_in_process()
            run = PageRun(page, node.env)
            run.run()
    return run


def main() -> int:
    """Run the pages named on the command line."""
    parser = argparse.ArgumentParser(description="Run the examples in Markdown pages.")
    parser.add_argument("--update", action="store_true", help="write what is printed into the page")
    parser.add_argument("pages", nargs="+", type=Path)
    arguments = parser.parse_args()
    failed = False
    for page in [page.resolve() for page in arguments.pages]:
        run = run_page(page)
        if arguments.update:
            page.write_text(run.text, encoding="utf-8")
        for complaint in run.complaints:
            failed = True
            print(f"{page.name}: {complaint}\n", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
