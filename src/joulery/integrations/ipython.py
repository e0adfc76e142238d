"""Cell magic for notebooks: ``%load_ext joulery.integrations.ipython``, then ``%%joulery``."""

from __future__ import annotations

from typing import Any

from joulery.metering import Meter

_meter = Meter()  # samples from the first measured cell to the end of the kernel


def joulery(line: str, cell: str) -> None:
    """Run a cell and show its energy; ``%%joulery NAME`` also keeps it in the variable NAME.

    A cell that fails is measured up to there, and its error is shown as without the magic.
    """
    from IPython.core.getipython import get_ipython
    from IPython.display import display

    shell = get_ipython()
    name = line.strip()
    if name and not name.isidentifier():
        from IPython.core.error import UsageError

        raise UsageError(f"%%joulery takes the name of a variable, not {name!r}")
    window = _meter.begin("cell")
    result: Any = None
    try:
        result = shell.run_cell(cell)
    finally:
        _meter.end(window)
        measured = window.settle()
        display(measured)
        if name:
            shell.user_ns[name] = measured
    if result is not None and not result.success:
        # The cell has shown its own error; the outer cell must count as failed, too.
        raise _Failed from (result.error_before_exec or result.error_in_exec)


class _Failed(Exception):  # noqa: N818 - not an error of ours, and it shows nothing
    """The cell inside the magic failed."""

    def _render_traceback_(self) -> list[str]:
        return []


def load_ipython_extension(shell: Any) -> None:
    """Called by ``%load_ext``."""
    shell.register_magic_function(joulery, magic_kind="cell")
