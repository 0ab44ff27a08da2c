"""Data classes at the moment of a transfer: what a port carries, what a file is known to be, what may lie where. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from medweave_connectors.policy.data_rules import CLASSES, Fault, able

WORKFLOW = "/"  # the path under which the workflow's own inputs and outputs stand
# Of a file or folder that the workflow's documents name as a tool's default, such as the tool's own program: no data of people,
# so it may lie wherever the step runs.
DEFINITION = "definition"
WHERE = "dataManager.config.dataRules"
_TRANSFER, _COLLECTOR = "__transfer__", "-collector"  # in the engine's names of its transfer steps


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a step.

    Attributes:
        step: its path; `/` for what the workflow itself gets and gives.
    """

    step: str
    name: str


def port_of(transfer_step: str) -> Port | None:
    """The input that a transfer step of the engine brings, or the workflow's output that it collects; None for another name."""
    path = PurePosixPath(transfer_step)
    if path.parent.name == _TRANSFER:
        return Port(str(path.parents[1]), path.name)
    if path.name.endswith(_COLLECTOR):
        return Port(str(path.parent), path.name.removesuffix(_COLLECTOR))
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The data rules of the data manager's settings.

    Attributes:
        carries: classes by path of the step and name of its input or output; the workflow's own under `/`.
        may_hold: classes by deployment.
        driver: classes that may lie on the machine that drives the run, which gets the results.
        wraps: the deployment through which one reaches its site, by name: both are the same place.
    """

    carries: Mapping[str, Mapping[str, Iterable[str]]]
    may_hold: Mapping[str, Iterable[str]]
    driver: Iterable[str] = ()
    wraps: Mapping[str, str] = field(default_factory=dict)

    def carried(self, port: Port) -> frozenset[str]:
        """What a port carries; empty where nothing is said of it."""
        return frozenset(self.carries.get(port.step, {}).get(port.name, ()))

    def around(self, port: Port) -> frozenset[str]:
        """Of a step inside another one: all that the outer one reads and writes; empty for other steps."""
        outer = [str(each) for each in PurePosixPath(port.step).parents if str(each) != WORKFLOW]
        ports = next((self.carries[each] for each in outer if each in self.carries), {})
        return frozenset(each for classes in ports.values() for each in classes)

    def allowed(self, names: Sequence[str], *, on_driver: bool) -> frozenset[str]:
        """What may lie at a place.

        Args:
            names: its deployment and those that it wraps, the outermost first.
            on_driver: it is on the machine that drives the run.
        """
        known = [each for name in names for each in self._inwards(name)]
        for name in known:
            if name in self.may_hold:
                return frozenset(self.may_hold[name])
        around = [name for name in self.may_hold if names[0] in self._inwards(name)]
        if not around and on_driver:
            return frozenset(self.driver)
        return frozenset(each for name in around for each in self.may_hold[name])

    def root(self, name: str) -> str:
        """The deployment whose files a deployment sees: the innermost that it wraps."""
        return list(self._inwards(name))[-1]

    def _inwards(self, name: str | None) -> Iterator[str]:
        seen: set[str] = set()
        while name is not None and name not in seen:
            seen.add(name)
            yield name
            name = self.wraps.get(name)

    def fault(
        self, port: Port | None, classes: Iterable[str], names: Sequence[str], *, on_driver: bool
    ) -> Fault | None:
        """Why something may not go to a place; None if it may.

        Args:
            port: through which it goes, where that is known.
            classes: of the data; none where they are not known, which no place may hold.
        """
        classes = frozenset(classes)
        allowed, what, told = self.allowed(names, on_driver=on_driver), _spelled(port), in_order(classes)
        place = (
            "this machine, which drives the run," if on_driver and names[0] not in self.may_hold else f"'{names[0]}'"
        )
        holds = ", ".join(in_order(allowed)) or "nothing"
        if not told and DEFINITION in classes:
            return None
        if not told:
            return Fault(
                what=f"{what} was not sent: nothing says which data it carries.",
                seen=f"no class in {WHERE}.carries; {place} may hold {holds}",
                expected=f"one of {', '.join(CLASSES)}",
                do="give it a class in `holds` of the workflow's roles.yml, and run `medweave bind` again",
            )
        if not (forbidden := in_order(set(told) - allowed)):
            return None
        places = able(told, self.may_hold)
        step = f"bind {port.step} to {' or '.join(places)}, or " if port and port.step != WORKFLOW and places else ""
        return Fault(
            what=f"{what} was not sent: it must not lie at {place.rstrip(',')}.",
            seen=f"{', '.join(forbidden)} data; {place} may hold {holds} ({WHERE})",
            expected=f"a place that may hold {', '.join(told)}: {', '.join(places) or 'there is none'}",
            do=f"{step}correct `mayHold` of the site file if it is wrong, and run `medweave bind` again",
        )


class Known:
    """The classes of files and folders that were seen, by place and path. What was noted once stays."""

    def __init__(self) -> None:
        self._own: dict[tuple[str, str], frozenset[str]] = {}
        self._below: dict[tuple[str, str], frozenset[str]] = {}

    def note(self, place: str, path: str, classes: Iterable[str]) -> None:
        """A file or folder has these classes, besides those that are known of it."""
        more = frozenset(classes)
        self._own[place, path] = self._own.get((place, path), frozenset()) | more
        for above in PurePosixPath(path).parents:
            key = place, str(above)
            self._below[key] = self._below.get(key, frozenset()) | more

    def of(self, place: str, path: str) -> frozenset[str]:
        """Its own classes, those of the folders that it lies in, and those of what lies in it; empty where nothing is known."""
        pure = PurePosixPath(path)
        found = [self._own.get((place, str(each)), frozenset()) for each in (pure, *pure.parents)]
        return frozenset().union(*found, self._below.get((place, str(pure)), frozenset()))


def in_order(classes: Iterable[str]) -> list[str]:
    """Classes, the one that tells most of a person first."""
    wanted = set(classes)
    return [each for each in CLASSES if each in wanted]


def wraps_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Which deployment wraps which, of a parsed streamflow.yml."""
    found = {}
    for name, deployment in (config.get("deployments") or {}).items():
        inner = deployment.get("wraps")
        inner = inner.get("deployment") if isinstance(inner, Mapping) else inner
        if inner is not None:
            found[str(name)] = str(inner)
    return found


def _spelled(port: Port | None) -> str:
    if port is None:
        return "a file or folder"
    return f"the output {port.name}" if port.step == WORKFLOW else f"{port.step}: its input {port.name}"
