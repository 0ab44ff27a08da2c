"""One machine is one file system, so the sites are walled off: each is refused (EACCES) the others' data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.testbed import Sites, pod_document, unique, wait_for

PROBE = """
import errno, os, sys
for path in sys.argv[1:]:
    inside = os.path.join(path, "data")
    for attempt in (lambda: os.listdir(path), lambda: open(inside), lambda: open(inside + ".mine", "w")):
        try:
            attempt()
            print(path, "open")
        except OSError as problem:
            print(path, errno.errorcode[problem.errno])
"""


def answers(text: str) -> set[str]:
    """Return the different answers that the probe got."""
    return {line.split()[-1] for line in text.splitlines()}


@pytest.fixture
def roots(testbed: Sites) -> dict[str, Path]:
    """Return the sites' roots, with data in each."""
    layout = testbed.layout
    for folder in (layout.laptop, layout.hpc, layout.pods):
        (folder / "data").write_text("data of a site\n", encoding="utf-8")
    return {"laptop": layout.laptop, "hpc": layout.hpc, "pods": layout.pods}


def test_roots_belong_to_their_users_alone(roots: dict[str, Path]) -> None:
    owners = {name: (root.owner() if name != "pods" else str(root.stat().st_uid)) for name, root in roots.items()}
    assert owners == {"laptop": "medweave-laptop", "hpc": "medweave-hpc", "pods": "10001"}
    assert {root.stat().st_mode & 0o777 for root in roots.values()} == {0o700}


def test_the_laptop_is_refused_the_other_sites(testbed: Sites, roots: dict[str, Path]) -> None:
    outcome = testbed.laptop("python3", "-c", PROBE, str(roots["hpc"]), str(roots["pods"]))
    assert answers(outcome.stdout) == {"EACCES"}, outcome.stdout + outcome.stderr


def test_a_slurm_job_is_refused_the_other_sites(testbed: Sites, roots: dict[str, Path]) -> None:
    outcome = testbed.hpc("srun", "-N2", "python3", "-c", PROBE, str(roots["laptop"]), str(roots["pods"]))
    assert outcome.stdout.count("EACCES") == 12, outcome.stdout + outcome.stderr
    assert answers(outcome.stdout) == {"EACCES"}


def test_a_pod_is_refused_the_other_sites_even_where_its_node_shows_them(
    testbed: Sites, roots: dict[str, Path]
) -> None:
    document = pod_document(unique("probe"), "sleep 600")
    folder = str(testbed.layout.folder)
    document["spec"]["volumes"] = [{"name": "all", "hostPath": {"path": folder}}]
    document["spec"]["containers"][0]["volumeMounts"] = [{"name": "all", "mountPath": folder}]
    name = document["metadata"]["name"]
    assert testbed.admin("-n", "default", "apply", "-f", "-", text=json.dumps(document)).returncode == 0
    try:
        assert testbed.admin("-n", "default", "wait", "--for=condition=Ready", f"pod/{name}").returncode == 0
        words = ["python3", "-c", PROBE, str(roots["laptop"]), str(roots["hpc"]), str(testbed.layout.slurm)]
        outcome = testbed.admin("-n", "default", "exec", name, "--", *words)
        assert answers(outcome.stdout) == {"EACCES"}, outcome.stdout + outcome.stderr
    finally:
        testbed.admin("-n", "default", "delete", "pod", name, "--grace-period=0", "--force")


def test_no_site_reads_keys_of_the_cluster_or_of_slurm(testbed: Sites) -> None:
    layout = testbed.layout
    secrets = [str(layout.kubernetes), str(layout.slurm), str(layout.log)]
    assert answers(testbed.laptop("python3", "-c", PROBE, *secrets).stdout) == {"EACCES"}
    assert answers(testbed.hpc("python3", "-c", PROBE, *secrets).stdout) == {"EACCES"}


def test_temporary_files_stay_at_their_site(testbed: Sites) -> None:
    name = unique("left")
    for site in (testbed.laptop, testbed.hpc):
        there = site("sh", "-c", f"touch /tmp/{name} /dev/shm/{name} /var/tmp/{name} && ls /tmp").stdout.split()
        assert name in there
    assert not any(Path(folder, name).exists() for folder in ("/tmp", "/dev/shm", "/var/tmp"))
    alone = unique("alone")
    testbed.laptop("touch", f"/tmp/{alone}")
    assert testbed.hpc("test", "-e", f"/tmp/{alone}").returncode == 1


def test_etcd_lets_nobody_in_without_its_certificate(testbed: Sites) -> None:
    ask = "import ssl, urllib.request as u; c = ssl._create_unverified_context()"
    ask += (
        f"; print(u.urlopen('https://{testbed.layout.address}:{testbed.layout.etcd_port}/version', context=c).read())"
    )
    outcome = testbed.hpc("python3", "-c", ask)
    assert outcome.returncode != 0
    assert "certificate required" in outcome.stderr or "bad certificate" in outcome.stderr


def test_a_pods_data_appears_in_its_tenants_folder_only(testbed: Sites) -> None:
    claims = {"medweave-data": ("/data", False)}
    name = unique("data")
    with testbed.pod("tenant-b", pod_document(name, f"echo mine > /data/{name}; sleep 600", claims=claims)):
        root = testbed.layout.pods
        wait_for(lambda: (root / "tenant-b" / name).exists() or None, "the pod's file")
        assert not (root / "tenant-a" / name).exists()
        (root / "tenant-b" / name).unlink()
