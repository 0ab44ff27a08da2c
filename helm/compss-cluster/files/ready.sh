#!/usr/bin/env bash
# Readiness of a pod: its runtime was found, it has resolved its peers' names once, and on a COMPSs worker sshd answers.
# usage: ready.sh master|worker     Its last line says why a pod is not ready; Kubernetes puts it into the pod's events.
set -euo pipefail
role=$1

if ! [[ -e /run/medweave/runtime-checked ]]; then
  echo "the runtime is still being checked (imports of $POD_REQUIRED_MODULES)"
  exit 1
fi

# Only once: after a release is scaled down, the names of removed pods stay in this file for a minute.
if ! [[ -e /run/medweave/peers-resolved ]]; then
  while read -r peer; do
    getent hosts "$peer" >/dev/null || { echo "the name of peer $peer is not known yet"; exit 1; }
  done </run/medweave-scripts/peers
  : >/run/medweave/peers-resolved
fi

if [[ $POD_ENGINE == compss && $role == worker ]]; then
  banner=''
  if { exec 3<>"/dev/tcp/127.0.0.1/$POD_SSH_PORT"; } 2>/dev/null; then
    # A client's banner, so that sshd logs a normal disconnection instead of an error every few seconds.
    printf 'SSH-2.0-readiness\r\n' >&3
    read -r -t 3 banner <&3 || true
  fi
  if [[ $banner != SSH-2.0-* ]]; then
    echo "sshd does not answer on port $POD_SSH_PORT (said: '${banner:-nothing}')"
    exit 1
  fi
fi
