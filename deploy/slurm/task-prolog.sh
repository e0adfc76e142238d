#!/bin/sh
# TaskProlog: what it prints as `export NAME=value` is in the environment of every task, so runs of
# Joulery report to the site's server and carry the job's number, account and partition.
[ -r /etc/joulery/slurm.env ] && . /etc/joulery/slurm.env
[ -n "${JOULERY_STORE:-}" ] && echo "export JOULERY_STORE=$JOULERY_STORE"
tags="slurm=$SLURM_JOB_ID"
[ -n "${SLURM_JOB_ACCOUNT:-}" ] && tags="$tags,account=$SLURM_JOB_ACCOUNT"
[ -n "${SLURM_JOB_PARTITION:-}" ] && tags="$tags,partition=$SLURM_JOB_PARTITION"
echo "export JOULERY_TAGS=${JOULERY_TAGS:+$JOULERY_TAGS,}$tags"
exit 0
