"""The look at a site when a run starts: what it has, and whether the services of the file are there. Pure.

A service is tried by `sbatch --test-only`, which submits nothing. A site may refuse a job as small as that for reasons of its own:
only words that are known, about a key that the service has, count; all else is left to the submission.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from medweave_connectors.sites.slurm import commands, messages
from medweave_connectors.sites.slurm.answers import seconds, whole
from medweave_connectors.sites.slurm.service import Service, minutes_of
from medweave_core.errors import UsageError
from medweave_core.untrusted_text import plain_line, whole_number

PROGRAMS = ("sbatch", "squeue", "scontrol", "scancel", "sinfo")
ACCOUNTING_S = 10  # a database that does not answer is not waited for
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
class Look:
    """What the site has.

    Attributes:
        missing: programs that are not there.
        default: the partition of jobs that name none; may be empty.
        said: what sinfo said when it failed.
        names: key of a service to the names that may stand there, where Slurm lists them.
        trials: service to what sbatch says about a job of it.
    """

    missing: tuple[str, ...] = ()
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    default: str = ""
    said: str = ""
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    trials: Mapping[str, str] = field(default_factory=dict)

    def partition(self, name: str) -> Partition:
        """The one of this name, the default for none; an empty one where it is not known."""
        return self.partitions.get(name or self.default, Partition())


def look(services: Mapping[str, Service]) -> str:
    """One line for all of it; what no service names is not asked for."""
    there = [f"command -v {name} > /dev/null || echo missing {name}" for name in PROGRAMS]
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
    return commands.line(*there, sinfo, *([f"[ $code != 0 ] || {{ {'; '.join(more)}; }}"] if more else []))


def read_look(answer: str, services: Mapping[str, Service]) -> Look:
    """Of `look`."""
    missing: list[str] = []
    partitions: dict[str, Partition] = {}
    names: dict[str, tuple[str, ...]] = {}
    trials: dict[str, str] = {}
    default, said, code = "", [], "?"
    numbered = {str(number): name for number, name in enumerate(services)}
    for line in whole(answer):
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
            said.append(line)
    return Look(
        missing=tuple(missing),
        partitions=partitions,
        default=default,
        said="" if code == "0" else plain_line(" ".join(said)) or "sinfo failed",
        names={"partition": tuple(partitions)} | names,
        trials=trials,
    )


def refuse_what_is_not_there(seen: Look, services: Mapping[str, Service], where: Callable[[str], str]) -> None:
    """Nothing is submitted for a service that the site does not have.

    Args:
        where: the place of a service in the file.

    Raises:
        UsageError: the message names the key, and the choices where Slurm lists them.
    """
    for name, service in services.items():
        for key in ("partition", "qos"):  # a QOS may be taken and left out of account by sites that do not enforce it
            known = seen.names.get(key, ())
            if (value := getattr(service, key)) and value not in known and (known or key == "partition"):
                raise _not_there(f"{where(name)}.{key}", value, known, messages.what_to_do(key))
        _refuse_a_long_time(seen.partition(service.partition), service, where(name))
        _refuse_by_trial(seen, service, seen.trials.get(name, ""), where(name))


def _refuse_a_long_time(partition: Partition, service: Service, where: str) -> None:
    """A QOS may lift the limit of a partition."""
    if not service.time or service.qos or partition.limit_s is None:
        return
    if minutes_of(service.time, where=f"{where}.time") * 60 > partition.limit_s:
        raise UsageError(
            f"{where}.time: the partition {service.partition or 'of jobs that name none'} grants less.",
            seen=service.time,
            expected=f"at most {partition.limit_s / 60:.0f} min",
            do="write the longest time that `sinfo --format='%P %l'` shows for it",
        )


def _refuse_by_trial(seen: Look, service: Service, said: str, where: str) -> None:
    names = {**seen.names, **seen.partition(service.partition).names}
    key, do = messages.refused_setting(said)
    is_name = key != "partition" and bool(_IS_A_NAME.search(said))
    if "node configuration" in said.lower() and not _has_gpus(names.get("gres", ()), service.gres):
        key, is_name = "gres", True  # such GPUs are at the site, and not in this partition
        do = messages.what_to_do(key)
    if is_name and key in _asked(service):
        value = " ".join(service.options) if key == "options" else getattr(service, key)
        raise _not_there(f"{where}.{key}", f"{value}: {said}", tuple(sorted(set(names.get(key, ())))), do)


def _has_gpus(names: tuple[str, ...], gres: str) -> bool:
    return any(f"{name}:".startswith(f"{gres}:") for name in names)


def _not_there(where: str, seen: str, known: tuple[str, ...], do: str) -> UsageError:
    choices = f"one of {', '.join(known)}" if known else "one that the site has; Slurm lists none"
    return UsageError(
        f"{where}: the cluster has no such {where.rpartition('.')[2]}.", seen=seen, expected=choices, do=do
    )


def _asked(service: Service) -> dict[str, str]:
    """Key of the service to the option of sbatch."""
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
    asked = {key: value for key, value in _asked(service).items() if key != "options"}
    options = [f"--{key}={value}" for key, value in asked.items()]
    return shlex.join(["sbatch", "--test-only", *options, *service.options, "--wrap=true"])


def _by_number(services: Mapping[str, Service]) -> list[tuple[int, Service]]:
    return [(number, service) for number, service in enumerate(services.values()) if _asked(service)]


def _with_nodes(partition: Partition, told: list[str]) -> Partition:
    cores, memory_mib, limit, gres, features = told
    found = {"gres": gres, "constraint": features}
    size = whole_number(cores.rstrip("+")), whole_number(memory_mib.rstrip("+"))
    return Partition(
        nodes=partition.nodes if None in size else (*partition.nodes, (size[0] or 0, size[1] or 0)),
        limit_s=seconds(limit),
        names={
            key: tuple(dict.fromkeys((*partition.names.get(key, ()), *_listed(text)))) for key, text in found.items()
        },
    )


def _listed(text: str) -> list[str]:
    """`gpu:a100:4(S:0-1),tpu:1` without its counts; nothing for `(null)`."""
    parts = re.split(r",(?![^(]*\))", text)
    return [name for part in parts if part != "(null)" and (name := _COUNT.sub("", part))]
