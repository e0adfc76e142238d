"""Choose the power limit or clock of a running job while it runs."""
