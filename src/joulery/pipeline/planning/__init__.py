"""The planner: from a schedule with profiled stages to a clock for every instruction."""
