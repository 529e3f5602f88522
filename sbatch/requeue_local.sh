# How an attempt is followed by another on this machine. Part of job.sbatch.j2.
# shellcheck shell=bash

# The local scheduler reads in exit.json that the stage goes on, and starts this script again after the delay.
requeue() { say "another attempt in $1 s"; }
