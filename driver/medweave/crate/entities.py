"""Entities of a crate, each id once."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from typing import Any

from rocrate.model.contextentity import ContextEntity
from rocrate.model.data_entity import DataEntity
from rocrate.rocrate import ROCrate

Properties = Mapping[str, Any]
_UNSAFE = re.compile(r"[^A-Za-z0-9._/-]+")
_NAMESPACE = "https://w3id.org/ro/terms/workflow-run#"
# Of the profile, and not in the context of RO-Crate 1.1.
TERMS = (
    "ParameterConnection", "connection", "sourceParameter", "targetParameter", "sha256", "ContainerImage", "DockerImage",
    "containerImage", "registry", "tag", "resourceUsage",
)  # fmt: skip


class Entities:
    """The entities of a crate, by id."""

    def __init__(self) -> None:
        self.crate = ROCrate(version="1.1")
        self.crate.metadata.extra_terms.update({term: f"{_NAMESPACE}{term}" for term in TERMS})

    def add(self, identifier: str, kind: str | list[str], properties: Properties) -> Any:
        """Return a contextual entity, which is added if its id is new."""
        known = self.crate.get(identifier)
        return known or self.crate.add(
            ContextEntity(self.crate, identifier, {"@type": kind, **_without_empty(properties)})
        )

    def add_data(self, identifier: str, kind: str, properties: Properties) -> Any:
        """Return a file or folder that the crate describes without containing it."""
        known = self.crate.get(identifier)
        return known or self.crate.add(
            DataEntity(self.crate, identifier, {"@type": kind, **_without_empty(properties)})
        )

    def software(self, name: str, version: str) -> Any:
        """Return a program or library."""
        return self.add(
            fragment("software", f"{name}-{version}"), "SoftwareApplication", {"name": name, "softwareVersion": version}
        )


def named_by(sha256: str) -> str:
    """Return the id of a file or folder by its digest (RFC 6920)."""
    return f"ni:///sha-256;{base64.urlsafe_b64encode(bytes.fromhex(sha256)).decode().rstrip('=')}"


def fragment(*words: str) -> str:
    """Return an id inside the crate."""
    return "#" + "/".join(_UNSAFE.sub("-", word).strip("/") for word in words)


def extend(entity: Any, name: str, values: Iterable[Any]) -> None:
    """Add to a property the values that it does not have yet."""
    for value in values:
        known = entity.get(name)
        existing = known if isinstance(known, list) else [] if known is None else [known]
        if value not in existing:
            entity.append_to(name, value)


def _without_empty(properties: Properties) -> dict[str, Any]:
    return {name: value for name, value in properties.items() if value not in (None, "", [])}
