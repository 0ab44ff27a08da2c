#!/usr/bin/env bash
# Process 1 of a pod: one firing of the schedule (`run`), or what listens for it (`receive`). It passes TERM on and waits for the end.
# usage: start-run.sh run|receive
set -euo pipefail
# shellcheck source=prepare.sh
. /run/medweave-files/prepare.sh

prepare
"$(dirname "$POD_PYTHON")/medweave" schedule "$1" "$RUN_SCHEDULE" --folder "$RUN_FOLDER" &
readonly driver=$!
trap 'kill -TERM "$driver" 2>/dev/null || true' TERM INT
# A signal ends `wait` before the driver has cleaned up.
while kill -0 "$driver" 2>/dev/null; do
  code=0
  wait "$driver" || code=$?
done
exit "$code"
