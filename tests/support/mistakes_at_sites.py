"""Mistakes in sites, roles, job files, charts, images and schedules, and secrets in whatever file."""

from __future__ import annotations

from support.mistake import Mistake, of

ROLES = "workflows/lung-nodule-segmentation/roles.yml"
JOB = "workflows/lung-nodule-segmentation/jobs/demo-train.yml"
BRAIN_JOB = "workflows/brain-tumour-segmentation/jobs/demo-train.yml"
HYBRID_JOB = "workflows/lung-nodule-segmentation/jobs/hybrid-train.yml"
SITE = "deployments/sites/university-hpc-and-hospital.yml"
CHART = "helm/segmentation-worker"

# A key and a token that no tool takes for real ones when they look through this file: they are put together here.
_KEY = "-----BEGIN OPENSSH " + "PRIVATE KEY-----\n" + "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQ" + "\n"
_TOKEN = "ghp_" + "0123456789abcdefghijABCDEFGHIJ012345"
_WORD = "aHVudGVy" + "Mjc3Nzc3"
_KUBECONFIG = f"apiVersion: v1\nkind: Config\nusers:\n  - name: me\n    user:\n      token: {'x1' * 12}\n"
_SECRET = "apiVersion: v1\nkind: Secret\nmetadata: {name: login}\nstringData:\n  .dockerconfigjson: e30=\n"

AT_SITES: tuple[Mistake, ...] = (
    *of(
        SITE,
        ("a typo in a role", "site", "  segment: {deployment", "  segmnt: {deployment", "", "segment"),
        (
            "a typo in the deployment of a role",
            "site",
            "export: {deployment: hpc,",
            "export: {deployment: hpcc,",
            "",
            "hpc",
        ),
        (
            "a service that the chart does not have",
            "site",
            "evaluate: {deployment: hospital, service: segment}",
            "evaluate: {deployment: hospital, service: segmet}",
            "",
            "segment",
        ),
        (
            "a service that Slurm does not have",
            "site",
            "export: {deployment: hpc, service: cpu}",
            "export: {deployment: hpc, service: cpus}",
            "",
            "cpu",
        ),
        ("an unknown login node", "site", "wraps: hpc-login", "wraps: hpc-logn", "", "hpc-login"),
        (
            "a gate that measures elsewhere",
            "site",
            "gate: {deployment: hospital, service: segment}",
            "gate: {deployment: hpc, service: cpu}",
        ),
        ("a role without a place", "site-role", "  report: {deployment: workstation}\n", "", "roles:"),
        ("a misspelt setting of a service", "site", "gpusPerNode: 4", "gpuPerNode: 4", "", "gpusPerNode"),
        ("an invalid time", "site", 'time: "24:00:00"', 'time: "one day"'),
        (
            "a role where its data must not be",
            "data-route",
            "preprocess: {deployment: hospital, service: segment}",
            "preprocess: {deployment: hpc, service: cpu}",
            "",
            "hospital",
        ),
        (
            "pods with less memory than their tools ask for",
            "resource-cap",
            'requests: {cpu: "8", memory: 8Gi}\n          limits: {cpu: "8", memory: 16Gi}',
            'requests: {cpu: "8", memory: 1Gi}\n          limits: {cpu: "8", memory: 1Gi}',
            "          limits",
        ),
        (
            "a chart's value of the wrong type",
            "chart-value",
            "replicas: 4\n        resources",
            "replicas: four\n        resources",
        ),
        (
            "a chart's value that it does not have",
            "chart-value",
            "extraVolumeMounts:",
            "extraVolumeMount:",
            "",
            "extraVolumeMounts",
        ),
        (
            "an image whose tag moves",
            "image-unpinned",
            'medweave/segment", tag: 0.1.0',
            'medweave/segment", tag: latest',
        ),
        (
            "an image of another version",
            "version-differs",
            'medweave/compss", tag: 0.1.0',
            'medweave/compss", tag: 0.0.9',
            "",
            "0.1.0",
        ),
        (
            "a chart that is not there",
            "binding-file",
            "chart: ../../helm/compss-cluster",
            "chart: ../../helm/compss-clusters",
            "",
            "compss-cluster",
        ),
        (
            "a password",
            "secret-in-clear",
            "namespace: radiology\n      values",
            "namespace: radiology # https://me:hunter22@registry.example.org\n      values",
        ),
    ),
    *of(
        ROLES,
        (
            "a role for a step that is not there",
            "roles",
            "  /quantize: quantize",
            "  /quantise: quantize",
            "",
            "/quantize",
        ),
        ("an unknown role", "roles", "  /export: export", "  /export: exports", "", "export"),
        (
            "an unknown data class",
            "data-route",
            "inputs: {cohort: identified,",
            "inputs: {cohort: identifed,",
            "",
            "identified",
        ),
    ),
    *of(
        JOB,
        ("a typo in an input", "job-input", "cases_per_batch: 12", "case_per_batch: 12", "", "cases_per_batch"),
        ("a word where a number is taken", "job-type", "cases_per_batch: 12", "cases_per_batch: twelve"),
        ("a file that is not there", "job-file", "../../../build/demo/cohort", "../../../cohort"),
        ("a file where a folder is taken", "job-type", "class: Directory", "class: File", "", "Directory"),
        (
            "an input that is missing",
            "job-input",
            "cohort: {class: Directory, path: ../../../build/demo/cohort}\n",
            "",
            "identified",
        ),
    ),
    *of(
        HYBRID_JOB,
        (
            "a value outside an enum",
            "job-type",
            "distributed: true\n",
            "distributed: true\ndistributed_engine: dpd\n",
            "distributed_engine",
            "ddp",
        ),
    ),
    *of(
        f"{CHART}/ci/everything-on.yaml",
        ("a word for a number in a chart's values", "chart-value", "replicas: 2", "replicas: two"),
        ("an invalid digest", "chart-value", "sha256:0000", "sha256:00"),
    ),
    *of(f"{CHART}/values.yaml", ("a default of the wrong type", "chart-value", "gpus: 0", "gpus: none")),
    *of(
        f"{CHART}/Chart.yaml",
        ("a chart without a version", "chart", "\nversion: 0.1.0", "", "apiVersion"),
        ("a chart of another version", "version-differs", "appVersion: 0.1.0", "appVersion: 0.2.0", "", "0.1.0"),
    ),
    *of(f"{CHART}/values.schema.json", ("an invalid schema", "chart", '"type": "integer"', '"type": "integr"')),
    *of(
        "deployments/images/segment/Containerfile",
        ("a base image without a tag", "image-unpinned", "BASE_IMAGE=python:3.12-slim", "BASE_IMAGE=python"),
    ),
    *of(
        "deployments/schedules/university-hpc-and-hospital.yml",
        ("an hour that no day has", "schedule", 'when: "0 2 * * *"', 'when: "0 26 * * *"'),
        ("a key that a schedule does not have", "schedule", "timeZone: ", "timezone: ", "", "timeZone"),
        (
            "a schedule of a file that is not there",
            "schedule",
            "hospital-infer.yml",
            "hospital-infre.yml",
            "hospital-infre",
        ),
    ),
    *of("deployments/id_ed25519", ("a private key", "secret-in-clear", "", _KEY)),
    *of("deployments/notes.md", ("a token in a text", "secret-in-clear", "", f"The token is {_TOKEN}.\n")),
    *of("deployments/kubeconfig.yml", ("a kubeconfig with a token", "secret-in-clear", "", _KUBECONFIG, "      token")),
    *of(
        "deployments/secret.yaml",
        ("a Secret with its content", "secret-in-clear", "", _SECRET, "  .dockerconfigjson"),
    ),
    *of(
        "deployments/pod.yaml",
        (
            "a pod's image without a tag",
            "image-unpinned",
            "",
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n    - name: a\n      image: busybox\n",
            "      image",
        ),
    ),
    *of(ROLES, ("two roles for a step", "roles", "  /export: export", "  /export: [export, gate]")),
    *of(
        SITE,
        ("a misspelt section of a site", "site", "\ndeployments:\n", "\ndeploymnts:\n", "", "deployments"),
        ("settings that are a list", "site", "    config: {}", "    config: []"),
    ),
    *of(
        JOB,
        ("a misspelt key of a folder", "job-type", "class: Directory, path:", "class: Directory, pth:", "", "path"),
        (
            "an address of a folder that is not there",
            "job-file",
            "path: ../../../build/demo",
            "location: file:///nowhere",
        ),
    ),
    *of(
        JOB,
        (
            "a typo in an input that must be there",
            "job-input",
            "cohort: {class",
            "cohrt: {class",
            "",
            "cohort",
        ),
        (
            "nothing for an input that must be there",
            "job-type",
            "{class: Directory, path: ../../../build/demo/cohort}",
            "null",
        ),
    ),
    *of(
        BRAIN_JOB,
        (
            "an item of a list that is no number",
            "job-type",
            "[64, 64, 40]",
            "\n- 64\n- sixty-four\n- 40",
            "- sixty-four",
            "int",
        ),
        ("a number where a list is taken", "job-type", "timed_ranks: [1]", "timed_ranks: 1", "", "int[]"),
        (
            "a file in a list that is not there",
            "job-file",
            "path: ../../../build/brain/cohort}",
            "path: ../../../build/brain/cohort, listing: [\n  {class: File, path: demo-grd.json}]}",
            "  {class: File, path: demo-grd.json}",
            "demo-grid.json",
        ),
    ),
    *of(
        "workflows/search/jobs/example-search.yml",
        ("a typo in a job of a workflow with a name of two words", "job-input", "slots: 2", "slot: 2", "", "slots"),
    ),
    *of(
        "deployments/schedules/university-hpc-and-hospital.yml",
        ("a schedule that names its file by another key", "schedule", "\nfile: ", "\nflie: ", "", "file"),
    ),
    *of("deployments/sites/empty.yml", ("a site with nothing in it", "site", "", "# to be written\n")),
    *of(
        "deployments/images/segment/Containerfile",
        ("a password in an image", "secret-in-clear", "ARG REVISION=unknown", f"ENV REGISTRY_PASSWORD={_WORD}"),
    ),
    *of(
        "deployments/login.json",
        ("a password in JSON", "secret-in-clear", "", f'{{\n "password": "{_WORD}"\n}}\n', ' "password"'),
    ),
    *of(
        "deployments/config.json",
        (
            "a login of Docker",
            "secret-in-clear",
            "",
            f'{{"auths": {{\n "registry.example": {{"auth": "{_WORD}=="}}}}}}\n',
            ' "reg',
        ),
    ),
    *of(
        "deployments/pod-with-a-password.yaml",
        (
            "a password in the environment of a pod",
            "secret-in-clear",
            "",
            "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n    - name: a\n      env:\n"
            f"        - name: DB_PASSWORD\n          value: {_WORD}\n",
            "          value",
        ),
    ),
    *of(
        "deployments/sites/hpc-and-cloud.yml",
        ("an input that no workflow has", "site", "inputs:\n  cohort:", "inputs:\n  cohrt:", "  cohrt:", "cohort"),
        (
            "a request above the limit",
            "chart-value",
            'requests: {cpu: "8", memory: 8Gi}',
            'requests: {cpu: "16", memory: 8Gi}',
        ),
        (
            "a service that a chart does not have",
            "site",
            "  segment: {deployment: cloud-inference, service: segment}",
            "  segment: {deployment: cloud-inference, service: segmet}",
            "",
            "segment",
        ),
        ("a namespace with a blank", "site", "namespace: medweave", "namespace: Medweave Pods"),
        ("a workdir of pods that is relative", "site", "workdir: /work", "workdir: work"),
        (
            "several nodes for a step of one",
            "site",
            "  export: {deployment: hpc, service: cpu}",
            "  export: {deployment: hpc, service: cpu, locations: 2}",
        ),
    ),
    *of(
        "deployments/schedules/university-hpc-and-hospital.yml",
        (
            "a plaintext webhook",
            "secret-in-clear",
            '"${MEDWEAVE_WEBHOOK}"',
            f"https://hooks.slack.com/services/T0123456/B0123456/{_WORD * 2}",
        ),
    ),
    *of(
        "workflows/brain-tumour-segmentation/jobs/demo-grid.json",
        ("a file of a job that is no JSON", "job-type", '["batch", "group"]}', '["batch", "group"],}'),
    ),
    *of(
        "workflows/lung-nodule-segmentation/jobs/demo-infer.yml",
        (
            "a number in quotes",
            "job-type",
            "identified: false",
            'threshold: "0.5"\nidentified: false',
            "",
            "without quotes",
        ),
    ),
)
