"""Names of hosts in the log of a run, and their removal from texts."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medweave_core.runlog.history import Run

HIDDEN = "[a host]"
SHOWN_OF_DIGEST = 19  # sha256: and twelve digits, as Docker shows it
HERE = "__LOCAL__"  # the engine's name for this machine
SHORTEST = 3
_OF_A_HOST = ("node", "nodes", "pod", "host", "namespace")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b(?::\d+)?")
_IMAGE = re.compile(
    r"(?:(?P<registry>[^/@]*[.:][^/@]*|localhost)/)?(?P<name>[^@]+?)(?::(?P<tag>[\w.-]+))?(?:@sha256:(?P<sha256>[0-9a-f]{64}))?\Z"
)


@dataclass(frozen=True, slots=True)
class Hosts:
    """Names of hosts, pods and namespaces, longest first."""

    names: tuple[str, ...]

    def without(self, text: str) -> str:
        """Return a text with these names and IP addresses replaced."""
        for name in self.names:
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", HIDDEN, text)
        return _ADDRESS.sub(HIDDEN, text)

    def are_in(self, content: bytes) -> bool:
        """Return whether content contains one of these names."""
        return any(name.encode() in content for name in self.names)


@dataclass(frozen=True, slots=True)
class Image:
    """A container image.

    Attributes:
        registry: its host, empty for the default one.
        name: the start of the digest if the site knows no name.
        sha256: digest of its manifest; empty if unknown.
    """

    registry: str
    name: str
    tag: str
    sha256: str


def hosts_of(record: Run) -> Hosts:
    """Return the names in the log of a run, and those of this machine."""
    names = {platform.node(), platform.node().partition(".")[0]}
    for job in record.jobs:
        names |= {place.partition(":")[0] for place in (job.location or "").split(",")}
        names |= set(_named(job.site))
        names |= {rank.host for rank in job.report.ranks} if job.report else set()
    return Hosts(tuple(sorted((name for name in names - {HERE} if len(name) >= SHORTEST), key=len, reverse=True)))


def images_of(site: Mapping[str, Any]) -> list[Image]:
    """Return the images of a job's pods, each once."""
    image_names = [str(pod.get("image", "")) for pod in site.get("pods") or () if isinstance(pod, Mapping)]
    return [image for text in dict.fromkeys(image_names) if text and (image := read_image(text)) is not None]


def read_image(text: str) -> Image | None:
    """Return the image of `docker.io/library/medweave:1@sha256:…`, of Kubernetes' `docker-pullable://…`, or of a digest alone."""
    if (bare := _DIGEST.fullmatch(text)) is not None:
        return Image("", text[:SHOWN_OF_DIGEST], "", bare[1])
    match = _IMAGE.match(text.partition("://")[2] or text)
    if match is None:
        return None
    return Image(match["registry"] or "", match["name"], match["tag"] or "", match["sha256"] or "")


def _named(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key in _OF_A_HOST and isinstance(item, str):
                yield from (part for part in re.split(r"[,\s]+", item) if part)
            else:
                yield from _named(item)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            yield from _named(item)
