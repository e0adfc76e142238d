"""Cell magic for notebooks: ``%load_ext joulery.integrations.ipython``, then ``%%joulery``."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from joulery.metering import Meter
from joulery.units import human, human_duration

if TYPE_CHECKING:
    from joulery.metering import Measurement

_meter = Meter()  # samples from the first measured cell to the end of the kernel


class CellEnergy:
    """The energy of a cell, shown as a small card.

    Attributes:
        measurement: Measurement of the cell.
    """

    def __init__(self, measurement: Measurement) -> None:
        self.measurement = measurement

    def __repr__(self) -> str:
        measured = self.measurement
        error = measured.relative_error
        bar = "" if error is None else f" ± {100 * error:.1f} %"
        return (
            f"{human(measured.joules, 'J')}{bar} in {human_duration(measured.seconds)}, "
            f"{human(measured.mean_watts, 'W')} mean ({measured.provenance.origin.value})"
        )

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(device.info.name)}</td>"
            f"<td style='text-align:right'>{escape(human(device.joules, 'J'))}</td>"
            f"<td>{escape(device.provenance.source)}</td></tr>"
            for device in self.measurement.devices
        )
        return (
            "<div style='display:inline-block;padding:.5em 1em;border:1px solid currentColor;"
            f"border-radius:6px'><b>{escape(repr(self))}</b><table>{rows}</table></div>"
        )


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
        energy = CellEnergy(window.settle())
        display(energy)
        if name:
            shell.user_ns[name] = energy.measurement
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
