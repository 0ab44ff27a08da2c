"""The committed site of the testbed, bound to a small workflow and run: data that lies at a site is read there."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from medweave.placement.bind import bind
from support import engine
from support.cwl_files import ROOT
from support.testbed import Sites

SITE = ROOT / "deployments" / "sites" / "testbed.yml"
INPUTS = 'inputs:\n  cohort: {deployment: slurm, service: normal, workdir: "${MEDWEAVE_TESTBED_SCRATCH}/cohorts"}\n'
WORKFLOW = """\
cwlVersion: v1.2
class: Workflow
inputs: {cohort: Directory}
outputs:
  listing: {type: File, outputSource: export/listing}
  nodes: {type: File, outputSource: train/nodes}
steps:
  export: {run: export.cwl, in: {cohort: cohort}, out: [listing]}
  train: {run: train.cwl, in: {listing: export/listing}, out: [nodes]}
"""
EXPORT = """\
cwlVersion: v1.2
class: CommandLineTool
baseCommand: [sh, -c, 'ls "$0"/ > listing.txt; readlink -f "$0" >> listing.txt']
inputs: {cohort: {type: Directory, inputBinding: {}}}
outputs: {listing: {type: File, outputBinding: {glob: listing.txt}}}
"""
TRAIN = """\
cwlVersion: v1.2
class: CommandLineTool
$namespaces: {medweave: "urn:medweave:cwl#"}
hints: {medweave:Gang: {}}
baseCommand: [sh, train.sh]
requirements:
  InitialWorkDirRequirement:
    listing:
      - entryname: train.sh
        entry: |
          echo "$MEDWEAVE_NODE_RANK of $MEDWEAVE_NUM_NODES on `hostname`" > node-$MEDWEAVE_NODE_RANK.txt
          [ "$MEDWEAVE_NODE_RANK" = 0 ] || exit 0
          for second in `seq 60`; do [ -s node-1.txt ] && break; sleep 1; done
          cat node-0.txt node-1.txt > nodes.txt
inputs: {listing: File}
outputs: {nodes: {type: File, outputBinding: {glob: nodes.txt}}}
"""


@pytest.fixture
def cohort(testbed: Sites) -> Iterator[str]:
    """Yield the path of a folder with one file on the cluster's scratch."""
    folder = f"{testbed.layout.hpc}/scratch/cohorts"
    made = testbed.hpc("sh", "-c", f"mkdir -p {folder}/ct && touch {folder}/ct/one.dcm")
    assert made.returncode == 0, made.stderr
    yield f"{folder}/ct"
    testbed.hpc("rm", "-r", folder)


def laptop_environment(testbed: Sites) -> dict[str, str]:
    """Return the variables that the laptop's user sources before a run."""
    file = shlex.quote(str(testbed.layout.laptop / "environment.sh"))
    text = subprocess.run(
        ["env", "-i", "sh", "-c", f". {file} && env -0"], capture_output=True, text=True, check=True
    ).stdout
    variables = dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)
    return {name: value for name, value in variables.items() if name.startswith("MEDWEAVE_") or name == "HOME"}


def test_a_cohort_at_the_cluster_is_read_there_and_a_step_gets_its_two_nodes(
    testbed: Sites, cohort: str, tmp_path: Path
) -> None:
    files = {
        "small/infer.cwl": WORKFLOW,
        "small/export.cwl": EXPORT,
        "small/train.cwl": TRAIN,
        "small/roles.yml": "infer.cwl: {/export: export, /train: train}\n",
        "small/job.yml": "cohort: {class: Directory, path: ct}\n",
        "sites/testbed.yml": SITE.read_text() + INPUTS,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    bound = tmp_path / "streamflow.yml"
    bound.write_text(
        bind(tmp_path / "small/infer.cwl", str(tmp_path / "sites/testbed.yml"), bound, tmp_path / "small/job.yml")
    )
    ended = engine.start(tmp_path, environment=laptop_environment(testbed)).wait(240)  # the queue may be long
    assert ended.exit_code == 0, ended.stderr
    assert (tmp_path / "results" / "listing.txt").read_text().split() == ["one.dcm", cohort]
    assert (tmp_path / "results" / "nodes.txt").read_text() == "0 of 2 on n1\n1 of 2 on n2\n"
