"""Traces of training: a folder of tables that becomes workloads to simulate."""

from joulery.simulate.traces._reader import Traces, read_traces
from joulery.simulate.traces._rows import TraceRow, read_rows

__all__ = ["TraceRow", "Traces", "read_rows", "read_traces"]
