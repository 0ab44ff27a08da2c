"""The cluster's one node: containerd, kubelet, kube-proxy, and names for its pods (CoreDNS)."""

from __future__ import annotations

import json
from typing import Any

from . import certificates, control_groups, http
from .certificates import NODE
from .layout import Layout
from .part import Part, Testbed, as_list
from .walls import KUBERNETES

PAUSE_IMAGE = "localhost/pause:1"
KUBELET_PORT, PROXY_PORT, DNS_HEALTH_PORT, DNS_PORT = 10250, 10256, 8080, 53

# The kubelet sets these for the whole machine unless it finds them so already: it is shown files that say they are.
KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}  # fmt: skip


def containerd_config(layout: Layout) -> str:
    """containerd's configuration (TOML): own socket, own state, no sandbox image from a registry."""
    plugins = "io.containerd"
    return f"""version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["{plugins}.snapshotter.v1.btrfs", "{plugins}.snapshotter.v1.zfs", "{plugins}.snapshotter.v1.devmapper",
  "{plugins}.snapshotter.v1.aufs", "{plugins}.tracing.processor.v1.otlp"]

[grpc]
address = "{layout.containerd_socket}"

[plugins."{plugins}.internal.v1.opt"]
path = "/var/lib/containerd-opt"

[plugins."{plugins}.grpc.v1.cri"]
sandbox_image = "{PAUSE_IMAGE}"
# Without CAP_SYS_RESOURCE (a container, some virtual machines) every sandbox would die while its OOM score is lowered.
restrict_oom_score_adj = true

[plugins."{plugins}.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{layout.kubernetes}/cni"
"""


def network_config(layout: Layout) -> dict[str, Any]:
    """Return the pods' network: a bridge inside the testbed's own network namespace."""
    addresses = {"type": "host-local", "ranges": [[{"subnet": layout.pod_network}]], "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {
        "type": "bridge",
        "bridge": "pods",
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": addresses,
    }
    return {
        "cniVersion": "0.4.0",
        "name": "testbed",
        "plugins": [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}],
    }


def kubelet_config(layout: Layout) -> dict[str, Any]:
    """Return the kubelet's configuration; works with control groups of version 1 and 2."""
    pki = certificates.folder_of(layout)
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{pki}/kubelet.crt",
        "tlsPrivateKeyFile": f"{pki}/kubelet.key",
        "containerRuntimeEndpoint": f"unix://{layout.containerd_socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "evictionHard": {},
        "imageGCHighThresholdPercent": 100,  # images cannot be fetched again: there is no registry
        "clusterDNS": [layout.address],
        "clusterDomain": "cluster.local",
        "resolvConf": str(layout.kubernetes / "resolv.conf"),
        "registerWithTaints": [],
        "oomScoreAdj": 0,
        "syncFrequency": "10s",
        "nodeStatusUpdateFrequency": "5s",
    }


def proxy_config(layout: Layout) -> dict[str, Any]:
    """kube-proxy's configuration; it leaves the connection tracker's size alone, which belongs to the whole machine."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clusterCIDR": layout.pod_network,
        "hostnameOverride": NODE,
        "clientConnection": {"kubeconfig": str(layout.kubernetes / "kube-proxy.kubeconfig")},
        "healthzBindAddress": f"{layout.address}:{PROXY_PORT}",
        "metricsBindAddress": "127.0.0.1:10249",
        "oomScoreAdj": 0,
        "conntrack": {
            "maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
            "udpTimeout": "0s", "udpStreamTimeout": "0s",
        },
    }  # fmt: skip


def corefile(layout: Layout) -> str:
    """CoreDNS: the cluster's own names only; the sites have no access to the internet."""
    return f""".:{DNS_PORT} {{
    bind {layout.address}
    errors
    health {layout.address}:{DNS_HEALTH_PORT}
    kubernetes cluster.local in-addr.arpa ip6.arpa {{
        kubeconfig {layout.kubernetes}/coredns.kubeconfig testbed
        pods insecure
        ttl 5
    }}
    cache 5
    loadbalance
}}
"""


def dns_rights() -> str:
    """Return what CoreDNS may read."""
    watched = ["endpoints", "services", "pods", "namespaces"]
    rules = [
        {"apiGroups": [""], "resources": watched, "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    name = {"metadata": {"name": "testbed:coredns"}}
    api = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "testbed:coredns"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "testbed:coredns"}
    return as_list(
        [
            {**api, "kind": "ClusterRole", **name, "rules": rules},
            {**api, "kind": "ClusterRoleBinding", **name, "roleRef": role, "subjects": [subject]},
        ]
    )


def start_containerd(testbed: Testbed) -> None:
    """Write containerd's configuration and start it."""
    layout = testbed.layout
    (layout.kubernetes / "containerd.toml").write_text(containerd_config(layout), encoding="utf-8")
    (layout.kubernetes / "cni").mkdir(exist_ok=True)
    (layout.kubernetes / "cni" / "testbed.conflist").write_text(json.dumps(network_config(layout)), encoding="utf-8")
    words = ["containerd", f"--config={layout.kubernetes / 'containerd.toml'}", "--log-level=warn"]
    testbed.daemons.start("containerd", words, view=KUBERNETES)


def ctr_words(layout: Layout, *words: str) -> list[str]:
    """containerd's own client, in the namespace whose images the kubelet sees."""
    return ["ctr", "--address", str(layout.containerd_socket), "--namespace", "k8s.io", *words]


def containerd_trouble(testbed: Testbed) -> str | None:
    """Return why containerd does not answer."""
    code, _, errors = testbed.commands.outcome(ctr_words(testbed.layout, "version"), timeout_s=5)
    return None if code == 0 else " ".join(errors.split())[:200]


def start_kubelet(testbed: Testbed) -> None:
    """Create the cluster's control groups, write the kubelet's configuration and start it."""
    layout = testbed.layout
    for hierarchy in control_groups.hierarchies(control_groups.mounted()):
        (hierarchy / layout.cgroup).mkdir(exist_ok=True)
    (layout.kubernetes / "resolv.conf").write_text(f"nameserver {layout.address}\n", encoding="utf-8")
    config = layout.kubernetes / "kubelet.json"
    config.write_text(json.dumps(kubelet_config(layout), indent=2), encoding="utf-8")
    words = [
        "kubelet", f"--config={config}", f"--kubeconfig={layout.kubernetes / 'node.kubeconfig'}",
        f"--hostname-override={NODE}", f"--node-ip={layout.address}", "--v=1",
    ]  # fmt: skip
    testbed.daemons.start("kubelet", words, view=KUBERNETES)


def kubelet_trouble(testbed: Testbed) -> str | None:
    """Return why the node is not Ready, in the kubelet's words."""
    code, text, errors = testbed.commands.outcome(
        testbed.kubectl_words("get", "node", NODE, "-o", "json"), timeout_s=15
    )
    if code != 0:
        return " ".join(errors.split())[:200]
    conditions = {condition["type"]: condition for condition in json.loads(text)["status"].get("conditions", [])}
    ready = conditions.get("Ready", {"status": "Unknown", "message": "it has not reported yet"})
    return None if ready["status"] == "True" else f"node {NODE} is not Ready: {ready['message'][:200]}"


def start_proxy(testbed: Testbed) -> None:
    """Write kube-proxy's configuration and start it."""
    config = testbed.layout.kubernetes / "kube-proxy.json"
    config.write_text(json.dumps(proxy_config(testbed.layout), indent=2), encoding="utf-8")
    testbed.daemons.start("kube-proxy", ["kube-proxy", f"--config={config}"], view=KUBERNETES)


def start_dns(testbed: Testbed) -> None:
    """Give CoreDNS its rights and start it."""
    testbed.kubectl("apply", "--server-side", "-f", "-", text=dns_rights())
    config = testbed.layout.kubernetes / "Corefile"
    config.write_text(corefile(testbed.layout), encoding="utf-8")
    testbed.daemons.start("coredns", ["coredns", "-conf", str(config)], view=KUBERNETES)


def parts(layout: Layout) -> list[Part]:
    """Return the node's parts."""
    return [
        Part(
            name="containerd", needs=("sites",), daemon="containerd", trouble=containerd_trouble, start=start_containerd,
        ),
        Part(
            name="kubelet", needs=("containerd", "apiserver"), daemon="kubelet", port=KUBELET_PORT,
            trouble=kubelet_trouble, start=start_kubelet,
        ),
        Part(
            name="kube-proxy", needs=("apiserver", "sites"), daemon="kube-proxy", port=PROXY_PORT,
            trouble=lambda testbed: http.trouble(f"http://{layout.address}:{PROXY_PORT}/healthz"), start=start_proxy,
        ),
        Part(
            name="coredns", needs=("apiserver", "sites"), daemon="coredns", port=DNS_PORT,
            trouble=lambda testbed: http.trouble(f"http://{layout.address}:{DNS_HEALTH_PORT}/health"), start=start_dns,
        ),
    ]  # fmt: skip
