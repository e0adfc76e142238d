#!/bin/sh
# Slurm runs this as root before a job starts on a node. Without watts the job goes back.
if [ -e "/srv/joulery/state/no-watts" ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit 0
