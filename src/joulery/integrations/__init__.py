"""Integrations with frameworks and trackers: one file each, the only one that imports it."""
