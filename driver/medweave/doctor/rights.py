"""The Kubernetes rights that a run needs in a namespace, as listed in docs/how-to/run-in-kubernetes.md."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

FILES = ("get", "create", "patch", "delete")
HELM = ("get", "list", "create", "update", "patch", "delete")


@dataclass(frozen=True, slots=True)
class Right:
    """The right to some verbs on one resource.

    Attributes:
        resource: name in the plural, with its subresource after a slash.
        without: how a run is limited without it; empty if the run fails.
    """

    group: str
    resource: str
    verbs: tuple[str, ...]
    without: str = ""

    @property
    def name(self) -> str:
        """Return the resource and group as kubectl writes them."""
        return f"{self.resource}.{self.group}" if self.group else self.resource

    @property
    def is_needed(self) -> bool:
        """Return whether a run fails without it."""
        return not self.without


PODS = (
    Right("", "pods", ("get", "list")),
    Right("", "pods/exec", ("get", "create")),
    Right("", "events", ("list",), "messages have less detail, and cluster scale-up is not detected"),
)
JOBS = (
    Right("batch", "jobs", ("list", "create", "delete")),
    Right(
        "batch",
        "jobs",
        ("patch",),
        "jobs of a killed driver are not re-attached: they are deleted, and their steps run again",
    ),
    Right("", "pods", ("delete",), "pods of an ended run stay for the full grace period of their template"),
)


def of_kinds(kinds: Iterable[tuple[str, str]], verbs: tuple[str, ...]) -> list[Right]:
    """Return rights to the same verbs on some kinds of objects, each once.

    Args:
        kinds: pairs of apiVersion and kind.
    """
    return [Right(group, _plural(kind), verbs) for group, kind in sorted({(_group(api), kind) for api, kind in kinds})]


def _group(api_version: str) -> str:
    return api_version.partition("/")[0] if "/" in api_version else ""


def _plural(kind: str) -> str:
    """Return the plural of a kind by the rules of English, which hold for all kinds of Kubernetes."""
    word = kind.lower()
    if word.endswith(("s", "x", "ch")):
        return word + "es"
    return word[:-1] + "ies" if word.endswith("y") and word[-2] not in "aeiou" else word + "s"
