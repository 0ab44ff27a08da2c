"""Data classes of transfers: declared for ports, known of files, allowed at deployments. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from medweave_connectors.policy.data_rules import CLASSES, Fault, allowed_deployments

WORKFLOW = "/"  # the path of the workflow's inputs and outputs
# The class of a file or folder that a CWL document names as a default, such as a tool's script: it holds no data of people, and
# may lie wherever the step runs.
DEFINITION = "definition"
WHERE = "dataManager.config.dataRules"
_TRANSFER, _COLLECTOR = "__transfer__", "-collector"  # in StreamFlow's names of its transfer steps


@dataclass(frozen=True, slots=True)
class StepPort:
    """An input or output of a step.

    Attributes:
        step: its path; `/` for inputs and outputs of the workflow.
    """

    step: str
    name: str


def port_of(transfer_step: str) -> StepPort | None:
    """Return the input or workflow output that a transfer step of StreamFlow serves; None for another name."""
    path = PurePosixPath(transfer_step)
    if path.parent.name == _TRANSFER:
        return StepPort(str(path.parents[1]), path.name)
    if path.name.endswith(_COLLECTOR):
        return StepPort(str(path.parent), path.name.removesuffix(_COLLECTOR))
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The data rules of the data manager's settings.

    Attributes:
        carries: classes by path of the step and name of its input or output; those of the workflow under `/`.
        may_hold: classes by deployment.
        driver: classes that may lie on the driver's machine, which receives the results.
        wraps: the deployment that another one wraps, by the name of the outer one: both have the same files.
    """

    carries: Mapping[str, Mapping[str, Iterable[str]]]
    may_hold: Mapping[str, Iterable[str]]
    driver: Iterable[str] = ()
    wraps: Mapping[str, str] = field(default_factory=dict)

    def declared(self, port: StepPort) -> frozenset[str]:
        """Return the declared classes of a port; empty without a declaration."""
        return frozenset(self.carries.get(port.step, {}).get(port.name, ()))

    def declared_outside(self, port: StepPort) -> frozenset[str]:
        """Return all classes of the step that contains the port's step; empty for a step of the workflow itself."""
        outer_steps = [str(step) for step in PurePosixPath(port.step).parents if str(step) != WORKFLOW]
        ports = next((self.carries[step] for step in outer_steps if step in self.carries), {})
        return frozenset(name for classes in ports.values() for name in classes)

    def allowed(self, names: Sequence[str], *, on_driver: bool) -> frozenset[str]:
        """Return the classes that a location may hold.

        Args:
            names: its deployment and those that it wraps, the outermost first.
            on_driver: the location is on the driver's machine.
        """
        for name in [inner for outer in names for inner in self._inwards(outer)]:
            if name in self.may_hold:
                return frozenset(self.may_hold[name])
        wrapping = [name for name in self.may_hold if names[0] in self._inwards(name)]
        if not wrapping and on_driver:
            return frozenset(self.driver)
        return frozenset(allowed for name in wrapping for allowed in self.may_hold[name])

    def root(self, name: str) -> str:
        """Return the innermost deployment that a deployment wraps: both see the same files."""
        return list(self._inwards(name))[-1]

    def _inwards(self, name: str | None) -> Iterator[str]:
        seen: set[str] = set()
        while name is not None and name not in seen:
            seen.add(name)
            yield name
            name = self.wraps.get(name)

    def fault(
        self, port: StepPort | None, classes: Iterable[str], names: Sequence[str], *, on_driver: bool
    ) -> Fault | None:
        """Return why data may not be sent to a location; None if it may.

        Args:
            port: through which the data is sent, if known.
            classes: of the data. Data without a known class may lie nowhere.
        """
        classes = frozenset(classes)
        allowed, what, ordered = self.allowed(names, on_driver=on_driver), _name_of(port), most_sensitive_first(classes)
        place = "the driver's machine" if on_driver and names[0] not in self.may_hold else f"'{names[0]}'"
        holds = ", ".join(most_sensitive_first(allowed)) or "nothing"
        if not ordered and DEFINITION in classes:
            return None
        if not ordered:
            return Fault(
                what=f"{what} was not sent: its data class is not declared.",
                seen=f"no class in {WHERE}.carries; {place} may hold {holds}",
                expected=f"one of {', '.join(CLASSES)}",
                do="give it a class in `holds` of the workflow's roles.yml, and run `medweave bind` again",
            )
        if not (forbidden := most_sensitive_first(set(ordered) - allowed)):
            return None
        deployments = allowed_deployments(ordered, self.may_hold)
        step = (
            f"bind {port.step} to {' or '.join(deployments)}, or "
            if port and port.step != WORKFLOW and deployments
            else ""
        )
        return Fault(
            what=f"{what} was not sent: it must not be stored at {place}.",
            seen=f"{', '.join(forbidden)} data; {place} may hold {holds} ({WHERE})",
            expected=f"a place that may hold {', '.join(ordered)}: {', '.join(deployments) or 'none'}",
            do=f"{step}correct `mayHold` of the site file if it is wrong, and run `medweave bind` again",
        )


class FileClasses:
    """The classes of files and folders, by location and path. A class is never removed."""

    def __init__(self) -> None:
        self._own: dict[tuple[str, str], frozenset[str]] = {}
        self._below: dict[tuple[str, str], frozenset[str]] = {}

    def note(self, place: str, path: str, classes: Iterable[str]) -> None:
        """Add classes to those of a file or folder."""
        more = frozenset(classes)
        self._own[place, path] = self._own.get((place, path), frozenset()) | more
        for above in PurePosixPath(path).parents:
            key = place, str(above)
            self._below[key] = self._below.get(key, frozenset()) | more

    def of(self, place: str, path: str) -> frozenset[str]:
        """Return the classes of a file or folder, of the folders that contain it, and of its contents; empty if none is known."""
        pure = PurePosixPath(path)
        from_above = [self._own.get((place, str(parent)), frozenset()) for parent in (pure, *pure.parents)]
        return frozenset().union(*from_above, self._below.get((place, str(pure)), frozenset()))


def most_sensitive_first(classes: Iterable[str]) -> list[str]:
    """Return the classes in the order of their sensitivity."""
    unordered = set(classes)
    return [name for name in CLASSES if name in unordered]


def wraps_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the wrapped deployment of each deployment that has one, in a parsed streamflow.yml."""
    wrapped = {}
    for name, deployment in (config.get("deployments") or {}).items():
        inner = deployment.get("wraps")
        inner = inner.get("deployment") if isinstance(inner, Mapping) else inner
        if inner is not None:
            wrapped[str(name)] = str(inner)
    return wrapped


def _name_of(port: StepPort | None) -> str:
    if port is None:
        return "a file or folder"
    return f"the output {port.name}" if port.step == WORKFLOW else f"{port.step}: its input {port.name}"
