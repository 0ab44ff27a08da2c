"""Shell commands for the master and workers of a COMPSs cluster, and parsing of their output. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

STEP = "medweave-step"
APPLICATION = "compss/application.py"  # of the package medweave_steps: takes the words of a verb
# Without it the master dies on JDK 17 while it reads its XML.
JVM_MASTER_OPTIONS = "-Dcom.sun.xml.bind.v2.bytecode.ClassTailor.noOptimize=true"
WORKER_START_MS = (
    "180000"  # COMPSS_WORKER_INIT_TIMEOUT: a worker's first start on a busy machine takes longer than the default
)
REACH_S = 20
_TAKEN_APART = frozenset(" \t\n*?[]")
_LABELS = ("python", "compss", "runcompss", "java", "port", "steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts that a pod reports about itself.

    Attributes:
        python: interpreter of the steps.
        compss: folder of the COMPSs installation.
        runcompss: path of that command; empty if it is missing.
        java: JAVA_HOME; empty if there is no Java.
        port: of the workers' sshd.
        steps: folder of the package medweave_steps; empty if the interpreter has none.
    """

    python: str = ""
    compss: str = ""
    runcompss: str = ""
    java: str = ""
    port: str = ""
    steps: str = ""

    @property
    def application(self) -> str:
        """Return the file that runcompss starts."""
        return str(PurePosixPath(self.steps) / APPLICATION)

    @property
    def application_folder(self) -> str:
        """Return the folder of that file, which COMPSs puts on its workers' path."""
        return str(PurePosixPath(self.application).parent)

    @property
    def python_path(self) -> str:
        """Return the folder that the package lies in."""
        return str(PurePosixPath(self.steps).parent)

    def missing(self) -> list[str]:
        """Return descriptions of what a run needs and the pod lacks."""
        needed = {
            "python": "a Python for the steps (POD_PYTHON, or python3 on the PATH)",
            "steps": f"the package medweave_steps in {self.python or 'its Python'}",
            "java": "a Java runtime (JAVA_HOME, or java on the PATH)",
            "runcompss": "runcompss on the PATH",
        }
        return [words for name, words in needed.items() if not getattr(self, name)]


def build_facts_command() -> list[str]:
    """Return a shell command that prints the facts, one per line: `python /env/bin/python`."""
    lines = (
        "python=${POD_PYTHON:-$(command -v python3)}",
        'echo "python $python"',
        'echo "compss ${COMPSS_HOME:-/opt/COMPSs}"',
        'echo "runcompss $(command -v runcompss || command -v "${COMPSS_HOME:-/opt/COMPSs}/Runtime/scripts/user/runcompss")"',
        'java=$(readlink -f "$(command -v java)" | sed "s|/bin/java\\$||")',
        'echo "java ${JAVA_HOME:-$java}"',
        'echo "port ${POD_SSH_PORT:-22}"',
        'echo "steps $("$python" -c "import medweave_steps; print(medweave_steps.__path__[0])" 2>/dev/null)"',
    )
    return ["; ".join(lines)]


def parse_facts(text: str) -> Facts:
    """Return the facts from the output of `ask_facts`."""
    fields = dict(line.partition(" ")[::2] for line in text.splitlines())
    return Facts(**{label: fields.get(label, "").strip() for label in _LABELS})


def build_reach_command(workers: Sequence[str], port: str) -> list[str]:
    """Return a shell command for the master that logs in to every worker as COMPSs does: over ssh, in batch mode."""
    check = (
        f'message=$(timeout {REACH_S} ssh -p {shlex.quote(port)} -o BatchMode=yes "$worker" true </dev/null 2>&1); '
        'code=$?; echo "$worker $code $(echo "$message" | tail -n 1)"'
    )
    names = " ".join(shlex.quote(name) for name in workers)
    return [f"for worker in {names}; do ( {check} ) & done; wait"]


def parse_unreachable(text: str, workers: Sequence[str]) -> dict[str, str]:
    """Return the workers that did not answer, by name, with the message of ssh, from the output of `reach`."""
    answers = {
        words[0]: words[1:] for words in (line.split(maxsplit=2) for line in text.splitlines()) if len(words) > 1
    }
    failed = {}
    for name in workers:
        code, *message = answers.get(name, ["?", "no answer"])
        if code != "0":
            failed[name] = message[0] if message else f"ssh ended with {code}"
    return failed


def describe_release_test(release: str, namespace: str, *, is_external: bool) -> str:
    """Return an instruction for testing the release by hand; a release of this run is uninstalled when the run ends."""
    if is_external:
        return f"helm test {release} --namespace {namespace}"
    return (
        f"install the chart in namespace {namespace} by hand, with the values of this deployment, and run helm test "
        "on that release; this run removes its own"
    )


def build_runcompss_command(
    command: Sequence[str], facts: Facts, *, project: str, resources: str, master: str
) -> list[str]:
    """Return the shell-quoted words that run a step's command as a COMPSs application.

    Args:
        command: `medweave-step VERB …` as StreamFlow passes it: shell-quoted words, the first of which may hold several.
        project, resources: paths of the XML files on the master.
        master: the master's host name, as the workers dial it.

    Raises:
        ValueError: the command is another program, or has a word that runcompss would split (it does not quote the
            application's arguments).
    """
    first = shlex.split(command[0])
    if PurePosixPath(first[0]).name != STEP:
        raise ValueError(f"the program {first[0]}")
    for word in shlex.split(" ".join(command)):
        if not word or set(word) & _TAKEN_APART:
            raise ValueError(f"the word {word!r}")
    options = (
        "--lang=python",
        f"--python_interpreter={facts.python}",
        f"--project={project}",
        f"--resources={resources}",
        f"--master_name={master}",
        f"--pythonpath={facts.python_path}",
        f"--jvm_master_opts={JVM_MASTER_OPTIONS}",
        facts.application,
        *first[1:],
    )
    return [shlex.quote(facts.runcompss), *(shlex.quote(word) for word in options), *command[1:]]


def build_kill_command(compss: str) -> list[str]:
    """Return a shell command for a worker that kills the remaining processes of a failed run: COMPSs' runtime and its Python tasks.

    All of them have the path of the installation in their command line. Process 1, which keeps the pod running, and the ssh
    server, whose environment contains that path, are not killed: without either of them the container restarts.
    """
    pattern = f"[{compss[0]}]{compss[1:]}"  # so that the command line of this search does not match
    return [
        f"for pid in $(pgrep -f {shlex.quote(pattern)}); do "
        'case "$pid $(cat "/proc/$pid/comm")" in "1 "*|*" sshd"*) ;; *) kill -s KILL "$pid";; esac; done 2>/dev/null; :'
    ]
