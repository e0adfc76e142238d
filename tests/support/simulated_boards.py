"""Several simulated boards of one type."""

from joulery.hardware import SimulatedGpu, catalog


def simulated_node(name, count, clock, **options):
    """``count`` boards of a type of the catalog, with the options of each board."""
    board = catalog.board(name)
    return tuple(SimulatedGpu(board, clock, index=index, **options) for index in range(count))
