"""A real small network trained on a simulated board, to show the whole path without a GPU."""
