#!/usr/bin/env bash
# `helm test`: from a pod of its own, with the master's key, is every worker reached as a run will reach it?
# environment: as the pods' (runtime.sh). At the first worker that is not: exit 78 and the four lines of an error.
set -euo pipefail
# shellcheck source=runtime.sh
source "$(dirname "$0")/runtime.sh"

# A port where nobody listens: a refusal proves the way there and back, a silence is a policy or a network in between.
reached() {
  local said
  said=$(timeout 10 bash -c "exec 3<>/dev/tcp/$1/1" 2>&1) || [[ $said == *refused* ]]
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
    said=$(/run/medweave-scripts/bin/ssh "$peer" "$ON_WORKER" 2>&1 </dev/null) ||
      refuse "worker $peer is not reached over ssh." "$(last_line "$said")" "a login with the release's key, Java and COMPSs" \
        "read the worker's log: kubectl logs ${peer%%.*}"
    echo "$peer: $said"
  else
    reached "$peer" ||
      refuse "worker $peer is not reached." "no answer within 10 s" "pods of a release to reach each other" "look at the network policies of the namespace"
    echo "$peer: reached"
  fi
done
echo "${#peers[@]} of ${#peers[@]} workers reached, engine $POD_ENGINE"
