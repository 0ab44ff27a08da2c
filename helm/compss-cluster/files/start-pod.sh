#!/usr/bin/env bash
# Process 1 of a pod: checks once that the engine's runtime is there, starts sshd on a COMPSs worker, and stays.
# What runs in the pod is started from outside (kubectl exec, or the COMPSs master over ssh).
# usage: start-pod.sh master|worker
set -euo pipefail
role=$1
# shellcheck source=runtime.sh
source "$(dirname "$0")/runtime.sh"

# The step's processes are no children of this one, so they are told by number -1 (all but this); the kubelet's grace period
# bounds the wait.
# shellcheck disable=SC2317 # called by the trap
stop() {
  trap '' TERM INT
  kill -TERM -1 2>/dev/null || true
  local others
  while others=(/proc/[0-9]*) && ((${#others[@]} > 1)); do sleep 0.2; done
  exit 0
}
trap stop TERM INT

# Beside this process and not in it, so that the trap does not wait for a slow import.
check_runtime &
wait $!
: >/run/medweave/runtime-checked

if [[ $POD_ENGINE == compss && $role == worker ]]; then
  # What sshd starts must see the pod's paths; sshd itself passes none of its environment on.
  settings="PATH=$PATH COMPSS_HOME=$COMPSS_HOME TMPDIR=$TMPDIR"
  for name in JAVA_HOME LD_LIBRARY_PATH LANG; do
    if [[ -n ${!name:-} ]]; then settings+=" $name=${!name}"; fi
  done
  /usr/sbin/sshd -D -e -f /run/medweave-scripts/sshd_config -p "$POD_SSH_PORT" -o "SetEnv=$settings" &
else
  sleep infinity &
fi
code=0
wait $! || code=$?
refuse "pod $HOSTNAME: sshd ended by itself." "exit code $code" "sshd on port $POD_SSH_PORT" "read the log: kubectl logs $HOSTNAME"
