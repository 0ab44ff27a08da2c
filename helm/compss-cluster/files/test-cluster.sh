#!/usr/bin/env bash
# `helm test`: checks from a separate pod, with the master's key, that each worker can be reached as in a run.
# environment: as in runtime.sh. The first worker that cannot be reached ends the test with an error and exit code 78.
set -euo pipefail
# shellcheck source=runtime.sh
source "$(dirname "$0")/runtime.sh"

# No process listens on port 1: a refused connection proves that the route works; no response means a network policy or a
# firewall.
reached() {
  local output
  output=$(timeout 10 bash -c "exec 3<>/dev/tcp/$1/1" 2>&1) || [[ $output == *refused* ]]
}

# shellcheck disable=SC2016 # the worker expands it
readonly ON_WORKER='java=${JAVA_HOME:+$JAVA_HOME/bin/}java; "$java" -version 2>&1 | head -n 1; test -f "$COMPSS_HOME/Runtime/scripts/user/runcompss"'

check_runtime
mapfile -t peers </run/medweave-scripts/peers
for peer in "${peers[@]}"; do
  getent hosts "$peer" >/dev/null ||
    refuse "worker $peer is not found." "no address for that name" "the headless Service to answer" "kubectl get pods; is the worker running?"
  if [[ $POD_ENGINE == compss ]]; then
    # shellcheck disable=SC2029
    output=$(/run/medweave-scripts/bin/ssh "$peer" "$ON_WORKER" 2>&1 </dev/null) ||
      refuse "worker $peer is not reached over ssh." "$(last_line "$output")" "a login with the release's key, Java and COMPSs" \
        "read the worker's log: kubectl logs ${peer%%.*}"
    echo "$peer: $output"
  else
    reached "$peer" ||
      refuse "worker $peer is not reached." "no answer within 10 s" "pods of a release to reach each other" "look at the network policies of the namespace"
    echo "$peer: reached"
  fi
done
echo "${#peers[@]} of ${#peers[@]} workers reached, engine $POD_ENGINE"
