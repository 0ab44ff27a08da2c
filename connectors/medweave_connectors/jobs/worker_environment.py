"""The worker's environment of a job: modules, a virtual environment, an image of Apptainer. Pure.

Shell text that stands around the command of a step. What is missing ends the job with the setting and the path, never with a
shell's "not found". No streamflow in here.
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
# In places of the file before `${NAME}` is replaced, and at the site.
_STARTS = ("/", "~/", "${")
# What Slurm and medweave say about a job's place. Everything else of the site stays outside of an image: a PYTHONPATH or a library
# path from there would bring other versions than the image has.
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
    """What a site loads before the command of a step.

    Attributes:
        modules: names, loaded in this order; nothing is unloaded, since a site's own defaults may hold `srun`.
        virtualEnvironment: folder at the site; `~/` is the home folder of the account there. Empty for none.
        apptainer: image at the site in which the command runs, spelled likewise. Empty for none.
    """

    modules: Sequence[str] = ()
    virtualEnvironment: str = ""
    apptainer: str = ""

    def __bool__(self) -> bool:
        return bool(self.modules or self.virtualEnvironment or self.apptainer)

    def lines(self, *, where: str) -> tuple[str, ...]:
        """Lines of a job script that define what `started` calls; none where nothing is to be loaded.

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
        """Shell text that loads the environment and then does what `line` does; where something is missing it ends with 69."""
        return f"{FUNCTION} && {{\n{line}\n}}" if self else line

    def inside(self, line: str, *, folder: str, gpus: bool) -> str:
        """The line of a command, in the image where there is one.

        The line goes there as a whole: what it exports is set inside, where Apptainer sets HOME and others anew.

        Args:
            line: for a POSIX shell; the image has one.
            folder: folder at the site that is seen inside, under the same path: that of the run.
            gpus: the job has some.
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
    """The keys of `environment` in a site file.

    Args:
        keys: as the connector's schema has them.
        where: their place in the file.

    Raises:
        UsageError: keys that exclude each other, or a path that is none of the site's.
    """
    found = WorkerEnvironment(**keys)
    if found.virtualEnvironment and found.apptainer:
        raise UsageError(
            f"{where}.apptainer: an image and a virtual environment exclude each other.",
            seen=f"apptainer: {found.apptainer}, and virtualEnvironment: {found.virtualEnvironment}",
            expected="one of them: what is installed outside of an image has no interpreter inside",
            do="take one of the two keys away",
        )
    for name in ("virtualEnvironment", "apptainer"):
        path = getattr(found, name)
        if path and not path.startswith(_STARTS):
            raise UsageError(
                f"{where}.{name}: this is no path at the site.",
                seen=path,
                expected="an absolute path at the site, or one below the account's home folder there",
                do=f"write {name}: /… or ~/…",
            )
    return found


def at_site(path: str) -> str:
    """A path as a word for the site's shell; `~/` is the home folder there."""
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


def load_modules(modules: Sequence[str], *, where: str) -> tuple[str, ...]:
    """Lines of a shell function that load modules, or end it with 69.

    Args:
        where: place of `environment` in the file, for messages.
    """
    if not modules:
        return ()
    found = (
        f"for file in {' '.join(_MODULE_FILES)}; do",
        '  command -v module > /dev/null || ! [ -r "$file" ] || . "$file"',
        "done",
    )
    none = _missing(
        f"{where}.modules",
        seen="no command `module`",
        expected="Environment Modules or Lmod",
        do="take `modules` away, or define `module` in a prologue",
    )
    lines = [*found, "command -v module > /dev/null || {", *none, "}"]
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
        do="make it by `medweave provision`, or correct the path",
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
        # Their values are taken as they are, not as shell text.
        "export APPTAINER_NO_EVAL=1",
        f"for name in $(awk 'BEGIN {{ for (name in ENVIRON) if (name ~ /{_CARRIED}/) print name }}'); do",
        '  eval "export APPTAINERENV_$name=\\"\\${$name}\\""',
        "done",
    )


def _missing(where: str, *, seen: str, expected: str, do: str) -> tuple[str, ...]:
    told = BackendMissingError(f"medweave: {where}: this is not there.", seen=f"{seen} on \0", expected=expected, do=do)
    before, _, after = str(told).partition("\0")
    words = f'{shlex.quote(before)} "$(hostname)" {shlex.quote(after)}'
    return (f"  printf '%s%s%s\\n' {words} >&2", f"  return {told.exit_code}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteWorker:
    """The worker of one job, as the connector of its site describes it for the cache.

    Attributes:
        environment: what is loaded before the command.
        setting: its path in the file, for messages.
        facts: other settings that affect the result: a partition, an image.
        computes: commands of the connector run on the machine that runs the step, not on a login node.
    """

    environment: WorkerEnvironment = NOTHING
    setting: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    computes: bool = True
