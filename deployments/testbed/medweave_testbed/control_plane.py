"""The cluster's control plane: etcd, API server, controller manager, scheduler."""

from __future__ import annotations

from pathlib import Path

from . import certificates, http
from .layout import KUBERNETES_VERSION, Layout
from .part import Part, Testbed
from .walls import KUBERNETES

CONTROLLERS_PORT, SCHEDULER_PORT = 10257, 10259


def etcd_words(layout: Layout) -> list[str]:
    """etcd for one testbed's life: nothing is synced to the disk, only the API server's certificate is let in."""
    pki, url = certificates.folder_of(layout), f"https://{layout.address}:{layout.etcd_port}"
    return [
        "etcd", "--name=testbed", "--data-dir=/var/lib/etcd", "--unsafe-no-fsync", "--log-level=warn", "--logger=zap",
        f"--listen-client-urls={url}", f"--advertise-client-urls={url}", "--listen-peer-urls=http://127.0.0.1:2380",
        f"--cert-file={pki}/etcd.crt", f"--key-file={pki}/etcd.key", "--client-cert-auth",
        f"--trusted-ca-file={pki}/etcd-ca.crt",
    ]  # fmt: skip


def api_server_words(layout: Layout) -> list[str]:
    """Return the API server: RBAC, node authorisation, audit of nothing."""
    pki = certificates.folder_of(layout)
    return [
        "kube-apiserver",
        f"--advertise-address={layout.address}", f"--secure-port={layout.api_port}", "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",  # pod security decides, per namespace
        "--anonymous-auth=true", "--profiling=false",
        f"--client-ca-file={pki}/ca.crt", f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key", f"--service-cluster-ip-range={layout.service_network}",
        f"--etcd-servers=https://{layout.address}:{layout.etcd_port}", f"--etcd-cafile={pki}/etcd-ca.crt",
        f"--etcd-certfile={pki}/etcd-client.crt", f"--etcd-keyfile={pki}/etcd-client.key",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        f"--kubelet-client-certificate={pki}/apiserver-kubelet-client.crt",
        f"--kubelet-client-key={pki}/apiserver-kubelet-client.key",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki}/service-account.pub",
        f"--service-account-signing-key-file={pki}/service-account.key",
    ]  # fmt: skip


def controller_manager_words(layout: Layout) -> list[str]:
    """Return the controller manager; the one program of its kind, so it elects no leader."""
    pki, config = certificates.folder_of(layout), layout.kubernetes / "controller-manager.kubeconfig"
    return [
        "kube-controller-manager", f"--kubeconfig={config}", "--leader-elect=false", "--profiling=false",
        "--use-service-account-credentials", f"--service-account-private-key-file={pki}/service-account.key",
        f"--root-ca-file={pki}/ca.crt", f"--cluster-cidr={layout.pod_network}",
        f"--service-cluster-ip-range={layout.service_network}", "--allocate-node-cidrs=false",
        "--pvclaimbinder-sync-period=1s",  # else a claim may wait half a minute for its volume
        f"--tls-cert-file={pki}/apiserver.crt", f"--tls-private-key-file={pki}/apiserver.key",
    ]  # fmt: skip


def scheduler_words(layout: Layout) -> list[str]:
    """Return the scheduler."""
    pki = certificates.folder_of(layout)
    return [
        "kube-scheduler", f"--kubeconfig={layout.kubernetes / 'scheduler.kubeconfig'}", "--leader-elect=false",
        "--profiling=false", f"--tls-cert-file={pki}/apiserver.crt", f"--tls-private-key-file={pki}/apiserver.key",
    ]  # fmt: skip


def _authority(testbed: Testbed, name: str = "ca") -> Path:
    return certificates.folder_of(testbed.layout) / f"{name}.crt"


def _etcd_trouble(testbed: Testbed) -> str | None:
    pki = certificates.folder_of(testbed.layout)
    return http.trouble(
        f"https://{testbed.layout.address}:{testbed.layout.etcd_port}/health",
        authority=_authority(testbed, "etcd-ca"), client=(pki / "etcd-client.crt", pki / "etcd-client.key"),
        contains='"true"',
    )  # fmt: skip


def _api_server_trouble(testbed: Testbed) -> str | None:
    """Ready, and of the promised version: charts with a `kubeVersion` depend on it."""
    ready = http.trouble(f"{testbed.layout.api_server}/readyz", authority=_authority(testbed))
    if ready is not None:
        return ready
    version = f'"gitVersion": "{KUBERNETES_VERSION}"'
    return http.trouble(f"{testbed.layout.api_server}/version", authority=_authority(testbed), contains=version)


def _healthz(port: int, testbed: Testbed) -> str | None:
    return http.trouble(f"https://{testbed.layout.address}:{port}/healthz", authority=_authority(testbed))


def parts(layout: Layout) -> list[Part]:
    """Return the control plane's parts."""
    return [
        Part(
            name="certificates", needs=("packages",),
            trouble=lambda testbed: certificates.trouble(testbed.layout),
            start=lambda testbed: certificates.make(testbed.layout, testbed.commands),
        ),
        Part(
            name="etcd", needs=("sites", "certificates"), daemon="etcd", port=layout.etcd_port, trouble=_etcd_trouble,
            start=lambda testbed: testbed.daemons.start("etcd", etcd_words(layout), view=KUBERNETES),
        ),
        Part(
            name="apiserver", needs=("etcd", "binaries"), daemon="apiserver", port=layout.api_port,
            trouble=_api_server_trouble,
            start=lambda testbed: testbed.daemons.start("apiserver", api_server_words(layout), view=KUBERNETES),
        ),
        Part(
            name="controllers", needs=("apiserver",), daemon="controllers", port=CONTROLLERS_PORT,
            trouble=lambda testbed: _healthz(CONTROLLERS_PORT, testbed),
            start=lambda testbed: testbed.daemons.start(
                "controllers", controller_manager_words(layout), view=KUBERNETES
            ),
        ),
        Part(
            name="scheduler", needs=("apiserver",), daemon="scheduler", port=SCHEDULER_PORT,
            trouble=lambda testbed: _healthz(SCHEDULER_PORT, testbed),
            start=lambda testbed: testbed.daemons.start("scheduler", scheduler_words(layout), view=KUBERNETES),
        ),
    ]  # fmt: skip
