"""Helm: its command lines, its answers, its records, and what a manifest asks for."""

from __future__ import annotations

import pytest

from medweave_connectors.sites.helm import commands
from medweave_connectors.sites.helm.commands import Access, HelmChart, parse_releases
from medweave_connectors.sites.pods.objects.workloads import container_names, find_workloads, parse_documents, selectors

ACCESS = Access(namespace="tenant-a", kubeconfig="/home/me/kube config", context=None)
MANIFEST = """
---
# Source: compss-cluster/templates/service.yaml
apiVersion: v1
kind: Service
metadata: {name: r-pods}
spec: {clusterIP: None}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: r-worker}
spec:
  replicas: 2
  selector: {matchLabels: {part: worker, app.kubernetes.io/instance: r}}
  template: {spec: {containers: [{name: worker}]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: r-web}
spec:
  selector: {matchLabels: {app.kubernetes.io/instance: r, part: web}}
  template: {spec: {containers: [{name: web}, {name: log}]}}
"""


def test_an_install_has_our_labels_and_takes_no_name_that_is_taken() -> None:
    words = commands.build_install_command(
        "r", HelmChart(reference="/c"), ACCESS, values=["a.yml", "b.yml"], labels={"b": "2", "a": "1"}, timeout_s=60
    )
    assert words[:4] == ["helm", "install", "r", "/c"]
    assert words[words.index("--labels") + 1] == "a=1,b=2"
    assert [words[n + 1] for n, word in enumerate(words) if word == "--values"] == ["a.yml", "b.yml"]
    assert words[words.index("--kubeconfig") + 1] == "/home/me/kube config"
    assert "--kube-context" not in words


def test_a_release_is_looked_up_by_name_and_label_in_all_states() -> None:
    words = commands.build_list_command("my.release", ACCESS, {"medweave.dev/driver": "host_7-1"})
    assert words[:5] == ["helm", "list", "--short", "--filter", "^my\\.release$"]
    assert words[words.index("--selector") + 1] == "medweave.dev/driver=host_7-1"
    assert {"--failed", "--pending", "--deployed"} < set(words)


def test_every_command_names_the_same_namespace() -> None:
    # Fault K3 of the engine: helm used the context's, the search for pods `default`.
    for words in (
        commands.build_install_command("r", HelmChart(reference="/c"), ACCESS, values=[], labels={}, timeout_s=60),
        commands.build_uninstall_command("r", ACCESS),
        commands.build_manifest_command("r", ACCESS),
        commands.build_list_command("r", ACCESS, {}),
    ):
        assert words[words.index("--namespace") + 1] == "tenant-a"


def test_charts_of_registries_and_repositories() -> None:
    words = commands.build_install_command(
        "r",
        HelmChart(reference="segment", repository="https://charts.example.org", version="1.2.0"),
        Access(namespace="n", kubeconfig=None, context="hospital"),
        values=[],
        labels={},
        timeout_s=60,
    )
    assert words[3] == "segment"
    assert words[words.index("--repo") + 1] == "https://charts.example.org"
    assert words[words.index("--version") + 1] == "1.2.0"
    assert words[words.index("--kube-context") + 1] == "hospital"


@pytest.mark.parametrize(("text", "number"), [("v4.3.1", (4, 3)), ("v3.13.0+g825e", (3, 13)), ("", None)])
def test_versions(text: str, number: tuple[int, int] | None) -> None:
    assert commands.parse_version(text) == number


@pytest.mark.parametrize(
    ("deployment", "name"),
    [("pods", "pods-1a2b3c"), ("My.Pods_2", "my-pods-2-1a2b3c"), ("a" * 80, "a" * 46 + "-1a2b3c")],
)
def test_release_names(deployment: str, name: str) -> None:
    assert commands.build_release_name(deployment, "1a2b3c") == name
    assert len(name) <= 53


SCHEMA_ERROR = """level=WARN msg="something"
Error: values don't meet the specifications of the schema(s) in the following chart(s):
compss-cluster:
- at '/worker/replicas': got string, want integer

"""


def test_the_reason_of_a_failure() -> None:
    reason = commands.parse_failure(SCHEMA_ERROR)
    assert reason.startswith("values don't meet")
    assert "- at '/worker/replicas': got string, want integer" in reason
    assert commands.find_failing_key('secrets is forbidden: User "u" cannot list resource "secrets"', {}) == "namespace"
    assert commands.find_failing_key("Kubernetes cluster unreachable: dial tcp", {}) == "kubeconfig"
    assert commands.find_failing_key('path "/c" not found', {}) == "chart"
    assert commands.parse_failure("") == "helm printed no message"


@pytest.mark.parametrize(
    ("values", "pointer", "key"),
    [
        ({"worker": {"replicas": "two"}}, "/worker/replicas", "values.worker.replicas"),
        ({"worker": {}}, "/worker/replicas", "values.worker"),  # a values file has it
        ({}, "/worker/replicas", "values"),
        ({"replicas": "two"}, "", "values"),  # of the whole: a key is missing
        ({"tolerations": [{}, {"key": 1}]}, "/tolerations/1/key", "values.tolerations[1].key"),
        ({"tolerations": "no list"}, "/tolerations/1/key", "values.tolerations"),
    ],
)
def test_a_refused_value_is_a_key_of_the_site_file(values: dict[str, object], pointer: str, key: str) -> None:
    reason = f"values don't meet the specifications of the schema(s):\n- at '{pointer}': got string, want integer"
    assert commands.find_failing_key(reason, values) == key


FETCH = 'failed to perform "FetchReference" on source: '


@pytest.mark.parametrize(
    ("chart", "reason", "key", "do"),
    [  # what helm 4.0 says
        (
            HelmChart(reference="seg", repository="http://127.0.0.1:1"),
            'looks like "http://127.0.0.1:1" is not a valid chart repository or cannot be reached: Get '
            '"http://127.0.0.1:1/index.yaml": dial tcp 127.0.0.1:1: connect: connection refused',
            "repo",
            "whether this machine reaches 127.0.0.1:1",
        ),
        (
            HelmChart(reference="seg", repository="http://me@charts.test:80"),
            'looks like "http://me@charts.test:80" is not a valid chart repository or cannot be reached: '
            "failed to fetch http://charts.test:80/index.yaml : 401 Unauthorized",
            "repo",
            "charts.test:80 requires a login: fetch the chart with `helm pull`",
        ),
        (
            HelmChart(reference="seg", repository="http://charts.test", version="9.9.9"),
            'chart "seg" version "9.9.9" not found in http://charts.test repository',
            "chartVersion",
            "charts.test has no version 9.9.9 of seg",
        ),
        (
            HelmChart(reference="seg", repository="http://charts.test"),
            'chart "seg" not found in http://charts.test repository',
            "chart",
            "charts.test has no seg",
        ),
        (
            HelmChart(reference="oci://r.test/x/seg", version="1.0.0"),
            f'{FETCH}Get "https://r.test/v2/x/seg/manifests/1.0.0": dial tcp: lookup r.test on 10.0.0.1:53: no such host',
            "chart",
            "whether this machine reaches r.test",
        ),
        (
            HelmChart(reference="oci://r.test:5000/x/seg", version="1.0.0"),
            f'{FETCH}GET "https://r.test:5000/v2/x/seg/manifests/1.0.0": basic credential not found',
            "chart",
            "`helm registry login r.test:5000`",
        ),
        (
            HelmChart(reference="oci://r.test/x/seg", version="1.0.0"),
            f"{FETCH}r.test/x/seg:1.0.0: not found",
            "chartVersion",
            "r.test has no version 1.0.0 of oci://r.test/x/seg",
        ),
        (
            HelmChart(reference="oci://r.test/x/seg"),
            f'{FETCH}Get "https://r.test/v2/x/seg/manifests/1.0.0": tls: failed to verify certificate: x509: certificate '
            "signed by unknown authority",
            "chart",
            "SSL_CERT_FILE",
        ),
    ],
)
def test_a_chart_that_does_not_come_is_told_with_its_key(chart: HelmChart, reason: str, key: str, do: str) -> None:
    result = commands.explain_chart_failure(reason, chart)
    assert result is not None
    assert result[0] == key
    assert do in result[1]


def test_what_is_no_trouble_with_a_chart() -> None:
    chart = HelmChart(reference="oci://r.test/x/seg")
    assert commands.explain_chart_failure("values don't meet the specifications of the schema", chart) is None
    assert commands.explain_chart_failure('path "/c" not found', HelmChart(reference="/c")) is None


@pytest.mark.parametrize(
    ("values", "image", "key"),
    [
        ({"image": {"repository": "localhost:1/x", "tag": "9"}}, "localhost:1/x:9", "values.image"),
        ({"python": "p", "worker": {"image": "host/x:9"}}, "host/x:9", "values.worker.image"),
        ({"image": {"repository": "host/x"}}, "host/x@sha256:00", "values.image"),
        ({"image": {"repository": "host/x"}}, "host/other:9", "values"),
        ({"repository": "host/x", "tag": "9"}, "host/x:9", "values"),
        ({"empty": ""}, "", "values"),
    ],
)
def test_an_image_is_a_key_of_the_site_file(values: dict[str, object], image: str, key: str) -> None:
    assert commands.find_image_key(values, image) == key


def record(name: str, revision: int, status: str, **labels: str) -> dict[str, object]:
    return {"labels": {"owner": "helm", "name": name, "version": str(revision), "status": status, **labels}}


def test_the_newest_revision_of_a_release_counts() -> None:
    result = parse_releases(
        [record("r", 2, "pending-upgrade"), record("r", 1, "deployed"), record("a", 10, "failed"), {}]
    )
    assert [(release.name, release.status) for release in result] == [("a", "failed"), ("r", "pending-upgrade")]


def test_a_manifest_tells_the_pods_to_expect() -> None:
    result = find_workloads(parse_documents(MANIFEST))
    assert [(workload.kind, workload.name, workload.replicas) for workload in result] == [
        ("StatefulSet", "r-worker", 2),
        ("Deployment", "r-web", 1),
    ]
    assert list(selectors(result)) == [
        "app.kubernetes.io/instance=r,part=worker",
        "app.kubernetes.io/instance=r,part=web",
    ]
    assert container_names(result) == ["worker", "web", "log"]


@pytest.mark.parametrize("text", ["a: [", "just words", "kind: Pod"])
def test_what_is_no_manifest(text: str) -> None:
    with pytest.raises(ValueError, match=r"YAML|apiVersion"):
        parse_documents(text)


def test_lists_are_opened() -> None:
    text = "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Secret, metadata: {name: s}}]"
    assert [document["kind"] for document in parse_documents(text)] == ["Secret"]
