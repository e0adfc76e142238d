"""The compiled part of the pipeline planner: plain C, reached through ctypes."""
