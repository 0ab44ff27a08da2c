"""Data classes of steps, and the classes that a deployment may hold. No StreamFlow in this module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import get_args

from medweave_core.contracts.volume import DataClass

CLASSES: tuple[str, ...] = get_args(DataClass)
MayHold = Mapping[str, Iterable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The error of a placement or transfer, in the parts of its message."""

    what: str
    seen: str
    expected: str
    do: str


def forbidden_classes(classes: Iterable[str], deployment: str, may_hold: MayHold) -> list[str]:
    """Return the classes that a deployment may not hold; all of them if no rule names the deployment.

    Args:
        classes: of the data that a step reads and writes.
        may_hold: classes by deployment.
    """
    forbidden = set(classes) - set(may_hold.get(deployment, ()))
    return [name for name in CLASSES if name in forbidden]


def allowed_deployments(classes: Iterable[str], may_hold: MayHold) -> list[str]:
    """Return the deployments that may hold all of these classes."""
    classes = list(classes)
    return [name for name in may_hold if not forbidden_classes(classes, name, may_hold)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRules:
    """The data rules of a streamflow.yml: the settings of a binding filter.

    Attributes:
        where: path of the settings in the file.
        holds: classes by the path of a step; they apply to the steps below it too.
        may_hold: classes by deployment; empty if nothing is restricted.
    """

    where: str
    holds: Mapping[str, Iterable[str]]
    may_hold: MayHold

    def fault(self, step: str, deployment: str) -> Fault | None:
        """Return why a step may not run at a deployment; None if it may."""
        if not self.may_hold:
            return None
        path = PurePosixPath(step)
        line = next((str(parent) for parent in (path, *path.parents) if str(parent) in self.holds), None)
        if line is None:
            return Fault(
                what=f"{self.where}.holds: the data classes of step {step} are not declared.",
                seen=f"lines for {', '.join(self.holds) or 'no step'}",
                expected=f"{step}: [{', '.join(CLASSES)}], or some of these",
                do="write that line, or run `medweave bind` again",
            )
        classes = list(self.holds[line])
        forbidden = forbidden_classes(classes, deployment, self.may_hold)
        if not forbidden:
            return None
        allowed = ", ".join(self.may_hold.get(deployment, ())) or "nothing: it is not listed"
        deployments = allowed_deployments(classes, self.may_hold)
        return Fault(
            what=f"{self.where}.mayHold.{deployment}: step {step} must not run there, because of its data.",
            seen=f"{', '.join(forbidden)} (holds.{line}) at deployment '{deployment}', which may hold {allowed}",
            expected=f"a deployment that may hold {', '.join(classes)}: {', '.join(deployments) or 'none'}",
            do=f"bind {step} to {' or '.join(deployments)}"
            if deployments
            else "correct the data rules, if they are wrong",
        )
