"""What having Joulery costs: disk, import, help, callbacks, dashboard, lines to write.

The wheel is built and installed into an empty environment. Times of imports and commands are
medians of new processes. Callbacks are called between steps of 10 ms on an emulated board, to
measure only, and to tune: while a power limit is searched for, and while it is held. Each has a
process of its own.

usage: python benchmarks/everyday.py [--quick] [--json FILE]
"""

from __future__ import annotations

import gzip
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from everyday_worker import MODES, STEP_SECONDS
from peers import PEER_PYTHON, ROOT, benchmark_parser, say, write_results

from joulery.hardware import catalog, settle
from joulery.reports import table_text as table
from joulery.testing.emulator import EmulatedNode

WORKER = Path(__file__).with_name("everyday_worker.py")
BOARD = "V100"
SHOWN = ("measures", "searches", "holds")

# Prints the megabytes of all that is installed, and the names of the distributions.
INSTALLED = """
import importlib.metadata as metadata, json, sysconfig
from pathlib import Path
found = [d for d in metadata.distributions() if d.name not in {"pip", "setuptools"}]
files = [d.locate_file(f) for d in found for f in d.files or ()]
# Bytecode comes on first use and is not in the lists.
size = sum(f.stat().st_size for f in map(Path, files) if f.is_file())
print(json.dumps([size / 1e6, sorted(d.name for d in found)]))
"""


def output(*command: str | Path) -> str:
    """What a command prints."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{command} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def installed(folder: Path) -> Path:
    """Build the wheel and install it into an empty environment; the folder of its programs."""
    pip = ("-m", "pip", "--quiet", "--disable-pip-version-check")
    say("building and installing the wheel")
    output(sys.executable, *pip, "wheel", "--no-deps", "--wheel-dir", folder, ROOT)
    (wheel,) = folder.glob("joulery-*.whl")
    output(sys.executable, "-m", "venv", folder / "venv")
    programs = folder / "venv" / "bin"
    output(programs / "python", *pip, "install", wheel)
    return programs


def cpu_milliseconds(repeats: int, *command: str | Path) -> float:
    """Median processor time of a command, its start of the interpreter included."""
    spent = []
    for _ in range(repeats):
        before = os.times()
        output(*command)
        after = os.times()
        used = after.children_user + after.children_system
        spent.append(1e3 * (used - before.children_user - before.children_system))
    return statistics.median(spent)


def import_milliseconds(python: Path, module: str, repeats: int) -> float:
    """Median processor time of an import, without the start of the interpreter."""
    code = f"import time; t = time.process_time(); import {module}; print(time.process_time() - t)"
    return 1e3 * statistics.median(float(output(python, "-c", code)) for _ in range(repeats))


def callbacks(steps: int, most: int | None = None) -> dict[str, dict[str, float]]:
    """Microseconds per step of each integration: measuring, searching, holding a limit."""
    board = catalog.board(BOARD)
    work = catalog.workload("resnet50", board)
    found: dict[str, dict[str, float]] = {}
    # The profile that the first search leaves shortens the others.
    with tempfile.TemporaryDirectory() as folder:
        pairs = [(name, mode) for name, modes in MODES.items() for mode in modes]
        for name, mode in pairs[:most]:
            say(f"callbacks: {name} {mode}")
            with EmulatedNode([BOARD]) as node:
                seconds = settle(board, work, board.default_limit_watts).seconds
                node.set_load(0, work.scaled(STEP_SECONDS / seconds))
                done = subprocess.run(
                    [sys.executable, str(WORKER), name, mode, str(steps)],
                    env={**node.env, "JOULERY_GOVERNOR": "", "XDG_DATA_HOME": folder},
                    capture_output=True,
                    text=True,
                    check=False,
                )
            if done.returncode == 0:
                found.setdefault(name, {}).update(json.loads(done.stdout.splitlines()[-1]))
            else:
                say(f"left out: {done.stderr.splitlines()[-1:]}")
    return found


def example_lines() -> dict[str, int]:
    """Lines of the longest Python example in each section of the page on frameworks."""
    text = (ROOT / "docs" / "how-to" / "frameworks.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    found = {}
    for section in sections:
        examples = re.findall(r"```(?:python)?\n(.*?)```", section, flags=re.DOTALL)
        if examples:
            found[section.splitlines()[0]] = max(
                sum(bool(line.strip()) for line in example.splitlines()) for example in examples
            )
    return found


def asset_kilobytes() -> float:
    """What a browser fetches for the dashboard beside its pages, compressed."""
    files = (ROOT / "src/joulery/server/static").iterdir()
    return sum(len(gzip.compress(file.read_bytes())) for file in files) / 1e3


def everyday(repeats: int, steps: int) -> tuple[dict[str, float], list[Any]]:
    """All figures, printed as tables."""
    with tempfile.TemporaryDirectory() as folder:
        programs = installed(Path(folder))
        python = programs / "python"
        megabytes, names = json.loads(output(python, "-c", INSTALLED))
        figures = {
            "installed_mb": megabytes,
            "distributions_beyond_numpy": len(set(names) - {"numpy", "joulery"}),
            "import_cpu_ms": import_milliseconds(python, "joulery", repeats),
            "help_cpu_ms": cpu_milliseconds(repeats, programs / "joulery", "--help"),
        }
    if PEER_PYTHON.exists():
        figures["zeus_import_cpu_ms"] = import_milliseconds(PEER_PYTHON, "zeus.monitor", 3)
    figures["dashboard_assets_kb"] = asset_kilobytes()
    lines = example_lines()
    figures["longest_example_lines"] = max(lines.values())
    found = callbacks(steps)
    figures |= {
        f"callback_us_{name}_{mode}": time
        for name, modes in found.items()
        for mode, time in modes.items()
    }
    idle = found["nothing"]["measures"]
    slowest = {mode: max(modes.get(mode, 0.0) for modes in found.values()) - idle for mode in SHOWN}
    zeus = figures.get("zeus_import_cpu_ms")
    beside = "" if zeus is None else f"Zeus {zeus:,.0f}"
    shares = {mode: f"{time / (1e4 * STEP_SECONDS):.2f}" for mode, time in slowest.items()}
    callback = "slowest callback, % of a 10 ms step"
    rows = [
        ("installed with NumPy, MB", f"{megabytes:.0f}", "100", ""),
        ("distributions beyond NumPy", f"{figures['distributions_beyond_numpy']:.0f}", "5", ""),
        ("import joulery, CPU ms", f"{figures['import_cpu_ms']:.0f}", "40", beside),
        ("joulery --help, CPU ms", f"{figures['help_cpu_ms']:.0f}", "150", ""),
        (f"{callback}, that measures", shares["measures"], "0.1", ""),
        (f"{callback}, that holds a limit", shares["holds"], "0.1", ""),
        ("dashboard assets, KB compressed", f"{figures['dashboard_assets_kb']:.1f}", "150", ""),
        ("longest example, lines", f"{max(lines.values())}", "15", ""),
    ]
    print(table(["", "here", "goal", "", "beside"], list(map(_judged, rows)), "lrrll"))
    print("\nTime in callbacks per step of 10 ms, median, µs")
    times = [
        (name, *(f"{modes[mode]:.1f}" if mode in modes else "–" for mode in SHOWN))
        for name, modes in found.items()
    ]
    print(table(["integration", *SHOWN], times))
    print("\nLines of the longest example of each section of docs/how-to/frameworks.md")
    print(table(["section", "lines"], [(name, str(count)) for name, count in lines.items()]))
    return figures, [{"callbacks": found, "lines": lines, "distributions": names}]


def _judged(row: tuple[str, str, str, str]) -> tuple[str, ...]:
    """A row with a mark where the figure is above its goal."""
    name, figure, goal, beside = row
    return name, figure, goal, "missed" if float(figure) > float(goal) else "", beside


def main() -> None:
    """Parse the arguments, print the tables, write the figures."""
    arguments = benchmark_parser(__doc__, "fewer repetitions").parse_args()
    if arguments.smoke:
        figures = {"import_cpu_ms": import_milliseconds(Path(sys.executable), "joulery", 1)}
        figures |= {"examples": len(example_lines()), "integrations": len(callbacks(20, most=1))}
        write_results(arguments.json, "everyday", figures, [])
        return
    figures, details = everyday(*((5, 200) if arguments.quick else (21, 1000)))
    write_results(arguments.json, "everyday", figures, details)


if __name__ == "__main__":
    main()
