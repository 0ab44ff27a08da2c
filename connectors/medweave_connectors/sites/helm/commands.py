"""What helm is told, and what its answers mean. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

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
        """Options that tell where it comes from, and which one it is."""
        words = ["--repo", self.repository] if self.repository else []
        return [*words, "--version", self.version] if self.version else words


def install(
    release: str,
    chart: Chart,
    access: Access,
    *,
    values: Sequence[str],
    labels: Mapping[str, str],
    timeout_s: int,
    replaces: bool = False,
) -> list[str]:
    """Return the words that create a release; the wait for its pods is ours, because helm's says nothing meanwhile.

    Args:
        replaces: a release of that name is changed; else helm refuses a name that is taken.
    """
    return [
        "helm",
        *(("upgrade", "--install") if replaces else ("install",)),
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


def listed(release: str, access: Access, labels: Mapping[str, str]) -> list[str]:
    """Return the words that print the name of a release, in whatever state, if it has these labels."""
    # Helm 3 shows some states only by default; Helm 4 has no `--all`.
    states = ("deployed", "failed", "pending", "superseded", "uninstalled", "uninstalling")
    selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    return [
        "helm", "list", "--short", "--filter", f"^{re.escape(release)}$", *(f"--{state}" for state in states),
        *(("--selector", selector) if selector else ()), *access.words(),
    ]  # fmt: skip


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


def failing_key(reason: str, values: Mapping[str, Any]) -> str:
    """The key of the deployment's config that a reason is most likely about: `values.worker.replicas`.

    Args:
        values: those of the config; what a values file brings is no key of it.
    """
    text = reason.lower()
    if "schema" in text or "values" in text:
        pointer = re.search(r"at '((?:/[^']+)*)'", reason)
        return _known_key("values", values, pointer[1].split("/")[1:] if pointer else [])
    if "forbidden" in text or "namespace" in text:
        return "namespace"
    if "unauthorized" in text or "kubeconfig" in text or "unreachable" in text or "connection" in text:
        return "kubeconfig"
    return "chart"


def chart_trouble(reason: str, chart: Chart) -> tuple[str, str] | None:
    """The key of the config and what to do where a chart did not come from its repository or registry; None for other reasons."""
    source = chart.repository or (chart.reference if "://" in chart.reference else "")
    host = urlsplit(source).netloc.rpartition("@")[2]
    if not host or host not in reason:
        return None
    text = reason.lower()
    key = "repo" if chart.repository else "chart"
    if re.search(r"certificate|x509", text):
        return key, f"put the authority of {host} into the file that the variable SSL_CERT_FILE names"
    if re.search(r"\b40[13]\b|credential|unauthorized|denied", text):
        login = f"`helm registry login {host}`"
        if chart.repository:
            login = "fetch the chart with `helm pull` and write the archive's path as `chart`"
        return key, f"{host} wants a login: {login}"
    if re.search(r"\b404\b|not found", text):
        named = f"version {chart.version} of {chart.reference}" if chart.version else chart.reference
        return ("chartVersion" if chart.version else "chart"), f"correct the name or the version; {host} has no {named}"
    return key, f"correct the address, or look whether this machine reaches {host} (network, HTTPS_PROXY)"


def key_of_image(values: Mapping[str, Any], image: str) -> str:
    """The key of the config that names an image, wherever a chart wants it: `values.image`; `values` where none does.

    Args:
        image: as the pod has it, `host/name:tag`. A value that is all of it names it, as does a mapping with a value that is
            all but the tag or digest.
    """
    name = re.sub(r"(@[^/]*|:[^/]*)$", "", image)
    return _key_with(values, image, name, "values") or "values"


def _key_with(values: Mapping[str, Any], image: str, name: str, where: str) -> str:
    for key, value in values.items():
        if isinstance(value, Mapping) and (found := _key_with(value, image, name, f"{where}.{key}")):
            return found
        if image and value == image:
            return f"{where}.{key}"
        if name and value == name:
            return where
    return ""


def _known_key(where: str, value: Any, way: Sequence[str]) -> str:
    # As far as the way leads: a key that is missing has no place in the file.
    if way and isinstance(value, Mapping) and way[0] in value:
        return _known_key(f"{where}.{way[0]}", value[way[0]], way[1:])
    if way and isinstance(value, list) and way[0].isdecimal() and int(way[0]) < len(value):
        return _known_key(f"{where}[{way[0]}]", value[int(way[0])], way[1:])
    return where
