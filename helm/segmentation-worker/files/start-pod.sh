#!/usr/bin/env bash
# Process 1 of a pod: checks once that a step can run, then waits. Steps are started by kubectl exec.
# environment: POD_PYTHON, POD_REQUIRED_MODULES
set -euo pipefail

# refuse WHERE SEEN EXPECTED DO: the message becomes the container's termination message, which the API shows; then exit 78.
refuse() {
  printf '%s\n  seen:     %s\n  expected: %s\n  do:       %s\n' "$@" >&2
  exit 78
}

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

# Limited, because a volume that does not respond would block this check forever.
readonly IMPORT_LIMIT_S=300

check_python() {
  [[ -x $POD_PYTHON ]] ||
    refuse "pod $HOSTNAME: there is no Python for the step." "no program $POD_PYTHON" \
      "the worker environment, from the image or from extraVolumes" "set \`python\` to its path, or mount the environment there"
  [[ -n $POD_REQUIRED_MODULES ]] || return 0
  local output
  output=$(timeout "$IMPORT_LIMIT_S" "$POD_PYTHON" -c "import ${POD_REQUIRED_MODULES// /, }" 2>&1) ||
    refuse "pod $HOSTNAME: Python cannot import what the step needs." \
      "$(printf '%s' "${output:-no answer in $IMPORT_LIMIT_S s}" | tail -n 1 | cut -c 1-300)" \
      "modules $POD_REQUIRED_MODULES in $POD_PYTHON" "use an image that has them, or change \`requiredModules\`"
}

# In the background, so that a slow import does not delay the trap.
check_python &
wait $!
: >/run/medweave/runtime-checked
sleep infinity &
wait $!
