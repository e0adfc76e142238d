"""Replay traces of training on the code that decides in earnest."""
