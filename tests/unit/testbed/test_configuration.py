"""Files and command lines for the testbed's daemons, from plain values."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from medweave_testbed import (
    binaries,
    certificates,
    cli,
    control_plane,
    images,
    login,
    machine,
    node,
    slurm,
    slurm_config,
    tenants,
    volumes,
)  # fmt: skip
from medweave_testbed.commands import Commands
from medweave_testbed.errors import TestbedError
from medweave_testbed.layout import KUBERNETES_PROGRAMS, KUBERNETES_VERSION, Layout

LAYOUT = Layout(folder=Path("/opt/bed"), instance=7)


def test_the_version_is_stamped_into_kubernetes() -> None:
    flags = binaries.link_flags(KUBERNETES_VERSION)
    stamp = "k8s.io/component-base/version"
    for name, value in (("gitVersion", "v1.34.4"), ("gitMajor", "1"), ("gitMinor", "34")):
        assert f"-X {stamp}.{name}={value}" in flags


def test_the_go_module_asks_for_the_stamped_version() -> None:
    module = (binaries.SOURCES / "go.mod").read_text(encoding="utf-8")
    assert f"k8s.io/kubernetes {KUBERNETES_VERSION}\n" in module
    staged = [line.split() for line in module.splitlines() if line.startswith("\tk8s.io/") and "=>" in line]
    assert len(staged) == 31
    assert {row[0] == row[2] and row[3] for row in staged} == {"v0" + KUBERNETES_VERSION.removeprefix("v1")}


def test_programs_are_made_anew_when_their_sources_change(tmp_path: Path) -> None:
    file = tmp_path / "go.mod"
    file.write_text("one", encoding="utf-8")
    before = binaries.fingerprint([file], "flags")
    assert binaries.fingerprint([file], "flags") == before
    assert binaries.fingerprint([file], "other flags") != before
    file.write_text("two", encoding="utf-8")
    assert binaries.fingerprint([file], "flags") != before


def test_ready_programs_are_copied_once_for_all_their_names(tmp_path: Path) -> None:
    ready, output = tmp_path / "ready", tmp_path / "bin"
    ready.mkdir()
    output.mkdir()
    for name in ("kubernetes", "helm", "coredns"):
        (ready / name).write_text(name, encoding="utf-8")
    for name in KUBERNETES_PROGRAMS:
        (ready / name).symlink_to("kubernetes")
    binaries._copy(ready, output)
    assert {name: (output / name).read_text(encoding="utf-8") for name in machine.PROGRAMS} == {
        name: "kubernetes" if name in KUBERNETES_PROGRAMS else name for name in machine.PROGRAMS
    }
    assert sum(1 for file in output.iterdir() if not file.is_symlink()) == 3


def test_certificates_are_signed_and_private(tmp_path: Path) -> None:
    layout = Layout(folder=tmp_path, instance=7)
    assert "no etcd" in (certificates.trouble(layout) or "")
    certificates.make(layout, Commands())
    assert certificates.trouble(layout) is None
    pki = certificates.folder_of(layout)
    for certificate in certificates.certificates_of(layout):
        words = ["openssl", "verify", "-CAfile", f"{pki}/{certificate.authority}.crt", f"{pki}/{certificate.name}.crt"]
        assert subprocess.run(words, capture_output=True, check=False).returncode == 0, certificate.name
    other = ["openssl", "verify", "-CAfile", f"{pki}/ca.crt", f"{pki}/etcd-client.crt"]
    assert subprocess.run(other, capture_output=True, check=False).returncode != 0
    text = subprocess.run(
        ["openssl", "x509", "-in", pki / "apiserver.crt", "-noout", "-ext", "subjectAltName"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "IP Address:198.18.7.2" in text
    assert "IP Address:198.19.128.1" in text
    private = [*pki.glob("*.key"), *layout.kubernetes.glob("*.kubeconfig")]
    assert {file.stat().st_mode & 0o077 for file in private} == {0}
    assert layout.kubernetes.stat().st_mode & 0o777 == 0o700


def test_a_private_file_replaces_an_open_one(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old", encoding="utf-8")
    file.chmod(0o644)
    certificates.write_private(file, "new")
    assert file.read_text(encoding="utf-8") == "new"
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_etcd_asks_for_certificates_and_serves_no_other_machine_without() -> None:
    words = control_plane.etcd_words(LAYOUT)
    assert "--client-cert-auth" in words
    assert [word for word in words if word.startswith("--listen-client-urls")] == [
        "--listen-client-urls=https://198.18.7.2:2379"
    ]


def test_the_cluster_never_asks_a_registry_for_its_sandbox() -> None:
    config = node.containerd_config(LAYOUT)
    assert 'sandbox_image = "localhost/pause:1"' in config
    assert "restrict_oom_score_adj = true" in config
    assert node.kubelet_config(LAYOUT)["imageGCHighThresholdPercent"] == 100


def test_braces_of_the_corefile_stand_on_lines_of_their_own_at_the_end() -> None:
    text = node.corefile(LAYOUT)
    assert text.count("{") == text.count("}") == 2
    assert all(line.strip() == "}" or "}" not in line for line in text.splitlines())


def test_slurm_has_two_nodes_with_fake_gpus_and_preemption_by_partition() -> None:
    text = slurm_config.slurm_conf(LAYOUT)
    rows = [line for line in text.splitlines() if line.startswith("NodeName=")]
    assert [row.split()[0] for row in rows] == ["NodeName=n1", "NodeName=n2"]
    assert all("CPUs=2" in row and "Gres=gpu:2" in row and "NodeAddr=198.18.7.2" in row for row in rows)
    assert len({row.split("Port=")[1].split()[0] for row in rows}) == 2
    for line in ("SlurmdParameters=config_overrides", "PreemptType=preempt/partition_prio", "OverTimeLimit=0",
                 "JobAcctGatherParams=OverMemoryKill", "AccountingStorageType=accounting_storage/slurmdbd"):  # fmt: skip
        assert line in text.splitlines()


# Slurm 22.05.8 on Debian 12
IDLE = "NodeName=n1 Arch=x86_64 CoresPerSocket=1 CPUAlloc=0 State=IDLE ThreadsPerCore=1 Partitions=normal,urgent"
DOWN = "NodeName=n2 CPUAlloc=0 State=DOWN ThreadsPerCore=1 Reason=Not responding [slurm@2026-11-21T20:00:00]"
LOST = "NodeName=n2 CPUAlloc=0 State=IDLE*+DRAIN ThreadsPerCore=1 Reason=test [root@2026-11-21T20:00:00]"


def test_a_nodes_state_is_judged_by_slurms_own_word() -> None:
    assert slurm.node_state_trouble("n1", IDLE) is None
    assert slurm.node_state_trouble("n1", IDLE.replace("IDLE", "MIXED")) is None
    assert slurm.node_state_trouble("n2", DOWN) == (
        "node n2 is DOWN, reason: Not responding [slurm@2026-11-21T20:00:00]"
    )
    assert slurm.node_state_trouble("n2", LOST) == "node n2 is IDLE*+DRAIN, reason: test [root@2026-11-21T20:00:00]"
    assert slurm.node_state_trouble("n2", "") == "node n2 is none"


def test_a_tenants_rights_end_at_its_namespace_and_name_nothing_by_star() -> None:
    kinds = [document["kind"] for document in tenants.manifests(LAYOUT, "tenant-a")]
    assert kinds == ["Namespace", "ServiceAccount", "Role", "RoleBinding"]
    words = {word for rule in tenants.RULES for values in rule.values() for word in values}
    assert not words & {"*", "escalate", "bind", "impersonate", "serviceaccounts/token"}
    assert not words & {"serviceaccounts", "pods/portforward", "pods/attach"}, "nothing here needs them"
    assert "rbac.authorization.k8s.io" not in words
    labels = tenants.manifests(LAYOUT, "tenant-a")[0]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_a_volume_is_kept_for_one_tenants_claim() -> None:
    volume, claim = volumes.volume_and_claim("data", "tenant-b", Path("/opt/bed/pods/tenant-b"), volumes.WRITE)
    assert volume["spec"]["claimRef"] == {"namespace": "tenant-b", "name": "data"}
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
    assert claim["metadata"]["namespace"] == "tenant-b"


def test_a_kubeconfig_is_complete_in_itself() -> None:
    config = json.loads(tenants.tenant_kubeconfig("https://198.18.7.2:6443", b"PEM", "secret", "tenant-b"))
    assert config["contexts"][0]["context"]["namespace"] == "tenant-b"
    assert config["clusters"][0]["cluster"]["certificate-authority-data"] == "UEVN"
    assert config["current-context"] == "tenant-b"


TARGETS = """https://deb.example.org/debian bookworm main
https://deb.example.org/debian bookworm-updates main
https://deb.example.org/debian-security bookworm-security main
"""


def test_the_base_image_comes_from_the_machines_own_mirror() -> None:
    assert images.mirror_of(TARGETS, "bookworm") == "https://deb.example.org/debian"
    assert images.mirror_of(TARGETS, "trixie") is None


def test_an_image_is_built_without_a_registry() -> None:
    words = images.build_words(LAYOUT, "localhost/a:1", Path("/src/Containerfile"), Path("/src"), {"WITH_TORCH": "0"})
    assert "--pull-never" in words
    assert words[words.index("--build-arg") + 1] == "WITH_TORCH=0"
    assert words[words.index("--root") + 1] == "/opt/bed/cache/buildah/root"
    assert words[-1] == "/src"


def test_only_keys_open_the_login_node() -> None:
    lines = login.sshd_config(LAYOUT).splitlines()
    assert {"PasswordAuthentication no", "KbdInteractiveAuthentication no", "AllowUsers medweave-hpc-7"} <= set(lines)
    assert "    StrictHostKeyChecking yes" in login.ssh_config(LAYOUT).splitlines()


def test_the_laptops_shell_file_is_taken_by_a_shell() -> None:
    script = login.environment_sh(LAYOUT) + 'echo "$MEDWEAVE_TESTBED_LOGIN_HOST $KUBECONFIG"'
    output = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert output == "198.18.7.2 /opt/bed/laptop/home/.kube/tenant-a.kubeconfig\n"


def test_build_arguments_are_pairs() -> None:
    assert cli.build_arguments(["A=1", "B=x=y"]) == {"A": "1", "B": "x=y"}
    with pytest.raises(TestbedError, match="not understood"):
        cli.build_arguments(["A"])


@pytest.mark.parametrize(
    "environment",
    [
        {"MEDWEAVE_TESTBED_KUBERNETES": "existing"},
        {"MEDWEAVE_TESTBED_KUBERNETES": "existing", "KUBECONFIG": "/no/such/file"},
        {"MEDWEAVE_TESTBED_KUBERNETES": "kind", "KUBECONFIG": "/etc/hostname"},
    ],
)
def test_it_must_be_clear_which_cluster_is_meant(environment: dict[str, str]) -> None:
    with pytest.raises(TestbedError, match="which cluster is meant"):
        cli.existing_kubeconfig(LAYOUT, environment)


def test_an_existing_cluster_is_remembered_for_status_and_down(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.touch()
    layout = Layout(folder=tmp_path, instance=0)
    environment = {"MEDWEAVE_TESTBED_KUBERNETES": "existing", "KUBECONFIG": str(config)}
    assert cli.existing_kubeconfig(layout, environment) == config
    assert cli.existing_kubeconfig(layout, {"KUBECONFIG": str(config)}) is None
    layout.run.mkdir()
    (layout.run / "existing-cluster.json").write_text(json.dumps({"kubeconfig": str(config)}), encoding="utf-8")
    assert cli.existing_kubeconfig(layout, {}) == config
