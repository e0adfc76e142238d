"""Pipeline schedules: the order in which every rank runs its instructions."""
