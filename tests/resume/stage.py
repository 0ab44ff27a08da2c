"""The workloads of the campaign: inference over the laptop, Slurm and pods, and a training on Slurm, with small data."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from medweave.placement.bind import bind
from resume.pod_watch import PodWatch
from support import images
from support.chest_cohort import write_dicom
from support.cwl_files import WORKFLOWS
from support.exported import export
from support.hybrid_runs import INFERENCE, committed_site, laptop
from support.model_folders import trained_model
from support.testbed import Sites

CASES, PATIENTS = 2, 6  # numbers of cases of the inference and of the training, which splits them
INFER = WORKFLOWS / "lung-nodule-segmentation" / "infer.cwl"
IMAGE = (
    "localhost/medweave-resume:1"  # built from this source under a separate name, so that other tests do not replace it
)
TENANT, REPLICAS = "tenant-a", 2
CLAIM, MOUNT = "medweave-data", "/data"  # outputs of steps outlive the pods
TRAINING = """\
cwlVersion: v1.2
class: Workflow
inputs: {cohort: Directory, training_steps: int}
outputs: {model: {type: Directory, outputSource: train/trained_model}}
steps:
  check: {run: TOOLS/check.cwl, in: {cohort: cohort}, out: [cohort_index]}
  preprocess: {run: TOOLS/preprocess.cwl, in: {cohort: cohort, cohort_index: check/cohort_index}, out: [training_set]}
  train:
    run: TOOLS/train.cwl
    in:
      training_set: preprocess/training_set
      training_steps: training_steps
      channels: {default: [4, 4, 8, 8, 8]}
      batch_size: {default: 2}
      patch_shape: {default: [16, 16, 16]}
      epoch_steps: {default: 4}
    out: [trained_model]
"""
ROLES = "training.cwl: {/check: check, /preprocess: preprocess, /train: train}\n"
TRAINING_STEPS = 32
FINAL = ("lesion_mask.nii.gz", "lesion_mask.dcm", "lesions.csv", "model.safetensors")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The sites and data of all runs of a campaign.

    Attributes:
        folder: folder on this machine.
        name: name of all folders and releases at the sites.
        pods: the watch of pods.
    """

    testbed: Sites
    folder: Path
    name: str
    pods: PodWatch

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of the laptop's user."""
        return laptop(self.testbed) | {"MEDWEAVE_REUSE": "1"}

    def deployment(self, case: str) -> str:
        """Return the name of a case's deployment of pods."""
        return f"{self.name}-{case}"

    def scratch(self, case: str) -> Path:
        """Return the `workdir` of a case at the Slurm cluster."""
        return Path(self.testbed.layout.hpc) / "scratch" / self.name / case

    def volume(self, case: str) -> Path:
        """Return the `workdir` of a case on the pods' claim, as a path of this machine."""
        return self.testbed.layout.pods / TENANT / self.name / case

    def write(self, case: str, *, training: bool = False, alone: bool = False) -> Path:
        """Write the bound file of a case, whose workdirs no other case uses.

        Args:
            training: whether to run the training instead of the inference.
            alone: whether all steps run on the laptop.
        """
        at = self.folder / case
        at.mkdir(parents=True)
        (at / "site.yml").write_text(yaml.safe_dump(self._site(case, alone=alone)))
        cohort = {"class": "Directory", "path": str(self.folder / ("patients" if training else "cohort"))}
        if training:
            values: dict[str, Any] = {"cohort": cohort, "training_steps": TRAINING_STEPS}
            document = at / "training.cwl"
            document.write_text(TRAINING.replace("TOOLS", str(WORKFLOWS / "tools")))
            (at / "roles.yml").write_text(ROLES)
        else:
            model = {"class": "Directory", "path": str(self.folder / "exported")}
            # Without a key, each run would use other pseudonyms.
            values = {"cohort": cohort, "segmentation_model": model, "cases_per_batch": 1, "identified": False}
            document = INFER
        (at / "job.yml").write_text(json.dumps(values))
        bound = at / "streamflow.yml"
        bound.write_text(bind(document, str(at / "site.yml"), bound, at / "job.yml"))
        return bound

    def _site(self, case: str, *, alone: bool) -> dict[str, Any]:
        site = committed_site()
        deployments, pods = site["deployments"], self.deployment(case)
        deployments["login"]["workdir"] = "${MEDWEAVE_TESTBED_SCRATCH}/" + f"{self.name}/{case}"
        deployments[pods] = deployments.pop(INFERENCE)
        deployments[pods]["workdir"] = f"{MOUNT}/{self.name}/{case}"
        deployments[pods]["config"]["values"] |= {
            "image": {"repository": IMAGE.rpartition(":")[0], "tag": IMAGE.rpartition(":")[2], "pullPolicy": "Never"},
            "extraVolumes": [{"name": "data", "persistentVolumeClaim": {"claimName": CLAIM}}],
            "extraVolumeMounts": [{"name": "data", "mountPath": MOUNT}],
            "terminationGracePeriodSeconds": 5,
            "replicas": REPLICAS,
        }
        for roles, place in (
            (("preprocess", "train"), ("slurm", "normal")),
            (("segment", "classify", "gate"), (pods, "segment")),
        ):
            for role in roles:
                site["roles"][role] = {"deployment": place[0], "service": place[1]}
        if alone:
            site["roles"] = dict.fromkeys(site["roles"], {"deployment": "laptop"})  # noqa: RUF024 (nothing changes it)
        return site


def make_stage(testbed: Sites, folder: Path) -> Stage:
    """Write the cohort and a model with random weights, whose masks are sensitive to rounding."""
    images.build("segment", IMAGE)
    write_dicom(folder / "cohort", CASES)
    write_dicom(folder / "patients", PATIENTS)
    trained_model(folder / "trained")
    assert export(folder) == 0, "the model could not be exported"
    kubeconfig = testbed.layout.laptop_home / ".kube" / f"{TENANT}.kubeconfig"
    name = f"resume-{secrets.token_hex(3)}"
    return Stage(testbed=testbed, folder=folder, name=name, pods=PodWatch(kubeconfig, TENANT))
