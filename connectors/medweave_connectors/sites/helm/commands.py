"""Command lines for helm, and parsing of its output. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from medweave_core.untrusted_text import whole_number

OLDEST = (3, 13)  # the first version with `--labels`
NAME_LENGTH = 53
DEPLOYMENT = "medweave.dev/deployment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Cluster access for helm, equal to the connector's."""

    namespace: str
    kubeconfig: str | None
    context: str | None

    def words(self) -> list[str]:
        """Return the options of every command."""
        words = ["--namespace", self.namespace]
        if self.kubeconfig:
            words += ["--kubeconfig", self.kubeconfig]
        if self.context:
            words += ["--kube-context", self.context]
        return words


@dataclass(frozen=True, slots=True, kw_only=True)
class HelmChart:
    """Where a chart comes from.

    Attributes:
        reference: a folder or archive, `oci://…`, or a name in `repository`.
        version: None for the newest.
    """

    reference: str
    repository: str | None = None
    version: str | None = None

    def words(self) -> list[str]:
        """Return the options for the chart's repository and version."""
        words = ["--repo", self.repository] if self.repository else []
        return [*words, "--version", self.version] if self.version else words


def build_install_command(
    release: str,
    chart: HelmChart,
    access: Access,
    *,
    values: Sequence[str],
    labels: Mapping[str, str],
    timeout_s: int,
    replaces: bool = False,
) -> list[str]:
    """Return the words that create a release; medweave waits for the pods itself, because helm prints nothing while it waits.

    Args:
        replaces: upgrade an existing release of that name; otherwise helm refuses the name.
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


def build_list_command(release: str, access: Access, labels: Mapping[str, str]) -> list[str]:
    """Return the words that print the name of a release, in whatever state, if it has these labels."""
    # Helm 3 shows some states only by default; Helm 4 has no `--all`.
    states = ("deployed", "failed", "pending", "superseded", "uninstalled", "uninstalling")
    selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    return [
        "helm", "list", "--short", "--filter", f"^{re.escape(release)}$", *(f"--{state}" for state in states),
        *(("--selector", selector) if selector else ()), *access.words(),
    ]  # fmt: skip


def build_uninstall_command(release: str, access: Access) -> list[str]:
    """Return the words that remove a release; a missing release is no error."""
    return ["helm", "uninstall", release, "--ignore-not-found", *access.words()]


def build_manifest_command(release: str, access: Access) -> list[str]:
    """Return the words that print the manifest of a release."""
    return ["helm", "get", "manifest", release, *access.words()]


def build_version_command() -> list[str]:
    """Return the words that print helm's version, `v4.3.1`."""
    return ["helm", "version", "--template", "{{.Version}}"]


def parse_version(text: str) -> tuple[int, int] | None:
    """Return the major and minor version; None for other text."""
    match = re.match(r"v?(\d+)\.(\d+)", text.strip())
    return (int(match[1]), int(match[2])) if match else None


def build_release_name(deployment: str, suffix: str) -> str:
    """Return a release name for one run: lower-case letters, digits and `-`, at most 53 characters."""
    stem = re.sub(r"[^a-z0-9-]+", "-", deployment.lower()).strip("-") or "medweave"
    return f"{stem[: NAME_LENGTH - len(suffix) - 1].rstrip('-')}-{suffix}"


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


def parse_releases(records: Iterable[Mapping[str, Any]]) -> list[Release]:
    """Return the releases in helm's records: the metadata of secrets with the label `owner=helm`."""
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


def parse_failure(stderr: str) -> str:
    """Return helm's reason, without its usage text and warnings."""
    lines = [line for line in stderr.splitlines() if line.strip() and not line.startswith(("WARNING", "level="))]
    start = next((number for number, line in enumerate(lines) if line.lower().startswith("error:")), 0)
    reason = "\n".join(lines[start:]).strip()
    return re.sub(r"^error:\s*", "", reason, flags=re.IGNORECASE) or "helm printed no message"


def find_failing_key(reason: str, values: Mapping[str, Any]) -> str:
    """Return the key of the deployment's config that probably caused the error: `values.worker.replicas`.

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


def explain_chart_failure(reason: str, chart: HelmChart) -> tuple[str, str] | None:
    """Return the config key and advice for a chart that could not be fetched from its repository or registry; None otherwise."""
    source = chart.repository or (chart.reference if "://" in chart.reference else "")
    host = urlsplit(source).netloc.rpartition("@")[2]
    if not host or host not in reason:
        return None
    text = reason.lower()
    key = "repo" if chart.repository else "chart"
    if re.search(r"certificate|x509", text):
        return key, f"add the CA certificate of {host} to the file that the variable SSL_CERT_FILE names"
    if re.search(r"\b40[13]\b|credential|unauthorized|denied", text):
        login = f"`helm registry login {host}`"
        if chart.repository:
            login = "fetch the chart with `helm pull` and write the archive's path as `chart`"
        return key, f"{host} requires a login: {login}"
    if re.search(r"\b404\b|not found", text):
        named = f"version {chart.version} of {chart.reference}" if chart.version else chart.reference
        return ("chartVersion" if chart.version else "chart"), f"correct the name or the version; {host} has no {named}"
    return key, f"correct the address, or check whether this machine reaches {host} (network, HTTPS_PROXY)"


def find_image_key(values: Mapping[str, Any], image: str) -> str:
    """Return the config key that names an image: `values.image`; `values` if no key does.

    Args:
        image: as the pod has it, `host/name:tag`. A value that is all of it names it, as does a mapping with a value that is
            all but the tag or digest.
    """
    name = re.sub(r"(@[^/]*|:[^/]*)$", "", image)
    return _key_with(values, image, name, "values") or "values"


def _key_with(values: Mapping[str, Any], image: str, name: str, where: str) -> str:
    for key, value in values.items():
        if isinstance(value, Mapping) and (inner := _key_with(value, image, name, f"{where}.{key}")):
            return inner
        if image and value == image:
            return f"{where}.{key}"
        if name and value == name:
            return where
    return ""


def _known_key(where: str, value: Any, pointer: Sequence[str]) -> str:
    # Stop at the last key that exists: a missing key has no line in the file.
    if pointer and isinstance(value, Mapping) and pointer[0] in value:
        return _known_key(f"{where}.{pointer[0]}", value[pointer[0]], pointer[1:])
    if pointer and isinstance(value, list) and pointer[0].isdecimal() and int(pointer[0]) < len(value):
        return _known_key(f"{where}[{pointer[0]}]", value[int(pointer[0])], pointer[1:])
    return where
