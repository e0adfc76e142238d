"""Simulated accelerators and servers: the board model, the catalog, and devices on a clock."""

from joulery.hardware.simulated import catalog
from joulery.hardware.simulated._board import Faults, Sensor, SimulatedGpu, simulated_node
from joulery.hardware.simulated._node import SimulatedNode, preset
from joulery.hardware.simulated._physics import Board, Steady, Workload, clock_states, settle

__all__ = [
    "Board",
    "Faults",
    "Sensor",
    "SimulatedGpu",
    "SimulatedNode",
    "Steady",
    "Workload",
    "catalog",
    "clock_states",
    "preset",
    "settle",
    "simulated_node",
]
