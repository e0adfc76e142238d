#!/bin/sh
# EpilogSlurmctld: slurmctld runs this after a job; its measured joules go into its comment.
"/opt/joulery/bin/python" -P -m joulery cluster record --state "/srv/joulery/state" --slurm "$SLURM_JOB_ID"
exit 0
