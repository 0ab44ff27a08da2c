"""What helm is told, and what its answers mean. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

OLDEST = (3, 13)  # the first version with `--labels`
NAME_LENGTH = 53


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How helm reaches the cluster: the same way as the connector."""

    namespace: str
    kubeconfig: str | None
    context: str | None

    def words(self) -> list[str]:
        """Options that every command gets."""
        words = ["--namespace", self.namespace]
        if self.kubeconfig:
            words += ["--kubeconfig", self.kubeconfig]
        if self.context:
            words += ["--kube-context", self.context]
        return words


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Where a chart comes from.

    Attributes:
        reference: a folder or archive, `oci://…`, or a name in `repository`.
        version: None for the newest.
    """

    reference: str
    repository: str | None = None
    version: str | None = None

    def words(self) -> list[str]:
        """Options that name it."""
        words = ["--repo", self.repository] if self.repository else []
        return [*words, "--version", self.version] if self.version else words


def install(
    release: str, chart: Chart, access: Access, *, values: Sequence[str], labels: Mapping[str, str], timeout_s: int
) -> list[str]:
    """Makes a release or changes it; the wait for its pods is ours, because helm's says nothing meanwhile."""
    return [
        "helm",
        "upgrade",
        "--install",
        release,
        chart.reference,
        *access.words(),
        *chart.words(),
        "--labels",
        ",".join(f"{key}={value}" for key, value in sorted(labels.items())),
        "--timeout",
        f"{timeout_s}s",
        *(word for file in values for word in ("--values", file)),
    ]


def uninstall(release: str, access: Access) -> list[str]:
    """Removes a release; one that is gone already is no error."""
    return ["helm", "uninstall", release, "--ignore-not-found", *access.words()]


def manifest(release: str, access: Access) -> list[str]:
    """Prints what the release consists of."""
    return ["helm", "get", "manifest", release, *access.words()]


def version() -> list[str]:
    """Prints `v4.3.1`."""
    return ["helm", "version", "--template", "{{.Version}}"]


def parse_version(text: str) -> tuple[int, int] | None:
    """Major and minor version; None if it is none."""
    found = re.match(r"v?(\d+)\.(\d+)", text.strip())
    return (int(found[1]), int(found[2])) if found else None


def release_name(deployment: str, suffix: str) -> str:
    """A name for a release of its own: lower-case letters, digits and `-`, at most 53 characters."""
    stem = re.sub(r"[^a-z0-9-]+", "-", deployment.lower()).strip("-") or "medweave"
    return f"{stem[: NAME_LENGTH - len(suffix) - 1].rstrip('-')}-{suffix}"


def failure(stderr: str) -> str:
    """Helm's reason, without its usage text and warnings."""
    lines = [line for line in stderr.splitlines() if line.strip() and not line.startswith(("WARNING", "level="))]
    start = next((number for number, line in enumerate(lines) if line.lower().startswith("error:")), 0)
    told = "\n".join(lines[start:]).strip()
    return re.sub(r"^error:\s*", "", told, flags=re.IGNORECASE) or "helm said nothing"


def failing_key(reason: str) -> str:
    """The key of the deployment's config that a reason is most likely about."""
    text = reason.lower()
    if "schema" in text or "values" in text:
        return "values"
    if "forbidden" in text or "namespace" in text:
        return "namespace"
    if "unauthorized" in text or "kubeconfig" in text or "unreachable" in text or "connection" in text:
        return "kubeconfig"
    return "chart"
