"""Test kit: contract suites and emulated hardware for those who build on Joulery."""
