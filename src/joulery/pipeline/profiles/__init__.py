"""Time and energy of every stage's instructions under every clock: measured, read, smoothed."""
