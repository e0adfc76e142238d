"""From raw counters to energy that a user can rely on."""
