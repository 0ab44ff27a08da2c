#!/usr/bin/env bash
# `helm test`: in a pod of the same image, account and volumes, is all there that a run needs to start?
set -euo pipefail
# shellcheck source=prepare.sh
. /run/medweave-files/prepare.sh

prepare
echo "$("$(dirname "$POD_PYTHON")/medweave" --version): $RUN_SCHEDULE is there, $RUN_FOLDER is writable"
