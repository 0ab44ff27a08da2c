# shellcheck shell=bash
# Shared by start-pod.sh and test-cluster.sh: checks that this pod has the engine's runtime; a failed check exits with the reason.
# environment: POD_ENGINE (compss or ddp), POD_PYTHON, POD_REQUIRED_MODULES, COMPSS_HOME

# refuse WHERE SEEN EXPECTED DO: the message becomes the container's termination message, which the API shows; then exit 78.
refuse() {
  printf '%s\n  seen:     %s\n  expected: %s\n  do:       %s\n' "$@" >&2
  exit 78
}

last_line() { printf '%s' "$1" | tail -n 1 | cut -c 1-300; }

# Limited, because a volume that does not respond would block this check forever.
readonly IMPORT_LIMIT_S=300 JAVA_LIMIT_S=60

check_python() {
  [[ -x $POD_PYTHON ]] ||
    refuse "pod $HOSTNAME: there is no Python for the step." "no program $POD_PYTHON" \
      "the worker environment, from the image or from extraVolumes" "set \`python\` to its path, or mount the environment there"
  [[ -n $POD_REQUIRED_MODULES ]] || return 0
  local output
  output=$(timeout "$IMPORT_LIMIT_S" "$POD_PYTHON" -c "import ${POD_REQUIRED_MODULES// /, }" 2>&1) ||
    refuse "pod $HOSTNAME: Python cannot import what the step needs." "$(last_line "${output:-no answer in $IMPORT_LIMIT_S s}")" \
      "modules $POD_REQUIRED_MODULES in $POD_PYTHON" "mount a worker environment that has them, or change \`requiredModules\`"
}

# The binding is a compiled module for one minor version of Python. Only where there is such a file, since an image may have the
# binding in its Python environment.
check_binding() {
  local folder=$COMPSS_HOME/Bindings/python/3 built=()
  mapfile -t built < <(compgen -G "$folder/compss*.so" || true)
  [[ ${#built[@]} -gt 0 ]] || return 0
  PYTHONPATH=$folder timeout "$IMPORT_LIMIT_S" "$POD_PYTHON" -c \
    "import importlib.util, sys; sys.exit(importlib.util.find_spec('compss') is None)" 2>/dev/null ||
    refuse "pod $HOSTNAME: the Python binding of COMPSs is for another version of Python." \
      "${built[*]##*/} in $folder; $("$POD_PYTHON" --version 2>&1) at $POD_PYTHON" \
      "a binding that was built for the minor version of the steps' Python" \
      "use an installation of COMPSs that was built with that Python, or set \`python\` to an environment of the binding's version"
}

check_compss() {
  local output
  output=$(timeout "$JAVA_LIMIT_S" "${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1) ||
    refuse "pod $HOSTNAME: engine compss needs a Java runtime." "$(last_line "${output:-no answer in $JAVA_LIMIT_S s}")" \
      "a java that starts, on the PATH or under JAVA_HOME" "use an image with openjdk-17-jre-headless (deployments/images/compss)"
  [[ -f $COMPSS_HOME/Runtime/scripts/user/runcompss ]] ||
    refuse "pod $HOSTNAME: there is no COMPSs runtime." "no file $COMPSS_HOME/Runtime/scripts/user/runcompss" \
      "an installation of COMPSs at \`compss.home\`" "use an image that has one, mount one by extraVolumes, or set engine: ddp"
  check_binding
  local program
  for program in /usr/bin/ssh /usr/sbin/sshd; do
    [[ -x $program ]] ||
      refuse "pod $HOSTNAME: engine compss starts its workers over ssh." "no program $program" "OpenSSH in the image" \
        "use an image with openssh-client and openssh-server (deployments/images/compss)"
  done
}

check_runtime() {
  check_python
  if [[ $POD_ENGINE == compss ]]; then check_compss; fi
}
