"""Scripts of the project, run in a process forked from one that has imported Joulery and NumPy."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from support import forked

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]


def run_script(script: Path, options: Sequence[str], log: Path) -> int:
    """Exit code of a script; what it prints goes to the file ``log``."""
    log.touch()
    code: int = forked.call(_run, script, list(options), log)
    return code


def _run(script: Path, options: list[str], log: Path) -> int:
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    os.chdir(ROOT)
    sys.argv = [str(script), *options]
    sys.path[:0] = [str(script.parent), str(ROOT)]
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - the test shows whatever went wrong
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0
