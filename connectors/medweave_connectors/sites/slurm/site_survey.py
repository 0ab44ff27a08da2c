"""Survey of a Slurm site when a run starts: its partitions and names, compared with the services of the file. Pure.

Each service is tried by `sbatch --test-only`, which submits nothing. A site may refuse so small a job for other reasons: only known
messages about a key of the service count; everything else is left to the submission.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from medweave_connectors.sites.slurm import commands, messages
from medweave_connectors.sites.slurm.answers import complete_lines, seconds
from medweave_connectors.sites.slurm.service import Service, minutes_of
from medweave_core.errors import UsageError
from medweave_core.untrusted_text import plain_line, whole_number

PROGRAMS = ("sbatch", "squeue", "scontrol", "scancel", "sinfo")
ACCOUNTING_S = 10  # deadline of the accounting database
_IS_A_NAME = re.compile(r"\binvalid\b|unrecognized option", re.IGNORECASE)
_COUNT = re.compile(r"(:\d+)?(\(.*)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition.

    Attributes:
        nodes: (cores, MiB) of its kinds of nodes.
        limit_s: longest time of a job; None for no limit.
        names: of the GPUs (`gres`) and of the features (`constraint`) of its nodes.
    """

    nodes: tuple[tuple[int, int], ...] = ()
    limit_s: float | None = None
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSurvey:
    """Partitions and names of a site.

    Attributes:
        missing: programs that were not found.
        default: the partition of jobs that name none; may be empty.
        error: error output of sinfo.
        names: key of a service to its valid names, if Slurm lists them.
        trials: service to the output of sbatch about a job of it.
    """

    missing: tuple[str, ...] = ()
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    default: str = ""
    error: str = ""
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    trials: Mapping[str, str] = field(default_factory=dict)

    def partition(self, name: str) -> Partition:
        """Return the partition of this name, the default partition for an empty name; an empty one if it is unknown."""
        return self.partitions.get(name or self.default, Partition())


def survey_command(services: Mapping[str, Service]) -> str:
    """Build one line that prints the survey; lists that no service needs are left out."""
    programs = [f"command -v {name} > /dev/null || echo missing {name}" for name in PROGRAMS]
    sinfo = "sinfo --exact --noheader --format='partition %P %c %m %l %G %f' 2>&1; code=$?; echo code $code"
    manager = f"timeout {ACCOUNTING_S} sacctmgr --noheader --parsable2 show"
    cluster = "${SLURM_CLUSTERS:+cluster=$SLURM_CLUSTERS}"
    lists = {
        "account": f"{manager} associations user=$(id -un) {cluster} format=account",
        "qos": f"{manager} qos format=name",
        "reservation": "scontrol show reservation --oneliner | sed -n 's/^ReservationName=\\([^ ]*\\).*/\\1/p'",
    }
    more = [
        f"{{ {line}; }} 2> /dev/null | sed 's/^/name {key} /'"
        for key, line in lists.items()
        if any(getattr(service, key) for service in services.values())
    ]
    more += [
        f'echo trial {number} "$({_trial(service)} 2>&1 | tr "\\n" " ")"' for number, service in _by_number(services)
    ]
    return commands.line(*programs, sinfo, *([f"[ $code != 0 ] || {{ {'; '.join(more)}; }}"] if more else []))


def parse_survey(answer: str, services: Mapping[str, Service]) -> SiteSurvey:
    """Parse the output of `survey_command`."""
    missing: list[str] = []
    partitions: dict[str, Partition] = {}
    names: dict[str, tuple[str, ...]] = {}
    trials: dict[str, str] = {}
    default, error, code = "", [], "?"
    numbered = {str(number): name for number, name in enumerate(services)}
    for line in complete_lines(answer):
        mark, *rest = line.split() or [""]
        if mark == "missing":
            missing += rest
        elif mark == "code" and len(rest) == 1:
            (code,) = rest
        elif mark == "partition" and len(rest) == 6:
            name = rest[0].rstrip("*")
            default = name if rest[0].endswith("*") else default
            partitions[name] = _with_nodes(partitions.get(name, Partition()), rest[1:])
        elif mark == "name" and len(rest) == 2:
            names[rest[0]] = (*names.get(rest[0], ()), rest[1])
        elif mark == "trial" and rest and rest[0] in numbered:
            trials[numbered[rest[0]]] = plain_line(" ".join(rest[1:]))
        else:
            error.append(line)
    return SiteSurvey(
        missing=tuple(missing),
        partitions=partitions,
        default=default,
        error="" if code == "0" else plain_line(" ".join(error)) or "sinfo failed",
        names={"partition": tuple(partitions)} | names,
        trials=trials,
    )


def check_services(seen: SiteSurvey, services: Mapping[str, Service], where: Callable[[str], str]) -> None:
    """Refuse services that name something the site does not have.

    Args:
        where: returns the path of a service in the file.

    Raises:
        UsageError: the message names the key, and the choices if Slurm lists them.
    """
    for name, service in services.items():
        for key in ("partition", "qos"):  # sbatch accepts an unknown QOS at sites that do not enforce QOS
            known = seen.names.get(key, ())
            if (value := getattr(service, key)) and value not in known and (known or key == "partition"):
                raise _not_there(f"{where(name)}.{key}", value, known, messages.setting_hint(key))
        _refuse_a_long_time(seen.partition(service.partition), service, where(name))
        _refuse_by_trial(seen, service, seen.trials.get(name, ""), where(name))


def _refuse_a_long_time(partition: Partition, service: Service, where: str) -> None:
    """Refuse a time above the partition's limit, unless a QOS may lift it."""
    if not service.time or service.qos or partition.limit_s is None:
        return
    if minutes_of(service.time, where=f"{where}.time") * 60 > partition.limit_s:
        raise UsageError(
            f"{where}.time: the limit of partition {service.partition or '(default)'} is lower.",
            seen=service.time,
            expected=f"at most {partition.limit_s / 60:.0f} min",
            do="set at most the time that `sinfo --format='%P %l'` shows for it",
        )


def _refuse_by_trial(seen: SiteSurvey, service: Service, error: str, where: str) -> None:
    names = {**seen.names, **seen.partition(service.partition).names}
    key, do = messages.refused_setting(error)
    is_name = key != "partition" and bool(_IS_A_NAME.search(error))
    if "node configuration" in error.lower() and not _has_gpus(names.get("gres", ()), service.gres):
        key, is_name = "gres", True  # the site has such GPUs, but not this partition
        do = messages.setting_hint(key)
    if is_name and key in _sbatch_options(service):
        value = " ".join(service.options) if key == "options" else getattr(service, key)
        raise _not_there(f"{where}.{key}", f"{value}: {error}", tuple(sorted(set(names.get(key, ())))), do)


def _has_gpus(names: tuple[str, ...], gres: str) -> bool:
    return any(f"{name}:".startswith(f"{gres}:") for name in names)


def _not_there(where: str, seen: str, known: tuple[str, ...], do: str) -> UsageError:
    choices = f"one of {', '.join(known)}" if known else "one that the site has; Slurm lists none"
    return UsageError(
        f"{where}: the cluster has no such {where.rpartition('.')[2]}.", seen=seen, expected=choices, do=do
    )


def _sbatch_options(service: Service) -> dict[str, str]:
    """Return sbatch's options by key of the service."""
    return {
        key: value
        for key, value in {
            **commands.place_options(service),
            "gres": f"{service.gres}:1" if service.gpusPerNode else "",
            "time": str(minutes_of(service.time, where="time")) if service.time else "",
            "options": " ".join(service.options),
        }.items()
        if value
    }


def _trial(service: Service) -> str:
    options = [f"--{key}={value}" for key, value in _sbatch_options(service).items() if key != "options"]
    return shlex.join(["sbatch", "--test-only", *options, *service.options, "--wrap=true"])


def _by_number(services: Mapping[str, Service]) -> list[tuple[int, Service]]:
    return [(number, service) for number, service in enumerate(services.values()) if _sbatch_options(service)]


def _with_nodes(partition: Partition, fields: list[str]) -> Partition:
    cores, memory_mib, limit, gres, features = fields
    texts = {"gres": gres, "constraint": features}
    size = whole_number(cores.rstrip("+")), whole_number(memory_mib.rstrip("+"))
    return Partition(
        nodes=partition.nodes if None in size else (*partition.nodes, (size[0] or 0, size[1] or 0)),
        limit_s=seconds(limit),
        names={
            key: tuple(dict.fromkeys((*partition.names.get(key, ()), *_listed(text)))) for key, text in texts.items()
        },
    )


def _listed(text: str) -> list[str]:
    """Return the names in `gpu:a100:4(S:0-1),tpu:1` without counts; none for `(null)`."""
    parts = re.split(r",(?![^(]*\))", text)
    return [name for part in parts if part != "(null)" and (name := _COUNT.sub("", part))]
