#!/usr/bin/env bash
# Process 1 of a run's pod: one firing of the schedule. It waits for the driver and for what that has left behind, and passes TERM on.
set -euo pipefail
# shellcheck source=prepare.sh
. /run/medweave-files/prepare.sh

prepare
"$(dirname "$POD_PYTHON")/medweave" schedule run "$RUN_SCHEDULE" --folder "$RUN_FOLDER" &
readonly driver=$!
trap 'kill -TERM "$driver" 2>/dev/null || true' TERM INT
# A signal ends `wait` before the driver has cleaned up.
while kill -0 "$driver" 2>/dev/null; do
  code=0
  wait "$driver" || code=$?
done
exit "$code"
