"""Traces of training: a folder of tables that becomes workloads to simulate."""

from joulery.simulate.traces.reader import Traces, read_traces
from joulery.simulate.traces.rows import TraceRow, read_rows

__all__ = ["TraceRow", "Traces", "read_rows", "read_traces"]
