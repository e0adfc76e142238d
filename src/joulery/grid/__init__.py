"""Grid signals."""
