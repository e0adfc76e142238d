"""Recurring jobs over HTTP: the desk for teams and machines."""
