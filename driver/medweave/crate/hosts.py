"""Names of hosts that a run told of, and texts and files without them."""

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
    """Names of hosts, pods and places at sites; the longest first."""

    names: tuple[str, ...]

    def without(self, text: str) -> str:
        """A text in which they and IP addresses are not named."""
        for name in self.names:
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", HIDDEN, text)
        return _ADDRESS.sub(HIDDEN, text)

    def are_in(self, content: bytes) -> bool:
        """Whether a file names one of them."""
        return any(name.encode() in content for name in self.names)


@dataclass(frozen=True, slots=True)
class Image:
    """A container image.

    Attributes:
        registry: its host, empty for the default one.
        name: the beginning of the digest where the site knows no name.
        sha256: of its manifest; empty where the site did not tell.
    """

    registry: str
    name: str
    tag: str
    sha256: str


def hosts_of(record: Run) -> Hosts:
    """All that the run's log tells, and this machine."""
    found = {platform.node(), platform.node().partition(".")[0]}
    for job in record.jobs:
        found |= {place.partition(":")[0] for place in (job.location or "").split(",")}
        found |= set(_named(job.site))
        found |= {rank.host for rank in job.report.ranks} if job.report else set()
    return Hosts(tuple(sorted((each for each in found - {HERE} if len(each) >= SHORTEST), key=len, reverse=True)))


def images_of(site: Mapping[str, Any]) -> list[Image]:
    """The images of a job's pods, each once."""
    told = [str(pod.get("image", "")) for pod in site.get("pods") or () if isinstance(pod, Mapping)]
    return [image for text in dict.fromkeys(told) if text and (image := read_image(text)) is not None]


def read_image(text: str) -> Image | None:
    """`docker.io/library/medweave:1@sha256:…`, also as Kubernetes tells it (`docker-pullable://…`), or a digest alone."""
    if (bare := _DIGEST.fullmatch(text)) is not None:
        return Image("", text[:SHOWN_OF_DIGEST], "", bare[1])
    found = _IMAGE.match(text.partition("://")[2] or text)
    if found is None:
        return None
    return Image(found["registry"] or "", found["name"], found["tag"] or "", found["sha256"] or "")


def _named(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            if key in _OF_A_HOST and isinstance(each, str):
                yield from (part for part in re.split(r"[,\s]+", each) if part)
            else:
                yield from _named(each)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for each in value:
            yield from _named(each)
