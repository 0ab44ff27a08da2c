#!/usr/bin/env bash
# Process 1 of a pod: checks once that the engine's runtime exists, starts sshd on a COMPSs worker, then waits.
# Steps are started by kubectl exec, or by the COMPSs master over ssh.
# usage: start-pod.sh master|worker
set -euo pipefail
role=$1
# shellcheck source=runtime.sh
source "$(dirname "$0")/runtime.sh"

# The step's processes are not children of this one, so the signal goes to -1 (every other process); the kubelet's grace
# period bounds the wait.
# shellcheck disable=SC2317 # called by the trap
stop() {
  trap '' TERM INT
  kill -TERM -1 2>/dev/null || true
  local others
  while others=(/proc/[0-9]*) && ((${#others[@]} > 1)); do sleep 0.2; done
  exit 0
}
trap stop TERM INT

# In the background, so that a slow import does not delay the trap.
check_runtime &
wait $!
: >/run/medweave/runtime-checked

if [[ $POD_ENGINE == compss && $role == worker ]]; then
  # Programs that sshd starts need the pod's paths; sshd does not pass on its own environment.
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
