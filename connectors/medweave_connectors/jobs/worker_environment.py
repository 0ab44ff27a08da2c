"""The worker environment of a job: modules, a virtual environment, an image of Apptainer. Pure.

Shell text around the command of a step. If something is missing, the job ends with a message about the setting and the path, never
with a shell's "not found". Does not import streamflow.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from medweave_connectors.host.stdin_script import here_document, is_long
from medweave_core.errors import BackendMissingError, UsageError

FUNCTION = "worker_environment"
_END = "medweave-end-of-line"
# Valid starts of a path in the file, before `${NAME}` is replaced, and at the site.
_STARTS = ("/", "~/", "${")
# Variables of Slurm and medweave about a job. All others stay outside of an image: a PYTHONPATH or library path of the site would
# load other versions than those of the image.
_CARRIED = (
    "^((MEDWEAVE|SLURM|SLURMD)_[A-Za-z0-9_]+|TMPDIR|CUDA_VISIBLE_DEVICES|NVIDIA_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES"
    "|GPU_DEVICE_ORDINAL)$"
)
# Shells that are no login shells may not know `module`; its own files for `sh` define it.
_MODULE_FILES = (
    '"${LMOD_PKG:-}/init/sh"',
    '"${MODULESHOME:-}/init/sh"',
    "/etc/profile.d/lmod.sh",
    "/etc/profile.d/modules.sh",
    "/usr/share/lmod/lmod/init/sh",
    "/usr/share/modules/init/sh",
    "/usr/share/Modules/init/sh",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEnvironment:
    """Environment that a site loads before the command of a step.

    Attributes:
        modules: names, loaded in this order; nothing is unloaded, because a site's default modules may provide `srun`.
        virtualEnvironment: folder at the site; `~/` is the home folder of the account there. Empty for none.
        apptainer: image at the site in which the command runs, spelled likewise. Empty for none.
    """

    modules: Sequence[str] = ()
    virtualEnvironment: str = ""
    apptainer: str = ""

    def __bool__(self) -> bool:
        return bool(self.modules or self.virtualEnvironment or self.apptainer)

    def lines(self, *, where: str) -> tuple[str, ...]:
        """Return lines of a job script that define the function which `started` calls; none if nothing is loaded.

        Args:
            where: the setting's place in the file, for messages.
        """
        if not self:
            return ()
        body = [*load_modules(self.modules, where=where)]
        if self.virtualEnvironment:
            body += _activate(self.virtualEnvironment, f"{where}.virtualEnvironment")
        if self.apptainer:
            body += _look_for_image(self.apptainer, f"{where}.apptainer")
        return (f"{FUNCTION}() {{", *body, "}")

    def started(self, line: str) -> str:
        """Return shell text that loads the environment and then runs `line`; it exits with 69 if something is missing."""
        return f"{FUNCTION} && {{\n{line}\n}}" if self else line

    def inside(self, line: str, *, folder: str, gpus: bool) -> str:
        """Return the line of a command, run in the image if there is one.

        The whole line runs inside, because Apptainer sets HOME and other variables that the line exports.

        Args:
            line: for a POSIX shell; the image has one.
            folder: the run's folder at the site, mounted inside under the same path.
            gpus: the job has GPUs.
        """
        if not self.apptainer:
            return line
        bind = shlex.quote(f"{folder}:{folder}")
        options = ["--cleanenv", "--bind", bind, *(["--nv"] if gpus else [])]
        words = " ".join(("exec apptainer exec", *options, at_site(self.apptainer)))
        if is_long(line):
            return here_document(f"{words} ", line, _END)
        return f"{words} sh -c {shlex.quote(line)}"


NOTHING = WorkerEnvironment()


def read_environment(keys: Mapping[str, Any], *, where: str) -> WorkerEnvironment:
    """Return the worker environment from the keys of `environment` in a site file.

    Args:
        keys: as the connector's schema defines them.
        where: their path in the file.

    Raises:
        UsageError: keys that exclude each other, or a path that is not absolute at the site.
    """
    environment = WorkerEnvironment(**keys)
    if environment.virtualEnvironment and environment.apptainer:
        raise UsageError(
            f"{where}.apptainer: an image and a virtual environment exclude each other.",
            seen=f"apptainer: {environment.apptainer}, and virtualEnvironment: {environment.virtualEnvironment}",
            expected="one of them: the interpreter of the virtual environment is not in the image",
            do="remove one of the two keys",
        )
    for name in ("virtualEnvironment", "apptainer"):
        path = getattr(environment, name)
        if path and not path.startswith(_STARTS):
            raise UsageError(
                f"{where}.{name}: not a path at the site.",
                seen=path,
                expected="an absolute path at the site, or one below the account's home folder there",
                do=f"write {name}: /… or ~/…",
            )
    return environment


def at_site(path: str) -> str:
    """Return a path as a word for the site's shell; `~/` is the home folder there."""
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


def load_modules(modules: Sequence[str], *, where: str) -> tuple[str, ...]:
    """Return lines of a shell function that load modules, or return 69.

    Args:
        where: path of `environment` in the file, for messages.
    """
    if not modules:
        return ()
    define = (
        f"for file in {' '.join(_MODULE_FILES)}; do",
        '  command -v module > /dev/null || ! [ -r "$file" ] || . "$file"',
        "done",
    )
    none = _missing(
        f"{where}.modules",
        seen="no command `module`",
        expected="Environment Modules or Lmod",
        do="remove `modules`, or define `module` in a prologue",
    )
    lines = [*define, "command -v module > /dev/null || {", *none, "}"]
    for number, name in enumerate(modules):
        failed = _missing(
            f"{where}.modules[{number}]",
            seen=f"`module load {name}` failed",
            expected="a module of the site",
            do="log in there and try `module avail`",
        )
        lines += [f"module load {shlex.quote(name)} || {{", *failed, "}"]
    return tuple(lines)


def _activate(path: str, where: str) -> tuple[str, ...]:
    missing = _missing(
        where,
        seen=f"no {path}/bin/activate",
        expected="a virtual environment that login node and nodes share",
        do="create it with `medweave provision`, or correct the path",
    )
    file = f"{at_site(path)}/bin/activate"
    return (f"[ -r {file} ] || {{", *missing, "}", f". {file}")


def _look_for_image(path: str, where: str) -> tuple[str, ...]:
    program = _missing(
        where,
        seen="no program `apptainer`",
        expected="Apptainer on the nodes",
        do="name its module in `modules`, or use another service",
    )
    image = _missing(
        where,
        seen=f"no {path}",
        expected="an image that the nodes can read",
        do="copy it there, or correct the path",
    )
    return (
        "command -v apptainer > /dev/null || {",
        *program,
        "}",
        f"[ -r {at_site(path)} ] || {{",
        *image,
        "}",
        # Their values are used unchanged, not evaluated as shell text.
        "export APPTAINER_NO_EVAL=1",
        f"for name in $(awk 'BEGIN {{ for (name in ENVIRON) if (name ~ /{_CARRIED}/) print name }}'); do",
        '  eval "export APPTAINERENV_$name=\\"\\${$name}\\""',
        "done",
    )


def _missing(where: str, *, seen: str, expected: str, do: str) -> tuple[str, ...]:
    error = BackendMissingError(
        f"medweave: {where}: not found at the site.", seen=f"{seen} on \0", expected=expected, do=do
    )
    before, _, after = str(error).partition("\0")
    words = f'{shlex.quote(before)} "$(hostname)" {shlex.quote(after)}'
    return (f"  printf '%s%s%s\\n' {words} >&2", f"  return {error.exit_code}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteWorker:
    """The worker of one job, as the connector of its site describes it for the cache.

    Attributes:
        environment: loaded before the command.
        setting: its path in the file, for messages.
        facts: other settings that affect the result: a partition, an image.
        computes: commands of the connector run on the machine that runs the step, not on a login node.
    """

    environment: WorkerEnvironment = NOTHING
    setting: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    computes: bool = True
