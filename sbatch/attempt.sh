# One attempt: wait for others that make the same, begin, run the command, finish. Part of job.sbatch.j2.
# shellcheck shell=bash
# shellcheck disable=SC2154  # RUN, STAGE, PYTHON, COMMAND and LOCK are set by the script that this is part of

say() { printf '%s %s: %s\n' "$(date +%H:%M:%S)" "$STAGE" "$*" >&2; }

attempt='' # folder of this attempt, once there is one
stopping=0
signalled=0

# The stage polls the stop file; nothing is killed here. Who asked first has given the reason.
on_signal() {
  signalled=1
  stopping=1
  [ -z "$attempt" ] || [ -e "$attempt/stop" ] || printf 'scheduler: signal %s\n' "$1" >"$attempt/stop"
}
trap 'on_signal USR1' USR1
trap 'on_signal TERM' TERM

# Waits for a background process through any number of signals; its status is the result.
# `wait` returns early when a trap runs, with the signal's status and not the process's.
await() {
  local status
  while :; do
    signalled=0
    wait "$1"
    status=$?
    [ "$signalled" = 1 ] || return "$status"
  done
}

# A stage has one job at a time: a second one, started by hand, leaves. Where locks do not work, `begin` looks too.
alone() {
  exec 8>>"$RUN/stages/$STAGE/.lock" || return 0
  flock --nonblock --conflict-exit-code 5 8 || [ $? != 5 ] || { say 'this stage is running already'; exit 75; }
}

# Runs that would make the same outputs go one after another; the later ones find them in the cache.
take_turn() {
  [ -n "$LOCK" ] || return 0
  mkdir -p "$(dirname "$LOCK")" && exec 9>>"$LOCK" || return 0
  flock --nonblock 9 && return 0
  say 'another run is making the same; waiting for it'
  local waiter
  flock 9 8>&- &
  waiter=$!
  wait "$waiter"
  [ "$stopping" = 0 ] || kill "$waiter" 2>/dev/null
}

main() {
  cd "$RUN/code" || exit 78
  unset RAY_ADDRESS # a cluster of the user's own shell is not the job's
  alone
  take_turn
  [ "$stopping" = 0 ] || exit 75
  local begun
  begun=$("$PYTHON" -m workflows.job begin --run "$RUN" --stage "$STAGE" --pid $$) || exit $?
  [ -n "$begun" ] || exit 0 # finished already, or taken from the cache
  attempt=$begun
  [ "$stopping" = 0 ] || on_signal 'before the start'
  exec >>"$attempt/output.log" 2>&1
  say "attempt $(basename "$attempt") on $(uname -n)"

  "$PYTHON" "${COMMAND[@]}" run_dir="$RUN" attempt_dir="$attempt" 8>&- 9>&- &
  await $!
  local status=$?
  say "the command ended with status $status"

  # Writes exit.json and, after status 0, DONE; says what follows: done, stop, or again SECONDS.
  local following code
  following=$("$PYTHON" -m workflows.job finish --run "$RUN" --stage "$STAGE" --attempt "$attempt" --status "$status")
  code=$?
  say "exit code $code; ${following:-finish itself failed}"
  case $following in again*) requeue "${following#again }" ;; esac
  exit "$code"
}
