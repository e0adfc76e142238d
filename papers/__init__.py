"""Publications whose figures are made again from their data; not part of the package."""
