"""The releases that helm has written down in a namespace, and whose they are. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from medweave_core.untrusted_text import whole_number

DEPLOYMENT = "medweave.dev/deployment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The newest revision of a release.

    Attributes:
        status: helm's word: `deployed`, `failed`, `pending-install` (its helm was killed) …
        labels: of its record.
    """

    name: str
    status: str
    labels: Mapping[str, str]


def parse(records: Iterable[Mapping[str, Any]]) -> list[Release]:
    """The releases of helm's records (secrets with the label `owner=helm`), by their metadata."""
    newest: dict[str, tuple[int, Mapping[str, str]]] = {}
    for record in records:
        labels = record.get("labels") or {}
        name, revision = labels.get("name", ""), whole_number(str(labels.get("version", 0))) or 0
        if name and revision >= newest.get(name, (0, {}))[0]:
            newest[name] = revision, labels
    return [
        Release(name=name, status=labels.get("status", "unknown"), labels=labels)
        for name, (_, labels) in sorted(newest.items())
    ]
