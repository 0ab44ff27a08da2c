"""Keys and certificates of the cluster: two small authorities (one for etcd alone), made by openssl."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from .commands import Commands
from .layout import Layout

_DAYS = "3650"
_CURVE = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc"]
NODE = "testbed"


@dataclass(frozen=True, slots=True)
class Certificate:
    """One key pair.

    Attributes:
        name: of the files NAME.crt and NAME.key.
        subject: in openssl's notation; Kubernetes reads CN as the user and O as the group.
        authority: whose key signs it.
        server_names: names in a server's certificate, in openssl's notation; empty for a client's.
    """

    name: str
    subject: str
    authority: str = "ca"
    server_names: str = ""


def certificates_of(layout: Layout) -> tuple[Certificate, ...]:
    """Return all key pairs of the cluster but the authorities'."""
    here = f"IP:{layout.address},IP:127.0.0.1,DNS:localhost"
    service = (
        "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"
    )
    return (
        Certificate("etcd", "/CN=etcd", authority="etcd-ca", server_names=here),
        Certificate("etcd-client", "/CN=kube-apiserver", authority="etcd-ca"),
        Certificate("apiserver", "/CN=kube-apiserver", server_names=f"{here},IP:{layout.first_service},{service}"),
        Certificate("apiserver-kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client"),
        Certificate("kubelet", f"/CN={NODE}", server_names=f"{here},DNS:{NODE}"),
        Certificate("node", f"/O=system:nodes/CN=system:node:{NODE}"),
        Certificate("controller-manager", "/CN=system:kube-controller-manager"),
        Certificate("scheduler", "/CN=system:kube-scheduler"),
        Certificate("kube-proxy", "/CN=system:kube-proxy"),
        Certificate("coredns", "/CN=testbed:coredns"),
        Certificate("admin", "/O=system:masters/CN=testbed-admin"),
    )


def authority_words(folder: Path, name: str) -> list[str]:
    """openssl's command line that makes a self-signed authority."""
    files = ["-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.crt"]
    extension = ["-addext", "keyUsage=critical,keyCertSign,digitalSignature"]
    return ["openssl", "req", "-x509", *_CURVE, "-days", _DAYS, "-subj", f"/CN=testbed-{name}", *extension, *files]


def certificate_words(folder: Path, certificate: Certificate) -> list[str]:
    """openssl's command line that makes a key pair signed by its authority."""
    usage = "serverAuth,clientAuth" if certificate.server_names else "clientAuth"
    extensions = ["-addext", f"extendedKeyUsage={usage}", "-addext", "basicConstraints=critical,CA:FALSE"]
    if certificate.server_names:
        extensions += ["-addext", f"subjectAltName={certificate.server_names}"]
    signer = ["-CA", f"{folder}/{certificate.authority}.crt", "-CAkey", f"{folder}/{certificate.authority}.key"]
    files = ["-keyout", f"{folder}/{certificate.name}.key", "-out", f"{folder}/{certificate.name}.crt"]
    subject = ["-subj", certificate.subject]
    return ["openssl", "req", "-x509", *_CURVE, "-days", _DAYS, *subject, *extensions, *signer, *files]


def kubeconfig(server: str, authority: Path, user: dict[str, str], namespace: str = "default") -> str:
    """Return a kubeconfig with one cluster, one user and one context, all called "testbed"."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "testbed", "cluster": {"server": server, "certificate-authority": str(authority)}}],
        "users": [{"name": "testbed", "user": user}],
        "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": "testbed", "namespace": namespace}}],
        "current-context": "testbed",
    }
    return json.dumps(document, indent=2)


def folder_of(layout: Layout) -> Path:
    """Return where the certificates lie."""
    return layout.kubernetes / "pki"


def trouble(layout: Layout) -> str | None:
    """Which certificate is missing; None if all are there."""
    names = [certificate.name for certificate in certificates_of(layout)] + ["ca", "etcd-ca", "service-account"]
    missing = [name for name in names if not (folder_of(layout) / f"{name}.key").exists()]
    if missing:
        return f"no {', '.join(missing)} in {folder_of(layout)}"
    return None if layout.admin_kubeconfig.exists() else "no kubeconfig of the administrator"


def make(layout: Layout, commands: Commands) -> None:
    """Create all keys, certificates and the kubeconfigs of the cluster's own programs; readable by root only."""
    folder = folder_of(layout)
    folder.mkdir(parents=True, exist_ok=True)
    layout.kubernetes.chmod(0o700)
    for name in ("ca", "etcd-ca"):
        commands.run(authority_words(folder, name))
    for certificate in certificates_of(layout):
        commands.run(certificate_words(folder, certificate))
    curve = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
    commands.run(["openssl", "genpkey", *curve, "-out", folder / "service-account.key"])
    public = ["-pubout", "-out", str(folder / "service-account.pub")]
    commands.run(["openssl", "pkey", "-in", folder / "service-account.key", *public])
    for name in ("node", "controller-manager", "scheduler", "kube-proxy", "coredns", "admin"):
        user = {"client-certificate": f"{folder}/{name}.crt", "client-key": f"{folder}/{name}.key"}
        write_private(layout.kubernetes / f"{name}.kubeconfig", kubeconfig(layout.api_server, folder / "ca.crt", user))


def write_private(file: Path, text: str, owner: tuple[int, int] | None = None) -> None:
    """Write a file that only its owner reads; it is never readable by others, not even for a moment."""
    aside = file.with_name(f".{file.name}.new")
    aside.unlink(missing_ok=True)
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
    if owner is not None:
        os.chown(aside, *owner)
    aside.replace(file)
