# shellcheck shell=bash
# What a run and its test need: sourced by both. Unpacks the definition where it came as an archive, and makes the folder of the schedule.
# environment: POD_PYTHON, RUN_SCHEDULE, RUN_FOLDER

# refuse WHERE SEEN EXPECTED DO: the message becomes the container's termination message, which the API shows; then exit 78.
refuse() {
  printf '%s\n  seen:     %s\n  expected: %s\n  do:       %s\n' "$@" >&2
  exit 78
}

prepare() {
  local archive=/run/medweave-files/definition.tgz medweave
  medweave=$(dirname "$POD_PYTHON")/medweave
  [[ -x $medweave ]] ||
    refuse "pod $HOSTNAME: there is no driver." "no program $medweave" \
      "the driver's environment, from the image or from extraVolumes" "set \`python\` to its Python, or mount the environment there"
  [[ ! -e $archive ]] || tar -xzf "$archive" -C /definition
  [[ -f $RUN_SCHEDULE ]] ||
    refuse "pod $HOSTNAME: the schedule's file is not there." "no file $RUN_SCHEDULE" \
      "a path in the archive or on the claim" "set \`definition.file\`"
  { mkdir -p "$RUN_FOLDER" && test -w "$RUN_FOLDER"; } 2>/dev/null ||
    refuse "pod $HOSTNAME: the folder of the schedule cannot be written." "$RUN_FOLDER" \
      "a volume that user $(id -u) may write" "look at the claim's access and \`user\`"
}
