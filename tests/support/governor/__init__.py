"""Prove the governor's promises: daemons to kill, holders to kill, and a model to compare with."""
