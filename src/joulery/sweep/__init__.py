"""Sweeps: the same work under one power limit after another."""
