"""Mistakes to seed into a copy of this repository's files, each with the place and the rule that `medweave validate` must tell."""

from __future__ import annotations

from dataclasses import dataclass

TRAIN = "workflows/lung-nodule-segmentation/train.cwl"
INFER = "workflows/lung-nodule-segmentation/infer.cwl"
ROLES = "workflows/lung-nodule-segmentation/roles.yml"
JOB = "workflows/lung-nodule-segmentation/jobs/demo-train.yml"
HYBRID_JOB = "workflows/lung-nodule-segmentation/jobs/hybrid-train.yml"
TOOLS = "workflows/tools"
SITE = "deployments/sites/university-hpc-and-hospital.yml"
BOUND = "deployments/bindings/streamflow.university-hpc-and-hospital.yml"
CHART = "helm/segmentation-worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """A text that stands in the stead of another one.

    Attributes:
        old: what is replaced, once; empty where a file is added.
        at: text of the line that must be named, where that is not the first line that differs.
        fix: words that the fix must have.
    """

    name: str
    rule: str
    file: str
    old: str
    new: str
    at: str = ""
    fix: str = ""


def _of(file: str, *rows: tuple[str, ...]) -> list[Mistake]:
    return [
        Mistake(
            name=row[0], rule=row[1], file=file, old=row[2], new=row[3], at="".join(row[4:5]), fix="".join(row[5:6])
        )
        for row in rows
    ]


# A key and a token that no tool takes for real ones when they look through this file: they are put together here.
_KEY = "-----BEGIN OPENSSH " + "PRIVATE KEY-----\n" + "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQ" + "\n"
_TOKEN = "ghp_" + "0123456789abcdefghijABCDEFGHIJ012345"
_WORD = "aHVudGVy" + "Mjc3Nzc3"
_KUBECONFIG = f"apiVersion: v1\nkind: Config\nusers:\n  - name: me\n    user:\n      token: {'x1' * 12}\n"
_SECRET = "apiVersion: v1\nkind: Secret\nmetadata: {name: login}\nstringData:\n  .dockerconfigjson: e30=\n"

MISTAKES: tuple[Mistake, ...] = (
    *_of(
        f"{TOOLS}/segment.cwl",
        (
            "YAML that ends early",
            "yaml-syntax",
            "{coresMin: 2, ramMin: 3072}",
            "{coresMin: 2, ramMin: 3072",
            "ToolTimeLimit",
        ),
        (
            "an input that is not there, in an expression",
            "cwl-expression",
            "valueFrom: segmentations-$(inputs.case_batch.",
            "valueFrom: segmentations-$(inputs.case_bach.",
            "",
            "case_batch",
        ),
        (
            "a requirement that CWL does not have",
            "cwl-requirement",
            "ToolTimeLimit",
            "ToolTimLimit",
            "",
            "ToolTimeLimit",
        ),
        ("a number that is a list", "cwl-structure", "coresMin: 2", "coresMin: [two]"),
    ),
    *_of(
        f"{TOOLS}/train.cwl",
        ("a misspelt field of a tool", "cwl-structure", "baseCommand:", "baseComand:", "", "baseCommand"),
        ("a type that is none", "cwl-type", "type: int[]?", "type: intt[]?", "", "int"),
        ("a default that is none of the words", "cwl-type", "default: auto", "default: atuo"),
        ("an undeclared prefix", "cwl-requirement", "medweave:Gang", "medweav:Gang", "", "medweave"),
        (
            "an input that nothing reads",
            "cwl-unused-input",
            "    type: int?\n    inputBinding: {prefix: --patience}",
            "    type: int?",
            "  patience:",
        ),
        (
            "more GPUs than any node has",
            "resource-cap",
            "gpusMin: 0, gpusTotal: $(inputs.ranks)",
            "gpusMin: 16, gpusMax: 16",
        ),
    ),
    *_of(
        TRAIN,
        ("a step twice", "duplicate-key", "  report:\n    run", "  evaluate:\n    run"),
        (
            "an output and a step of one name",
            "cwl-duplicate-id",
            "  evaluation_report:",
            "  report:",
            "  report:\n    run",
        ),
        (
            "a typo in what a step reads",
            "cwl-source",
            "cohort_index: check/cohort_index\n      purpose",
            "cohort_index: check/cohort_indx\n      purpose",
            "",
            "check/cohort_index",
        ),
        (
            "a typo in an input of a tool",
            "cwl-port",
            "      training_set: preprocess/training_set\n      training_steps",
            "      training_sett: preprocess/training_set\n      training_steps",
            "",
            "training_set",
        ),
        (
            "an input that only makes a step wait",
            "cwl-extra-port",
            "      ranks: training_ranks\n",
            "      ranks: training_ranks\n      quietly: check/run_report\n",
        ),
        (
            "a typo in an output of a tool",
            "cwl-port",
            "out: [cohort_index, run_report]",
            "out: [cohort_indices, run_report]",
            "",
            "cohort_index",
        ),
        (
            "a folder where a file is taken",
            "cwl-edge-type",
            "cohort_index: check/cohort_index\n      segmentations",
            "cohort_index: cohort\n      segmentations",
        ),
        (
            "a scatter that is missing",
            "cwl-edge-type",
            "    scatter: case_batch\n",
            "",
            "      case_batch: preprocess/inference_batches",
            "scatter",
        ),
        ("a typo in a scatter", "cwl-scatter", "scatter: case_batch", "scatter: case_batchs", "", "case_batch"),
        (
            "a misspelt field of a step",
            "cwl-structure",
            "    scatter: case_batch\n",
            "    scater: case_batch\n",
            "",
            "scatter",
        ),
        (
            "a typo in what an output reads",
            "cwl-source",
            "outputSource: gate/accepted_model",
            "outputSource: gate/accepted_modl",
            "",
            "gate/accepted_model",
        ),
        (
            "an output of another type",
            "cwl-edge-type",
            "type: Directory[]",
            "type: File[]",
            "    outputSource: segment/segmentations",
        ),
        (
            "a file of another format",
            "cwl-format",
            "format: edam:format_3464",
            "format: edam:format_3752",
            "    outputSource: gate/gate_decision",
        ),
        (
            "steps in a circle",
            "cwl-cycle",
            "      trained_model:\n"
            "        source: [train_distributed/trained_model, train/trained_model]\n"
            "        pickValue: first_non_null\n",
            "      trained_model: gate/accepted_model\n",
            "      trained_model: gate/accepted_model",
        ),
        (
            "a tool that is not there",
            "cwl-missing-file",
            "run: ../tools/gate.cwl",
            "run: ../tools/gates.cwl",
            "",
            "gate.cwl",
        ),
        (
            "an input that must be bound",
            "cwl-port",
            "      exported_model: export/exported_model\n      training_set",
            "      training_set",
            "    in:\n      training_set: preprocess/training_set\n    out: [int8",
        ),
        (
            "an input of a workflow that nothing reads",
            "cwl-unused-input",
            "inputs:\n",
            "inputs:\n  forgotten:\n    doc: read by nobody\n    type: int?\n",
        ),
        (
            "a feature that is not required",
            "cwl-requirement",
            "  ScatterFeatureRequirement: {}\n",
            "",
            "    scatter: case_batch",
        ),
        ("a word that linkMerge does not have", "cwl-structure", "linkMerge: merge_nested", "linkMerge: merge_nest"),
        (
            "null where something must come",
            "cwl-null-edge",
            "      trained_model:\n"
            "        source: [train_distributed/trained_model, train/trained_model]\n"
            "        pickValue: first_non_null\n    out: [exported_model",
            "      trained_model: train_distributed/trained_model\n    out: [exported_model",
            "      trained_model: train_distributed",
        ),
    ),
    *_of(
        INFER,
        ("a class of document that is none", "cwl-structure", "class: Workflow", "class: Workfow", "", "Workflow"),
    ),
    *_of(
        BOUND,
        ("a typo in a bound step", "binding-step", "step: /segment,", "step: /segmnt,", "", "/segment"),
        ("a typo in a bound port", "binding-port", "port: /cohort", "port: /cohrt", "", "/cohort"),
        ("a typo in a service", "binding-target", "service: gpu,", "service: gpux,", "", "gpu"),
        (
            "a typo in a deployment",
            "binding-target",
            "deployment: hospital-training}",
            "deployment: hospital-trainig}",
            "",
            "hospital-training",
        ),
        (
            "a typo in a filter",
            "binding-target",
            "service: gpu, locations: 2}, filters: [data-rules]",
            "service: gpu, locations: 2}, filters: [data-rule]",
            "",
            "data-rules",
        ),
        ("a port that says no folder", "binding-port", ", workdir: /cohorts}", "}"),
        (
            "a step bound where its data must not be",
            "data-route",
            "{step: /evaluate, target: {deployment: hospital, service: segment}",
            "{step: /evaluate, target: {deployment: hpc, service: cpu}",
            "",
            "hospital",
        ),
        (
            "a generated file that was edited",
            "binding-stale",
            "maxConcurrentSessions: 8",
            "maxConcurrentSessions: 9",
            "",
            "medweave bind",
        ),
        (
            "a step that is bound to nothing",
            "binding-step",
            "      - {step: /report, target: {deployment: workstation}, filters: [data-rules]}                    # role report\n",
            "",
            "    bindings:",
            "/report",
        ),
    ),
    *_of(
        "streamflow.yml",
        (
            "a typo in a connector",
            "binding-structure",
            "type: medweave.local",
            "type: medweave.locl",
            "",
            "medweave.local",
        ),
        (
            "a setting that a connector does not have",
            "binding-structure",
            "    config: {}\nscheduling",
            "    config: {maxConcurrentJobs: 3}\nscheduling",
        ),
        (
            "a workflow that is not there",
            "binding-file",
            "segmentation/train.cwl",
            "segmentation/trains.cwl",
            "",
            "train.cwl",
        ),
        ("a misspelt block", "binding-structure", "scheduling:", "schedulng:", "", "scheduling"),
    ),
    *_of(
        "streamflow-infer.yml",
        ("a job file that is not there", "binding-file", "demo-infer.yml", "demo-infr.yml", "", "demo-infer.yml"),
    ),
    *_of(
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
        ("a way that is not there", "site", "wraps: hpc-login", "wraps: hpc-logn", "", "hpc-login"),
        (
            "a gate that measures elsewhere",
            "site",
            "gate: {deployment: hospital, service: segment}",
            "gate: {deployment: hpc, service: cpu}",
        ),
        ("a role without a place", "site-role", "  report: {deployment: workstation}\n", "", "roles:"),
        ("a misspelt setting of a service", "site", "gpusPerNode: 4", "gpuPerNode: 4", "", "gpusPerNode"),
        ("a time that is none", "site", 'time: "24:00:00"', 'time: "one day"'),
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
            'limits: {cpu: "8", memory: 16Gi}',
            'limits: {cpu: "8", memory: 1Gi}',
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
    *_of(
        ROLES,
        (
            "a role for a step that is not there",
            "roles",
            "  /quantize: quantize",
            "  /quantise: quantize",
            "",
            "/quantize",
        ),
        ("a role that is none", "roles", "  /export: export", "  /export: exports", "", "export"),
        (
            "a class of data that is none",
            "data-route",
            "inputs: {cohort: identified,",
            "inputs: {cohort: identifed,",
            "",
            "identified",
        ),
    ),
    *_of(
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
    *_of(
        HYBRID_JOB,
        (
            "a word that is none of an enum's",
            "job-type",
            "distributed: true\n",
            "distributed: true\ndistributed_engine: dpd\n",
            "distributed_engine",
            "ddp",
        ),
    ),
    *_of(
        f"{CHART}/ci/everything-on.yaml",
        ("a word for a number in a chart's values", "chart-value", "replicas: 2", "replicas: two"),
        ("a digest that is none", "chart-value", "sha256:0000", "sha256:00"),
    ),
    *_of(f"{CHART}/values.yaml", ("a default of the wrong type", "chart-value", "gpus: 0", "gpus: none")),
    *_of(
        f"{CHART}/Chart.yaml",
        ("a chart without a version", "chart", "\nversion: 0.1.0", "", "apiVersion"),
        ("a chart of another version", "version-differs", "appVersion: 0.1.0", "appVersion: 0.2.0", "", "0.1.0"),
    ),
    *_of(f"{CHART}/values.schema.json", ("a schema that is none", "chart", '"type": "integer"', '"type": "integr"')),
    *_of(
        "deployments/images/segment/Containerfile",
        ("a base image without a tag", "image-unpinned", "BASE_IMAGE=python:3.12-slim", "BASE_IMAGE=python"),
    ),
    *_of(
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
    *_of("deployments/id_ed25519", ("a private key", "secret-in-clear", "", _KEY)),
    *_of("deployments/notes.md", ("a token in a text", "secret-in-clear", "", f"The token is {_TOKEN}.\n")),
    *_of(
        "deployments/kubeconfig.yml", ("a kubeconfig with a token", "secret-in-clear", "", _KUBECONFIG, "      token")
    ),
    *_of(
        "deployments/secret.yaml",
        ("a Secret with what is in it", "secret-in-clear", "", _SECRET, "  .dockerconfigjson"),
    ),
    *_of(
        "deployments/pod.yaml",
        (
            "a pod's image without a tag",
            "image-unpinned",
            "",
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n    - name: a\n      image: busybox\n",
            "      image",
        ),
    ),
    # Of keys and whole sections: what follows from them is not told as well.
    *_of(
        f"{TOOLS}/segment.cwl",
        ("a misspelt section of a tool", "cwl-structure", "\noutputs:", "\noutptus:", "", "outputs"),
        ("inputs that are a number", "cwl-structure", "\ninputs:\n", "\ninputs: 3\nothers:\n"),
        ("memory with a unit", "cwl-requirement", "ramMin: 3072", "ramMin: 3 GB", "", "ramMin: 4096"),
        ("a typo in what the runner gives", "cwl-expression", "$(runtime.", "$(runtme.", "", "runtime"),
    ),
    *_of(
        TRAIN,
        ("a misspelt section of a workflow", "cwl-structure", "\nsteps:\n", "\nstpes:\n", "", "steps"),
        (
            "a typo in a condition",
            "cwl-expression",
            "when: $(inputs.identified)",
            "when: $(inputs.identifed)",
            "",
            "identified",
        ),
        ("an alias of what it stands in", "yaml-syntax", "\nclass: Workflow\n", "\nclass: &all [*all]\n"),
    ),
    *_of(ROLES, ("two roles for a step", "roles", "  /export: export", "  /export: [export, gate]")),
    *_of(
        SITE,
        ("a misspelt section of a site", "site", "\ndeployments:\n", "\ndeploymnts:\n", "", "deployments"),
        ("settings that are a list", "site", "    config: {}", "    config: []"),
    ),
    *_of(
        "streamflow.yml",
        ("a word for a deployment's settings", "binding-structure", "    config: {}", "    config: fast"),
        (
            "a misspelt section of a StreamFlow file",
            "binding-structure",
            "\nworkflows:\n",
            "\nworkflow:\n",
            "",
            "workflows",
        ),
    ),
    *_of(
        JOB,
        ("a misspelt key of a folder", "job-type", "class: Directory, path:", "class: Directory, pth:", "", "path"),
        (
            "an address of a folder that is not there",
            "job-file",
            "path: ../../../build/demo",
            "location: file:///nowhere",
        ),
    ),
    *_of(
        "workflows/search/jobs/example-search.yml",
        ("a typo in a job of a workflow with a name of two words", "job-input", "slots: 2", "slot: 2", "", "slots"),
    ),
    *_of(
        "deployments/schedules/university-hpc-and-hospital.yml",
        ("a schedule that names its file by another key", "schedule", "\nfile: ", "\nflie: ", "", "file"),
    ),
    *_of("deployments/sites/empty.yml", ("a site with nothing in it", "site", "", "# to be written\n")),
    *_of(
        "deployments/images/segment/Containerfile",
        ("a password in an image", "secret-in-clear", "ARG REVISION=unknown", f"ENV REGISTRY_PASSWORD={_WORD}"),
    ),
    *_of(
        "deployments/login.json",
        ("a password in JSON", "secret-in-clear", "", f'{{\n "password": "{_WORD}"\n}}\n', ' "password"'),
    ),
    *_of(
        "deployments/config.json",
        (
            "a login of Docker",
            "secret-in-clear",
            "",
            f'{{"auths": {{\n "registry.example": {{"auth": "{_WORD}=="}}}}}}\n',
            ' "reg',
        ),
    ),
    *_of(
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
)
