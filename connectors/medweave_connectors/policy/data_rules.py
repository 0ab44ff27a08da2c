"""Classes of data: what a step holds, and what may lie at a deployment. No streamflow in here."""

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
    """What is wrong with a placement, in the parts of an error message."""

    what: str
    seen: str
    expected: str
    do: str


def too_sensitive(held: Iterable[str], deployment: str, may_hold: MayHold) -> list[str]:
    """The classes that a step holds and its deployment may not; all of them where no line names the deployment.

    Args:
        held: classes of what the step reads and writes.
        may_hold: classes by deployment.
    """
    allowed = set(may_hold.get(deployment, ()))
    return [each for each in CLASSES if each in set(held) - allowed]


def able(held: Iterable[str], may_hold: MayHold) -> list[str]:
    """The deployments that may hold all of these classes."""
    wanted = list(held)
    return [name for name in may_hold if not too_sensitive(wanted, name, may_hold)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRules:
    """The data rules of a streamflow.yml: the settings of a binding filter.

    Attributes:
        where: the settings' place in the file.
        holds: classes by the path of a step; they are those of the steps below it too.
        may_hold: classes by deployment; empty where nothing is restricted.
    """

    where: str
    holds: Mapping[str, Iterable[str]]
    may_hold: MayHold

    def fault(self, step: str, deployment: str) -> Fault | None:
        """Why a step may not run at a deployment; None if it may."""
        if not self.may_hold:
            return None
        path = PurePosixPath(step)
        line = next((str(each) for each in (path, *path.parents) if str(each) in self.holds), None)
        if line is None:
            return Fault(
                what=f"{self.where}.holds: nothing says which data step {step} reads and writes.",
                seen=f"lines for {', '.join(self.holds) or 'no step'}",
                expected=f"{step}: [{', '.join(CLASSES)}], or some of these",
                do="write that line, or run `medweave bind` again",
            )
        held = list(self.holds[line])
        forbidden = too_sensitive(held, deployment, self.may_hold)
        if not forbidden:
            return None
        allowed = ", ".join(self.may_hold.get(deployment, ())) or "nothing, as no line names it"
        places = able(held, self.may_hold)
        return Fault(
            what=f"{self.where}.mayHold.{deployment}: step {step} must not run there, for what it reads and writes.",
            seen=f"{', '.join(forbidden)} (holds.{line}) at deployment '{deployment}', which may hold {allowed}",
            expected=f"a deployment that may hold {', '.join(held)}: {', '.join(places) or 'there is none'}",
            do=f"bind {step} to {' or '.join(places)}" if places else "correct the data rules, if they are wrong",
        )
