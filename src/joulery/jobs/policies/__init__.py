"""Policies that choose the batch size and power limit of a recurring job."""
