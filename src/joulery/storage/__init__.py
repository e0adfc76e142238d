"""Durable storage of jobs, decisions, outcomes, profiles, energy and tokens in SQL databases."""
