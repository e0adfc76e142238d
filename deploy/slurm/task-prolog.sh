#!/bin/sh
# TaskProlog: what it prints as `export NAME=value` is in the environment of every task, so runs of
# Joulery report to the site's server and carry the job's number, account and partition.
# /etc/joulery/slurm.env may set any of these variables; what it sets is readable by every user.
[ -r /etc/joulery/slurm.env ] && . /etc/joulery/slurm.env
for name in JOULERY_STORE JOULERY_TEAM JOULERY_TOKEN JOULERY_CA_FILE; do
    eval "value=\${$name:-}"
    [ -n "$value" ] && echo "export $name=$value"
done
tags="slurm=$SLURM_JOB_ID"
[ -n "${SLURM_JOB_ACCOUNT:-}" ] && tags="$tags,account=$SLURM_JOB_ACCOUNT"
[ -n "${SLURM_JOB_PARTITION:-}" ] && tags="$tags,partition=$SLURM_JOB_PARTITION"
case ",${JOULERY_TAGS:-}," in
*",$tags,"*) ;; # of the task that started this one
*) echo "export JOULERY_TAGS=${JOULERY_TAGS:+$JOULERY_TAGS,}$tags" ;;
esac
exit 0
