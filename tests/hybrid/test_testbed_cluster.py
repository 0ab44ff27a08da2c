"""The testbed's cluster does what pods of medweave need: exec, names, services, limits, the worker environment, images."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path

from support.testbed import BASE_IMAGE, Sites, call, pod_document, unique, wait_for


def test_server_client_and_node_have_the_promised_version(testbed: Sites) -> None:
    versions = json.loads(testbed.tenant("tenant-a", "version", "-o", "json").stdout)
    assert versions["serverVersion"]["gitVersion"] == versions["clientVersion"]["gitVersion"] == "v1.34.4"
    node = testbed.admin("get", "nodes", "-o", "jsonpath={.items[*].status.nodeInfo.kubeletVersion}").stdout
    assert node == "v1.34.4"


def test_exec_answers_quickly_and_passes_standard_input(testbed: Sites) -> None:
    with testbed.pod("tenant-a", pod_document(unique("exec"), "sleep 600")) as name:
        began = time.monotonic()
        outcome = testbed.tenant("tenant-a", "exec", "-i", name, "--", "tr", "a-z", "A-Z", text="bytes of a case")
        assert outcome.stdout == "BYTES OF A CASE", outcome.stderr
        assert time.monotonic() - began < 5


def test_a_failed_command_gives_its_own_exit_code(testbed: Sites) -> None:
    with testbed.pod("tenant-a", pod_document(unique("code"), "sleep 600")) as name:
        assert testbed.tenant("tenant-a", "exec", name, "--", "sh", "-c", "exit 7").returncode == 7


def test_names_and_services_work_inside_pods(testbed: Sites) -> None:
    name = unique("web")
    server = pod_document(name, "cd /tmp && echo answer > page && exec python3 -m http.server 8080")
    server["spec"] |= {"hostname": name, "subdomain": f"{name}-names"}
    select = {"selector": {"app.kubernetes.io/name": name}, "ports": [{"port": 80, "targetPort": 8080}]}
    services = [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": f"{name}-names"},
            "spec": {**select, "clusterIP": "None"},
        },
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": select},
    ]
    for service in services:
        assert testbed.tenant("tenant-a", "apply", "-f", "-", text=json.dumps(service)).returncode == 0
    try:
        with (
            testbed.pod("tenant-a", server),
            testbed.pod("tenant-a", pod_document(unique("ask"), "sleep 600")) as asking,
        ):
            own_name = f"{name}.{name}-names.tenant-a.svc.cluster.local"

            def resolved() -> str | None:
                return testbed.tenant("tenant-a", "exec", asking, "--", "getent", "hosts", own_name).stdout or None

            address = wait_for(resolved, "the pod's own name").split()[0]
            pod = testbed.tenant("tenant-a", "get", "pod", name, "-o", "jsonpath={.status.podIP}").stdout
            assert address == pod
            fetch = f"import urllib.request as u; print(u.urlopen('http://{name}/page', timeout=5).read().decode())"

            def fetched() -> str | None:
                return testbed.tenant("tenant-a", "exec", asking, "--", "python3", "-c", fetch).stdout.strip() or None

            assert wait_for(fetched, "the service's answer") == "answer"
    finally:
        testbed.tenant("tenant-a", "delete", "service", name, f"{name}-names")


def test_pods_reach_the_api_server_by_its_name(testbed: Sites) -> None:
    ask = "import ssl, urllib.request as u; c = ssl._create_unverified_context()"
    ask += "; print(u.urlopen('https://kubernetes.default.svc.cluster.local/version', context=c, timeout=10).read().decode())"
    with testbed.pod("tenant-a", pod_document(unique("api"), "sleep 600")) as name:
        outcome = testbed.tenant("tenant-a", "exec", name, "--", "python3", "-c", ask)
        assert json.loads(outcome.stdout)["gitVersion"] == "v1.34.4", outcome.stderr


def test_pods_run_the_worker_environment_and_cannot_change_it(testbed: Sites) -> None:
    environment = str(testbed.layout.environment)
    claims = {"medweave-environment": (environment, False)}
    with testbed.pod("tenant-b", pod_document(unique("worker"), "sleep 600", claims=claims)) as name:
        outcome = testbed.tenant("tenant-b", "exec", name, "--", f"{environment}/bin/medweave-step", "--version")
        assert outcome.returncode == 0, outcome.stderr
        write = testbed.tenant("tenant-b", "exec", name, "--", "touch", f"{environment}/bin/mine")
        assert "Permission denied" in write.stderr


def test_process_over_the_memory_limit_exits_with_137(testbed: Sites) -> None:
    with testbed.pod("tenant-a", pod_document(unique("limit"), "sleep 600", limits={"memory": "128Mi"})) as name:
        outcome = testbed.tenant("tenant-a", "exec", name, "--", "python3", "-c", "bytearray(400_000_000)")
        assert outcome.returncode == 137


def test_pods_can_be_built_from_a_containerfile_without_a_registry(testbed: Sites, tmp_path: Path) -> None:
    (tmp_path / "Containerfile").write_text(
        f"ARG BASE_IMAGE={BASE_IMAGE}\nFROM ${{BASE_IMAGE}}\nARG WORD=none\nRUN echo $WORD > /word\nUSER 10001\n",
        encoding="utf-8",
    )
    image, word = "localhost/medweave-test:1", unique("word")
    words = ["--file", str(tmp_path / "Containerfile"), "--context", str(tmp_path), "--build-arg", f"WORD={word}"]
    made = call("image", image, *words, timeout_s=300)
    assert made.returncode == 0, made.stderr
    document = pod_document(unique("image"), "sleep 600")
    document["spec"]["containers"][0]["image"] = image
    with testbed.pod("tenant-a", document) as name:
        assert testbed.tenant("tenant-a", "exec", name, "--", "cat", "/word").stdout == f"{word}\n"


def test_claim_can_be_rebound_to_another_folder(testbed: Sites) -> None:
    claim, made = unique("claim"), []
    try:
        for word in ("first", "second"):
            folder = Path(tempfile.mkdtemp(prefix=f"medweave-{word}-", dir="/opt"))
            made.append(folder)
            folder.chmod(0o755)
            (folder / "word").write_text(word)
            outcome = call("volume", claim, str(folder))
            assert outcome.returncode == 0, outcome.stderr
            document = pod_document(unique("claims"), "sleep 600", claims={claim: ("/there", True)})
            with testbed.pod("tenant-b", document) as name:
                assert testbed.tenant("tenant-b", "exec", name, "--", "cat", "/there/word").stdout == word
    finally:
        for tenant in ("tenant-a", "tenant-b"):
            testbed.admin("delete", "persistentvolumeclaim", claim, "--namespace", tenant)
            testbed.admin("delete", "persistentvolume", f"testbed-{tenant}-{claim}")
        for folder in made:
            shutil.rmtree(folder)


def test_helm_speaks_to_the_cluster_as_a_tenant(testbed: Sites) -> None:
    outcome = testbed.laptop("helm", "list", "--output", "json")
    assert json.loads(outcome.stdout) is not None, outcome.stderr
