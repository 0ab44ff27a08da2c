"""Small workflows and site files for the tests of `medweave bind`."""

from __future__ import annotations

from pathlib import Path

TRAIN = """\
cwlVersion: v1.2
class: Workflow
inputs: {cohort: Directory, seed: int?}
outputs: {}
steps:
  prepare: {run: tools/prepare.cwl, in: {cohort: cohort}, out: [set]}
  train: {run: tools/train.cwl, in: {seed: seed, set: prepare/set}, out: [model]}
"""
INFER = """\
cwlVersion: v1.2
class: Workflow
inputs: [{id: cohort, type: Directory}, {id: model, type: Directory}]
outputs: {}
steps: [{id: prepare, run: tools/prepare.cwl, in: [], out: []}]
"""
ROLES = """\
train.cwl: {/prepare: preprocess, /train: train}
infer.cwl: {/prepare: preprocess}
"""
TOOL_OF_SEVERAL_NODES = """\
class: CommandLineTool
$namespaces: {medweave: "urn:medweave:cwl#"}
hints: {medweave:Gang: {}}
"""
SITE = """\
title: two machines
deployments:
  # The machine with the data.
  desk:
    type: medweave.local
    workdir: ../work # next to the sites
    config: {}
  cluster:
    type: slurm
    wraps: login
    config:
      maxConcurrentJobs: 2
      services:
        gpu: {partition: gpu}

  # Access to the cluster.
  login:
    type: ssh
    workdir: ${SCRATCH}/jobs
    config: {nodes: ["login.example.org"], sshKey: keys/id}
  idle:
    type: medweave.local
    config: {}

# Who does what.
roles:
  preprocess: {deployment: desk}
  train: {deployment: cluster, service: gpu, locations: 2}
"""


def write_project(folder: Path, site: str = SITE) -> Path:
    """Write a folder with workflows/lung/{train,infer}.cwl, its roles and job files, and deployments/sites/two.yml."""
    lung = folder / "workflows" / "lung"
    files = {
        lung / "train.cwl": TRAIN,
        lung / "infer.cwl": INFER,
        lung / "roles.yml": ROLES,
        lung / "tools" / "prepare.cwl": "class: CommandLineTool\n",
        lung / "tools" / "train.cwl": TOOL_OF_SEVERAL_NODES,
        lung / "jobs" / "demo-train.yml": "cohort: {class: Directory, path: ct}\n",
        folder / "deployments" / "sites" / "two.yml": site,
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
