"""Traces of training: a folder of tables that becomes workloads to simulate."""
