"""Fifty identifiers and secrets, and the cohort, configuration and environment that hold them."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence as DicomSequence
from pydicom.uid import ExplicitVRLittleEndian

from support.chest_cohort import simple_chest
from support.dicom_builder import CtSeries
from support.openvino_models import InputContract, write_tiny_model

Where = Literal["header", "private tag", "name of a file or folder", "text file", "configuration", "environment"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A text that must not appear anywhere outside the home of the data.

    Attributes:
        what: for people.
        text: the words themselves.
        where: the kind of place that holds it.
    """

    what: str
    text: str
    where: Where


def _of(where: Where, **texts: str) -> tuple[Marker, ...]:
    return tuple(Marker(what=name.replace("_", " "), text=text, where=where) for name, text in texts.items())


HEADERS = {
    "family_name": "Quillfeather", "given_name": "Rosamunde", "patient_id": "HOSP-774411", "birth_date": "19480217",
    "address": "Mulberry Lane", "accession_number": "ACC-559922", "institution": "St Elsewhere",
    "referring_physician": "Grimshaw", "station": "StationNine", "device_serial_number": "SNDEVICE88",
    "other_patient_id": "PASSPORT-X4711", "telephone": "+49-30-5550173", "maiden_name": "Winterbottom",
    "study_date": "20190304", "protocol": "protocol for Ottoline", "study_description": "query lesion Everard",
    "comments": "lives with Philippa", "operator": "Dunderdale", "nested_name": "Nestington",
    "overlay_text": "overlay of Tancred", "damaged_date": "19480217-Balthazar", "second_family_name": "Fortescue",
    "second_patient_id": "HOSP-774412", "second_birth_date": "19511130",
}  # fmt: skip
PRIVATE = {"private_creator": "Zebediah private", "private_text": "seen by Yolanda", "unknown_vr": "unknown Xanthippe"}
NAMES = {
    "cohort_folder": "Thistlewood", "birth_date_in_folder": "1932-05-11", "folder_of_patient": "Abernathy",
    "file_of_slice": "Haversham", "number_in_file": "MRN0098127", "loose_file": "Pemberton",
    "job_file": "Ravenscroft", "folder_of_key": "Inverarity", "folder_of_model": "Summerisle",
}  # fmt: skip
TEXTS = {"notes": "Wilhelmina called", "splits_note": "ask Cornelius"}
CONFIGURATION = {
    "pseudonym_key": "q7Vd2mXkW9sLr4TzY8bNc3HfJ6gPa1Ue", "ssh_passphrase": "correct-horse-ssh-4471",
    "kubeconfig_token": "eyJhbGciOiJSUzI1NiIsImtpZCI6Imt1YmUtNDQ3MiJ9.c2VjcmV0",
    "kubeconfig_key": "LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVktNDQ3Mw", "kubeconfig_password": "kube-password-4474",
    "bucket_secret": "bucketSecret/4475+abcdEFGH", "netrc_password": "netrc-password-4476",
}  # fmt: skip
ENVIRONMENT = {
    "cloud_key_id": "AKIA4477EXAMPLE0ABCD", "cloud_secret": "wJalrXUtnFEMI4478bPxRfiCYEXAMPLE",
    "hub_token": "hf_4479qwertyuiopasdfgh", "webhook_token": "whsec-4480-zxcvbnm",
}  # fmt: skip
STATIC = (
    *_of("header", **HEADERS),
    *_of("private tag", **PRIVATE),
    *_of("name of a file or folder", **NAMES),
    *_of("text file", **TEXTS),
    *_of("configuration", **CONFIGURATION),
    *_of("environment", **ENVIRONMENT),
)
VARIABLES = {
    "AWS_ACCESS_KEY_ID": ENVIRONMENT["cloud_key_id"],
    "AWS_SECRET_ACCESS_KEY": ENVIRONMENT["cloud_secret"],
    "HF_TOKEN": ENVIRONMENT["hub_token"],
    "NOTIFY_TOKEN": ENVIRONMENT["webhook_token"],
}


_SECRET_FILES: Mapping[str, str] = {
    ".ssh/passphrase": CONFIGURATION["ssh_passphrase"],
    ".kube/config": json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "clusters": [{"name": "here", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "me", "user": {
            "token": CONFIGURATION["kubeconfig_token"], "client-key-data": CONFIGURATION["kubeconfig_key"],
            "username": "me", "password": CONFIGURATION["kubeconfig_password"],
        }}],
    }),
    ".aws/credentials": f"[default]\naws_secret_access_key = {CONFIGURATION['bucket_secret']}\n",
    ".netrc": f"machine example.org login me password {CONFIGURATION['netrc_password']}\n",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The inputs of a run.

    Attributes:
        root: the folder with all of it, which is not searched.
        job: the job file.
        user: the user's home directory, searched, but for the files written to it here.
    """

    root: Path
    job: Path
    user: Path


def owned(inputs: Inputs) -> set[Path]:
    """Return the files of the user's home that hold secrets by right."""
    return {inputs.user / name for name in _SECRET_FILES}


def all_markers(inputs: Inputs) -> tuple[Marker, ...]:
    """Return all fifty; the private key is generated each time, and one of its lines is its marker."""
    lines = (inputs.root / "ssh" / "id_ed25519").read_text(encoding="utf-8").splitlines()
    return *STATIC, *_of("configuration", ssh_private_key=lines[len(lines) // 2])


def write_inputs(root: Path) -> Inputs:
    """Write a cohort of two patients, a model, a key, a job file and a user's home, all with markers."""
    cohort = root / f"{NAMES['cohort_folder']} scans"
    for number, (name, patient, birth) in enumerate(
        (
            (HEADERS["family_name"], HEADERS["patient_id"], HEADERS["birth_date"]),
            (HEADERS["second_family_name"], HEADERS["second_patient_id"], HEADERS["second_birth_date"]),
        )
    ):
        below = cohort / f"{NAMES['folder_of_patient']}^{number} {NAMES['birth_date_in_folder']}"
        below.mkdir(parents=True)
        for index, dataset in enumerate(_slices(number, name, patient, birth)):
            file = below / f"{NAMES['file_of_slice']} {NAMES['number_in_file']}-{index:03d}.dcm"
            dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
            dataset.save_as(file, enforce_file_format=True)
    (cohort / f"notes of {NAMES['loose_file']}.txt").write_text(TEXTS["notes"], encoding="utf-8")
    (cohort / "readme.md").write_text(TEXTS["splits_note"], encoding="utf-8")
    key = root / NAMES["folder_of_key"] / "the.key"
    key.parent.mkdir()
    key.write_text(CONFIGURATION["pseudonym_key"], encoding="utf-8")
    key.chmod(0o600)
    model = root / f"{NAMES['folder_of_model']}-model"
    write_tiny_model(model, input=InputContract(
        spacing_mm=(5.0, 5.0, 5.0), window_hu=(-1000.0, 400.0), patch_shape=(16, 16, 16), patch_multiple=4
    ))  # fmt: skip
    job = root / f"{NAMES['job_file']}.json"
    job.write_text(json.dumps({
        "cohort": {"class": "Directory", "path": cohort.name},
        "pseudonym_key": {"class": "File", "path": str(key.relative_to(root)), "format": "http://edamontology.org/format_2333"},
        "segmentation_model": {"class": "Directory", "path": model.name},
        "cases_per_batch": 1,
    }), encoding="utf-8")  # fmt: skip
    return Inputs(root=root, job=job, user=_user(root / "user"))


def environment(inputs: Inputs, *, programs: Path) -> dict[str, str]:
    """Return the environment of the commands: the user's own home and secrets, and nothing that steers medweave."""
    inherited = {name: text for name, text in os.environ.items() if not name.startswith(("MEDWEAVE", "XDG_"))}
    return inherited | VARIABLES | {"HOME": str(inputs.user), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


def site(inputs: Inputs, *, port: int, folder: Path) -> str:
    """Return the text of a site file: this machine, one behind ssh for `segment`, and a cluster, with secrets by reference."""
    roles = {role: {"deployment": "ward"} for role in ("deidentify", "check", "preprocess")}
    document = {
        "title": "a ward and its server",
        "deployments": {
            "ward": {"type": "medweave.local", "config": {}},
            "server": {
                "type": "medweave.ssh",
                "workdir": str(folder),
                "config": {
                    "nodes": [f"127.0.0.1:{port}"], "username": "me", "sshKey": str(inputs.root / "ssh" / "id_ed25519"),
                    "sshKeyPassphraseFile": str(inputs.user / ".ssh" / "passphrase"),
                    "knownHosts": str(inputs.root / "ssh" / "known_hosts"),
                },
            },
            "pods": {
                "type": "medweave.helm", "workdir": "/work",
                "config": {"chart": "oci://registry.invalid/chart", "kubeconfig": str(inputs.user / ".kube" / "config")},
            },
        },
        "roles": roles | {"segment": {"deployment": "server"}},
    }  # fmt: skip
    return yaml.safe_dump(document, sort_keys=False)


def _user(folder: Path) -> Path:
    for name, text in _SECRET_FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o600)
    return folder


def _slices(number: int, name: str, patient: str, birth: str) -> list[Dataset]:
    volume, _ = simple_chest(number)
    series = CtSeries(
        key=f"s{number}", patient=patient, shape=(50, 64, 80), spacing_mm=(5.0, 5.0, 5.0),
        stored=volume[::-1, ::-1].transpose(2, 1, 0).astype("int32") + 1024,
    )  # fmt: skip
    datasets = series.datasets()
    for dataset in datasets:
        dataset.PatientName, dataset.PatientBirthDate = f"{name}^{HEADERS['given_name']}", birth
        dataset.OtherPatientIDs, dataset.PatientAddress = HEADERS["other_patient_id"], f"1 {HEADERS['address']}"
        dataset.PatientTelephoneNumbers, dataset.PatientBirthName = HEADERS["telephone"], HEADERS["maiden_name"]
        dataset.AccessionNumber, dataset.InstitutionName = HEADERS["accession_number"], HEADERS["institution"]
        dataset.ReferringPhysicianName = dataset.OperatorsName = f"{HEADERS['referring_physician']}^Ada"
        dataset.OperatorsName, dataset.StationName = HEADERS["operator"], HEADERS["station"]
        dataset.DeviceSerialNumber, dataset.ProtocolName = HEADERS["device_serial_number"], HEADERS["protocol"]
        dataset.StudyDescription, dataset.PatientComments = HEADERS["study_description"], HEADERS["comments"]
        dataset.StudyDate = dataset.SeriesDate = dataset.ContentDate = HEADERS["study_date"]
        dataset.add_new(
            0x00080022, "LO", HEADERS["damaged_date"]
        )  # a date of another kind, which no reader understands
        dataset.ManufacturerModelName = f"bought for {name}"
        dataset.private_block(0x0029, PRIVATE["private_creator"], create=True).add_new(1, "LO", PRIVATE["private_text"])
        dataset.add_new(0x0018FFF1, "UN", PRIVATE["unknown_vr"].encode())
        dataset.add_new(0x60000010, "US", 8)
        dataset.add_new(0x60000022, "LO", HEADERS["overlay_text"])
        nested = Dataset()
        nested.ReferencedSOPClassUID, nested.ReferencedSOPInstanceUID = dataset.SOPClassUID, dataset.SOPInstanceUID
        nested.PatientName = HEADERS["nested_name"]
        dataset.SourceImageSequence = DicomSequence([copy.deepcopy(nested)])
    return datasets
