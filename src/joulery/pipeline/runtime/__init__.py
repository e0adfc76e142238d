"""Running a plan: set clocks during training, and adapt to stragglers and drift."""
