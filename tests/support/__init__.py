"""Support of tests, benchmarks and stress scripts: load, adversarial clients, databases."""
